"""All problems of a table of standings for papers: performance profiles as a figure, their scores as a table."""

import numpy as np
import pandas as pd

from shardbench.report.page.overview_charts import Contestant
from shardbench.report.page.profile_picture import LARGEST, ranked
from shardbench.report.paper.figures import images, profile_figure
from shardbench.report.paper.latex import LatexTable, figure_tex, slug, table_tex
from shardbench.report.standings import is_measured
from shardbench.report.tables.text import percent, significant

_HEADERS = ("strategy", "ended", "best", "within 5 %", "within 50 %", "over best", "over bound", "plan (s)", "fit (s)")
_BOUND = "over_bound_pct"


def standings_paper(table: pd.DataFrame, stem: str, source: dict[str, str]) -> dict[str, bytes]:
    """Files by name: of each backend and budget with several problems the profiles and a table of scores.

    ``source`` says by backend which records are behind its rows. Raises BadInput where matplotlib is missing.
    """
    files: dict[str, bytes] = {}
    for (backend, budget), listed in ranked(table).items():
        if listed[0].problems < 2:
            continue
        name = slug(f"{stem} profiles {backend} {budget}")
        made_by = source[backend]
        own = table[(table["backend"] == backend) & (table["budget"] == budget)]
        files[f"{name}.tex"] = _scores(listed, own, _about(backend, budget, listed), made_by, name).encode()
        said = (
            "Performance profiles: the share of problems on which a strategy's step is within a factor of the shortest "
            f"that any found, up to {LARGEST:g}; a failed problem is within none. {_about(backend, budget, listed)} "
            f"{made_by}"
        )
        image = f"{name}-figure"
        files |= {**images(profile_figure(listed), image), f"{image}.tex": figure_tex(image, said).encode()}
    return files


def _about(backend: str, budget: str, listed: list[Contestant]) -> str:
    how = "Measured on real ranks" if is_measured(backend) else "Simulated by the cost model, not measured"
    return f"{how}; n = {listed[0].problems} problems (workload and machine); budget: {budget}."


def _scores(listed: list[Contestant], own: pd.DataFrame, about: str, made_by: str, name: str) -> str:
    bounds = {str(strategy): _over_bound(part) for strategy, part in own.groupby("strategy", sort=False)}
    rows = [
        (
            one.strategy,
            str(len(one.ratios)),
            *(f"{100.0 * one.within(factor):.0f} %" for factor in (1.0, 1.05, 1.5)),
            percent(100.0 * (one.mean_ratio - 1.0)) if one.complete else "-",
            bounds[one.strategy] if one.complete else "-",
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


def _over_bound(part: pd.DataFrame) -> str:
    """A strategy's geometric mean over the bounds; ``-`` where a problem has none."""
    if _BOUND not in part.columns or part[_BOUND].isna().any():
        return "-"
    ratios = 1.0 + part[_BOUND].to_numpy(dtype=np.float64) / 100.0
    return percent(100.0 * (float(np.exp(np.log(ratios).mean())) - 1.0))
