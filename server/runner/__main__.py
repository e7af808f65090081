"""``python -m server.runner``: started by the supervisor, never by hand."""

import sys

from server.runner.process import main

main(sys.argv[1:])
