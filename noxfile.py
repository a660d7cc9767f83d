"""One command a job: each session installs what it needs, once, and runs.

All sessions share one environment (.nox/shardbench); it is filled again only when a file
under requirements/ or pyproject.toml changes.
"""

import hashlib
import shutil
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True
nox.needs_version = ">=2024.4"

ROOT = Path(__file__).parent
SHARED = {"venv_location": ".nox/shardbench", "reuse_venv": True}
ENVIRONMENT = {
    # `datasets/` must never be importable as the top-level package of that name.
    "PYTHONSAFEPATH": "1",
    # Spinning OpenMP threads slow ranks that share cores thirtyfold.
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}
DEFAULT_SUITE = "quick"


def install(session: nox.Session) -> None:
    """The engine, torchrec without its CUDA-only dependency, the suite (editable) and the tools."""
    session.env.update(ENVIRONMENT)
    engine = "engine-cuda.txt" if shutil.which("nvidia-smi") else "engine-cpu.txt"
    files = [ROOT / "requirements" / name for name in (engine, "engine-common.txt", "torchrec.txt", "dev.txt")]
    digest = hashlib.sha256(b"".join(f.read_bytes() for f in [*files, ROOT / "pyproject.toml"])).hexdigest()
    stamp = Path(session.virtualenv.location) / "installed.sha256"
    if stamp.exists() and stamp.read_text() == digest:
        return
    session.log("installing into %s (once; a few minutes)", session.virtualenv.location)
    session.install("-q", "-r", str(files[0]))
    session.install("-q", "--no-deps", "-r", str(files[2]))
    session.install("-q", "-r", str(files[3]))
    session.install("-q", "-e", ".")
    stamp.write_text(digest)


@nox.session(**SHARED)
def reproduce(session: nox.Session) -> None:
    """Run a suite (default: quick) and print its tables. Records go to runs/. Options go to `shardbench run`."""
    install(session)
    arguments = list(session.posargs)
    suite = arguments.pop(0) if arguments and not arguments[0].startswith("-") else DEFAULT_SUITE
    options = [] if "--results" in arguments else ["--results", "runs"]
    session.run("shardbench", "run", suite, "--page", *options, *arguments)


@nox.session(**SHARED)
def publish(session: nox.Session) -> None:
    """Make the committed records and tables of a suite again, under results/."""
    install(session)
    suite = session.posargs[0] if session.posargs else DEFAULT_SUITE
    (ROOT / "results" / "records" / f"{suite}.jsonl").unlink(missing_ok=True)
    session.run("shardbench", "run", suite, "--results", "results")


@nox.session(**SHARED)
def tests(session: nox.Session) -> None:
    """The default tests: minutes on two cores, no GPU, no data to bring."""
    install(session)
    session.run("python", "-m", "pytest", "--durations=10", *session.posargs)


@nox.session(**SHARED)
def tests_slow(session: nox.Session) -> None:
    """Tests of minutes: the full synthetic workload, planners at scale, many random plans."""
    install(session)
    session.run("python", "-m", "pytest", "-m", "slow", "--durations=10", *session.posargs)


@nox.session(**SHARED)
def tests_gpu(session: nox.Session) -> None:
    """Tests that need a CUDA device."""
    install(session)
    session.run("python", "-m", "pytest", "-m", "gpu", *session.posargs)


@nox.session(**SHARED)
def micro(session: nox.Session) -> None:
    """Micro-benchmarks (pytest-benchmark), the harness against a hand-written TorchRec loop among them."""
    install(session)
    session.run("python", "-m", "pytest", "benchmarks/micro", "-m", "", "--benchmark-only", *session.posargs)


@nox.session(**SHARED)
def regression(session: nox.Session) -> None:
    """Regression benchmarks (asv) of this working tree; `-- continuous main HEAD` compares commits."""
    install(session)
    arguments = session.posargs or ["run", "--python=same", "--quick", "--dry-run", "--show-stderr"]
    session.run("asv", "--config", "asv.conf.json", *arguments)


@nox.session(**SHARED)
def lint(session: nox.Session) -> None:
    """Ruff, and mypy --strict against the built wheel (an editable install hides packaging faults)."""
    install(session)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    site = Path(session.create_tmp()) / "site"
    shutil.rmtree(site, ignore_errors=True)
    session.run("python", "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site), ".")
    config = str(ROOT / "pyproject.toml")
    session.run("mypy", "--config-file", config, "-p", "shardbench", env={"MYPYPATH": str(site)})
