"""The ledger: every statement of every paper, what it was tested on, what came of it; and it and studies as files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pandas as pd

from shardbench.base.code import REPRODUCTION
from shardbench.base.errors import BadInput
from shardbench.base.generated import check_files, write_files
from shardbench.records.base_record import BaseRecord
from shardbench.records.store import trial_store
from shardbench.report.prediction.model_error import model_error
from shardbench.report.results import CLAIMS, OF
from shardbench.report.results import COLUMNS as FRAMES
from shardbench.report.rows import current
from shardbench.report.tables.files import frame_csv, suite_paths
from shardbench.studies.claim import BELOW, SUITE, Claim, Evidence, Strength
from shardbench.studies.definitions import Definition
from shardbench.studies.reproduction import Reproduction, find_reproduction
from shardbench.studies.rules import COLUMNS as RULE_COLUMNS
from shardbench.studies.rules import rule_row
from shardbench.studies.study_tables import recorded_cells, study_tables
from shardbench.studies.verdict import judge
from shardbench.trials.discovery import reproduction_names

COLUMNS = tuple(OF if name == "backend" else name for name in FRAMES[CLAIMS])
REGION_COLUMNS = (
    "paper", "claim", "outcome", "points", "without_a_number", "share_magnitude", "share_direction", "least", "median",
    "most", "unit", "deciding", "q2",
)  # fmt: skip
TELLING_Q2 = 0.25
"""A response surface with a smaller Q2 explains too little for its indices to be read."""
_SHORT = 10
"""Digits of a commit in print."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The statements' table, the regions' table, and the regions that have a picture."""

    claims: pd.DataFrame
    """What papers state, one verdict each; and, counted apart, what is second-hand, and our own controls."""
    readings: pd.DataFrame
    """What stands below a statement: other readings, and what stand-ins for data that nobody has show."""
    regions: pd.DataFrame
    rules: pd.DataFrame
    """The false-positive rate of the rule behind every verdict."""
    pictured: Sequence[tuple[str, Claim, pd.DataFrame, pd.DataFrame]]
    """Owner, claim, points and knobs of each region that has points enough for a picture."""

    @property
    def rows(self) -> pd.DataFrame:
        """Statements and what stands below them, in one frame."""
        return pd.concat([self.claims, self.readings], ignore_index=True)


def ledger(results: Path, only: Reproduction | None = None) -> Ledger:
    """Make the ledger of all papers that have a record in a results folder, with statements that need none.

    Raises BadInput where claims.py observes a claim that claims.toml does not have.
    """
    reproductions = [only] if only is not None else [find_reproduction(name) for name in reproduction_names()]
    claims: list[dict[str, object]] = []
    regions: list[dict[str, object]] = []
    rules: list[dict[str, object]] = []
    pictured: list[tuple[str, Claim, pd.DataFrame, pd.DataFrame]] = []
    for reproduction in reproductions:
        records = tuple(current(trial_store(results, reproduction.owner).read()))
        cells = recorded_cells(reproduction, results)
        if not reproduction.claims or not (records or cells):
            continue
        tables = study_tables(reproduction, results)
        numbers = _observe(reproduction, Evidence(records=records, tables=tables))
        evidence: dict[str, list[BaseRecord]] = {SUITE: list(records)}
        for study, record in cells:
            evidence.setdefault(study.name, []).append(record)
        for claim in reproduction.claims:
            behind = [record for name in claim.judged_by for record in evidence.get(name, [])]
            region = _region(reproduction.owner, claim, tables)
            share = None if region is None else region["share_magnitude"]
            row = _row(claim, numbers.get(claim.name, ()), behind, reproduction.defined.get(claim.name))
            claims.append({"paper": reproduction.owner, **row, "region_share": share})
            if not claim.not_testable:
                rules.append({"paper": reproduction.owner, **rule_row(claim, numbers.get(claim.name, ()))})
            if region is not None and claim.region is not None:
                regions.append(region)
                points, knobs = tables[claim.region.table], tables[f"{claim.region.table}_knobs"]
                if len(knobs):  # too few points, as of a quick run, tell nothing of any knob
                    pictured.append((reproduction.owner, claim, points, knobs))
    everything = pd.DataFrame(claims, columns=list(COLUMNS))
    below = everything["kind"].isin(list(BELOW))
    return Ledger(
        claims=everything[~below].drop(columns="of"),
        readings=everything[below],
        rules=pd.DataFrame(rules, columns=list(RULE_COLUMNS)),
        regions=pd.DataFrame(regions, columns=list(REGION_COLUMNS)),
        pictured=pictured,
    )


def _observe(reproduction: Reproduction, evidence: Evidence) -> Mapping[str, Sequence[float]]:
    if reproduction.observe is None:
        return {}
    observed = reproduction.observe(evidence)
    testable = {claim.name for claim in reproduction.claims if not claim.not_testable}
    unknown = sorted(observed.keys() - testable)
    if unknown:
        where = f"{reproduction.owner}/{REPRODUCTION}/claims.py observes '{unknown[0]}'"
        raise BadInput(f"{where}, which claims.toml does not have, or calls not testable")
    return observed


def _row(
    claim: Claim, numbers: Sequence[float], behind: Sequence[BaseRecord], stamp: Definition | None
) -> dict[str, object]:
    verdict = judge(claim, numbers)
    quoted = f'{claim.statement.rstrip(".")} ("{claim.quote}")' if claim.quote else claim.statement
    return {
        "claim": claim.name,
        "kind": claim.kind.value,
        "of": claim.of,
        "statement": quoted,
        "paper_value": claim.paper if claim.sourced else None,
        "ours": verdict.ours,
        "low": verdict.low,
        "high": verdict.high,
        "unit": claim.unit,
        "direction": verdict.direction.value,
        "magnitude": verdict.magnitude.value,
        "strength": "" if claim.not_testable else _strength(claim, behind, stamp),
        "n": verdict.n,
        "n_unit": claim.n_unit if claim.sample or claim.not_testable else f"{claim.n_unit} (chosen)",
        "conditions": claim.not_testable or claim.conditions,
        "defined_in": stamp.commit[:_SHORT] if stamp is not None and stamp.digest == claim.digest else "not committed",
        "judged_in": _judging_commits(behind),
        "defined_first": None if claim.not_testable else _defined_first(claim, behind, stamp),
        "first_judged": stamp.first_judged if verdict.n and stamp is not None else None,
        "redefined": stamp.redefined if verdict.n and stamp is not None else None,
        "relation": claim.relation.value,
        "sourced": claim.sourced,
        "definition_of": claim.definition_of,
        "definition": claim.definition,
        "source": claim.source,
    }


def _strength(claim: Claim, behind: Sequence[BaseRecord], stamp: Definition | None) -> str:
    parts: list[str] = [claim.evidence.value]
    if claim.evidence is Strength.SIMULATED and claim.part:
        parts[0] += f" (constants of {claim.machine}: {model_error(claim.machine, claim.part)})"
    if claim.data:
        parts.append(f"{claim.data} data" if claim.data != "made up" else "made-up workload")
    if behind and stamp is not None and not _defined_first(claim, behind, stamp):
        parts.append("run before this definition was committed")
    return "; ".join(parts)


def _defined_first(claim: Claim, behind: Sequence[BaseRecord], stamp: Definition | None) -> bool | None:
    """Tell whether the definition was committed before the first record was begun; None without a record.

    Clocks say it here; that the commit is an ancestor of the records' is for git to say, which a test asks.
    """
    if not behind:
        return None
    start_times = [record.provenance.started for record in behind if record.provenance is not None]
    stamped = stamp is not None and stamp.digest == claim.digest
    return stamped and len(start_times) == len(behind) and stamp is not None and min(start_times) >= stamp.at


def _judging_commits(behind: Sequence[BaseRecord]) -> str:
    """Name the commits of the first and the last record, one where they are the same."""
    commits = sorted(
        (record.provenance.started, record.provenance.commit, record.provenance.dirty)
        for record in behind
        if record.provenance is not None and record.provenance.commit is not None
    )
    if not commits:
        return "unknown" if behind else ""
    words = [f"{commit[:_SHORT]}{' (changed)' if dirty else ''}" for _, commit, dirty in (commits[0], commits[-1])]
    return words[0] if words[0] == words[1] else " to ".join(words)


def _region(paper: str, claim: Claim, tables: Mapping[str, pd.DataFrame]) -> dict[str, object] | None:
    """Tell how a claim fares over its region; None where it has none, or it did not run."""
    if claim.region is None or claim.region.table not in tables:
        return None
    column = claim.region.column
    if column not in tables[claim.region.table]:
        raise BadInput(f"{paper}: claim {claim.name} names column '{column}', which table {claim.region.table} lacks")
    ratios = pd.to_numeric(tables[claim.region.table][column])
    numbers = [claim.scale.in_print(ratio) for ratio in ratios.dropna()]
    knobs = tables[f"{claim.region.table}_knobs"]
    knobs = knobs[knobs["outcome"] == column]
    return {
        "paper": paper,
        "claim": claim.name,
        "outcome": column,
        "points": len(ratios),
        "without_a_number": len(ratios) - len(numbers),
        "share_magnitude": sum(map(claim.holds, numbers)) / len(numbers) if numbers else None,
        "share_direction": sum(map(claim.directed, numbers)) / len(numbers) if numbers else None,
        "least": min(numbers, default=None),
        "median": median(numbers) if numbers else None,
        "most": max(numbers, default=None),
        "unit": claim.unit,
        "deciding": _deciding_knobs(knobs),
        "q2": knobs["q2"].iloc[0] if len(knobs) else None,
    }


def _deciding_knobs(knobs: pd.DataFrame) -> str:
    """Name the knobs with the largest total effects, or by rank where the surface predicts too little."""
    if not len(knobs):
        return ""
    if knobs["q2"].iloc[0] < TELLING_Q2:
        ranked = knobs.reindex(knobs["rank_correlation"].abs().sort_values(ascending=False).index)
        return "by rank: " + ", ".join(f"{row.knob} {row.rank_correlation:.2f}" for row in ranked.head(3).itertuples())
    return ", ".join(f"{row.knob} {row.total:.2f}" for row in knobs.head(3).itertuples() if row.total > 0.0)


def frames(reproduction: Reproduction, results: Path) -> dict[str, pd.DataFrame]:
    """Tables of a paper's studies, and its part of the ledger, by name."""
    own = ledger(results, reproduction)
    ledger_tables = {"claims": own.claims, "readings": own.readings}
    return study_tables(reproduction, results) | {name: frame for name, frame in ledger_tables.items() if len(frame)}


def _ledger_files(results: Path) -> dict[Path, str]:
    whole = ledger(results)
    tables = {"claims": whole.claims, "readings": whole.readings, "regions": whole.regions, "claims_rules": whole.rules}
    return {results / "tables" / f"{name}.csv": frame_csv(frame) for name, frame in tables.items()}


def write_ledger(results: Path) -> list[Path]:
    """Write the four tables (``tables/claims.csv`` and those beside it); gives their paths."""
    return write_files(_ledger_files(results))


def check_ledger(results: Path) -> list[str]:
    """List files that differ from what the records give, one line each; none is good."""
    return check_files(_ledger_files(results), "shardbench claims")


def _study_files(reproduction: Reproduction, results: Path) -> dict[Path, str]:
    folder = results / "tables" / reproduction.owner
    return {folder / f"{name}.csv": frame_csv(frame) for name, frame in study_tables(reproduction, results).items()}


def write_study_files(reproduction: Reproduction, results: Path) -> list[Path]:
    """Write the tables of a paper's studies, and the ledger of all papers that have records; gives their paths."""
    return [*write_files(_study_files(reproduction, results)), *write_ledger(results)]


def check_study_files(reproduction: Reproduction, results: Path) -> list[str]:
    """List of these the files that differ from what the records give, one line each; none is good."""
    owner = reproduction.owner
    recorded = bool(trial_store(results, owner).read() or recorded_cells(reproduction, results))
    nothing = [] if recorded else [f"{owner}: nothing to check: neither a suite nor a study of it has records"]
    existing = sorted({*(results / "tables" / owner).glob("*.csv")} - {*suite_paths(results, owner)})
    differences = check_files(_study_files(reproduction, results), f"shardbench report {owner}", existing)
    return [*nothing, *differences, *(check_ledger(results) if recorded else [])]
