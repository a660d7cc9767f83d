"""The answer at a glance: the best strategy of every workload and machine, what ties with it, and how sure that is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardbench.report.standing import Standing, TieMark, by_problem, by_strategy, disagreement, is_measured
from shardbench.report.tables.text import interval, percent, significant

_NAMED = 4
"""A cell names so many ties at most; more are counted."""


@dataclass(frozen=True, kw_only=True)
class MatrixCell:
    """A problem's standings in the words of its cell."""

    number: int
    """The problem's place among all of the page; its section has it in its id."""
    best: str
    """Empty where nothing ended well."""
    step: str
    ties: str
    """The strategies that tie with the best, with their marks; empty where none does."""
    sure: str
    """This says in words how sure it is that the best is the best."""
    certain: bool
    """True where nothing ties and the order is known."""
    failed: int
    judges: str = ""
    """The sentence on what another judge has first; empty where it agrees."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Workloads by machines; a machine that is simulated and measured has two columns."""

    machines: tuple[tuple[str, str], ...]
    """(machine, backend), a column each."""
    rows: tuple[tuple[str, tuple[MatrixCell | None, ...]], ...]
    """(workload, a cell or None for every column), one a workload."""


def matrix(standings: Iterable[Standing]) -> Matrix:
    """Return the cells of all problems; strategies that do not compete are in a cell only where they are its best."""
    problems = by_problem(standings)
    cells = {key: _cell(number, of_problem) for number, (key, of_problem) in enumerate(problems.items())}
    columns = sorted(dict.fromkeys(key[1:] for key in cells), key=lambda column: is_measured(column[1]))
    rows = tuple(
        (workload, tuple(cells.get((workload, *column)) for column in columns))
        for workload in dict.fromkeys(workload for workload, _, _ in cells)
    )
    return Matrix(machines=tuple(columns), rows=rows)


def _cell(number: int, standings: Sequence[Standing]) -> MatrixCell:
    ok = sorted((one for one in standings if one.ok), key=_over_best)
    failed = len({one.strategy for one in standings}) - len({one.strategy for one in ok})
    # The best of a strategy's budgets stands for it.
    firsts = [own[0] for own in by_strategy([one for one in ok if one.competes]).values()]
    if not firsts:
        return MatrixCell(
            number=number, best="", step="", ties="", sure="nothing ended well", certain=False, failed=failed
        )
    best, *others = firsts
    ties = [one for one in others if one.mark in (TieMark.SAME, TieMark.OPEN)]
    unknown = any(one.mark is TieMark.UNKNOWN for one in firsts)
    rest = [one for one in others if one not in ties]
    # Where a reference is ahead and ties are with it, they say nothing of the competitors among each other.
    behind = ok[0].mark is TieMark.BEST and not ok[0].competes
    limit = "the noise" if is_measured(best.backend) else "the model's error"
    ends = interval(best.low_ms, best.high_ms)
    return MatrixCell(
        number=number,
        best=best.name,
        step=f"{significant(best.step_ms or 0.0)} ms" + (f" ({ends})" if ends else ""),
        ties="" if behind else _ties(ties),
        sure=_behind_reference(ok[0], best) if behind else _sure(best, len(ties), rest, limit, unknown=unknown),
        certain=not ties and not unknown and not behind,
        failed=failed,
        judges=disagreement(standings),
    )


def _over_best(one: Standing) -> tuple[float, str]:
    return one.over_best_pct or 0.0, one.strategy


def _behind_reference(reference: Standing, best: Standing) -> str:
    tie = f", tie {best.tie}" if best.tie else ""
    over = percent(best.over_best_pct or 0.0)
    return f"{over} over {reference.name} (reference){tie}; order of the others not judged"


def _sure(best: Standing, ties: int, rest: Sequence[Standing], limit: str, *, unknown: bool) -> str:
    if unknown:
        return f"order unknown: {limit} is not known"
    if ties:
        return f"{ties} {'ties' if ties == 1 else 'tie'} within {limit}"
    if not rest:
        return "alone"
    over = 100.0 * ((100.0 + _over_best(rest[0])[0]) / (100.0 + _over_best(best)[0]) - 1.0)
    return f"next is {rest[0].name} {percent(over)}, beyond {limit}"


def _ties(ties: Sequence[Standing]) -> str:
    names = ", ".join(f"{one.strategy} {one.tie}" for one in ties[:_NAMED])
    return f"{names} and {len(ties) - _NAMED} more" if len(ties) > _NAMED else names
