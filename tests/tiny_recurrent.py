"""Tiny models with random weights whose memory is a state: ``mamba`` has nothing else, ``jamba`` a layer of
attention as well."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from tiny import copy_vocabulary

_WIDTH, _HIDDEN, _CONTEXT = 32, 64, 4_096
_CONV, _INNER, _STATE, _RANK = 4, 2 * _WIDTH, 16, 4

Shapes = dict[str, tuple[int, ...]]


def write_recurrent_model(vocabulary: Path, target: Path, architecture: str) -> None:
    """Writes a GGUF of two blocks, with the vocabulary of another GGUF."""
    writer = gguf.GGUFWriter(target, architecture)
    tokens = copy_vocabulary(gguf.GGUFReader(vocabulary), writer, ())
    hybrid = architecture == "jamba"
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(_HIDDEN if hybrid else 0)
    writer.add_block_count(2)
    writer.add_head_count(2 if hybrid else 0)
    if hybrid:
        writer.add_head_count_kv([0, 2])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(_CONV)
    writer.add_ssm_inner_size(_INNER)
    writer.add_ssm_state_size(_STATE)
    writer.add_ssm_time_step_rank(_RANK)
    writer.add_vocab_size(tokens)
    chance = np.random.default_rng(7)
    for name, shape in _shapes(tokens, hybrid).items():
        writer.add_tensor(name, _weights(name, shape, chance))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _weights(name: str, shape: tuple[int, ...], chance: np.random.Generator) -> np.ndarray:
    if "norm" in name:
        return np.ones(shape, np.float32)
    if name.endswith("ssm_a"):
        return -np.exp(chance.normal(size=shape)).astype(np.float32)  # what is remembered fades
    # llama.cpp wants all but matrices in full precision.
    exact = len(shape) == 1 or "conv1d" in name
    return chance.normal(0, 1 / np.sqrt(shape[-1]), shape).astype(np.float32 if exact else np.float16)


def _shapes(tokens: int, hybrid: bool) -> Shapes:
    blocks = [_state_block(hybrid), _attention_block() if hybrid else _state_block(hybrid)]
    return {
        "token_embd.weight": (tokens, _WIDTH),
        "output_norm.weight": (_WIDTH,),
        **{f"blk.{at}.{name}": shape for at, block in enumerate(blocks) for name, shape in block.items()},
    }


def _state_block(hybrid: bool) -> Shapes:
    norms = {"ssm_dt_norm.weight": (_RANK,), "ssm_b_norm.weight": (_STATE,), "ssm_c_norm.weight": (_STATE,)}
    return {
        "attn_norm.weight": (_WIDTH,),
        "ssm_in.weight": (2 * _INNER, _WIDTH),
        "ssm_conv1d.weight": (_INNER, _CONV),
        "ssm_conv1d.bias": (_INNER,),
        "ssm_x.weight": (_RANK + 2 * _STATE, _INNER),
        "ssm_dt.weight": (_INNER, _RANK),
        "ssm_dt.bias": (_INNER,),
        "ssm_a": (_INNER, _STATE),
        "ssm_d": (_INNER,),
        "ssm_out.weight": (_WIDTH, _INNER),
        **(norms | _feed_forward() if hybrid else {}),
    }


def _attention_block() -> Shapes:
    square = (_WIDTH, _WIDTH)
    names = ("attn_q", "attn_k", "attn_v", "attn_output")
    return {"attn_norm.weight": (_WIDTH,), **{f"{name}.weight": square for name in names}, **_feed_forward()}


def _feed_forward() -> Shapes:
    wide = (_HIDDEN, _WIDTH)
    return {
        "ffn_norm.weight": (_WIDTH,),
        "ffn_gate.weight": wide,
        "ffn_up.weight": wide,
        "ffn_down.weight": (_WIDTH, _HIDDEN),
    }
