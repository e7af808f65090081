"""``toolspan`` as a process: what a command raises becomes one line and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from server.errors import StartupFailed

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; ends the process with its status."""
    try:
        from server import commands  # here, so that an interrupt while it loads ends quietly too

        raise SystemExit(commands.run(list(sys.argv[1:] if arguments is None else arguments)))
    except StartupFailed as error:
        print(f"toolspan: {error.message}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
