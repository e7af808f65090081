"""The bindings of llama.cpp made ready: quiet, initialised, and with its complaints kept.

Every module that calls llama.cpp takes ``native`` from here, so that this comes first.
"""

from __future__ import annotations

import ctypes
import logging
import os
from typing import Any

from numpy.typing import NDArray

os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # ggml_abort would start a debugger otherwise
if (os.cpu_count() or 1) <= 4:
    # Threads of libgomp spin while they wait for each other. With another program on one of two cores a
    # decode step then took up to 3 s instead of 0.04 s; with this 0.1 s, and no more than before if alone.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import llama_cpp.llama_cpp as native
from llama_cpp import __version__ as version

__all__ = ["clear_complaints", "complaint", "metadata", "native", "pointer", "version"]

_log = logging.getLogger("toolspan.engine")
_GGML_ERROR = 4
_complaints: list[str] = []


def _logged(level: int, text: bytes, _data: object) -> None:
    line = text.decode("utf-8", "replace").rstrip()
    if line:
        _log.debug("%s", line)
        if level == _GGML_ERROR and not _complaints:  # the first one names the cause
            _complaints.append(line)


# Callbacks stay in module globals: llama.cpp calls them until the process ends.
_log_callback = native.llama_log_callback(_logged)
native.llama_log_set(_log_callback, None)
native.llama_backend_init()


def clear_complaints() -> None:
    _complaints.clear()


def complaint() -> str:
    """The first error that llama.cpp logged since the last ``clear_complaints``."""
    return _complaints[0][:400] if _complaints else "llama.cpp gives no reason"


def pointer(array: NDArray[Any], kind: Any) -> Any:
    """The array's memory as a ctypes pointer; the array must outlive it."""
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


def metadata(model: Any, key: str) -> str | None:
    """A scalar of the GGUF's metadata as text."""
    name = key.encode()
    length = native.llama_model_meta_val_str(model, name, ctypes.create_string_buffer(1), 1)
    if length < 0:
        return None
    room = ctypes.create_string_buffer(length + 1)
    native.llama_model_meta_val_str(model, name, room, len(room))
    return room.value.decode("utf-8", "replace")
