"""Tiny models with random weights: a real vocabulary, with markers added as tokens, and next to nothing else.

With random weights nothing but the constraint makes an answer right.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

from server.dialects.table import DIALECTS
from server.download import cache_folder
from server.engine.vocabulary import looks_like_markup

_WIDTH, _HIDDEN, _HEADS, _CONTEXT = 32, 64, 2, 8_192
_USER_DEFINED = 4

TOKEN_MARKERS = tuple(
    sorted(
        {
            text
            for row in DIALECTS
            for text in row.hidden_texts
            if text in row.inner or looks_like_markup(text.encode())
        }
    )
)
"""Markers that are single tokens in models of some dialect."""


def tiny_model(vocabulary: Path, markers: Sequence[str] = ()) -> Path:
    """Such a model, written on first use: half a minute for a large vocabulary. The name says what it is."""
    about = repr((vocabulary.name, markers, Path(__file__).read_text(encoding="utf-8")))
    target = (
        cache_folder() / "tiny" / f"{vocabulary.stem}-{hashlib.sha256(about.encode()).hexdigest()[:16]}.gguf"
    )
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = target.with_suffix(f".{os.getpid()}")
        write_tiny_model(vocabulary, staging, markers)
        os.replace(staging, target)
    return target


def write_tiny_model(vocabulary: Path, target: Path, markers: Sequence[str] = (), *, seed: int = 0) -> None:
    """Writes a GGUF of the ``llama`` architecture with one block: the vocabulary of another GGUF, the markers
    added to it as user-defined tokens, weights of a normal distribution."""
    source = gguf.GGUFReader(vocabulary)
    writer = gguf.GGUFWriter(target, "llama")
    tokens = copy_vocabulary(source, writer, markers)
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(_HIDDEN)
    writer.add_block_count(1)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_vocab_size(tokens)
    chance = np.random.default_rng(seed)
    for name, shape in _shapes(tokens).items():
        weights = np.ones(shape) if "norm" in name else chance.normal(0, 1 / np.sqrt(_WIDTH), shape)
        # llama.cpp wants norms in full precision.
        writer.add_tensor(name, weights.astype(np.float32 if len(shape) == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copy_vocabulary(source: gguf.GGUFReader, writer: gguf.GGUFWriter, markers: Sequence[str]) -> int:
    """Copies what is about tokens. Returns how many there are."""
    fields = {
        key: each.contents() for key, each in source.fields.items() if key.startswith("tokenizer.ggml.")
    }
    known = set(fields["tokenizer.ggml.tokens"])
    added = [each for each in markers if each not in known]
    more = {"tokens": added, "token_type": [_USER_DEFINED] * len(added), "scores": [0.0] * len(added)}
    for key, value in fields.items():
        name = key.rpartition(".")[2]
        match value:
            case list():
                writer.add_array(key, [*value, *more.get(name, ())])
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case str():
                writer.add_string(key, value)
    return len(known) + len(added)


def _shapes(tokens: int) -> dict[str, tuple[int, ...]]:
    square = (_WIDTH, _WIDTH)
    block = {
        "attn_norm": (_WIDTH,),
        "attn_q": square,
        "attn_k": square,
        "attn_v": square,
        "attn_output": square,
        "ffn_norm": (_WIDTH,),
        "ffn_gate": (_HIDDEN, _WIDTH),
        "ffn_up": (_HIDDEN, _WIDTH),
        "ffn_down": (_WIDTH, _HIDDEN),
    }
    return {
        "token_embd.weight": (tokens, _WIDTH),
        "output_norm.weight": (_WIDTH,),
        **{f"blk.0.{name}.weight": shape for name, shape in block.items()},
    }
