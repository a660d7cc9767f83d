"""The archive of results: every committed file, a manifest that describes them, the same bytes each time."""

import hashlib
import json
import subprocess
import tarfile
from pathlib import Path

import pytest
from data_package import main

TABLE, RECORD = b'strategy,"step, ms"\na,1\n', b"{}\n"


def test_the_archive_holds_what_is_committed_and_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"results/tables/t.csv": TABLE, "results/records/r.jsonl": RECORD, "results/own.csv": TABLE}
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    Path("pyproject.toml").write_text('[project]\nname = "p"\nversion = "1.2"\nlicense = "MIT"\n')
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "-q"), ("add", "results/tables", "results/records"), (*who, "commit", "-q", "-m", "m")):
        subprocess.run(("git", *command), check=True)
    archives = []
    for _ in range(2):
        main()
        archives.append(Path("dist/p-results-1.2.tar.gz").read_bytes())
    assert archives[0] == archives[1]
    with tarfile.open("dist/p-results-1.2.tar.gz") as archive:
        members = {member.name: archive.extractfile(member) for member in archive}
        contents = {name.removeprefix("p-results-1.2/"): file.read() for name, file in members.items() if file}
    manifest = json.loads(contents.pop("datapackage.json"))
    assert contents == {"results/records/r.jsonl": RECORD, "results/tables/t.csv": TABLE}, "what is not committed stays"
    record, table = manifest["resources"]
    assert record == {
        "path": "results/records/r.jsonl",
        "bytes": 3,
        "hash": f"sha256:{hashlib.sha256(RECORD).hexdigest()}",
    }
    assert [field["name"] for field in table["schema"]["fields"]] == ["strategy", "step, ms"]
