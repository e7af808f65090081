"""What several test modules need: real model files, the llama.cpp sources, and no way out of this machine.

Files come from the package index by package name on first use, in processes of their own, and stay in the
user's cache folder. The test process itself can connect to loopback addresses only. Properties are tried with
the same examples each time; ``pytest --hypothesis-profile=thorough`` takes many more, and others each time.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from sdists import unpacked

from server import catalogue

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("thorough", max_examples=20_000, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def model_file() -> Callable[[str], Path]:
    """The GGUF of a catalogue key: ``model_file("smollm2-135m")``."""
    return catalogue.resolve


@pytest.fixture(scope="session")
def sdist_dir() -> Path:
    """The unpacked ``vendor/llama.cpp/models`` of the source distribution of the installed llama-cpp-python,
    under its path: ``sdist_dir / "vendor/llama.cpp/models/templates"``."""
    return unpacked("llama-cpp-python", version("llama-cpp-python"), "vendor/llama.cpp/models/")


@pytest.fixture(scope="session")
def schema_suite_dir() -> Path:
    """The unpacked ``json/tests`` of the source distribution of jsonschema: the official tests."""
    return unpacked("jsonschema", "4.26.0", "json/tests/")


@pytest.fixture(scope="session")
def templates(sdist_dir: Path) -> dict[str, str]:
    """The chat templates of the llama.cpp sources, by name."""
    paths = sorted((sdist_dir / "vendor/llama.cpp/models/templates").glob("*.jinja"))
    assert len(paths) == 70
    return {path.stem: path.read_text(encoding="utf-8") for path in paths}


@pytest.fixture(autouse=True, scope="session")
def _loopback_only() -> Iterator[None]:
    """Fails whatever connects to another machine, also where the code under test swallows the error."""
    refused: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex", "sendto"):
            patch.setattr(socket.socket, name, _guarded(getattr(socket.socket, name), refused))
        yield
    assert not refused, f"connections beyond this machine were tried: {refused}"


def _guarded(original: Callable[..., Any], refused: list[object]) -> Callable[..., Any]:
    def call(self: socket.socket, *arguments: Any) -> Any:
        address = arguments[-1]
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(address[0]):
            refused.append(address)
            raise ConnectionRefusedError(f"tests stay on this machine, not {address}")
        return original(self, *arguments)

    return call


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
