"""All problems of many standings for papers: performance profiles as a figure, their scores as a table."""

from collections.abc import Iterable

from shardbench.report.page.profiles import LARGEST, PerformanceProfile, geometric_mean, ranked
from shardbench.report.paper.figures import images, profile_figure
from shardbench.report.paper.latex import LatexTable, figure_tex, slug, table_tex
from shardbench.report.standing import Standing, is_measured
from shardbench.report.tables.text import percent, significant

_HEADERS = ("strategy", "ended", "best", "within 5 %", "within 50 %", "over best", "over bound", "plan (s)", "fit (s)")


def profiles_paper(standings: Iterable[Standing], stem: str, source: dict[str, str]) -> dict[str, bytes]:
    """Return files by name: the profiles and a table of scores of each backend and budget with several problems.

    ``source`` says by backend which records are behind its rows. Raises BadInput where matplotlib is missing.
    """
    files: dict[str, bytes] = {}
    for (backend, budget), listed in ranked(standings).items():
        if listed[0].problems < 2:
            continue
        name = slug(f"{stem} profiles {backend} {budget}")
        made_by = source[backend]
        files[f"{name}.tex"] = _scores(listed, _about(backend, budget, listed), made_by, name).encode()
        said = (
            "Performance profiles: the share of problems on which a strategy's step is within a factor of the shortest "
            f"that any found, up to {LARGEST:g}; a failed problem is within none. {_about(backend, budget, listed)} "
            f"{made_by}"
        )
        image = f"{name}-figure"
        files |= {**images(profile_figure(listed), image), f"{image}.tex": figure_tex(image, said).encode()}
    return files


def _about(backend: str, budget: str, listed: list[PerformanceProfile]) -> str:
    how = "Measured on real ranks" if is_measured(backend) else "Simulated by the cost model, not measured"
    return f"{how}; n = {listed[0].problems} problems (workload and machine); budget: {budget}."


def _scores(listed: list[PerformanceProfile], about: str, made_by: str, name: str) -> str:
    rows = [
        (
            one.strategy,
            str(len(one.ratios)),
            *(f"{100.0 * one.within(factor):.0f} %" for factor in (1.0, 1.05, 1.5)),
            _mean(one.ratios) if one.complete else "-",
            _mean(one.bound_ratios) if one.complete and len(one.bound_ratios) == one.problems else "-",
            *("-" if seconds is None else significant(seconds) for seconds in (one.plan_s, one.fit_s)),
        )
        for one in listed
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
