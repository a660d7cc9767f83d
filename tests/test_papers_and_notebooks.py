"""docs/papers_and_notebooks.md and results/README.md: what they show runs, and what they say is so."""

import re
import shutil
from pathlib import Path

import pytest

import shardbench
from shardbench.report.results import COLUMNS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "papers_and_notebooks.md").read_text()


def test_the_pages_python_runs_as_it_stands(monkeypatch):
    monkeypatch.chdir(ROOT)
    found = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(block, found)
    best = found["best"]
    assert len(best) == len(best[["workload", "machine"]].drop_duplicates()) > 3
    assert set(best["backend"]) == {"simulated"}
    assert len(found["ratio"]) > 100
    assert len(found["measured"]) > 20
    assert "joint" in set(found["measured"]["name"])


def test_the_pages_commands_run_as_they_stand(tmp_path, monkeypatch, command):
    lines_of_page = [line.split()[1:] for line in PAGE.splitlines() if line.startswith("shardbench ")]
    assert [line[0] for line in lines_of_page] == ["compare", "report"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src" / "shardbench").mkdir(parents=True)
    (tmp_path / "runs").symlink_to(ROOT / "results" / "again")
    (tmp_path / "results" / "tables").mkdir(parents=True)
    (tmp_path / "results" / "studies").symlink_to(ROOT / "results" / "studies")
    records = tmp_path / "results" / "records"
    shutil.copytree(ROOT / "results" / "records", records)
    # Figures take most of the time: three of the suite's five problems have enough of them.
    lines = (records / "quick.jsonl").read_text().splitlines(keepends=True)
    kept = ('"workload":"mixed"', '"workload":"meta-traces"', '"machine":"2080ti-1x4"')
    (records / "quick.jsonl").write_text("".join(line for line in lines if any(part in line for part in kept)))
    said = [command(*line) for line in lines_of_page]
    rows = re.search(r"measured, step \(ms\): \d+ of (\d+) within the noise", said[0])
    assert rows is not None
    assert int(rows.group(1)) > 100
    assert len(list((tmp_path / "paper").glob("*.pdf"))) >= 10


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_is_said_on_the_page(name):
    section = PAGE.split("## The columns")[1]
    heading = next(line for line in section.splitlines() if line.startswith(f"The frame `{name}`"))
    table = re.search(r"(?:^\|.*\n)+", section.split(heading)[1], flags=re.MULTILINE).group()
    rows = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in table.splitlines()[2:]]
    # The page says the columns that name a trial once.
    said = COLUMNS["trials"][:8] if name in {"steps", "ranks"} else ()
    assert (*said, *(column.strip("`") for row in rows for column in row[0].split(", "))) == COLUMNS[name]
    assert all(len(row) == 2 and row[1] for row in rows)


def test_every_record_states_the_code_that_made_it():
    records = shardbench.load_results(ROOT / "results").records
    assert records["judge_version"].notna().all()


def test_the_readme_lists_every_folder():
    text = (ROOT / "results" / "README.md").read_text()
    listed = re.findall(r"^\| `(\w+)/` \|", text, flags=re.MULTILINE)
    ignored = re.findall(r"^results/(\w+)/$", (ROOT / ".gitignore").read_text(), flags=re.MULTILINE)
    assert {path.name for path in (ROOT / "results").iterdir() if path.is_dir()} <= {*listed, *ignored}
