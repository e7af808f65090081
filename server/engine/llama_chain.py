"""llama.cpp's own samplers over the candidates they choose from."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from server.engine.llama_native import native, pointer


class Chain:
    """A native sampler chain: top-k, top-p, min-p, temperature, then one seeded draw."""

    def __init__(self, *, top_k: int, top_p: float, min_p: float, temperature: float, seed: int) -> None:
        self._chain = native.llama_sampler_chain_init(native.llama_sampler_chain_default_params())
        if top_k > 0:
            self._add(native.llama_sampler_init_top_k(min(top_k, 2**31 - 1)))
        if top_p < 1.0:
            self._add(native.llama_sampler_init_top_p(top_p, 1))
        if min_p > 0.0:
            self._add(native.llama_sampler_init_min_p(min_p, 1))
        self._add(native.llama_sampler_init_temp(temperature))
        self._add(native.llama_sampler_init_dist(seed))

    def _add(self, sampler: Any) -> None:
        native.llama_sampler_chain_add(self._chain, sampler)

    def pick(self, candidates: Candidates, count: int) -> int:
        """Draws one of the first ``count`` candidates; they are overwritten."""
        array = native.llama_token_data_array(candidates.data, count, -1, False)
        native.llama_sampler_apply(self._chain, ctypes.byref(array))
        return int(array.data[array.selected].id)

    def close(self) -> None:
        if self._chain:
            native.llama_sampler_free(self._chain)
            self._chain = None


class Candidates:
    """Room for one (id, logit, probability) record per token, in the layout of llama.cpp."""

    def __init__(self, size: int) -> None:
        self._records = np.zeros(size, np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)]))
        self.ids = self._records["id"]
        self.logits = self._records["logit"]
        self.data = pointer(self._records, native.llama_token_data)
