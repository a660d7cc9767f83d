"""What a trial ran on: hardware, versions and thread settings, without names of hosts, users or paths."""

import ctypes
import importlib.util
import os
import platform
from functools import cached_property
from importlib import metadata
from pathlib import Path

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from shardbench.base.atomic import write_atomically
from shardbench.base.errors import BadInput
from shardbench.base.reading import line_of
from shardbench.base.serialise import FiniteModel, content_hash, from_json, to_json

PACKAGES = ("shardbench", "torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "numpy", "scipy", "highspy")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")
_DRIVER = "libnvidia-ml.so.1"
_TORCH_LOADS = "Could not load this library"
"""What torch says of a library that FBGEMM asks it to load, whatever is in the way."""


class Gpus(FiniteModel):
    """Devices that torch can use."""

    count: NonNegativeInt
    names: tuple[str, ...]
    """Model of every device, in torch's order."""


class Environment(FiniteModel):
    """Hardware, software and settings that a time depends on; stored once, by hash."""

    python: str
    platform: str
    """Operating system and architecture, such as ``Linux x86_64``."""
    cpu: str
    cores: PositiveInt
    """Cores this process may use."""
    memory_gib: NonNegativeFloat
    gpus: Gpus
    versions: dict[str, str | None]
    """Versions by distribution name, and ``CUDA`` and ``NCCL`` as torch was built with; null where it is not there.

    A dictionary, so that files of versions that stated fewer still have the hash in their name.
    """
    threads: dict[str, str | None]
    """Thread variables; null where unset."""

    @classmethod
    def here(cls) -> "Environment":
        """Describe the environment of this process."""
        cuda, gpus = _cuda()
        return cls(
            python=platform.python_version(),
            platform=f"{platform.system()} {platform.machine()}",
            cpu=_cpu(),
            cores=cores(),
            memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            gpus=gpus,
            versions={name: _version(name) for name in PACKAGES} | cuda,
            threads={name: os.environ.get(name) for name in THREAD_VARIABLES},
        )

    @cached_property
    def hash(self) -> str:
        """Return the 16 hex digits that name it."""
        return content_hash(self)

    def save(self, results: Path) -> Path:
        """Write ``<results>/environments/<hash>.json`` atomically unless it is there; return the path."""
        path = _path(results, self.hash)
        if not path.exists():
            write_atomically(path, to_json(self) + "\n")
        return path


def load(results: Path, environment: str) -> Environment:
    """Load the stored environment of that hash; raises BadInput where it is missing or was edited."""
    path = _path(results, environment)
    if not path.is_file():
        raise BadInput(f"environment {path} does not exist; it is written with the records that name it")
    stored = from_json(Environment, path.read_bytes(), str(path))
    if stored.hash != environment:
        raise BadInput(f"{path}: content has hash {stored.hash}: the file was edited")
    return stored


def _path(results: Path, environment: str) -> Path:
    return results / "environments" / f"{environment}.json"


def _cpu() -> str:
    line = line_of(Path("/proc/cpuinfo"), "model name")
    return line.partition(":")[2].strip() if line is not None else platform.processor() or "unknown"


def cores() -> int:
    """Count the cores that this process may use."""
    # Not every system has affinity (macOS).
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def missing_driver() -> str:
    """Say in one line that FBGEMM's CUDA build finds no NVIDIA driver here; empty where that is not so."""
    if _version("fbgemm-gpu") is None:
        return ""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return (
            f"the NVIDIA driver is not installed: {_DRIVER} is missing, which the CUDA build of FBGEMM needs; install "
            "the driver (a container is started with --gpus all), or the CPU engine: python requirements/install.py cpu"
        )
    return ""


def why_not_loaded(error: BaseException) -> str:
    """Say in one line why FBGEMM could not be loaded, where that is the error and the driver the cause; else empty."""
    return missing_driver() if isinstance(error, OSError) and _TORCH_LOADS in str(error) else ""


def _has_cuda_build() -> bool:
    # A CPU build says so in its version: no need to import it (seconds).
    return importlib.util.find_spec("torch") is not None and "+cpu" not in (_version("torch") or "")


def _cuda() -> tuple[dict[str, str | None], Gpus]:
    """Return the versions of CUDA and NCCL, and the devices."""
    if not _has_cuda_build():
        return {"CUDA": None, "NCCL": None}, Gpus(count=0, names=())
    import torch  # noqa: PLC0415 (slow; only where a GPU may be found)

    has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = Gpus(count=count, names=tuple(torch.cuda.get_device_name(i) for i in range(count)))
    return {"CUDA": torch.version.cuda, "NCCL": nccl}, gpus
