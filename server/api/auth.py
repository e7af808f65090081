"""API keys: who may ask, and for what. Only digests are kept, and all are compared, in constant time."""

from __future__ import annotations

import hashlib
import hmac
import logging
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers

from server.errors import StartupFailed, Unauthorized
from server.settings import Settings

log = logging.getLogger("toolspan.auth")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. Prefixes computed for one ``partition`` are not reused for another; an ``admin`` may ask how
    an answer came about."""

    partition: str = ""
    admin: bool = False


class Keys:
    """The keys a client may show, as ``Authorization: Bearer KEY`` or ``x-api-key: KEY``. Without any,
    everyone may ask."""

    def __init__(self, keys: Iterable[str], admin_keys: Iterable[str] = ()) -> None:
        self._admins = [_digest(key.encode("utf-8")) for key in admin_keys]
        self._digests = [*(_digest(key.encode("utf-8")) for key in keys), *self._admins]

    @classmethod
    def of(cls, settings: Settings) -> Keys:
        """The keys of the settings and of the key files. Raises ``StartupFailed``."""
        keys = [*settings.api_key, *_from_file(settings.api_key_file)]
        admin_keys = [*settings.admin_key, *_from_file(settings.admin_key_file)]
        if not all(key.isprintable() and len(key.split()) == 1 for key in [*keys, *admin_keys]):
            raise StartupFailed("an API key has to be one word of printable characters")
        return cls(keys, admin_keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, headers: Headers, *, local: bool = False) -> Caller:
        """Who makes a request, ``local`` where it comes from this machine: those are admins of a server
        without keys. Raises ``Unauthorized``."""
        if not self._digests:
            return Caller(admin=local)
        shown = {_digest(key) for key in _shown(headers)}
        if len(shown) != 1:
            raise Unauthorized("one API key is needed, as Authorization: Bearer KEY or x-api-key: KEY")
        digest = shown.pop()
        matches = [hmac.compare_digest(digest, each) for each in self._digests]
        if not any(matches):
            raise Unauthorized("the API key is not valid")
        return Caller(digest[:16], digest in self._admins)


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
