"""API keys: who may ask. Only digests are kept, and all of them are compared, in constant time."""

from __future__ import annotations

import hashlib
import hmac
import logging
import stat
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import Headers

from server.errors import StartupFailed, Unauthorized
from server.settings import Settings

log = logging.getLogger("toolspan.auth")


class Keys:
    """The keys a client may show, as ``Authorization: Bearer KEY`` or ``x-api-key: KEY``. Without any,
    everyone may ask."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode("utf-8")) for key in keys]

    @classmethod
    def of(cls, settings: Settings) -> Keys:
        """The keys of the settings and of the key file. Raises ``StartupFailed``."""
        keys = [*settings.api_key, *_from_file(settings.api_key_file)]
        if not all(key.isprintable() and len(key.split()) == 1 for key in keys):
            raise StartupFailed("an API key has to be one word of printable characters")
        return cls(keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, headers: Headers) -> str:
        """The partition of the key that the request shows: prefixes computed for one key are not
        reused for another. Raises ``Unauthorized``."""
        if not self._digests:
            return ""
        shown = {_digest(key) for key in _shown(headers)}
        if len(shown) != 1:
            raise Unauthorized("one API key is needed, as Authorization: Bearer KEY or x-api-key: KEY")
        digest = shown.pop()
        matches = [hmac.compare_digest(digest, each) for each in self._digests]
        if not any(matches):
            raise Unauthorized("the API key is not valid")
        return digest[:16]


def _shown(headers: Headers) -> Iterable[bytes]:
    """Every key in the headers; one that does not parse counts as a wrong one."""
    for value in headers.getlist("authorization"):
        scheme, _, key = value.partition(" ")
        yield key.strip().encode("latin-1") if scheme.lower() == "bearer" else b""
    for value in headers.getlist("x-api-key"):
        yield value.encode("latin-1")


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def _from_file(path: str) -> list[str]:
    if not path:
        return []
    try:
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").split("\n")]
        mode = Path(path).stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise StartupFailed(f"cannot read the key file {path}: {error}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise StartupFailed(f"the key file {path} holds no key")
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        log.warning("every user of this machine can read the key file %s; chmod 600 helps", path)
    return keys
