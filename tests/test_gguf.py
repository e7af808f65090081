"""The look at a GGUF file before it is loaded: what is well formed passes, everything else is one line."""

from __future__ import annotations

import os
import random
import struct
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server import gguf
from server.errors import StartupFailed
from server.model_file import check, split_names

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMS = dict(zip((U8, I8, U16, I16, U32, I32, F32, BOOL, U64, I64, F64), "BbHhIifBQqd", strict=True))


def pack(kind: int, value: Any) -> bytes:
    return struct.pack("<" + FORMS[kind], value)


def text(value: str | bytes, length: int | None = None) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return pack(U64, len(data) if length is None else length) + data


def entry(key: str | bytes, kind: int, value: Any) -> bytes:
    return text(key) + pack(U32, kind) + (text(value) if kind == STRING else pack(kind, value))


def array(key: str, element: int, values: Iterable[Any], length: int | None = None) -> bytes:
    items = [text(each) if element == STRING else pack(element, each) for each in values]
    count = len(items) if length is None else length
    return text(key) + pack(U32, ARRAY) + pack(U32, element) + pack(U64, count) + b"".join(items)


def tensor(name: str, shape: Iterable[int], kind: int, offset: int, dimensions: int | None = None) -> bytes:
    sizes = list(shape)
    head = text(name) + pack(U32, len(sizes) if dimensions is None else dimensions)
    return head + b"".join(pack(I64, each) for each in sizes) + pack(U32, kind) + pack(U64, offset)


ARCHITECTURE = entry("general.architecture", STRING, "llama")
TENSORS = [tensor("a", [64, 2], 2, 0), tensor("b", [8], 0, 96)]  # 72 bytes of Q4_0, then 32 of F32


@dataclass
class File:
    """A GGUF in parts, any of which a case replaces."""

    magic: bytes = b"GGUF"
    version: int = 3
    keys: list[bytes] = field(default_factory=lambda: [ARCHITECTURE])
    tensors: list[bytes] = field(default_factory=lambda: list(TENSORS))
    key_count: int | None = None
    tensor_count: int | None = None
    data: bytes = bytes(128)
    alignment: int = 32

    def bytes(self) -> bytes:
        head = self.magic + pack(U32, self.version)
        head += pack(I64, len(self.tensors) if self.tensor_count is None else self.tensor_count)
        head += pack(I64, len(self.keys) if self.key_count is None else self.key_count)
        head += b"".join(self.keys) + b"".join(self.tensors)
        return head + bytes(-len(head) % self.alignment) + self.data


TOKENS = array("tokenizer.ggml.tokens", STRING, ["<s>", "</s>", "a"])


def file(*keys: bytes, **changes: Any) -> bytes:
    return File(keys=[ARCHITECTURE, *keys], **changes).bytes()


MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "empty"),
    "one byte": (b"G", "starts with"),
    "bad magic": (File(magic=b"GGML").bytes(), "starts with"),
    "text file": (b"#!/bin/sh\necho\n", "starts with"),
    "version 0": (File(version=0).bytes(), "version is 0"),
    "version 1": (File(version=1).bytes(), "version is 1"),
    "future version": (File(version=4).bytes(), "version is 4"),
    "big endian": (File(version=3 << 24).bytes(), "big-endian"),
    "keys 2^63-1": (File(key_count=2**63 - 1).bytes(), "metadata keys"),
    "keys negative": (File(key_count=-1).bytes(), "metadata keys"),
    "one key too many": (File(key_count=2, tensors=[], data=b"").bytes(), "key is empty"),
    "tensors 2^63-1": (File(tensor_count=2**63 - 1).bytes(), "tensors"),
    "tensors negative": (File(tensor_count=-1).bytes(), "tensors"),
    "more tensors than bytes": (File(tensor_count=1000).bytes(), "tensor"),
    "key length 2^64-1": (file(text("k", 2**64 - 1)), "metadata key has"),
    "key length past the end": (file(text("k", 60_000)), "ends early"),
    "empty key": (file(entry("", U8, 1)), "key is empty"),
    "duplicate key": (file(entry("k", U8, 1), entry("k", U8, 1)), "comes twice"),
    "key not UTF-8": (file(entry(b"\xff", U8, 1)), "not UTF-8"),
    "unknown value type": (file(text("k") + pack(U32, 13) + bytes(8)), "unknown type 13"),
    "value type 2^32-1": (file(text("k") + pack(U32, 2**32 - 1) + bytes(8)), "unknown type"),
    "string length 2^64-1": (file(text("k") + pack(U32, STRING) + text("v", 2**64 - 1)), "has"),
    "string length past the end": (file(text("k") + pack(U32, STRING) + text("v", 1 << 29)), "ends early"),
    "array of 2^61": (file(array("k", U64, [], 2**61)), "ends early"),
    "array of 2^64-1 bytes": (file(array("k", U8, [], 2**64 - 1)), "ends early"),
    "array of 2^63 texts": (file(array("k", STRING, [], 2**63)), "texts"),
    "array of texts past the end": (file(array("k", STRING, ["a"], 1000)), "k"),
    "array of arrays": (file(text("k") + pack(U32, ARRAY) + pack(U32, ARRAY) + bytes(32)), "unknown type 9"),
    "array of unknown elements": (file(text("k") + pack(U32, ARRAY) + pack(U32, 99) + bytes(32)), "type 99"),
    "text of 2^64-1 in an array": (file(array("k", STRING, [], 1) + pack(U64, 2**64 - 1)), "has a text of"),
    "token of 1 MB": (file(array("tokenizer.ggml.tokens", STRING, ["x" * 1_000_000])), "text of 1000000"),
    "alignment 0": (file(entry("general.alignment", U32, 0)), "power of two"),
    "alignment 3": (file(entry("general.alignment", U32, 3)), "power of two"),
    "alignment huge": (file(entry("general.alignment", U32, 1 << 31)), "power of two"),
    "alignment a text": (file(entry("general.alignment", STRING, "32")), "power of two"),
    "no architecture": (File(keys=[]).bytes(), "architecture"),
    "architecture a number": (File(keys=[entry("general.architecture", U32, 1)]).bytes(), "architecture"),
    "architecture empty": (File(keys=[entry("general.architecture", STRING, "")]).bytes(), "architecture"),
    "block count 0": (file(entry("llama.block_count", U32, 0)), "block_count"),
    "block count 2^31": (file(entry("llama.block_count", U32, 2**31)), "block_count"),
    "block count a text": (file(entry("llama.block_count", STRING, "4")), "block_count"),
    "block count a bool": (file(entry("llama.block_count", BOOL, 1)), "block_count"),
    "embedding length 0": (file(entry("llama.embedding_length", U32, 0)), "embedding_length"),
    "context length negative": (file(entry("llama.context_length", I32, -1)), "context_length"),
    "tokens are numbers": (file(array("tokenizer.ggml.tokens", U32, [1])), "wrong type"),
    "tokens are no array": (file(entry("tokenizer.ggml.tokens", U32, 1)), "wrong type"),
    "scores are bytes": (file(TOKENS, array("tokenizer.ggml.scores", U8, [1, 2, 3])), "wrong type"),
    "scores too few": (file(TOKENS, array("tokenizer.ggml.scores", F32, [1, 2])), "2 entries for 3"),
    "token types too few": (file(TOKENS, array("tokenizer.ggml.token_type", I32, [1])), "1 entries for 3"),
    "token types are texts": (file(TOKENS, array("tokenizer.ggml.token_type", STRING, ["1"])), "wrong type"),
    "merges are numbers": (file(array("tokenizer.ggml.merges", F32, [1.0])), "wrong type"),
    "tensor name too long": (file(tensors=[tensor("n" * 64, [8], 0, 0)]), "tensor's name"),
    "duplicate tensor name": (file(tensors=[tensor("a", [8], 0, 0), tensor("a", [8], 0, 32)]), "comes twice"),
    "five dimensions": (file(tensors=[tensor("a", [8, 1, 1, 1, 1], 0, 0)]), "5 dimensions"),
    "2^32-1 dimensions": (file(tensors=[tensor("a", [8], 0, 0, 2**32 - 1)]), "dimensions"),
    "dimension 0": (file(tensors=[tensor("a", [8, 0], 0, 0)]), "below 1"),
    "dimension negative": (file(tensors=[tensor("a", [-8], 0, 0)]), "below 1"),
    "product wraps to a small one": (file(tensors=[tensor("a", [2**33, 2**31], 0, 0)]), "counted"),
    "product wraps to zero": (file(tensors=[tensor("a", [2**32, 2**32], 0, 0)]), "counted"),
    "larger than the file": (file(tensors=[tensor("a", [2**20, 2**20], 0, 0)]), "beyond its end"),
    "unknown tensor type": (file(tensors=[tensor("a", [8], 99, 0)]), "unknown type 99"),
    "removed tensor type": (file(tensors=[tensor("a", [32], 4, 0)]), "unknown type 4"),
    "row no multiple of the block": (file(tensors=[tensor("a", [33], 2, 0)]), "multiple of 32"),
    "offset not aligned": (file(tensors=[tensor("a", [8], 0, 4)]), "aligned"),
    "offset past the end": (file(tensors=[tensor("a", [8], 0, 1 << 40)]), "beyond its end"),
    "offset 2^64-32": (file(tensors=[tensor("a", [8], 0, 2**64 - 32)]), "beyond its end"),
    "last tensor cut by a byte": (file(data=bytes(127)), "beyond its end"),
    "no data at all": (file(data=b""), "beyond its end"),
    "tensors overlap": (file(tensors=[tensor("a", [16], 0, 0), tensor("b", [8], 0, 32)]), "overlaps"),
    "tensors at one place": (file(tensors=[tensor("a", [8], 0, 0), tensor("b", [8], 0, 0)]), "overlaps"),
    "vocabulary only": (file(TOKENS, tensors=[]), "only a vocabulary"),
    "a later part of a split model": (file(entry("split.count", U16, 3)), "one of 3 parts"),
}  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return path

    return write


def reason(path: Path) -> str:
    with pytest.raises(StartupFailed) as caught:
        check(path)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_refused_with_the_reason(write: Callable[[bytes], Path], case: str) -> None:
    data, expected = MALFORMED[case]
    path = write(data)
    assert reason(path).startswith(str(path))
    assert expected in reason(path)


WELL_FORMED: dict[str, bytes] = {
    "plain": File().bytes(),
    "version 2": File(version=2).bytes(),
    "every scalar type": file(*(entry(f"k{kind}", kind, 1) for kind in FORMS)),
    "an array of every type": file(*(array(f"k{kind}", kind, [1, 0]) for kind in FORMS)),
    "empty arrays": file(array("k", STRING, []), array("l", F64, [])),
    "vocabulary": file(TOKENS, array("tokenizer.ggml.scores", F32, [0, 0, 0])),
    "own alignment": file(entry("general.alignment", U32, 64), tensors=TENSORS[:1], alignment=64),
    "last tensor ends with the file": file(tensors=TENSORS[:1], data=bytes(72)),
    "four dimensions": file(tensors=[tensor("a", [2, 2, 2, 2], 0, 0)]),
    "tensors out of order": file(tensors=[tensor("b", [8], 0, 96), tensor("a", [64, 2], 2, 0)]),
    "a gap between tensors": file(tensors=[tensor("a", [8], 0, 0), tensor("b", [8], 0, 96)]),
    "a long name": file(tensors=[tensor("n" * 63, [8], 0, 0)]),
}


@pytest.mark.parametrize("case", WELL_FORMED)
def test_well_formed_files_pass(write: Callable[[bytes], Path], case: str) -> None:
    assert check(write(WELL_FORMED[case])).architecture == "llama"


def test_the_header_says_what_the_file_says(write: Callable[[bytes], Path]) -> None:
    keys = [
        TOKENS,
        entry("llama.context_length", U32, 4096),
        entry("tokenizer.chat_template", STRING, "é{{ x }}"),
    ]
    header = check(write(file(*keys, entry("flag", BOOL, 1), entry("pi", F64, 3.5))))
    assert (header.version, header.tensors, header.splits) == (3, 2, 1)
    assert (header.context_length, header.vocabulary, header.chat_template) == (4096, 3, "é{{ x }}")
    assert (header.metadata["flag"], header.metadata["pi"]) == (True, 3.5)
    assert header.metadata["tokenizer.ggml.tokens"] == gguf.Array(STRING, 3)


@pytest.mark.parametrize("template", [b"\xff\xfe", b"x" * (gguf.KEPT_STRING + 1)])
def test_a_template_that_is_no_text_or_huge_is_left_out(
    write: Callable[[bytes], Path], template: bytes
) -> None:
    header = check(write(file(entry("tokenizer.chat_template", STRING, template), entry("after", U8, 7))))
    assert header.chat_template is None
    assert header.metadata["after"] == 7


def test_large_arrays_are_skipped_across_buffers(write: Callable[[bytes], Path]) -> None:
    tokens = array("tokenizer.ggml.tokens", STRING, [f"token{n}" * 3 for n in range(60_000)])
    scores = array("tokenizer.ggml.scores", F32, [0.0] * 60_000)
    header = check(write(file(tokens, array("bytes", U8, bytes(3_000_000)), scores, entry("after", U8, 7))))
    assert (header.vocabulary, header.metadata["after"]) == (60_000, 7)


def rich_file() -> bytes:
    """A small file with some of everything, its header longer than 4 kB."""
    keys = [entry(f"k{kind}", kind, 1) for kind in FORMS] + [
        array(f"a{kind}", kind, [1, 0]) for kind in FORMS
    ]
    tokens = [f"t{n}" for n in range(400)]
    keys += [array("tokenizer.ggml.tokens", STRING, tokens), array("tokenizer.ggml.scores", F32, [0.0] * 400)]
    tensors = [tensor(f"blk.{n}.weight", [8], 0, 32 * n) for n in range(20)]
    return file(*keys, tensors=tensors, data=bytes(20 * 32))


def test_cut_anywhere_it_is_refused(write: Callable[[bytes], Path]) -> None:
    data = rich_file()
    path = write(data)
    check(path)
    assert len(data) > 5000
    for length in sorted({*range(4097), *random.Random(1).sample(range(4097, len(data)), 200)}, reverse=True):
        os.truncate(path, length)
        with pytest.raises(StartupFailed):
            check(path)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6000), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6))
def test_overwritten_bytes_are_refused_or_harmless(changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(rich_file())
    for at, new in changes:
        data[at : at + len(new)] = new
    refuses_or_agrees(bytes(data))


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=300))
def test_bytes_after_a_good_start_are_refused_or_harmless(tail: bytes) -> None:
    refuses_or_agrees(b"GGUF" + pack(U32, 3) + pack(I64, 1) + pack(I64, 1) + tail)


def refuses_or_agrees(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(data)
        file.flush()
        try:
            check(Path(file.name))
        except StartupFailed as error:
            refused = error.message
        else:
            return
        assert refused.startswith(file.name)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "file").write_bytes(File().bytes())
    assert "regular" in reason(tmp_path / "pipe")
    assert "regular" in reason(Path("/dev/zero"))
    assert "folder" in reason(tmp_path)
    assert "not exist" in reason(tmp_path / "none.gguf")
    assert "link" in reason(tmp_path / "loop")
    assert check(tmp_path / "link").tensors == 2


def test_a_sparse_file_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    path.touch()
    os.truncate(path, 5 << 30)
    assert "starts with" in reason(path)


def test_no_descriptor_is_left_open(write: Callable[[bytes], Path]) -> None:
    before = os.dup(0)
    os.close(before)
    for data in (File().bytes(), b"none", File(version=9).bytes()):
        path = write(data)
        for _ in range(3):
            try:
                check(path)
            except StartupFailed:
                continue
    after = os.dup(0)
    os.close(after)
    assert after == before


def test_all_parts_of_a_split_model_are_looked_at(tmp_path: Path) -> None:
    names = split_names("m-00001-of-00003.gguf")
    assert names == ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]
    for name in names:
        (tmp_path / name).write_bytes(file(entry("split.count", U16, 3)))
    assert check(tmp_path / names[0]).splits == 3
    assert "give the first one" in reason(tmp_path / names[1])
    (tmp_path / names[2]).write_bytes(b"GGUF")
    assert names[2] in reason(tmp_path / names[0])


@pytest.mark.parametrize(
    "name", ["m.gguf", "m-00002-of-00003.gguf", "m-00001-of-3.gguf", "-of-.gguf", "m-00001-of-99999.gguf", ""]
)
def test_other_names_are_of_one_file(name: str) -> None:
    assert split_names(name) == [name]


@pytest.mark.model
@pytest.mark.parametrize(("key", "tokens"), [("smollm2-135m", 49_152), ("qwen2.5-coder-0.5b", 151_936)])
def test_real_models_pass(model_file: Callable[[str], Path], key: str, tokens: int) -> None:
    header = check(model_file(key))
    assert header.vocabulary == tokens
    assert header.chat_template


def test_vocabularies_of_many_families_are_well_formed(sdist_dir: Path) -> None:
    """They are refused only because they hold no weights."""
    paths = sorted((sdist_dir / "vendor/llama.cpp/models").glob("*.gguf"))
    assert len(paths) > 15
    for path in paths:
        assert "only a vocabulary" in reason(path)
