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


def tiny_model(vocabulary: Path, markers: Sequence[str] = (), pooling: int | None = None) -> Path:
    """Such a model, written on first use: half a minute for a large vocabulary. The name says what it is.
    With a ``pooling`` (GGUF's number for one) it makes embeddings."""
    about = repr((vocabulary.name, markers, pooling, Path(__file__).read_text(encoding="utf-8")))
    target = (
        cache_folder() / "tiny" / f"{vocabulary.stem}-{hashlib.sha256(about.encode()).hexdigest()[:16]}.gguf"
    )
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = target.with_suffix(f".{os.getpid()}")
        write_tiny_model(vocabulary, staging, markers, pooling)
        os.replace(staging, target)
    return target


def write_tiny_model(
    vocabulary: Path, target: Path, markers: Sequence[str] = (), pooling: int | None = None, *, seed: int = 0
) -> None:
    """Writes a GGUF with one block, of the ``bert`` architecture if the vocabulary is of one, else of
    ``llama``: the vocabulary of another GGUF, the markers added to it as user-defined tokens, weights of a
    normal distribution."""
    source = gguf.GGUFReader(vocabulary)
    bert = source.fields["general.architecture"].contents() == "bert"
    writer = gguf.GGUFWriter(target, "bert" if bert else "llama")
    tokens = copy_vocabulary(source, writer, markers)
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(_HIDDEN)
    writer.add_block_count(1)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_vocab_size(tokens)
    if pooling is not None:
        writer.add_pooling_type(gguf.PoolingType(pooling))
    if bert:
        writer.add_layer_norm_eps(1e-5)
        writer.add_causal_attention(False)
    else:
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_dimension_count(_WIDTH // _HEADS)
    chance = np.random.default_rng(seed)
    for name, shape in (_bert_shapes if bert else _shapes)(tokens).items():
        weights = np.ones(shape) if "norm" in name else chance.normal(0, 1 / np.sqrt(_WIDTH), shape)
        # llama.cpp wants what is added to an activation, or multiplies it, in full precision.
        full = len(shape) == 1 or name.startswith(("token_types", "position_embd"))
        writer.add_tensor(name, weights.astype(np.float32 if full else np.float16))
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


def _bert_shapes(tokens: int) -> dict[str, tuple[int, ...]]:
    square = (_WIDTH, _WIDTH)
    weights = {
        "attn_q": square,
        "attn_k": square,
        "attn_v": square,
        "attn_output": square,
        "attn_output_norm": (_WIDTH,),
        "ffn_up": (_HIDDEN, _WIDTH),
        "ffn_down": (_WIDTH, _HIDDEN),
        "layer_output_norm": (_WIDTH,),
    }
    return {
        "token_embd.weight": (tokens, _WIDTH),
        "token_types.weight": (2, _WIDTH),
        "position_embd.weight": (_CONTEXT, _WIDTH),
        "token_embd_norm.weight": (_WIDTH,),
        "token_embd_norm.bias": (_WIDTH,),
        **{f"blk.0.{name}.weight": shape for name, shape in weights.items()},
        **{f"blk.0.{name}.bias": shape[:1] for name, shape in weights.items()},
    }
