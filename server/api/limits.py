"""Every bound on what a client may send that is no setting, in one place.

Bounds that an operator may want to move (body size, connections, time limits) are in ``settings``; what
a schema may contain is bounded where schemas are checked, in the runner.
"""

from __future__ import annotations

from server.turn import MOST_SCHEMA_BYTES, MOST_TOOLS

HEADERS = 100
"""Header lines of a request."""
HEADER_BYTES = 32 * 1024
"""Bytes of the request line and all header lines together."""
REQUEST_LINE = 64
"""Bytes of a request that are looked at to tell which API's errors its client reads, where it is no HTTP."""
JSON_DEPTH = 64
"""Nested objects and arrays in a body; the deepest of 11,305 schemas in the wild has 63."""

MESSAGES = 4096
CALLS_PER_MESSAGE = 128
PARTS_PER_MESSAGE = 4096
TOOLS = MOST_TOOLS
TOOLS_SENT = 1024
"""Entries of ``tools``, kinds that are skipped included."""
TOOL_NAME = 64
HISTORY_NAME = 256
"""Characters of a name in the history, which another server may have made."""
SCHEMA_BYTES = MOST_SCHEMA_BYTES

TEXT_LENGTH = 1024 * 1024
"""Characters of a text to be tokenized."""
TEXT_PARTS = 4096
"""Texts and token ids that such a text may be given as."""
TOKEN_IDS = 1024 * 1024
"""Token ids to be made a text again: as many as such a text can have."""

EMBEDDINGS = 2048
"""Texts of one request for embeddings."""
PROMPTS = 32
"""Prompts of one completion request; each takes a place of its own in the queue."""
CHOICES = 8
TOP_LOGPROBS = 20
STOPS = 16
STOP_LENGTH = 16 * 1024
BIASES = 1024
TOKENS = 2**31 - 1
"""Larger values of ``max_tokens`` and ``top_k`` count as this."""

TEMPLATE_VALUE = 64
"""Characters of a text for a variable of the chat template."""

TOOL_CHECKS = 2
"""Reports on tools that are made at the same time."""
TOOL_CHECK_SECONDS = 20.0
"""How long a report may take."""

TEMPERATURE = (0.0, 2.0)
PROBABILITY = (0.0, 1.0)
PENALTY = (-2.0, 2.0)
REPEAT_PENALTY = (0.1, 10.0)
BIAS = (-100.0, 100.0)

WRITE_STALL = 30.0
"""Seconds a client may leave what it asked for unread before its connection is dropped."""
KEEP_ALIVE = 30
"""Seconds a connection may be idle between requests."""
FRESH = 1.0
"""Seconds a connection may be silent before it can be closed to make room for another."""
LINGER = 2.0
"""Seconds that what a refused client still sends is read and dropped, so that it can read why."""
DRAIN = 10.0
"""Seconds that running answers get to finish once the server is told to stop."""
FLUSH = 2
"""Whole seconds the last connections then get to send what they still hold."""
