"""The catalogue's data, and how a ``--model`` value becomes a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from server import catalogue, download
from server.catalogue import CATALOGUE
from server.download import Recipe
from server.errors import StartupFailed
from server.settings import Settings


def refusal(model: str) -> str:
    with pytest.raises(StartupFailed) as caught:
        catalogue.resolve(model)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_keys_are_unique_and_names_of_files() -> None:
    keys = [entry.key for entry in CATALOGUE]
    assert len(set(keys)) == len(keys)
    assert all(key == Path(key).name and not key.endswith(".gguf") for key in keys)


def test_the_default_model_is_in_the_catalogue() -> None:
    assert Settings().model in [entry.key for entry in CATALOGUE]


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.key)
def test_entries_are_complete(entry: catalogue.Entry) -> None:
    assert len(bytes.fromhex(entry.recipe.sha256)) == 32
    assert entry.recipe.size > 0
    assert entry.recipe.download_size > 0
    assert entry.title
    assert entry.licence
    assert entry.note


def test_a_key_is_fetched_into_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Recipe, Path]] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(download, "fetch", lambda recipe, target, title: asked.append((recipe, target)))
    path = catalogue.resolve("gemma3-270m")
    assert path == tmp_path / "toolspan/models/gemma3-270m.gguf"
    assert asked == [(CATALOGUE[2].recipe, path)]


@pytest.mark.model
def test_the_default_model_is_the_file_it_should_be(model_file: Callable[[str], Path]) -> None:
    path = model_file("smollm2-135m")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == CATALOGUE[0].recipe.sha256


def test_a_path_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some.gguf").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert catalogue.resolve(str(tmp_path / "some.gguf")) == tmp_path / "some.gguf"
    assert catalogue.resolve("some.gguf") == Path("some.gguf")
    assert catalogue.resolve("~/some.gguf") == tmp_path / "some.gguf"


@pytest.mark.parametrize("model", ["none.gguf", "./none", "/none/none", "~/none.gguf"])
def test_a_missing_file_is_said_to_be_missing(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "no such file" in refusal(model)


def test_an_unknown_key_is_answered_with_the_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = refusal("smollm")
    assert all(entry.key in message for entry in CATALOGUE)


@pytest.mark.parametrize("model", ["", "\0", "x" * 5000, "a\nb", "~nobody-of-that-name/x.gguf"])
def test_odd_names_are_refused_in_one_line(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(model)


@pytest.mark.parametrize(
    "model", ["hf:", "hf:a", "hf:a/b", "hf:a/b/", "hf:a/b/c.bin", "hf://a/b.gguf", "hf:/b/c.gguf"]
)
def test_malformed_hub_names_are_refused(model: str) -> None:
    assert "expected hf:owner/repo/file.gguf" in refusal(model)


def test_a_hub_name_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "from_hub", lambda repository, file: Path(repository, "at", file))
    assert catalogue.resolve("hf:a/b/c.gguf") == Path("a/b/at/c.gguf")
    assert catalogue.resolve("hf:a/b/in/c.gguf") == Path("a/b/at/in/c.gguf")
