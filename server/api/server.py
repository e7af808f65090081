"""The server process: socket, runner, HTTP, signals, and the order in which they start and end.

The socket is taken first, so that a used port fails before a model is fetched or loaded. HTTP answers
while the model loads (503). At the end running answers get some seconds, then runner and socket go.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from server.api import limits
from server.api.app import create_app
from server.api.auth import Keys
from server.api.connection import Connections
from server.api.store import Store
from server.errors import StartupFailed
from server.frames import ModelFacts
from server.settings import Settings
from server.supervisor import RUNNER, Supervisor, Timing

log = logging.getLogger("toolspan.server")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
BACKLOG = 1024
FORCED = 130
"""The exit status of a server that was told twice to stop."""

OnReady = Callable[[ModelFacts, str], None]
"""Told, once the model is loaded, what it is and where the server listens (a URL)."""


def serve(
    settings: Settings, on_ready: OnReady, find_model: Callable[[Settings], Settings] = lambda given: given
) -> int:
    """Serves until a signal; returns the exit status. ``find_model`` runs once the address is taken, and
    returns the settings with the model as the runner needs it. Raises ``StartupFailed``."""
    keys = Keys.of(settings)
    with listen(settings, bool(keys)) as listener:
        return asyncio.run(_serve(Server(find_model(settings), keys, listener), on_ready))


async def _serve(server: Server, on_ready: OnReady) -> int:
    with server.handling_signals():
        return await server.run(on_ready)


class Server:
    """One server on a listening socket, which its caller closes."""

    def __init__(
        self,
        settings: Settings,
        keys: Keys,
        listener: socket.socket,
        *,
        command: Sequence[str] = RUNNER,
        timing: Timing | None = None,
    ) -> None:
        self._listener = listener
        self.address = _address(*listener.getsockname()[:2])
        self.supervisor = Supervisor(settings, command=command, timing=timing)
        self.connections = Connections(settings.max_connections, settings.receive_timeout)
        self._store = Store.of(settings)
        app = create_app(settings, self.supervisor, keys, self._store)
        self._http = _Http(_config(app, self.connections))
        self._stopping = asyncio.Event()
        self._forced = asyncio.Event()

    def stop(self) -> None:
        """The first call ends the server in good order, the second at once."""
        (self._forced if self._stopping.is_set() else self._stopping).set()

    @contextlib.contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Signals call ``stop``, if this is the thread that gets them."""
        loop = asyncio.get_running_loop()
        signals = SIGNALS if threading.current_thread() is threading.main_thread() else ()
        for each in signals:
            loop.add_signal_handler(each, self.stop)
        try:
            yield
        finally:
            for each in signals:
                loop.remove_signal_handler(each)

    async def run(self, on_ready: OnReady) -> int:
        """Until ``stop``; returns the exit status. Raises ``StartupFailed``."""
        http = asyncio.create_task(self._http.serve(sockets=[self._listener]))
        life = asyncio.create_task(self._live(http, on_ready))
        forced = asyncio.create_task(self._forced.wait())
        try:
            await asyncio.wait({life, forced}, return_when=asyncio.FIRST_COMPLETED)
            if not life.done():
                return FORCED
            await life
            return 0
        finally:
            forced.cancel()
            life.cancel()
            self.supervisor.kill()
            self._http.should_exit = self._http.force_exit = True
            await asyncio.gather(life, self.supervisor.stop(), http, return_exceptions=True)
            if self._store is not None:
                self._store.close()

    async def _live(self, http: asyncio.Task[None], on_ready: OnReady) -> None:
        starting = asyncio.create_task(self.supervisor.start())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({starting, stopping, http}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                on_ready(await starting, self.address)
                await self._until_stopped(http, stopping)
            log.info("stopping; running answers get %d seconds, a second signal ends them", limits.DRAIN)
            await self.supervisor.drain(limits.DRAIN)
            self._http.should_exit = True
            await asyncio.gather(self.supervisor.stop(), http)
        finally:
            starting.cancel()
            stopping.cancel()
            await asyncio.gather(starting, stopping, return_exceptions=True)

    async def _until_stopped(self, http: asyncio.Task[None], stopping: asyncio.Task[bool]) -> None:
        """Nothing but ``stop`` ends HTTP or the supervisor, unless they fail: then this raises."""
        supervising = asyncio.create_task(self.supervisor.ended())
        try:
            tasks: set[asyncio.Task[None] | asyncio.Task[bool]] = {http, stopping, supervising}
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                await each
        finally:
            supervising.cancel()


class _Http(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours."""
        yield


def _config(app: ASGIApp, connections: Connections) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], connections.protocol),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        workers=1,
        timeout_keep_alive=limits.KEEP_ALIVE,
        timeout_graceful_shutdown=limits.FLUSH,
        h11_max_incomplete_event_size=limits.HEADER_BYTES,
    )


def listen(settings: Settings, has_key: bool) -> socket.socket:
    """A listening socket for the settings' address. Raises ``StartupFailed``."""
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise StartupFailed(f"cannot find the address {host}: {error}") from error
    family, kind, protocol, _, address = found[0]
    if not (has_key or settings.insecure_no_key or ipaddress.ip_address(address[0]).is_loopback):
        raise StartupFailed(
            f"{host} can be reached from other machines: set --api-key (or --api-key-file), "
            "or --insecure-no-key if everyone may use it"
        )
    listener = socket.socket(family, kind, protocol)
    try:
        # For the port of a server that has just ended. It does not let two of them share one.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupFailed(_refusal(host, port, error)) from error
    listener.setblocking(False)
    return listener


def _address(host: str, port: int) -> str:
    """The URL of a listening socket, as one on this machine can use it."""
    ip = ipaddress.ip_address(host.partition("%")[0])
    if ip.is_unspecified:
        host = "127.0.0.1" if ip.version == 4 else "::1"
    return f"http://[{host}]:{port}" if ip.version == 6 else f"http://{host}:{port}"


def _refusal(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use (address in use); --port chooses another, 0 a free one"
    return f"cannot listen on {host} port {port}: {error.strerror}"
