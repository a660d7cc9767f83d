"""Writes the committed results into one archive: dist/shardbench-results-VERSION.tar.gz, a Frictionless data package.

``datapackage.json`` in it lists every file with its size, SHA-256 and, of a table, its columns. The same commit makes
the same archive, byte by byte.
"""

import csv
import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Any

RESULTS, DIST = Path("results"), Path("dist")


def resource(file: Path, content: bytes) -> dict[str, Any]:
    """Return what the manifest says of one file."""
    said: dict[str, Any] = {
        "path": str(file),
        "bytes": len(content),
        "hash": f"sha256:{hashlib.sha256(content).hexdigest()}",
    }
    if file.suffix == ".csv":
        columns = next(csv.reader(io.StringIO(content.decode())))
        said["schema"] = {"fields": [{"name": name} for name in columns]}
    return said


def main() -> None:
    """Run the command line, from the repository's root."""
    listed = subprocess.run(["git", "ls-files", "-z", str(RESULTS)], check=True, capture_output=True, text=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    contents = {Path(name): Path(name).read_bytes() for name in sorted(listed.stdout.rstrip("\0").split("\0"))}
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    name = f"{project['name']}-results-{project['version']}"
    manifest = {
        "name": f"{project['name']}-results",
        "version": project["version"],
        "title": "Results of ShardBench: records, tables and environments",
        "licenses": [{"name": project["license"]}],
        "sources": [{"title": f"ShardBench at commit {commit}"}],
        "resources": [resource(file, content) for file, content in contents.items()],
    }
    contents[Path("datapackage.json")] = json.dumps(manifest, indent=1).encode()
    DIST.mkdir(exist_ok=True)
    with (
        (DIST / f"{name}.tar.gz").open("wb") as out,
        gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for file, content in contents.items():
            member = tarfile.TarInfo(f"{name}/{file}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    main()
