"""The devices that layers can be offloaded to, and whether a model fits."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from server.engine.cores import available_memory
from server.engine.llama_native import native
from server.errors import StartupFailed

ALL_LAYERS = 2**31 - 1
_GPU_DEVICES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU and _IGPU
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device that layers can be offloaded to; memory in bytes."""

    name: str
    free: int
    total: int


def gpus() -> list[Gpu]:
    """The devices this build of llama.cpp can offload to."""
    library = native._lib  # its dependency libggml answers for these names
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    library.ggml_backend_dev_get.restype = ctypes.c_void_p
    library.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    library.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    library.ggml_backend_dev_description.argtypes = [ctypes.c_void_p]
    library.ggml_backend_dev_description.restype = ctypes.c_char_p
    sizes = ctypes.POINTER(ctypes.c_size_t)
    library.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, sizes, sizes]
    library.ggml_backend_dev_memory.restype = None
    devices = [library.ggml_backend_dev_get(i) for i in range(library.ggml_backend_dev_count())]
    return [_gpu(each) for each in devices if library.ggml_backend_dev_type(each) in _GPU_DEVICES]


def _gpu(device: int) -> Gpu:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    native._lib.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    name = native._lib.ggml_backend_dev_description(device) or b"GPU"
    return Gpu(name.decode("utf-8", "replace"), free.value, total.value)


def offload(path: Path, asked: int) -> int:
    """How many layers go to the GPU: 0 without one. ``asked`` -1 means all. Raises ``StartupFailed``."""
    devices = gpus() if native.llama_supports_gpu_offload() else []
    if not devices:
        if asked > 0:
            raise StartupFailed(
                f"--gpu-layers {asked}: this build of llama.cpp finds no GPU; build it for yours "
                "(README, GPU) or use --gpu-layers 0"
            )
        return 0
    if asked >= 0:
        return asked
    size, free = path.stat().st_size, sum(each.free for each in devices)
    if size > free:
        raise StartupFailed(
            f"{path.name} needs about {size / _GIB:.1f} GiB of GPU memory, {free / _GIB:.1f} GiB is free on "
            f"{', '.join(each.name for each in devices)}: take a smaller model or offload a part with "
            "--gpu-layers"
        )
    return ALL_LAYERS


def refuse_large_context(cells: int, cell_bytes: float, offloaded: float) -> None:
    """Raises ``StartupFailed`` where the cells clearly do not fit: filling them later would end the
    process. ``offloaded`` is the share of the layers, and so of each cell, that is on the GPU."""
    if offloaded:
        _refuse_beyond(cells, cell_bytes * offloaded, sum(each.free for each in gpus()), "GPU memory")
    _refuse_beyond(cells, cell_bytes * (1 - offloaded), available_memory(), "memory")


def _refuse_beyond(cells: int, cell_bytes: float, free: int | None, what: str) -> None:
    needed = cells * cell_bytes
    if free is not None and needed > free:
        raise StartupFailed(
            f"a context of {cells} tokens needs about {needed / _GIB:.1f} GiB of {what}, "
            f"{free / _GIB:.1f} GiB is free: set --ctx to {int(free / cell_bytes) // 256 * 256} or less"
        )
