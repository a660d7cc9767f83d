"""Write requirements/locked/: every package that is installed, at one version, known by its hashes.

Run by `nox -s lock`, with uv. Versions are the newest that pyproject.toml and its groups allow, for Python 3.11 and
later. Whatever index pip is told of, it takes no file of another hash.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKED = ROOT / "requirements" / "locked"
GROUPS = ("engine-cpu", "engine-cuda", "torchrec", "dev")
EXTRAS = ("cluster", "dask", "charts")
ALONE = ("docs", "build", "nox", "uv", "audit")
"""Locked by themselves; the documents' beside what is locked before."""
OLDEST = "3.11"
CUDA_LIBRARIES = ("nvidia-", "cuda-", "triton")
CPU_WHEELS = ("sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",)
"""Of torch without CUDA for Python 3.11 on Linux x86-64, which is not on the package index."""
HEAD = "# Written by `nox -s lock`; change pyproject.toml, not this file.\n"


def split(text: str) -> list[tuple[str, str]]:
    """Name and whole entry (requirement, marker and hashes) of each package that uv lists."""
    entries = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    return [(re.split(r"[=\[ ]", entry, maxsplit=1)[0], entry) for entry in entries if entry.strip()]


def parts(text: str) -> dict[str, str]:
    """The files that one resolution is divided into, by name."""
    entries = split(text)

    def of(belongs: Callable[[str], bool]) -> str:
        return "".join(entry for name, entry in entries if belongs(name))

    def is_library(name: str) -> bool:
        return name.startswith(CUDA_LIBRARIES)

    apart = {"torch", "fbgemm-gpu", "fbgemm-gpu-cpu"}
    (torch,) = (entry for name, entry in entries if name == "torch")
    return {
        "common": of(lambda name: name not in apart and not is_library(name)),
        "torch": of(lambda name: name == "torch" or is_library(name)),
        "torch-cpu": cpu_build(torch),
        "fbgemm-cpu": of(lambda name: name == "fbgemm-gpu-cpu"),
        "fbgemm-cuda": of(lambda name: name == "fbgemm-gpu"),
    }


def cpu_build(torch: str) -> str:
    """The entry of the same release of torch without CUDA."""
    release = torch.split(" ", 1)[0]
    return " \\\n    ".join([f"{release}+cpu", *(f"--hash={digest}" for digest in CPU_WHEELS)]) + "\n"


def resolve(*inputs: str) -> str:
    """What uv gives for files and groups."""
    options = ("--universal", "--python-version", OLDEST, "--generate-hashes", "--no-header", "--no-annotate")
    process = subprocess.run(
        ["uv", "pip", "compile", "--quiet", *options, *inputs], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return process.stdout


def write(files: Iterable[tuple[str, str]]) -> None:
    """Write texts by name, each under the line that says where it comes from."""
    LOCKED.mkdir(exist_ok=True)
    for name, text in files:
        (LOCKED / f"{name}.txt").write_text(HEAD + text)


def main() -> None:
    """Lock all of them."""
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    groups = [word for group in GROUPS for word in ("--group", group)]
    whole = resolve("pyproject.toml", *extras, *groups)
    write(parts(whole).items())
    for name in ALONE:
        beside = ("--constraints", str(LOCKED / "common.txt")) if name == "docs" else ()
        write([(name, resolve("--group", f"pyproject.toml:{name}", *beside))])


if __name__ == "__main__":
    sys.exit(main())
