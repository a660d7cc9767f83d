"""What the plan of ``ShardBenchPlanner`` comes to, in text: the step in a few lines, and a line a table."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torchrec.distributed.types import ParameterSharding

from shardbench.base.memory import gib
from shardbench.cost.costmodel import estimate
from shardbench.cost.memory.fullest import Peak
from shardbench.model.plan import Plan
from shardbench.model.table import Table
from shardbench.model.validate import memory_bytes
from shardbench.trials.evaluate import Answer
from shardbench.trials.simulate import Simulation

_HEADING = ("table", "type", "kernel", "ranks", "GiB", "ms")


def statistics(
    sharding: Mapping[str, ParameterSharding], answer: Answer[Simulation], peak: Peak | None, taken: str
) -> str:
    """Return text about how TorchRec shards the tables of an answer, and what that was judged to come to.

    ``taken`` is whose plan it is. Tables come dearest first: the milliseconds of one are those of its kernels alone,
    forward and backward, on its slowest rank.
    """
    judged, problem = answer.judged, answer.question.problem
    held = memory_bytes(answer.plan, problem).hbm
    fullest = int(held.argmax())
    phases = ", ".join(f"{name.replace('_', ' ')} {ms:.3g}" for name, ms in judged.timing(1).phases_ms.items() if ms)
    lines = [
        f"the plan of {taken}: {judged.step_ms:.4g} ms a step (predicted), most of it {judged.bound_by}",
        f"  ms by phase: {phases}",
        f"  tables take {gib(held[fullest])} GiB of rank {fullest}, the fullest",
    ]
    groups = answer.plan.groups
    if groups is not None:
        copies = problem.world_size // groups.size
        lines.append(f"  for one sharding group of {groups.size} ranks; {copies} copies are averaged after every step")
    if peak is not None:
        lines.append(f"  peak of a step beside the dense model: {peak.words}")
    if judged.bound_by == "host":
        lines.append(
            f"  the host takes about {judged.host_ms:.2g} ms to start an eager step: no plan will help, fewer modules "
            "or CUDA graphs will"
        )
    rows = [_HEADING]
    for ms, table in sorted(_kernels_ms(answer), key=lambda one: -one[0]):
        how, size = sharding[table.name], gib(problem.weight_bytes(table))
        ranks = _ranks(list(how.ranks or ()))
        rows.append((table.name, how.sharding_type, how.compute_kernel, ranks, size, f"{ms:.3g}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADING))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return "\n".join(lines)


def _kernels_ms(answer: Answer[Simulation]) -> Iterator[tuple[float, Table]]:
    """Yield the milliseconds of each table's kernels alone, and the table."""
    problem, segments = answer.question.problem, answer.plan.by_table()
    for table, profile in zip(problem.tables, problem.profiles, strict=True):
        alone = replace(problem, tables=(table,), profiles=(profile,))
        plan = Plan(world_size=problem.world_size, segments=tuple(segments[table.name]), groups=answer.plan.groups)
        yield float(estimate(plan, alone).embedding_ms.max()), table


def _ranks(ranks: list[int]) -> str:
    """Write ranks that follow one another as a range."""
    if len(ranks) > 1 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))
