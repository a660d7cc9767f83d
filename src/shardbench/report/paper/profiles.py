"""All problems of many standings for papers: performance profiles as a figure, their scores as a table."""

from collections.abc import Iterable

from shardbench.report.page.profiles import LARGEST, PerformanceProfile, geometric_mean, ranked_profiles
from shardbench.report.paper.figures import figure_files, profile_figure
from shardbench.report.paper.latex import LatexTable, slug, table_tex
from shardbench.report.standing import Standing
from shardbench.report.tables.text import percent, significant

HOW = {"simulated": "Simulated by the cost model, not measured", "measured": "Measured on real ranks"}
"""How numbers of a backend were found, as papers say it."""
_HEADERS = ("strategy", "ended", "best", "within 5 %", "within 50 %", "over best", "over bound", "plan (s)", "fit (s)")


def profiles_paper(standings: Iterable[Standing], stem: str, source: dict[str, str]) -> dict[str, bytes]:
    """Return files by name: the profiles and a table of scores of each backend and budget with several problems.

    ``source`` says by backend which records are behind its rows. Raises BadInput where matplotlib is missing.
    """
    files: dict[str, bytes] = {}
    for (backend, budget), profiles in ranked_profiles(standings).items():
        if profiles[0].problems < 2:
            continue
        name, made_by = slug(f"{stem} profiles {backend} {budget}"), source[backend]
        about = f"{HOW[backend]}; n = {profiles[0].problems} problems (workload and machine); budget: {budget}."
        files[f"{name}.tex"] = _scores(profiles, about, made_by, name).encode()
        caption = (
            "Performance profiles: the share of problems on which a strategy's step is within a factor of the shortest "
            f"that any found, up to {LARGEST:g}; a failed problem is within none. {about} {made_by}"
        )
        files |= figure_files(profile_figure(profiles), f"{name}-figure", caption)
    return files


def _scores(profiles: list[PerformanceProfile], about: str, made_by: str, name: str) -> str:
    rows = [
        (
            one.strategy,
            str(len(one.ratios)),
            *(f"{100.0 * one.within(factor):.0f} %" for factor in (1.0, 1.05, 1.5)),
            _mean(one.ratios) if one.complete else "-",
            _mean(one.bound_ratios) if one.complete and len(one.bound_ratios) == one.problems else "-",
            *("-" if seconds is None else significant(seconds) for seconds in (one.plan_s, one.fit_s)),
        )
        for one in profiles
    ]
    return table_tex(
        LatexTable(
            caption=f"Scores over all problems. {about}",
            label=name,
            headers=_HEADERS,
            rows=tuple(rows),
            numeric=(False, *(True,) * (len(_HEADERS) - 1)),
            notes=(
                "Ended: problems with a plan that is valid and ran; best, within: share of all problems on which the "
                "step is the shortest that any strategy found with any budget, or within so much of it; over best and "
                "over bound: geometric mean of the step over it, and over a proven lower bound, of strategies that "
                f"ended all problems (the bound: that have one on all); plan, fit: median seconds. {made_by}",
            ),
        )
    )


def _mean(ratios: Iterable[float]) -> str:
    return percent(100.0 * (geometric_mean(ratios) - 1.0))
