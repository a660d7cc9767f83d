"""A suite's tables and figures as files for a paper: LaTeX, PDF and SVG, the same bytes for the same records."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shardbench.base.atomic import whole_file
from shardbench.records.base_record import BaseRecord
from shardbench.records.record import Record
from shardbench.records.trial import Backend
from shardbench.report.groups import Group, groups, ordinary, suite_standings
from shardbench.report.paper.figures import HOW, figure_files, group_figures, scores_paper
from shardbench.report.paper.latex import document_tex, slug, table_tex
from shardbench.report.rows import Condition
from shardbench.report.standing import PROBLEM
from shardbench.report.tables.files import suite_records
from shardbench.report.tables.suite_tables import tables
from shardbench.report.tables.text import TITLES, Section, sections, split_by_group

_SHORT = 10
"""Commits in print have so many digits."""
_COLUMNS = {
    "throughput": (
        "n", "step (ms)", "95 % interval (ms)", "vs best", "rank", "mean step over it",
    ),
    "balance": (
        "n", "CPU min (ms)", "CPU mean (ms)", "CPU max (ms)", "CPU max/mean", "min (ms)", "mean (ms)", "max (ms)",
        "max/mean", "over bound", "over best found",
    ),
    "traffic": (
        "n", "HBM", "UVM", "all-to-all intra", "all-to-all inter", "all-reduce", "lookups off HBM", "HBM memory max",
    ),
}  # fmt: skip
"""A paper shows these columns of the tables, by heading; the files under tables/ have all."""
_HEADINGS = {
    "95 % interval (ms)": "95 % interval", "mean step over it": "over bound", "all-to-all intra": "a2a intra",
    "all-to-all inter": "a2a inter", "lookups off HBM": "off HBM", "HBM memory max": "HBM memory",
}  # fmt: skip
_NOTES = {
    "throughput": (
        "n: trials. Step: slowest rank of an iteration, {step}; interval: {interval}. vs best: to the best "
        "competitor; {marks}."
    ),
    "balance": (
        "n: trials. Embedding kernels, forward and backward, ms per iteration, over ranks; over bound: of the maximum "
        "to a proven lower bound; {marks}."
    ),
    "traffic": "n: trials. Bytes per iteration, counted, all ranks together; memory: the fullest rank.",
}
_WORDS = {
    Backend.SIMULATED.value: {
        "step": "median",
        "interval": "95 % band under draws of the model's constants and form",
        "marks": "~: the model is less than 95 % sure of the sign",
    },
    Backend.MEASURED.value: {
        "step": "mean of a trial's three fastest",
        "interval": "95 %, by the noise of repeats",
        "marks": "=: within the noise of repeats; ?: the noise is unknown; rank: the places that it leaves open",
    },
}


def suite_paper(results: Path, suite: str) -> dict[str, bytes]:
    """Return files by name: tables and figures of every group, scores of every backend.

    Raises BadInput where the suite has no records.
    """
    records = suite_records(results, suite)
    grouped = groups(records)
    stems = _stems(suite, grouped)
    by_condition = {tuple(group.condition): group for group in grouped}
    files: dict[str, bytes] = {}
    for name, frame in tables(records).items():
        for values, part in split_by_group(frame):
            group = by_condition[values]
            (section,) = sections(name, part)
            files[f"{stems[group.condition]}-{name}.tex"] = _table(
                suite, name, section, group, stems[group.condition]
            ).encode()
    sources = {
        backend.value: f"ShardBench, suite {suite}, records {commits(_records(*groups_of))}."
        for backend in Backend
        if (groups_of := [group for group in grouped if group.condition.backend is backend])
    }
    files |= scores_paper(suite_standings(ordinary(grouped)), slug(suite), sources)
    for group in grouped:
        stem, made_by = stems[group.condition], commits(_records(group))
        for name, (caption, chart) in group_figures(group).items():
            full_caption = f"{caption} {_problem_text(group)} ShardBench, suite {suite}, records {made_by}."
            files |= figure_files(chart, f"{stem}-{name}-figure", full_caption)
    return files


def with_document(files: Mapping[str, bytes], name: str, title: str) -> dict[str, bytes]:
    """Return the files and, last, ``all-<name>.tex``, a document that shows them."""
    parts = sorted(file.removesuffix(".tex") for file in files if file.endswith(".tex"))
    return {**files, f"all-{name}.tex": document_tex(title, parts).encode()}


def write_paper(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write files by name, each whole or not at all, and return their paths."""
    for name, content in files.items():
        with whole_file(folder / name) as file:
            file.write(content)
    return [folder / name for name in files]


def commits(records: Iterable[BaseRecord]) -> str:
    """Return in words which code made the records: the commits, or the first and last of them where there are more.

    Code that differed from its commit is said to have changed since.
    """
    provenances = [record.provenance for record in records if record.provenance is not None]
    hashes = dict.fromkeys(
        one.commit for one in sorted(provenances, key=lambda one: one.started) if one.commit is not None
    )
    if not hashes:
        return "of no known commit"
    names = [commit[:_SHORT] for commit in hashes]
    dirty = ", some changed since" if any(one.dirty for one in provenances) else ""
    between = f"{len(names)} commits from {names[0]} to {names[-1]}"
    return (f"of commit {names[0]}" if len(names) == 1 else f"of {between}") + dirty


def _records(*several: Group) -> list[Record]:
    return [record for group in several for row in group.rows for record in row.records]


def _stems(suite: str, grouped: Sequence[Group]) -> dict[Condition, str]:
    """Return file names of groups: workload, machine and backend, and what else tells equal ones apart."""
    stems = {}
    for group in grouped:
        own = group.condition
        alike = [one.condition for one in grouped if all(getattr(one.condition, f) == getattr(own, f) for f in PROBLEM)]
        fields = [name for name in own._fields if name in PROBLEM or len({getattr(one, name) for one in alike}) > 1]
        stems[own] = slug(" ".join([suite, *(str(getattr(own, name)) for name in fields)]))
    return stems


def _problem_text(group: Group) -> str:
    condition = group.condition
    return f"{HOW[condition.backend.value]}: {condition.title} on {condition.machine}."


def _table(suite: str, name: str, section: Section, group: Group, stem: str) -> str:
    """Return a group's table; a row that failed has its outcome in place of its first number, and its cause below."""
    words = _WORDS[section.backend]
    place = {header: number for number, header in enumerate(section.headers)}
    columns = [header for header in _COLUMNS[name] if header in place]
    rows = []
    for cells in section.rows:
        outcome = cells[place["outcome"]]
        texts = [cells[place[header]] for header in columns]
        if outcome != "ok":
            texts = ["0", outcome, *[""] * (len(columns) - 2)]
        rows.append((cells[place["strategy"]], *(text or "-" for text in texts)))
    return table_tex(
        caption=f"{TITLES[name]}. {_problem_text(group)} {section.note[0].upper()}{section.note[1:]}.",
        label=f"{stem}-{name}",
        headers=("strategy", *(_HEADINGS.get(header, header) for header in columns)),
        rows=rows,
        numeric=(False, *(True for _ in columns)),
        notes=(
            f"{_NOTES[name].format(**words)} ShardBench, suite {suite}, records {commits(_records(group))}.",
            *(f"{cause}." for cause in section.causes),
        ),
    )
