"""Puts the explanation of two records into words, with numbers rounded for a reader."""

import math

from shardbench.cost.uncertainty import SURE
from shardbench.records.trial import Backend
from shardbench.report.compare.explain import ComparedTrial, Explanation, PhaseDifference
from shardbench.report.standing import groups_text
from shardbench.report.tables.text import readable_bytes, readable_count, significant

_ONE_SPEED = "brought to the mean speed that the machine had in all trials of the group"
_OTHER_PHASES = 2
_DIGITS = range(3, 7)


def sentences(explanation: Explanation) -> list[str]:
    """Put the explanation into words, one sentence a line, in ASCII."""
    both = faster, slower = explanation.faster, explanation.slower
    lines = [_headline(explanation), *_of_noise(explanation), *_of_model(explanation), *_of_phases(explanation)]
    lines += [_of_straggler(side) for side in both]
    lines += _of_bytes(explanation)
    lines += [
        f"Sharding groups of {side.name}: {groups_text(side.groups)}." for side in both if side.groups is not None
    ]
    lines.append(
        f"Lookups off HBM: {faster.off_hbm_pct:.1f} % ({faster.name}), {slower.off_hbm_pct:.1f} % ({slower.name})."
    )
    over_bounds = [(side, side.over_bound_pct) for side in both]
    distances = [
        f"{'+' if pct >= 0 else ''}{significant(pct)} % ({side.name})" for side, pct in over_bounds if pct is not None
    ]
    lines.append(
        f"Slowest rank over the lower bound: {', '.join(distances)}."
        if distances
        else "The lower bound is proven under the cost model, for tables on devices: it says nothing about measured "
        "times, host lookups and batch schedules."
    )
    return lines


def _apart(a: float, b: float) -> tuple[str, str]:
    """Write both numbers with as few digits, three at least, as show that they differ."""
    texts = [(significant(a, digits), significant(b, digits)) for digits in _DIGITS]
    return next((two for two in texts if two[0] != two[1]), texts[0])


def _headline(explanation: Explanation) -> str:
    faster, slower = explanation.faster, explanation.slower
    batch = f"batch {explanation.batch_size}"
    where = ", ".join(
        [f"{explanation.workload} on {explanation.machine}", explanation.backend, batch, *explanation.unusual]
    )
    if not explanation.difference_ms:
        return f"{faster.name} and {slower.name} take the same {significant(faster.step_ms)} ms a step ({where})."
    noise = "" if explanation.noise_pct is None else f" the noise floor of {significant(explanation.noise_pct, 2)} %"
    unknown = (
        "; whether that is noise is unknown, nothing was repeated" if explanation.backend is Backend.MEASURED else ""
    )
    names, words = {
        None: (f"It is not known which of {faster.name} and {slower.name} is faster", unknown),
        True: (f"{faster.name} beats {slower.name}", f"; beyond{noise}" if noise else ""),
        False: (f"{faster.name} is not told apart from {slower.name}", f"; within{noise}" if noise else ""),
    }[explanation.beyond_noise]
    one, other = _apart(faster.step_ms, slower.step_ms)
    times = f", {_times(slower.step_ms, faster.step_ms)}" if faster.step_ms else ""
    return f"{names}: {one} against {other} ms a step{times} ({where}){words}."


def _of_noise(explanation: Explanation) -> list[str]:
    """Say by what measured records are compared and how much of that is noise; nothing of simulated ones."""
    if explanation.backend is not Backend.MEASURED:
        return []
    lines = [
        "Compared by the three fastest iterations of each, "
        + (
            f"{_ONE_SPEED}, by the control plan that the same ranks stepped in turn."
            if explanation.by_control
            else "as they are: no common control plan was repeated, so drift is not told apart."
        )
    ]
    lines.append(
        "The noise floor is unknown and no order is claimed: no plan of the group was repeated."
        if explanation.noise_pct is None
        else "Noise floor: two single trials of one plan differ by less than "
        f"{significant(explanation.noise_pct, 2)} % in 95 % of cases."
    )
    whole = explanation.all_trials
    if whole is not None:
        noise = {True: "beyond the noise", False: "within the noise", None: "beyond or within the unknown noise"}
        lines.append(
            f"Over all their trials ({whole.trials[0]} of {whole.faster}, {whole.trials[1]} of {whole.slower}) "
            f"{whole.slower} is {significant(whole.slower_pct, 2)} % slower, {noise[whole.beyond_noise]} of so many."
        )
    return lines


def _of_model(explanation: Explanation) -> list[str]:
    """Say how sure the cost model is of the order of simulated records; nothing of measured ones."""
    if explanation.backend is not Backend.SIMULATED or not explanation.difference_ms:
        return []
    if explanation.p_faster is None:
        return ["How sure the model is of that is unknown: the records have no draws of its constants."]
    sure = explanation.p_faster >= SURE
    doubt = "" if sure else f", and below {SURE:.0%} the order counts as open (~)".replace("%", " %")
    share = "all" if explanation.p_faster == 1 else f"{math.floor(100.0 * explanation.p_faster)} % of the"
    return [
        f"{explanation.faster.name} is the faster one in {share} draws of the model's constants and form within their "
        f"held-out errors{doubt}."
    ]


def _of_phases(explanation: Explanation) -> list[str]:
    """Name the phase of the critical path that differs most, and others; of a tie only the phase that differs most."""
    differing = [phase for phase in explanation.phases if phase.saved_ms]
    if not differing:
        return _of_measured_phases(explanation)
    first, *rest = sorted(differing, key=lambda phase: -abs(phase.saved_ms))
    if not explanation.beyond_noise:
        most = _of_phase(first, share=False)
        lines = [f"On the critical path they differ most in {most}; like the whole, that may be none."]
    elif differing[0].saved_ms > 0:
        lines = [f"What differs on the critical path is {_of_phase(differing[0])}."]
        others = [phase for phase in (first, *rest) if phase is not differing[0]]
        lines += [f"Then {_of_phase(phase)}." for phase in others[:_OTHER_PHASES]]
    else:
        lines = ["No phase on the critical path is shorter: the medians of phases do not add up to the step."]
    return lines + _of_measured_phases(explanation)


def _of_measured_phases(explanation: Explanation) -> list[str]:
    if explanation.backend is not Backend.MEASURED:
        return []
    speed = f", {_ONE_SPEED}" if explanation.by_control else ""
    return [
        "Measured phases are medians of the slowest rank, of exchanges the time of the rank that waited least"
        f"{speed}; they need not add up to the step."
    ]


def _of_phase(phase: PhaseDifference, *, share: bool = True) -> str:
    one, other = _apart(phase.faster_ms, phase.slower_ms)
    word = "less" if phase.saved_ms > 0 else "more"
    part = f", {phase.share_pct:.0f} % of the difference" if share and phase.share_pct is not None else ""
    return (
        f"{phase.phase.replace('_', ' ')}: {one} against {other} ms, {significant(abs(phase.saved_ms))} ms {word}{part}"
    )


def _of_straggler(side: ComparedTrial) -> str:
    s = side.straggler
    time = f"{s.clock} time" if s.clock else "time"
    return (
        f"Straggler of {side.name}: rank {s.rank} with {significant(s.embedding_ms)} ms of embedding {time}, "
        f"{_times(s.embedding_ms, s.mean_ms)} the mean; it reads {readable_count(s.distinct_rows)} distinct rows "
        f"({_times(s.distinct_rows, s.mean_distinct_rows)}) and holds {readable_bytes(s.memory_bytes)} "
        f"({_times(s.memory_bytes, s.mean_memory_bytes)})."
    )


def _of_bytes(explanation: Explanation) -> list[str]:
    faster, slower = explanation.faster, explanation.slower
    lines = [
        f"Bytes a step: {readable_bytes(faster.intra_bytes)} inside nodes and {readable_bytes(faster.inter_bytes)} "
        f"across ({faster.name}), {readable_bytes(slower.intra_bytes)} and {readable_bytes(slower.inter_bytes)} "
        f"({slower.name})."
    ]
    names = sorted(faster.collectives.keys() | slower.collectives.keys())
    differences = {name: faster.collectives.get(name, 0.0) - slower.collectives.get(name, 0.0) for name in names}
    most = max(names, key=lambda name: abs(differences[name]), default=None)
    if most is not None and differences[most]:
        word = "less" if differences[most] < 0 else "more"
        name = most.replace("_", " ")
        lines.append(f"They differ most in the {name}: {readable_bytes(abs(differences[most]))} {word}.")
    return lines


def _times(value: float, mean: float) -> str:
    return f"{significant(value / mean)}x" if mean else "1.00x"
