"""Install the engine, what the suite needs and the tools, as they are locked, into the environment of this Python.

`python requirements/install.py cpu` or `cuda`. No package is installed that is not listed in requirements/locked/ with
its hashes: pip is told to look for no dependencies (the lock has them all, and torchrec declares the CUDA build of
fbgemm-gpu, which would overwrite the CPU one).
"""

import json
import re
import subprocess
import sys
from pathlib import Path

LOCKED = Path(__file__).resolve().parent / "locked"
ENGINES = ("cpu", "cuda")
LEFT_OUT = re.compile(r"torchrec \S+ requires fbgemm-gpu, which is not installed\.")
PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")


def torch_at_hand() -> str:
    """SHA-256 of the file of torch that pip would take here; empty where its index tells none."""
    release = next(line for line in (LOCKED / "torch.txt").read_text().splitlines() if line.startswith("torch=="))
    command = (*PIP, "--dry-run", "--ignore-installed", "--report", "-", release.split(" ", 1)[0])
    process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    (item,) = json.loads(process.stdout)["install"]
    digest: str = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256", "")
    return digest


def files(engine: str) -> tuple[str, ...]:
    """Names in ``locked/``; for a CPU the build of torch without CUDA where the one to be had is locked."""
    # The package index's own build for Linux is the CUDA one, of gigabytes; it runs without a GPU as well.
    without_cuda = re.findall(r"sha256:([0-9a-f]+)", (LOCKED / "torch-cpu.txt").read_text())
    torch = "torch-cpu" if engine == "cpu" and torch_at_hand() in without_cuda else "torch"
    return ("common", torch, f"fbgemm-{engine}")


def lacking(engine: str) -> list[str]:
    """What pip finds that packages lack of each other, but for what the CPU engine leaves out."""
    process = subprocess.run([*PIP[:3], "check"], check=False, stdout=subprocess.PIPE, text=True)
    complaints = process.stdout.splitlines() if process.returncode else []
    return [line for line in complaints if engine != "cpu" or not LEFT_OUT.fullmatch(line)]


def main() -> None:
    """Install all at once, then look whether the lock had all that its packages need."""
    if len(sys.argv) != 2 or sys.argv[1] not in ENGINES:
        sys.exit(f"usage: python requirements/install.py {'|'.join(ENGINES)}")
    engine = sys.argv[1]
    listed = [word for name in files(engine) for word in ("-r", str(LOCKED / f"{name}.txt"))]
    code = subprocess.run([*PIP, "--require-hashes", *listed], check=False).returncode
    complaints = lacking(engine) if code == 0 else []
    sys.exit("\n".join(["the lock does not hold what it needs: nox -s lock", *complaints]) if complaints else code)


if __name__ == "__main__":
    main()
