"""LaTeX that compiles wherever the texts come from: read back by a reader of its own, and its parts counted."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from shardbench.base.generated import ascii_text
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
