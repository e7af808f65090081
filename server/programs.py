"""Programs of this package as processes of their own: of this package, whatever the current folder holds."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parent.parent)
_RUN = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def program(module: str) -> tuple[str, ...]:
    """The command that runs a module; its words come behind. ``python -m`` would look into the current folder
    first."""
    return (sys.executable, "-P", "-c", _RUN, _ROOT, module)
