"""Every error a client or an operator can see, as one tree.

::

    ToolspanError                    500  server_error           internal_error
    ├── InvalidRequest               400  invalid_request_error  (code says which rule)
    │   ├── InvalidSchema            400  invalid_request_error  invalid_schema
    │   ├── ContextOverflow          400  invalid_request_error  context_length_exceeded
    │   └── TemplateFailed           400  invalid_request_error  chat_template_failed
    ├── Unauthorized                 401  authentication_error   invalid_api_key
    ├── Forbidden                    403  permission_error       host_not_allowed (or what else is)
    ├── NotFound                     404  not_found_error        (model_not_found, unknown_route)
    ├── MethodNotAllowed             405  invalid_request_error  method_not_allowed
    ├── RequestTimeout               408  invalid_request_error  request_timeout
    ├── TooLarge                     413  invalid_request_error  request_too_large
    ├── UnsupportedMediaType         415  invalid_request_error  unsupported_media_type
    ├── HeadersTooLarge              431  invalid_request_error  header_too_large
    ├── QueueFull                    429  rate_limit_error       queue_full
    ├── SchemaNotSatisfied           500  server_error           schema_not_satisfied
    ├── ConstraintDeadEnd            500  server_error           constraint_dead_end
    ├── Unavailable                  503  service_unavailable    (loading, engine_restarting, draining)
    ├── GenerationTimeout            504  server_error           generation_timeout
    └── StartupFailed                (no status: one line on standard error and exit status 1)

An error carries what the API's error object needs, so that it can cross the process boundary as data
(``ErrorData``) and be encoded for whichever API was asked. Messages hold no client text beyond what
``quoted`` lets through.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

FUTILE = frozenset({"schema_not_satisfied", "constraint_dead_end", "generation_timeout"})
MESSAGE_LIMIT = 500
QUOTE_LIMIT = 64


class ErrorData(msgspec.Struct, frozen=True):
    """An error as plain data: what a frame carries and what the API's error object shows."""

    status: int
    type: str
    code: str
    message: str
    param: str | None = None
    retry_after: int | None = None

    @property
    def futile(self) -> bool:
        """Whether asking again costs another whole answer and most likely ends the same way. Clients
        retry what has a 5xx status unless they are told."""
        return self.code in FUTILE


class ToolspanError(Exception):
    """Base of the tree: an unexpected failure, answered with status 500.

    ``param`` is the path of the offending request field, ``retry_after`` whole seconds.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str] = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message[:MESSAGE_LIMIT]
        self.code = code or self.default_code
        self.param = param
        self.retry_after = retry_after

    @property
    def data(self) -> ErrorData:
        return ErrorData(self.status, self.type, self.code, self.message, self.param, self.retry_after)


class InvalidRequest(ToolspanError):
    """The request can never succeed as it is; clients must not retry it."""

    status = 400
    type = "invalid_request_error"
    default_code = "invalid_value"


class InvalidSchema(InvalidRequest):
    """A tool's parameters or a response format is not a schema that can be held to."""

    default_code = "invalid_schema"


class ContextOverflow(InvalidRequest):
    """The prompt does not fit into the model's context."""

    default_code = "context_length_exceeded"


class TemplateFailed(InvalidRequest):
    """The model's chat template refused these messages."""

    default_code = "chat_template_failed"


class Unauthorized(ToolspanError):
    """No API key, or a wrong one."""

    status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"


class Forbidden(ToolspanError):
    """The request came for a host name, or from an origin, that is not served, or asks for what its key
    does not allow."""

    status = 403
    type = "permission_error"
    default_code = "host_not_allowed"


class NotFound(ToolspanError):
    """No such route or model."""

    status = 404
    type = "not_found_error"
    default_code = "model_not_found"


class MethodNotAllowed(ToolspanError):
    """The route exists, with another method."""

    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"


class RequestTimeout(ToolspanError):
    """The request was not received in time."""

    status = 408
    type = "invalid_request_error"
    default_code = "request_timeout"


class TooLarge(ToolspanError):
    """The body is over the size limit."""

    status = 413
    type = "invalid_request_error"
    default_code = "request_too_large"


class UnsupportedMediaType(ToolspanError):
    """The body is not JSON by its content type, or is compressed."""

    status = 415
    type = "invalid_request_error"
    default_code = "unsupported_media_type"


class HeadersTooLarge(ToolspanError):
    """The request's header lines are too many or too long."""

    status = 431
    type = "invalid_request_error"
    default_code = "header_too_large"


class QueueFull(ToolspanError):
    """More requests wait than the queue holds."""

    status = 429
    type = "rate_limit_error"
    default_code = "queue_full"


class SchemaNotSatisfied(ToolspanError):
    """A value that must be valid stayed invalid after the allowed number of samples."""

    default_code = "schema_not_satisfied"


class ConstraintDeadEnd(ToolspanError):
    """The constraint and the sampling settings leave no token to choose."""

    default_code = "constraint_dead_end"


class Unavailable(ToolspanError):
    """The model is not ready: loading, restarting or shutting down."""

    status = 503
    type = "service_unavailable"
    default_code = "engine_restarting"


class GenerationTimeout(ToolspanError):
    """The answer took longer than the server allows."""

    status = 504
    default_code = "generation_timeout"


class StartupFailed(ToolspanError):
    """The server cannot start as asked; the message is one line for the operator."""


class Remote(ToolspanError):
    """An error that happened in the runner, raised again on this side from its data."""

    def __init__(self, data: ErrorData) -> None:
        super().__init__(data.message, code=data.code, param=data.param, retry_after=data.retry_after)
        self._data = data

    @property
    def data(self) -> ErrorData:
        return self._data


def quoted(text: str) -> str:
    """Client text made fit for a message: escaped, printable, at most 64 characters."""
    shown = text[:QUOTE_LIMIT].encode("unicode_escape").decode("ascii").replace("'", "\\'")
    return f"'{shown[:QUOTE_LIMIT]}{'…' if len(text) > QUOTE_LIMIT else ''}'"
