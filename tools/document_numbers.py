"""Numbers in documents: blocks between two comments, made of committed tables as a ``numbers.toml`` declares.

``python tools/document_numbers.py`` in the repository's root rewrites every block, and the pictures of results.
"""

import argparse
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import altair as alt
import pandas as pd
import pydantic
from pydantic import Field

from shardbench.base.atomic import write_atomically
from shardbench.base.errors import BadInput
from shardbench.base.reading import toml_file
from shardbench.base.serialise import first_error
from shardbench.model.table import Name
from shardbench.records.trial import Backend
from shardbench.report.charts.look import picture
from shardbench.report.charts.strategies import ranking, rows_of
from shardbench.report.standing import table_standings
from shardbench.report.tables.answer import answers_of_table, lines
from shardbench.report.tables.text import significant
from shardbench.studies.claim_text import VERDICTS, below_statements, ledger_cells, summary
from shardbench.studies.regions.region_picture import region_chart
from shardbench.studies.reproduction import find_reproduction
from shardbench.studies.verdict import Finding
from shardbench.trials.discovery import reproduction_names

FOLDERS = ("baselines", "benchmarks", "docs")
"""Where ``numbers.toml`` files lie, at any depth; ``NAME.numbers.toml`` where a folder has several documents."""
TABLES = Path("results/tables")
LEADERBOARD = "leaderboard"
PICTURES = Path("results/pictures")
EQUAL_EFFORT = "60 s"
"""Budget under which the README's picture compares a search and a network."""
WIDTH = 120
_MARKER = re.compile(r"<!-- numbers: (\S+) begin -->\n(.*?)<!-- numbers: \1 end -->", re.DOTALL)
_ANY_MARKER = re.compile(r"<!-- numbers: .*?-->")


class Column(pydantic.BaseModel):
    """One column of a block: an expression over the table's columns, and how it is printed."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    head: str
    value: str
    """An expression for ``pandas.DataFrame.eval``; names that are no identifiers stand in backticks."""
    low: str = ""
    high: str = ""
    """The range that is printed behind the value has two ends, so that both are stated or none."""
    beside: str = ""
    """An expression that is printed behind the value and a stroke: another's number."""
    unit: str = ""
    decimals: int | None = None
    """Three significant digits where nothing is said, one decimal of per cents."""

    def text(self, value: object) -> str:
        """Print a cell's value; ``-`` stands for one that is missing."""
        if isinstance(value, str):
            return value
        if pd.isna(value):
            return "-"
        number, decimals = float(value), self.decimals  # type: ignore[arg-type]
        if decimals is None and self.unit == "%":
            decimals = 1
        printed = significant(number) if decimals is None else f"{number:,.{decimals}f}"
        return re.sub(r"^-(0(\.0+)?)$", r"\1", printed)


class Fact(Column):
    """A number, or a word, for a sentence: an expression over the one row that is left, or how many rows are."""

    head: str = ""
    value: str = ""
    table: str
    where: str = ""
    wide: tuple[str, str, str] | None = None
    """Columns of rows, of columns and of values of a wide table that is made of what ``where`` leaves."""
    having: str = ""
    """A condition on the wide table's rows."""


class Headline(pydantic.BaseModel):
    """What a paper is known for, and what became of it."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    says: str
    """The system, and the paper's sentence in short."""
    claim: str = ""
    """The ledger's row that gives the paper's number, ours and the evidence: ``paper/claim``."""
    paper: str = ""
    ours: str = ""
    how: str = ""
    """They stand in place of what the ledger's row gives."""
    why: str
    """One sentence, printed below the table. These four may have names of ``facts`` in braces."""
    facts: dict[str, Fact] = {}


class Spread(pydantic.BaseModel):
    """Rows that become columns: one for each entry of ``by``, named by it."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    by: str
    values: Annotated[tuple[str, ...], Field(min_length=1)]
    """Where there is more than one, columns are named by value and entry: ``cost_ms fae``."""


class Block(pydantic.BaseModel):
    """One block of a document: which rows of which tables, how they are grouped, which columns are printed."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: Name
    tables: Annotated[tuple[str, ...], Field(min_length=1)]
    """Files below ``results/tables``, one after the other."""
    form: Literal["table", "ledger", "verdicts", "summary", "answer", "support", "session", "headlines"] = "table"
    """``ledger``: the ledger's rows; ``verdicts``: how many of which, by paper or by a column that ``rows`` names;
    ``summary``: the same in sentences, with when definitions were committed; ``answer``: what a run prints of a
    throughput table; ``support``: what works with TorchRec; ``session``: what a terminal showed, a text as it is;
    ``headlines``: what papers are known for, with a sentence for each."""
    where: str = ""
    """A condition for ``pandas.DataFrame.query``; all rows are taken where it is empty."""
    rows: dict[str, str] = {}
    """Columns that name a row, and their heads."""
    average: Literal["only", "mean", "median", "min", "max"] = "only"
    """How rows of one name become one row; ``only`` refuses more than one."""
    spread: Spread | None = None
    least: dict[str, tuple[str, ...]] = {}
    """New columns, each the smallest of the others that it names."""
    columns: tuple[Column, ...] = ()
    backend: Literal["", "counted", "measured", "simulated", "predicted and measured", "simulated and counted"] = ""
    """The backend to print where the rows' own does not say it (seconds spent on a simulated row)."""
    headlines: tuple[Headline, ...] = ()
    summary: tuple[Literal["mean", "min", "max"], ...] = ()
    """Rows that are added below the others and summarise what these print."""


class Spec(pydantic.BaseModel):
    """A ``numbers.toml``: the blocks of one document."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    document: str
    """Path of the document, relative to the spec's folder."""
    blocks: Annotated[tuple[Block, ...], Field(min_length=1)]


def specs(root: Path) -> list[Path]:
    """Return the paths of all ``numbers.toml`` files of a repository."""
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*numbers.toml"))


def parse(path: Path) -> Spec:
    """Read a spec; raises BadInput that names the first wrong field."""
    try:
        return Spec.model_validate(toml_file(path))
    except pydantic.ValidationError as error:
        raise BadInput(f"{path}: {first_error(error)}") from error


def rewritten(path: Path, tables: Path) -> tuple[Path, str]:
    """Return the document of a spec, and its text with every block made anew.

    Raises BadInput where the blocks of document and spec are not the same, or a table cannot give one.
    """
    spec = parse(path)
    document = path.parent / spec.document
    text = document.read_text()
    blocks = {block.name: block for block in spec.blocks}
    names = [match.group(1) for match in _MARKER.finditer(text)]
    if sorted(names) != sorted(block.name for block in spec.blocks) or len(_ANY_MARKER.findall(text)) != 2 * len(names):
        raise BadInput(f"{document}: its blocks {names} are not those of {path}: {list(blocks)}")

    def anew(match: re.Match[str]) -> str:
        name = match.group(1)
        return f"<!-- numbers: {name} begin -->\n{block_text(blocks[name], tables)}\n<!-- numbers: {name} end -->"

    return document, _MARKER.sub(anew, text)


def pictures(tables: Path) -> dict[str, str]:
    """Return pictures by path below ``results/pictures``: the leaderboard's ranking, and the regions of claims."""
    drawn = {
        f"{LEADERBOARD}/ranking.svg": ranking_picture(pd.read_csv(path))
        for path in sorted((tables / LEADERBOARD).glob("steps.csv"))
    }
    for owner in reproduction_names():
        for claim in find_reproduction(owner).claims:
            region = claim.region
            if region is None or not (tables / owner / f"{region.table}.csv").is_file():
                continue
            points, knobs = (pd.read_csv(tables / owner / f"{region.table}{end}.csv") for end in ("", "_knobs"))
            if len(knobs):
                what = f"Where the claim {claim.name} of {owner} holds: {claim.statement}"
                drawn[f"{owner}-{claim.name}.svg"] = picture(region_chart(claim, points, knobs), what, width=520)
    return drawn


def ranking_picture(steps: pd.DataFrame) -> str:
    """Return how far every strategy of the leaderboard's table ``steps`` is from the best, as SVG."""
    rows = rows_of(table_standings(steps))
    chart = ranking(alt.InlineData(rows), backend=Backend.SIMULATED.value, budget=EQUAL_EFFORT)
    mine = [row for row in rows if row["backend"] == Backend.SIMULATED.value and row["budget"] == EQUAL_EFFORT]
    versions = ", ".join(sorted({f"{version}" for version in steps["version"]}))
    title = alt.TitleParams(
        "Median and worst step over the best of each problem",
        subtitle=[
            f"simulated; leaderboard version {versions}; {len({row['problem'] for row in mine})} problems (workload x "
            f"machine); {EQUAL_EFFORT} for learning and planning",
            "in the order of the share within 5 % of the best; in brackets: problems ended; grey: no competitor",
        ],
    )
    return picture(chart.properties(title=title), str(title.text))


def block_text(block: Block, tables: Path) -> str:
    """Return a block as Markdown, without its markers."""
    try:
        if block.form == "session":
            return _session(block, tables)
        if block.form == "headlines":
            return _headlines(block, tables)
        frame = pd.concat([pd.read_csv(tables / name) for name in block.tables], ignore_index=True)
        frame = frame.query(block.where) if block.where else frame
        if frame.empty:
            raise BadInput("no row of the table is left")
        return _FORMS[block.form](block, frame)
    except (BadInput, OSError, NameError, KeyError, SyntaxError, TypeError, ValueError) as error:
        raise BadInput(f"block '{block.name}': {error}") from error


def _table(block: Block, frame: pd.DataFrame) -> str:
    wide = _arrange(block, frame)
    keys = [key if isinstance(key, tuple) else (key,) for key in wide.index]
    names = [[_name(part) for part in key] for key in keys]
    columns = [_cells(column, wide) for column in block.columns]
    rows = [[*name, *cells] for name, cells in zip(names, zip(*columns))]
    for by in block.summary:
        values = [getattr(wide.eval(column.value), by)() for column in block.columns]
        blank = [""] * (len(block.rows) - 1)
        rows.append([by, *blank, *(c.text(v) + _unit(c, v) for c, v in zip(block.columns, values))])
    heads = [*block.rows.values(), *(column.head for column in block.columns)]
    backends = block.backend or " and ".join(sorted(set(frame["backend"])))
    ruler = ["---"] * len(block.rows) + ["---:"] * len(block.columns)
    lines = [_line(row) for row in (heads, ruler, *rows)]
    return "\n".join([*lines, "", f"{backends.capitalize()}; {_files(block, ', ')}."])


def _name(value: Any) -> str:
    if isinstance(value, float):
        return "-" if pd.isna(value) else f"{value:.10g}"
    return str(value)


def _arrange(block: Block, frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each name, in the table's order, with all columns that expressions may use."""
    keys = list(block.rows)
    inner = [*keys, *([block.spread.by] if block.spread else [])]
    if block.average == "only":
        if frame.duplicated(inner).any():
            raise BadInput(f"several rows have the same {inner}; state an average")
        grouped = frame.set_index(inner)
    else:
        grouped = frame.groupby(inner, sort=False, dropna=False).agg(block.average, numeric_only=True)
    order = frame.set_index(keys).index.unique()
    if block.spread:
        values = list(block.spread.values)
        grouped = grouped[values].unstack(block.spread.by).reindex(order)
        grouped.columns = [b if len(values) == 1 else f"{a} {b}" for a, b in grouped.columns.to_flat_index()]
    for name, others in block.least.items():
        grouped[name] = grouped[list(others)].min(axis=1)
    return grouped


def _cells(column: Column, frame: pd.DataFrame) -> list[str]:
    values = frame.eval(column.value)
    if column.beside:
        return [f"{column.text(a)}/{column.text(b)}" for a, b in zip(values, frame.eval(column.beside))]
    if not column.low:
        return [column.text(value) + _unit(column, value) for value in values]
    ends = zip(values, frame.eval(column.low), frame.eval(column.high))
    return [
        f"{column.text(v)}{_unit(column, v)}" + ("" if pd.isna(a) else f" ({column.text(a)} to {column.text(b)})")
        for v, a, b in ends
    ]


def _unit(column: Column, value: Any) -> str:
    return f" {column.unit}" if column.unit and not pd.isna(value) else ""


def _files(block: Block, between: str = " and ") -> str:
    return between.join(f"`{TABLES}/{name}`" for name in block.tables)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _summary(block: Block, frame: pd.DataFrame) -> str:
    return "\n".join(textwrap.wrap(f"{summary(_rows(frame))} {_files(block)}.", WIDTH, break_on_hyphens=False))


def _ledger(block: Block, frame: pd.DataFrame) -> str:
    """Write a table for each paper, with one line for each statement."""
    parts = []
    for paper, rows in frame.groupby("paper", sort=False):
        heads = (str(paper), "direction", "magnitude", "the paper says", "ours", "region")
        lines_of_paper = [(ledger_cells(row), below) for row, below in below_statements(_rows(rows))]
        cells = [(cell[0] if below else f"**{cell[0]}**", *cell[1:]) for cell, below in lines_of_paper]
        parts += [_line(row) for row in (heads, ["---"] * len(heads), *cells)] + [""]
    return "\n".join([*parts, f"{_files(block)}."])


def _verdicts(block: Block, frame: pd.DataFrame) -> str:
    """Write a line for each paper: its statements, and how many came to which direction / which magnitude."""
    used_verdicts = set(frame["direction"]) | set(frame["magnitude"])
    strange = used_verdicts - set(Finding)
    if strange:
        raise BadInput(f"the ledger has verdicts that none knows: {', '.join(sorted(strange))}")
    verdicts = [verdict for verdict in VERDICTS if verdict in used_verdicts]
    by, head = next(iter(block.rows.items()), ("paper", "paper"))
    # A line has 120 columns.
    short = [verdict.partition(",")[0] for verdict in verdicts]
    heads = (head, "statements" if by == "paper" else "rows", *short)
    lines = [_line(heads), _line(["---", *["---:"] * (len(heads) - 1)])]
    for name, rows in frame.groupby(by, sort=False):
        counts = [
            [int((rows[answer] == verdict).sum()) for answer in ("direction", "magnitude")] for verdict in verdicts
        ]
        cells = [f"{direction} / {magnitude}" if direction + magnitude else "-" for direction, magnitude in counts]
        lines.append(_line([str(name), str(len(rows)), *cells]))
    return "\n".join([*lines, "", f"{_files(block)}."])


def _answer(block: Block, frame: pd.DataFrame) -> str:
    """Write the end of ``shardbench run``, without logs and keys, which tables do not have."""
    texts = ["\n".join(lines(answer)) for answer in answers_of_table(frame)]
    return "\n".join(["```", "\n\n".join(texts), "```", "", f"{_files(block)}."])


def _support(block: Block, frame: pd.DataFrame) -> str:
    """Write a line a row and a column a way, and the releases below."""
    engines = frame["torchrec"].drop_duplicates()
    ways = list(dict.fromkeys(frame["way"]))
    lines = [_line([*block.rows.values(), *ways]), _line(["---"] * (len(block.rows) + len(ways)))]
    for row, cells in frame.groupby("row", sort=False):
        lines.append(_line([str(row), *(_support_cell(cells[cells["way"] == way], len(engines)) for way in ways)]))
    end = f"TorchRec {', '.join(engines)}: two gloo ranks on CPUs; {_files(block)}."
    return "\n".join([*lines, "", end])


def _support_cell(cells: pd.DataFrame, releases: int) -> str:
    """Return one cell: the newest release's outcome, and in brackets those of others that have what was tried."""
    if len(cells) != releases:
        raise BadInput(f"{len(cells)} of {releases} releases have the cell {cells['row'].iloc[0]!r}")
    newest = str(cells["outcome"].iloc[-1])
    others = [
        f"in {' and '.join(same['torchrec'])}: {one}"
        for one, same in cells.groupby("outcome")
        if one not in {newest, "not in this release"}
    ]
    return newest + (f" ({', '.join(others)})" if others else "")


def _headlines(block: Block, tables: Path) -> str:
    """Write a line for each headline, and below them a numbered sentence for each."""
    frames = {name: pd.read_csv(tables / name) for name in block.tables}
    claims = [row for frame in frames.values() if "claim" in frame and "n_unit" in frame for row in _rows(frame)]
    heads = ("", "the paper says", "its number", "ours", "evidence")
    lines, notes = [_line(heads), _line(["---"] * len(heads))], list[str]()
    for number, each in enumerate(block.headlines, 1):
        facts = {name: _fact(fact, frames[fact.table]) for name, fact in each.facts.items()}
        given = (each.paper, each.ours, each.how)
        if each.claim:
            row = next(row for row in claims if f"{row['paper']}/{row['claim']}" == each.claim)
            _, _, _, paper, ours, _ = ledger_cells(row)
            strength = re.split(r"[ ;]", str(row["strength"]))[0]
            given = (given[0] or str(paper), given[1] or str(ours), given[2] or strength)
        lines.append(_line([str(number), each.says, *(text.format(**facts) for text in given)]))
        note = f"{number}. {each.why.format(**facts)}"
        notes += textwrap.wrap(note, WIDTH, subsequent_indent="   ", break_on_hyphens=False)
    files = textwrap.wrap(_files(block, " "), WIDTH)
    return "\n".join([*lines, "", *notes, "", *files])


def _fact(fact: Fact, frame: pd.DataFrame) -> str:
    rows = frame.query(fact.where) if fact.where else frame
    if fact.wide:
        index, columns, values = fact.wide
        rows = rows.pivot(index=index, columns=columns, values=values)
    rows = rows.query(fact.having) if fact.having else rows
    if not fact.value:
        return str(len(rows))
    if len(rows) != 1:
        raise BadInput(f"{len(rows)} rows of {fact.table} are left for {fact.value}, not one")
    return _cells(fact, rows)[0]


def _session(block: Block, tables: Path) -> str:
    text = "".join((tables / name).read_text() for name in block.tables)
    return "\n".join(["```console", text.rstrip(), "```", "", f"{_files(block)}."])


_FORMS = {
    "table": _table,
    "ledger": _ledger,
    "verdicts": _verdicts,
    "summary": _summary,
    "answer": _answer,
    "support": _support,
}


def main(argv: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Run the command line, from the repository's root."""
    argparse.ArgumentParser(description=__doc__).parse_args(argv)
    root = Path()
    for path in specs(root):
        document, text = rewritten(path, root / TABLES)
        write_atomically(document, text)
        say(f"wrote the numbers of {document.resolve().relative_to(root.resolve())}")
    for name, text in pictures(root / TABLES).items():
        write_atomically(root / PICTURES / name, text, encoding="utf-8")
        say(f"wrote {PICTURES / name}")


if __name__ == "__main__":
    main()
