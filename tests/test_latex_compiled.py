"""What `report --latex` writes, compiled: no error, nothing wider than its place, any text printed as it is."""

import re
import subprocess
from pathlib import Path

import pytest

from shardbench.cli.main import run_command
from shardbench.report.paper.latex import document_tex, table_tex

pytestmark = pytest.mark.latex

RESULTS = Path(__file__).parent.parent / "results"
GIVEN = (
    "quick",
    "measured",
    "leaderboard",
    "recshard",
    "autoshard",
    "dreamshard",
    "flexshard",
    "fae",
    "embark",
    "neuroshard",
)
STICKS_OUT_PT = 1.0
"""What LaTeX itself calls overfull begins at 0.1; nobody sees a point."""
HOSTILE = (
    r"\input{/etc/hostname}", r"\write18{touch caught}", "$x_1^2$ & #1 % not a comment", "a--b ,,c'' ``d'' ~e^f|g<h>i",
    "{unbalanced", "*[2em]", "[optional]", "naïve ≤ 3 µs", "\x1b[31mred",
)  # fmt: skip


def compiled(folder: Path, document: str) -> str:
    """LaTeX's log; fails where it finds an error."""
    command = ["pdflatex", "-no-shell-escape", "-halt-on-error", "-interaction=nonstopmode", document]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=300, check=False)
    log = done.stdout.decode(errors="replace")
    assert done.returncode == 0, "\n".join(re.findall(r"^(?:!|l\.\d+).*", log, re.MULTILINE)) or log[-2000:]
    return log


def too_wide(log: str) -> list[float]:
    """By how many points lines and tables are wider than their place."""
    return [float(points) for points in re.findall(r"^Overfull \\hbox \(([\d.]+)pt too wide\)", log, re.MULTILINE)]


@pytest.mark.parametrize("name", GIVEN)
def test_what_the_committed_results_give_compiles(tmp_path, capsys, name):
    assert run_command(["report", name, "--results", str(RESULTS), "--latex", str(tmp_path)]) == 0
    capsys.readouterr()
    log = compiled(tmp_path, f"all-{name}.tex")
    assert max(too_wide(log), default=0.0) <= STICKS_OUT_PT
    assert (tmp_path / f"all-{name}.pdf").stat().st_size


def test_text_of_others_is_printed_as_it_is(tmp_path):
    table = table_tex(
        caption="Texts of others", label="hostile", headers=("text", "n"), numeric=(False, True),
        rows=tuple((text, "1") for text in HOSTILE), notes=HOSTILE,
    )  # fmt: skip
    (tmp_path / "hostile.tex").write_text(table)
    (tmp_path / "all.tex").write_text(document_tex(HOSTILE[0], ["hostile"]))
    compiled(tmp_path, "all.tex")
    assert not (tmp_path / "caught").exists()
    said = subprocess.run(["pdftotext", "-layout", "all.pdf", "-"], cwd=tmp_path, capture_output=True, check=True)
    # A reader of PDF may part ligatures and signs otherwise: letters are what it is held to.
    printed = re.sub(r"[^a-z]", "", said.stdout.decode())
    for text in (HOSTILE[0], HOSTILE[2], HOSTILE[4]):
        assert re.sub(r"[^a-z]", "", text) in printed
