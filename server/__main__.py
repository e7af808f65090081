"""``toolspan`` as a process."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """Runs the command that the process was started with; ends the process with its status."""
    try:
        from server import commands  # here, so that an interrupt while it loads ends quietly too

        raise SystemExit(commands.run(sys.argv[1:]))
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
