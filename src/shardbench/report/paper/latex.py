"""Tables and figures as LaTeX: booktabs, every text escaped, no package but booktabs and graphicx."""

import re
from collections.abc import Sequence

from shardbench.base.generated import ascii_text
from shardbench.report.charts.look import COLUMN_IN

_COLUMN_PT = COLUMN_IN * 72.27
_LETTER_PT = 3.6
"""Mean width of a character of \\scriptsize, in points."""
_GAP_PT = 6.0
"""Two columns of a table are so far apart."""
_COMMANDS = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\textasciigrave{}", '"': r"{''}", "'": r"\textquotesingle{}",
    **{letter: f"\\{letter}" for letter in "{}$&#_%"},
    # LaTeX joins two of these to a dash or to a quotation mark.
    "-": "-{}", ",": ",{}",
}  # fmt: skip
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ESCAPED = re.compile(r"-(?=-)|,(?=,)|[\\~^<>|`\"'{}$&#_%]")


def escape(text: str) -> str:
    """Return LaTeX that prints the text; white space is one blank, what is no printable ASCII is its code."""
    plain = _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", " ".join(ascii_text(text).split()))
    return _ESCAPED.sub(lambda match: _COMMANDS[match.group()], plain)


def slug(text: str) -> str:
    """Return the text as part of a file's name or a label, without what LaTeX would read: dots are hyphens, too."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")


def table_tex(
    *,
    caption: str,
    label: str,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    notes: Sequence[str] = (),
    wide: Sequence[float] = (),
) -> str:
    """Return a floating ``table``, or a ``table*`` over both columns where one is too narrow.

    Texts are as they are to be read, not escaped. A column that is ``numeric`` is aligned to the right; one of a text
    that is broken into lines has its share of the page's width in ``wide``, the others 0. ``notes`` stand below.
    """
    kind = "table*" if any(wide) or _width_pt(headers, rows) > _COLUMN_PT else "table"
    shares = wide or (0.0,) * len(headers)
    columns = "".join(
        f"p{{{share:g}\\textwidth}}" if share else "r" if right else "l" for share, right in zip(shares, numeric)
    )
    lines = [
        f"\\begin{{{kind}}}",
        r"\centering",
        f"\\caption{{{escape(caption)}}}",
        f"\\label{{tab:{label}}}",
        r"\scriptsize",
        r"\setlength{\tabcolsep}{3pt}",
        f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        _line(headers),
        r"\midrule",
        *(_line(row) for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        *(f"\\par\\smallskip\\parbox{{\\linewidth}}{{\\raggedright {escape(note)}}}" for note in notes),
        f"\\end{{{kind}}}",
    ]
    return "\n".join(lines) + "\n"


def figure_tex(file: str, caption: str) -> str:
    """Return a floating ``figure`` of one column that shows a file by its name without ending."""
    lines = [
        r"\begin{figure}",
        r"\centering",
        f"\\includegraphics[width=\\columnwidth]{{{file}}}",
        f"\\caption{{{escape(caption)}}}",
        f"\\label{{fig:{file}}}",
        r"\end{figure}",
    ]
    return "\n".join(lines) + "\n"


def document_tex(title: str, parts: Sequence[str]) -> str:
    """Return a document of two columns that inputs parts by their names, to look at them all."""
    lines = [
        r"\documentclass[twocolumn]{article}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage{textcomp}",
        r"\usepackage{booktabs}",
        r"\usepackage{graphicx}",
        f"\\title{{{escape(title)}}}",
        r"\date{}",
        r"\begin{document}",
        r"\maketitle",
        # LaTeX holds at most some dozens of floats back.
        *(f"\\input{{{part}}}\\clearpage" for part in parts),
        r"\end{document}",
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    # A bracket behind \\ would be read as its argument.
    return " & ".join(f"{{{escape(cell)}}}" if cell.startswith(("[", "*")) else escape(cell) for cell in cells) + r" \\"


def _width_pt(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> float:
    longest = [max(map(len, column)) for column in zip(headers, *rows)]
    return sum(longest) * _LETTER_PT + (len(longest) - 1) * _GAP_PT
