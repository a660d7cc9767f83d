"""LaTeX that compiles wherever the texts come from: read back by a reader of its own, counted, and compiled."""

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardbench.base.generated import ascii_text
from shardbench.cli.main import run_command
from shardbench.report.paper.latex import document_tex, escape, figure_tex, slug, table_tex

PRINTED = {
    "textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "textless": "<", "textgreater": ">",
    "textbar": "|", "textasciigrave": "`", "textquotesingle": "'",
}  # fmt: skip
SPECIAL = set("\\{}$&#^_%~")


def read_back(tex):
    """What LaTeX prints of escaped text; an error for anything that it would take for a command of its own."""
    printed, place = [], 0
    while place < len(tex):
        rest = tex[place:]
        if word := re.match(r"\\([a-z]+)\{\}", rest):
            printed.append(PRINTED[word.group(1)])
            place += word.end()
        elif rest[0] == "\\":
            assert rest[1] in "{}$&#_%", f"command {rest[:12]!r}"
            printed.append(rest[1])
            place += 2
        elif rest.startswith("{''}"):
            printed.append('"')
            place += 4
        elif rest.startswith("{}"):
            place += 2
        else:
            assert rest[0] not in SPECIAL, f"bare {rest[:12]!r}"
            assert rest[:2] not in ("--", ",,", "``", "''"), f"ligature {rest[:12]!r}"
            assert rest[0] not in "<>|\"'`", f"another character in OT1: {rest[:12]!r}"
            printed.append(rest[0])
            place += 1
    return "".join(printed)


@given(st.text())
@example(r"\input{/etc/passwd} & 5 % of $x_1^2$ # {}~ <b> | ``q'' --json ,,")
@example("\"a\"--'b'\n\nnew paragraph")
@example("100 % \\")
def test_any_text_is_printed_as_it_is(text):
    plain = " ".join(ascii_text(text).split())
    assert read_back(escape(text)) == "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in plain)


def environments(tex):
    """Those that open, each closed in its turn."""
    open_, found = [], []
    for kind, name in re.findall(r"\\(begin|end)\{([a-z*]+)\}", tex):
        if kind == "begin":
            open_.append(name)
            found.append(name)
        else:
            assert open_.pop() == name, tex
    assert open_ == []
    return found


def braces(tex):
    """Depth at the end, comments and escaped braces left out."""
    plain = re.sub(r"\\[\\{}%]", "", tex)
    return plain.count("{") - plain.count("}")


texts = st.text(max_size=12)
rows = st.integers(1, 5).flatmap(
    lambda width: st.tuples(
        st.lists(texts, min_size=width, max_size=width),
        st.lists(st.lists(texts, min_size=width, max_size=width), max_size=4),
    )
)


@given(rows, texts)
def test_a_table_of_any_text_is_balanced_and_has_all_its_cells(given_rows, caption):
    headers, body = given_rows
    numeric = (True,) * len(headers)
    tex = table_tex(caption=caption, label="one", headers=headers, rows=body, numeric=numeric, notes=(caption,))
    assert environments(tex) in (["table", "tabular"], ["table*", "tabular"])
    assert braces(tex) == 0
    inside = tex.split("\\toprule\n")[1].split("\\bottomrule")[0].replace("\\midrule\n", "")
    lines = [line for line in inside.split("\n") if line]
    assert len(lines) == 1 + len(body)
    for line in lines:
        assert line.endswith(r" \\")
        assert len(re.findall(r"(?<!\\)&", line)) == len(headers) - 1


def test_a_table_as_it_is_written():
    table = table_tex(
        caption="Step, 95 %", label="a-b", headers=("strategy", "ms"), rows=(("row_wise", "1.5"), ("[x]", "-")),
        numeric=(False, True), notes=("n & m",),
    )  # fmt: skip
    assert table.splitlines() == [
        r"\begin{table}", r"\centering", r"\caption{Step, 95 \%}", r"\label{tab:a-b}", r"\scriptsize",
        r"\setlength{\tabcolsep}{3pt}", r"\begin{tabular}{@{}lr@{}}", r"\toprule", r"strategy & ms \\", r"\midrule",
        r"row\_wise & 1.5 \\", r"{[x]} & - \\", r"\bottomrule", r"\end{tabular}",
        r"\par\smallskip\parbox{\linewidth}{\raggedright n \& m}", r"\end{table}",
    ]  # fmt: skip


def test_a_table_that_a_column_cannot_hold_takes_both():
    headers = tuple(f"a heading, number {n}" for n in range(6))
    table = table_tex(caption="", label="x", headers=headers, rows=(), numeric=(True,) * 6)
    assert environments(table) == ["table*", "tabular"]
    broken = table_tex(caption="", label="x", headers=("a", "b"), rows=(), numeric=(False, True), wide=(0.4, 0.0))
    assert r"\begin{tabular}{@{}p{0.4\textwidth}r@{}}" in broken


def test_figures_and_documents_are_balanced():
    figure = figure_tex("quick-steps", "Time_of 5 %")
    assert environments(figure) == ["figure"]
    assert r"\includegraphics[width=\columnwidth]{quick-steps}" in figure
    document = document_tex("100 % & more", ["a", "b"])
    assert environments(document) == ["document"]
    assert braces(document) == braces(figure) == 0
    assert r"\input{b}" in document


@given(texts)
def test_names_of_files_have_nothing_that_latex_reads(text):
    assert re.fullmatch(r"[A-Za-z0-9-]*", slug(f"a {text}"))


def test_dots_are_no_part_of_a_files_name():
    assert slug("synthetic-0.5 on a100_40gb") == "synthetic-0-5-on-a100-40gb"


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


@pytest.mark.latex
@pytest.mark.parametrize("name", GIVEN)
def test_what_the_committed_results_give_compiles(tmp_path, capsys, name):
    assert run_command(["report", name, "--results", str(RESULTS), "--latex", str(tmp_path)]) == 0
    capsys.readouterr()
    log = compiled(tmp_path, f"all-{name}.tex")
    assert max(too_wide(log), default=0.0) <= STICKS_OUT_PT
    assert (tmp_path / f"all-{name}.pdf").stat().st_size


@pytest.mark.latex
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
