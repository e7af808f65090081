"""The vocabulary as llama.cpp knows it."""

from __future__ import annotations

import ctypes
from typing import Any

from server.engine.llama_native import metadata, native


class Tokens:
    """The vocabulary as llama.cpp knows it: ids, bytes and attributes. Safe from any thread."""

    def __init__(self, model: Any) -> None:
        self.pointer: int = native.llama_model_get_vocab(model)
        self.size = int(native.llama_vocab_n_tokens(self.pointer))
        self.bos = _token(native.llama_vocab_bos(self.pointer))
        self.eos = _token(native.llama_vocab_eos(self.pointer))
        self.fill_in = self._fill_in()
        self.adds_bos = bool(native.llama_vocab_get_add_bos(self.pointer))
        kind = int(native.llama_vocab_type(self.pointer))
        spaced = metadata(model, "tokenizer.ggml.add_space_prefix")
        self.prefixes_space = kind == native.LLAMA_VOCAB_TYPE_SPM and spaced != "false"
        self.tokenize_function = ctypes.cast(native._lib.llama_tokenize, ctypes.c_void_p).value

    def tokenize(self, text: bytes, *, special: bool, framed: bool = False) -> list[int]:
        """Ids of ``text``; ``framed`` with BOS, EOS and the like where the vocabulary adds them. With
        ``special`` control tokens' texts become those tokens; user-defined tokens match either way."""
        capacity = len(text) + 8
        for _attempt in range(2):
            ids = (ctypes.c_int32 * capacity)()
            count = native.llama_tokenize(self.pointer, text, len(text), ids, capacity, framed, special)
            if count >= 0:
                return ids[:count]
            capacity = -count
        raise AssertionError("llama_tokenize asks for more room than it said it needs")

    def _fill_in(self) -> tuple[int, int, int] | None:
        before, after, middle = (
            _token(each(self.pointer))
            for each in (native.llama_vocab_fim_pre, native.llama_vocab_fim_suf, native.llama_vocab_fim_mid)
        )
        return None if before is None or after is None or middle is None else (before, after, middle)

    def table(self) -> list[bytes]:
        """The bytes of every token; control tokens show their own text."""
        room = ctypes.create_string_buffer(1024)
        return [self._piece(token, room) for token in range(self.size)]

    def _piece(self, token: int, room: ctypes.Array[ctypes.c_char]) -> bytes:
        count = native.llama_token_to_piece(self.pointer, token, room, len(room), 0, True)
        if count < 0:
            room = ctypes.create_string_buffer(-count)
            count = native.llama_token_to_piece(self.pointer, token, room, len(room), 0, True)
        return room.raw[: max(count, 0)]

    def ends_generation(self, token: int) -> bool:
        return bool(native.llama_vocab_is_eog(self.pointer, token))

    def is_markup(self, token: int) -> bool:
        """Control, unknown and unused tokens: never ordinary text."""
        attributes = int(native.llama_vocab_get_attr(self.pointer, token))
        return bool(
            attributes
            & (
                native.LLAMA_TOKEN_ATTR_CONTROL
                | native.LLAMA_TOKEN_ATTR_UNKNOWN
                | native.LLAMA_TOKEN_ATTR_UNUSED
            )
        )

    def is_user_defined(self, token: int) -> bool:
        attributes = int(native.llama_vocab_get_attr(self.pointer, token))
        return bool(attributes & native.LLAMA_TOKEN_ATTR_USER_DEFINED)


def _token(value: int) -> int | None:
    return int(value) if value >= 0 else None
