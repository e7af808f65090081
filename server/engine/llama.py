"""llama.cpp behind a few Python names: load a model, evaluate batches, copy and drop sequences.

The only importer of ``llama_cpp`` (its low-level ctypes API). Knows nothing of requests, grammars or
text answers. One ``Llama`` is used by one thread, except ``Tokens``, which any thread may use.

llama.cpp answers some mistakes with ``abort()``: callers keep batches within ``Batch`` and sequence
numbers below ``Llama.sequences``.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.engine.cores import physical_cores
from server.engine.llama_devices import gpus, offload, refuse_large_context
from server.engine.llama_native import clear_complaints, complaint, metadata, native, pointer, version
from server.engine.llama_tokens import Tokens
from server.engine.protocol import Device
from server.errors import StartupFailed

Logits = NDArray[np.float32]
State = NDArray[np.uint8]

CONTEXT_LIMIT = 32768
"""Cells of a context whose size was not asked for, at most."""
SEQUENCE_LIMIT = 256
SPARE_ROWS = 64
"""Rows of logits that a batch may have for drafts, beyond one a sequence. A row has a float per token of the
vocabulary."""
FLASH_ATTENTION = {
    "auto": native.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "off": native.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "on": native.LLAMA_FLASH_ATTN_TYPE_ENABLED,
}
CACHE_TYPES = {
    "f16": (native.GGML_TYPE_F16, 16.0),
    "q8_0": (native.GGML_TYPE_Q8_0, 8.5),
    "q4_0": (native.GGML_TYPE_Q4_0, 4.5),
}
"""llama.cpp's type of a name, and the bits that a value takes."""


class DecodeFailed(Exception):
    """llama.cpp could not evaluate a batch; its memory is in an unknown state."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to load a model. ``context`` 0 is the model's own length, at most ``CONTEXT_LIMIT``;
    ``threads`` 0 all physical cores; ``gpu_layers`` -1 all layers if the build can offload.
    ``cached`` is how many sequences are kept beyond the ``slots``. The last four are llama.cpp's own, with
    the names of ``FLASH_ATTENTION`` and ``CACHE_TYPES``."""

    context: int = 0
    slots: int = 4
    cached: int = 12
    threads: int = 0
    gpu_layers: int = -1
    mmap: bool = True
    flash_attention: str = "auto"
    cache_type: str = "f16"
    batch: int = 2048
    micro_batch: int = 512


class Weights:
    """A loaded model file, or only its vocabulary. ``pooling`` is how the file wants the vectors of a text's
    tokens to become one (GGUF's number); 0 if it does not, as of a model that generates."""

    def __init__(
        self, path: Path, *, gpu_layers: int = 0, mmap: bool = True, vocabulary_only: bool = False
    ) -> None:
        self.path = path
        parameters = native.llama_model_default_params()
        parameters.vocab_only = vocabulary_only
        parameters.n_gpu_layers = gpu_layers
        parameters.load_mode = native.LLAMA_LOAD_MODE_MMAP if mmap else native.LLAMA_LOAD_MODE_NONE
        clear_complaints()
        self.pointer = native.llama_model_load_from_file(os.fsencode(path), parameters)
        if not self.pointer:
            raise StartupFailed(f"cannot load {path.name}: {complaint()}")
        self.tokens = Tokens(self.pointer)
        self.architecture = metadata(self.pointer, "general.architecture") or "unknown"
        self.context_train = int(native.llama_model_n_ctx_train(self.pointer))
        self.layers = int(native.llama_model_n_layer(self.pointer)) + 1  # with the output layer
        pooling = metadata(self.pointer, f"{self.architecture}.pooling_type") or ""
        self.pooling = int(pooling) if pooling.isdecimal() else 0
        names = ", ".join(each.name for each in gpus()) if gpu_layers else "CPU"
        self.device = Device(names, self.layers, min(gpu_layers, self.layers))
        self.window = int(native.llama_model_n_swa(self.pointer))
        template = native.llama_model_chat_template(self.pointer, None)
        self.template: str | None = template.decode("utf-8", "replace") if template else None

    @classmethod
    def opened(cls, path: Path, options: Options) -> Weights:
        """The weights, on the devices that the options say. Raises ``StartupFailed``."""
        return cls(path, gpu_layers=offload(path, options.gpu_layers), mmap=options.mmap)

    def refuse_unless_generative(self) -> None:
        """Raises ``StartupFailed`` for models that do not continue text token by token."""
        name = self.path.name
        causal = metadata(self.pointer, f"{self.architecture}.attention.causal") != "false"
        decodes = causal and native.llama_model_has_decoder(self.pointer)
        if not decodes or native.llama_model_has_encoder(self.pointer):
            raise StartupFailed(f"{name} is not a text generation model ({self.architecture})")
        if native.llama_model_is_diffusion(self.pointer) or not self.tokens.size:
            raise StartupFailed(f"{name} cannot be generated from token by token ({self.architecture})")

    def cell_bytes(self, cache_type: str = "f16") -> float:
        """About how many bytes one context cell takes: keys and values of all layers. 0 where that cannot be
        told."""
        if native.llama_model_is_recurrent(self.pointer) or native.llama_model_is_hybrid(self.pointer):
            return 0  # only some of the layers have cells; how many is not told
        heads = max(int(native.llama_model_n_head(self.pointer)), 1)
        own = int(native.llama_model_n_embd(self.pointer)) // heads
        key = int(metadata(self.pointer, f"{self.architecture}.attention.key_length") or own)
        value = int(metadata(self.pointer, f"{self.architecture}.attention.value_length") or own)
        kv_heads = int(native.llama_model_n_head_kv(self.pointer))
        _, bits = CACHE_TYPES[cache_type]
        return bits / 8 * (key + value) * kv_heads * (self.layers - 1)

    def close(self) -> None:
        if self.pointer:
            native.llama_model_free(self.pointer)
            self.pointer = None


class Batch:
    """Tokens to be evaluated together, each with its sequence and position."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._sequences = np.zeros(capacity, np.int32)
        self._outputs = np.zeros(capacity, np.int8)
        self._ones = np.ones(capacity, np.int32)
        first = self._sequences.ctypes.data
        self._lists = np.arange(first, first + 4 * capacity, 4, dtype=np.uintp)
        self.struct = native.llama_batch()
        self.struct.token = pointer(self._tokens, ctypes.c_int32)
        self.struct.pos = pointer(self._positions, ctypes.c_int32)
        self.struct.n_seq_id = pointer(self._ones, ctypes.c_int32)
        self.struct.seq_id = pointer(self._lists, ctypes.POINTER(ctypes.c_int32))
        self.struct.logits = pointer(self._outputs, ctypes.c_int8)

    def clear(self) -> None:
        self.count = 0

    def add(self, sequence: int, position: int, tokens: Sequence[int], *, output: bool) -> int:
        """Appends consecutive tokens of a sequence; returns the last one's index, whose logits can be
        read after the decode if ``output``."""
        start, end = self.count, self.count + len(tokens)
        self._tokens[start:end] = tokens
        self._positions[start:end] = np.arange(position, position + len(tokens))
        self._sequences[start:end] = sequence
        self._outputs[start:end] = 0
        self._outputs[end - 1] = output
        self.count = end
        return end - 1

    def ask_for_all(self) -> None:
        """Makes every token's row be computed for reading."""
        self._outputs[: self.count] = 1


class Context:
    """Weights, which it owns, with a context in which batches of their tokens are evaluated. One pool of
    ``context`` cells is shared by all sequences."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._context: Any = None
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        """Makes the context, with ``_make``. Raises ``StartupFailed``."""
        raise NotImplementedError

    def _make(self, options: Options, context: int, parameters: Mapping[str, Any]) -> None:
        """``parameters`` are llama.cpp's, beyond those that all contexts have alike."""
        weights = self.weights
        cell = weights.cell_bytes(options.cache_type)
        refuse_large_context(context, cell, weights.device.offloaded / weights.layers)
        made = native.llama_context_default_params()
        made.n_ctx = context
        made.n_threads = made.n_threads_batch = options.threads or physical_cores()
        made.kv_unified = True
        made.no_perf = True
        for name, value in parameters.items():
            setattr(made, name, value)
        clear_complaints()
        self.form = _form(made, weights.device.offloaded)
        self._context = native.llama_init_from_model(weights.pointer, made)
        if not self._context:
            name = weights.path.name
            raise StartupFailed(f"cannot make a context of {context} tokens for {name}: {complaint()}")
        self._memory = native.llama_get_memory(self._context)
        self.context = int(native.llama_n_ctx(self._context))
        self.batch = Batch(int(native.llama_n_batch(self._context)))

    def decode(self) -> bool:
        """Evaluates ``batch``. False when the cells do not suffice: nothing has changed then. Raises
        ``DecodeFailed``."""
        clear_complaints()
        self.batch.struct.n_tokens = self.batch.count
        status = native.llama_decode(self._context, self.batch.struct)
        if status == 1:
            return False
        if status != 0:
            raise DecodeFailed(f"llama_decode returned {status}: {complaint()}")
        native.llama_synchronize(self._context)
        return True

    def close(self) -> None:
        if self._context:
            native.llama_free(self._context)
            self._context = None
        self.weights.close()


class Llama(Context):
    """A model that generates, and its context of several sequences."""

    def __init__(self, weights: Weights, options: Options = Options()) -> None:
        self.slots = options.slots
        self.spare_rows = SPARE_ROWS
        self.sequences = min(options.slots + max(options.cached, 1), SEQUENCE_LIMIT)
        self._options = options
        super().__init__(weights)

    def _start(self) -> None:
        weights = self.weights
        weights.refuse_unless_generative()
        parameters = {
            "n_batch": self._options.batch,
            "n_ubatch": min(self._options.micro_batch, self._options.batch),
            "flash_attn_type": FLASH_ATTENTION[self._options.flash_attention],
            "type_k": CACHE_TYPES[self._options.cache_type][0],
            "type_v": CACHE_TYPES[self._options.cache_type][0],
            "n_seq_max": self.sequences,
            # Without this limit the compute buffer holds a row for each token of a micro batch.
            "n_outputs_max": self.sequences + self.spare_rows,
            "swa_full": True,  # else a sliding window forgets what a shared prefix needs
        }
        asked = self._options.context or min(weights.context_train, CONTEXT_LIMIT)
        self._make(self._options, asked, parameters)
        self._row_type: Any = ctypes.c_float * weights.tokens.size
        self.partial = self._warm_up()

    def _warm_up(self) -> bool:
        """Evaluates two tokens, which pages the weights in. Returns whether the end of a sequence can
        be taken back and a part of it copied (not so with recurrent states)."""
        self.batch.clear()
        self.batch.add(0, 0, [0, 0], output=True)
        if not self.decode():
            raise StartupFailed("the context has no room for two tokens")
        partial = self.remove(0, 1)
        self.batch.clear()
        native.llama_memory_clear(self._memory, True)
        return partial

    def logits(self, index: int) -> Logits:
        """The row of a token that was added with ``output``: llama.cpp's own memory, overwritten by
        the next decode."""
        pointer = native.llama_get_logits_ith(self._context, index)
        if not pointer:
            raise DecodeFailed(f"no logits for batch index {index}")
        row = self._row_type.from_address(ctypes.addressof(pointer.contents))
        return np.frombuffer(row, np.float32)

    def copy(self, source: int, target: int, length: int) -> None:
        """Gives ``target``, which is empty, the first ``length`` cells of ``source``. Metadata only."""
        native.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def remove(self, sequence: int, start: int) -> bool:
        """Drops a sequence from position ``start`` on. False (and nothing done) where the memory holds
        a state that cannot be taken back."""
        return bool(native.llama_memory_seq_rm(self._memory, sequence, start, -1))

    def drop(self, sequence: int) -> None:
        """Empties a sequence."""
        native.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def shortest(self, sequence: int) -> int:
        """The least number of a sequence's tokens that another one can begin with. A state that cannot be
        taken back is only had whole. A sliding window's cells that the sequence itself has no use for any
        more are overwritten by others (``find_slot`` of llama.cpp's ``llama-kv-cache.cpp``), so a prefix that
        ends within a window of those is incomplete."""
        if not self.partial:
            return int(native.llama_memory_seq_pos_max(self._memory, sequence)) + 1
        first = int(native.llama_memory_seq_pos_min(self._memory, sequence))
        return first + self.weights.window - 1 if first > 0 else 0

    def state(self, sequence: int, most: int) -> State | None:
        """What a sequence holds, as bytes for ``restore``. None where they are more than ``most``, or
        llama.cpp does not give them."""
        size = int(native.llama_state_seq_get_size_ext(self._context, sequence, 0))
        if not 0 < size <= most:
            return None
        state = np.empty(size, np.uint8)
        room = pointer(state, ctypes.c_uint8)
        written = native.llama_state_seq_get_data_ext(self._context, room, size, sequence, 0)
        return state if written == size else None

    def restore(self, sequence: int, length: int, state: State) -> bool:
        """Makes an empty sequence hold the ``length`` tokens of a saved state. False, and it stays empty, if
        that is none. Only whole states of this model and ``form`` may be given: others may pass for one."""
        room = pointer(state, ctypes.c_uint8)
        read = native.llama_state_seq_set_data_ext(self._context, room, len(state), sequence, 0)
        if read == len(state) and native.llama_memory_seq_pos_max(self._memory, sequence) == length - 1:
            return True
        self.drop(sequence)
        return False


_FORMLESS = {"n_batch", "n_ubatch", "n_seq_max", "n_outputs_max", "n_threads", "n_threads_batch"}


def _form(parameters: Any, offloaded: int) -> str:
    """What decides how a state is laid out and what is in it, besides the model: the library, and all numbers
    among a context's parameters but those of batches and threads."""
    named = {name: getattr(parameters, name) for name, _ in parameters._fields_ if name not in _FORMLESS}
    numbers = {name: value for name, value in named.items() if isinstance(value, int | float)}
    return f"llama-cpp-python {version}, {sys.byteorder}, {offloaded} layers offloaded, {numbers}"
