"""What the programme needs on a GPU machine without a network, packed small enough to be carried there in two trips.

FBGEMM's CUDA wheel has machine code for several GPU generations and for every optimizer: 465 MB, 2.4 GB unpacked. One
machine needs one generation, and this project four optimizers. In the copy all other machine code is overwritten with
zeros, which compress to nothing; the shared libraries keep their layout, so that they load as before. A kernel that was
overwritten fails when it is first called, and no other does, as long as CUDA loads modules lazily, which is its default
(`CUDA_MODULE_LOADING` must not be EAGER).

    python tools/gpu_box/trips.py pack          makes the two folders of TRIPS in the checkout, and lists what travels
    python tools/gpu_box/trips.py unpack SITE   there: unpacks both to SITE, which then goes on PYTHONPATH

The wheels are those of wheels.txt, by their hashes. Git ignores the folders. Packing needs pip, 3 GB of room and a few
minutes; no GPU.
"""

import argparse
import lzma
import mmap
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRIPS = (".gpu-trip-1", ".gpu-trip-2")
"""Wheels and the first part of FBGEMM; its other parts. A folder that travels replaces its namesake: hence two."""
COMMIT = "commit"
"""The file of the first trip that names the commit."""
TRIP_BYTES = 64 * 2**20
"""What may travel at once, the tracked files of the checkout among it."""
PART_BYTES = 17 * 2**20
WHEELS = Path(__file__).with_name("wheels.txt")
PYTHON = "3.12"
GENERATION = 90
"""Machine code of the H100 and the H200."""
FATBIN_MAGIC = 0xBA55ED50
MACHINE_CODE = 2
"""The kind of an entry that holds machine code; 1 is PTX."""
OPTIMIZERS = (b"sgd", b"rowwise_adagrad", b"adagrad", b"adam")
UNUSED = ("training_backward_vbe", "training_backward_gwd", "tbe_inference")
"""Libraries whose kernels no plan of ours calls; they must load all the same."""
PLATFORMS = tuple(f"manylinux{name}_x86_64" for name in ("_2_28", "_2_27", "_2_24", "_2_17", "2014", "1"))


def code_section(path: Path) -> tuple[int, int] | None:
    """Return offset and size [bytes] of the section of GPU code in a shared library, None if there is none."""
    with path.open("rb") as file:
        data = file.read(64)
        table = struct.unpack_from("<Q", data, 0x28)[0]
        entry_bytes, entries, names_at = struct.unpack_from("<HHH", data, 0x3A)
        file.seek(table)
        raw = file.read(entry_bytes * entries)
        headers = [struct.unpack_from("<IIQQQQIIQQ", raw, i * entry_bytes) for i in range(entries)]
        file.seek(headers[names_at][4])
        names = file.read(headers[names_at][5])
    for header in headers:
        if names[header[0] : names.index(b"\0", header[0])] == b".nv_fatbin":
            return header[4], header[5]
    return None


def payloads(view: mmap.mmap, offset: int, size: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield kind, GPU generation, first byte and size of each piece of code in a section."""
    at, end = offset, offset + size
    while at + 16 <= end:
        magic, _, header, body = struct.unpack_from("<IHHQ", view, at)
        if magic != FATBIN_MAGIC:
            at += 8
            continue
        inner, inner_end = at + header, at + header + body
        while inner + 64 <= inner_end:
            kind, _, length, payload = struct.unpack_from("<HHIQ", view, inner)
            if not 64 <= length <= 4096 or payload > body:
                sys.exit(f"not GPU code of a form that this program knows: a piece of {length} + {payload} bytes")
            yield kind, struct.unpack_from("<I", view, inner + 28)[0], inner + length, payload
            inner += length + payload
        at = inner_end + -inner_end % 8


def is_needed(path: Path, kind: int, generation: int, code: bytes) -> bool:
    """Say whether a piece is machine code for this GPU that a plan of ours may call."""
    if kind != MACHINE_CODE or generation != GENERATION or any(part in path.name for part in UNUSED):
        return False
    if not path.name.endswith("training_backward.so"):
        return True
    optimizers = set(re.findall(rb"backward_codegen_(\w+?)_(?:un)?weighted", code))
    return not optimizers or bool(optimizers & set(OPTIMIZERS))


def overwrite_unneeded(path: Path) -> None:
    """Write zeros over the machine code of a library that is not needed; say how much stays."""
    section = code_section(path)
    if section is None:
        return
    before = after = 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        for kind, generation, first, length in payloads(view, *section):
            before += length
            if is_needed(path, kind, generation, view[first : first + length]):
                after += length
            else:
                view[first : first + length] = bytes(length)
    if before > 1e6 and not after and not any(part in path.name for part in UNUSED):
        sys.exit(f"{path.name} has no machine code for sm_{GENERATION}")
    print(f"{path.name}: {before / 1e6:.0f} MB of GPU code, {after / 1e6:.0f} MB stay", flush=True)


def pack(root: Path) -> None:
    """Download the wheels, pack FBGEMM's, fill the folders of both trips; exits where one is too large to travel."""
    first, second = (root / name for name in TRIPS)
    for folder in (first, second):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    with tempfile.TemporaryDirectory(dir=first) as scratch:
        place = Path(scratch)
        platforms = [word for name in PLATFORMS for word in ("--platform", name)]
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
        checked = ("--only-binary=:all:", "--require-hashes", "--requirement", str(WHEELS))
        there = ("--python-version", PYTHON, "--implementation", "cp", *platforms)
        subprocess.run([*pip, *there, *checked, "--dest", str(place)], check=True)
        (large,) = place.glob("fbgemm_gpu-*.whl")
        packed = _pack(large, place)
        large.unlink()
        for wheel in place.glob("*.whl"):
            shutil.move(wheel, first)
        parts = -(-packed.stat().st_size // PART_BYTES)
        with packed.open("rb") as file:
            for number in range(parts):
                part = (second if number else first) / f"fbgemm.tar.xz.{number:02d}-of-{parts:02d}"
                part.write_bytes(file.read(PART_BYTES))
    # Git's own files do not travel.
    commit = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    (first / COMMIT).write_text(commit.stdout)
    fit = [_fits(root, folder) for folder in (first, second)]
    if not all(fit):
        sys.exit(f"a trip is larger than {TRIP_BYTES / 2**20:g} MiB")


def _pack(wheel: Path, place: Path) -> Path:
    site, packed = place / "site", place / "fbgemm.tar.xz"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for library in sorted(site.rglob("*.so")):
        overwrite_unneeded(library)
    with lzma.open(packed, "wb", preset=6) as out, tarfile.open(fileobj=out, mode="w|") as archive:
        archive.add(site, arcname=".")
    return packed


def _fits(root: Path, folder: Path) -> bool:
    """List what travels on one trip, with sizes; say whether it may."""
    tracked = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True, check=True)
    sizes = {"tracked files": sum((root / name).lstat().st_size for name in tracked.stdout.split("\0") if name)}
    sizes |= {f"{folder.name}/{path.name}": path.stat().st_size for path in sorted(folder.iterdir())}
    for name, size in [*sizes.items(), (f"all of {folder.name}", sum(sizes.values()))]:
        print(f"{size / 2**20:>8.2f} MiB  {name}")
    return sum(sizes.values()) <= TRIP_BYTES


def unpack(root: Path, site: Path) -> None:
    """Unpack both trips to ``site``, which is there whole or not at all; exits where a part is missing."""
    folders = [root / name for name in TRIPS]
    parts = sorted((part for folder in folders for part in folder.glob("fbgemm.tar.xz.*-of-*")), key=lambda p: p.name)
    if not parts or len(parts) != int(parts[0].name.rpartition("-of-")[2]):
        sys.exit(f"{len(parts)} parts of fbgemm.tar.xz in {', '.join(TRIPS)}: some are missing")
    site.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=site.parent) as scratch, tempfile.TemporaryFile() as archive_file:
        fresh = Path(scratch) / "site"
        for part in parts:
            archive_file.write(part.read_bytes())
        archive_file.seek(0)
        with lzma.open(archive_file) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            archive.extractall(fresh, filter="data")
        for wheel in folders[0].glob("*.whl"):
            with zipfile.ZipFile(wheel) as files:
                files.extractall(fresh)
        fresh.rename(site)


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("pack")
    commands.add_parser("unpack").add_argument("site", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "pack":
        pack(ROOT)
    else:
        unpack(ROOT, arguments.site)


if __name__ == "__main__":
    main()
