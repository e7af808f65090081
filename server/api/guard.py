"""What every request must pass before anything looks at it: sane headers, a host name that is ours, no
foreign web page behind it, a key. Denies by default: a new route needs a key without being told so.

Decisions read the raw ASGI scope, never a URL rebuilt from client text.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api import limits
from server.api.auth import Caller, Keys
from server.api.replies import error_reply
from server.errors import Forbidden, HeadersTooLarge, InvalidRequest, Unauthorized
from server.settings import Settings

HEALTH = frozenset({"/health", "/v1/health"})
OPEN = HEALTH | {"/"}
"""Paths that need no key: the state of the server, and a page without data."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
LOCAL_PAGES = "localhost"
"""In place of an origin: those of all pages that come from this machine."""
METHODS_WITHOUT_EFFECT = frozenset({"GET", "HEAD"})
PREFLIGHT_HEADERS = 1024
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
_LOCAL_PAGE = re.compile(r"https?://(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?")
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_,\- ]+")


class Guard:
    """Middleware that refuses by raising, and adds what CORS asks for where an origin is allowed."""

    def __init__(self, app: ASGIApp, settings: Settings, keys: Keys) -> None:
        self._app = app
        self._keys = keys
        self._names = frozenset(_names((*LOCAL_NAMES, settings.host, *settings.allowed_host)))
        self._origins = frozenset(settings.allowed_origin)
        self._local_pages = LOCAL_PAGES in self._origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        _check_size(scope)
        self._check_host(headers, scope)
        origin = headers.get("origin")
        granted = origin if self._grants(origin) else None
        asks_first = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        if self._origins and asks_first:
            await _preflight(granted, headers)(scope, receive, send)
            return
        sending = _with_grant(send, granted) if self._origins else send
        _check_origin(scope, headers, granted)
        try:
            caller = self._check_key(scope, headers)
        except Unauthorized as error:  # a page that may ask may also read why it was refused
            await error_reply(error.data)(scope, receive, sending)
            return
        scope["state"] |= {"partition": caller.partition, "admin": caller.admin}
        await self._app(scope, receive, sending)

    def _grants(self, origin: str | None) -> bool:
        if origin is None or origin == LOCAL_PAGES:
            return False
        return origin in self._origins or (self._local_pages and bool(_LOCAL_PAGE.fullmatch(origin)))

    def _check_host(self, headers: Headers, scope: Scope) -> None:
        hosts = headers.getlist("host")
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None:
            raise InvalidRequest("the request needs one well-formed Host header", code="invalid_host")
        name = _plain(match["ipv6"] or match["name"])
        # The address that the connection came in on is no name that could be rebound to it.
        if name not in self._names and name != _plain((scope.get("server") or ("",))[0]):
            raise Forbidden("this Host is not served here; --allowed-host adds one")

    def _check_key(self, scope: Scope, headers: Headers) -> Caller:
        return Caller() if scope["path"] in OPEN else self._keys.check(headers, local=_is_local(scope))


def _names(names: Iterable[str]) -> Iterable[str]:
    return (_plain(name.strip("[]")) for name in names if name)


def _plain(name: str) -> str:
    """A host name or address in the one form that is compared."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name.lower()
    return str(getattr(address, "ipv4_mapped", None) or address)


def _is_local(scope: Scope) -> bool:
    """Whether a request comes from this machine."""
    return ipaddress.ip_address(_plain((scope.get("client") or ("0.0.0.0",))[0])).is_loopback


def _check_size(scope: Scope) -> None:
    headers = scope["headers"]
    target = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if len(headers) > limits.HEADERS:
        raise HeadersTooLarge(f"a request may have at most {limits.HEADERS} header lines")
    if target + sum(len(name) + len(value) + 4 for name, value in headers) > limits.HEADER_BYTES:
        raise HeadersTooLarge(f"the request's headers may have at most {limits.HEADER_BYTES} bytes")
    names = [name for name, _ in headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        raise InvalidRequest("a body has a length or is chunked, not both", code="invalid_framing")


def _check_origin(scope: Scope, headers: Headers, granted: str | None) -> None:
    """A web page elsewhere can make its visitor's browser post here, without reading the answer."""
    origin = headers.get("origin")
    if origin is None or granted or scope["method"] in METHODS_WITHOUT_EFFECT:
        return
    if origin not in (f"http://{headers['host']}", f"https://{headers['host']}"):
        raise Forbidden("web pages of this origin may not use this server", code="origin_not_allowed")


def _preflight(origin: str | None, headers: Headers) -> Response:
    """The answer to a browser that asks before it sends: without a grant it does not send."""
    if origin is None:
        return Response(headers={"vary": "Origin"})
    wanted = headers.get("access-control-request-headers", "")
    granted = _grant(origin) | {
        "access-control-allow-methods": "GET, POST, DELETE",
        "access-control-max-age": "600",
    }
    if len(wanted) <= PREFLIGHT_HEADERS and _HEADER_NAMES.fullmatch(wanted):
        granted["access-control-allow-headers"] = wanted
    return Response(headers=granted)


def _grant(origin: str) -> dict[str, str]:
    return {
        "access-control-allow-origin": origin,
        "access-control-expose-headers": "x-request-id, retry-after",
        "vary": "Origin",
    }


def _with_grant(send: Send, origin: str | None) -> Send:
    extra = _grant(origin) if origin else {"vary": "Origin"}

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(extra)
        await send(message)

    return sending
