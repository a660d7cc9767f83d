"""Performance profiles of a table made by hand, and the picture of them."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import document_numbers as numbers
import numpy as np
import pandas as pd
import pytest

from shardbench.base.errors import BadInput
from shardbench.report.page import profiles
from shardbench.report.page.palette import DARK, LIGHT, strategy_look
from shardbench.report.page.profile_picture import profile_picture
from shardbench.report.page.profiles import LARGEST, NAMED
from shardbench.report.standing import table_standings
from shardbench.trials.discovery import strategies

ROOT = Path(__file__).parent.parent
STEPS = ROOT / numbers.TABLES / "leaderboard" / "steps.csv"
SVG = "{http://www.w3.org/2000/svg}"


def table(over, budget="60 s", backend="simulated", role="competitor"):
    """``over``: strategy -> per problem the percent over the best, None where it failed."""
    return pd.DataFrame([
        {
            "version": 1, "workload": f"w{problem}", "machine": "m", "backend": backend, "strategy": name, "role": role,
            "budget": budget, "outcome": "ok" if percent is not None else "infeasible", "over_best_pct": percent,
            "plan_s": 1.0, "fit_s": 0.0,
        }
        for name, percents in over.items() for problem, percent in enumerate(percents)
    ])  # fmt: skip


THREE = {"second": [50.0, 0.0, 100.0, 900.0], "first": [0.0, 10.0, 0.0, 0.0], "last": [300.0, None, None, 20.0]}


def ranked(frame):
    return profiles.ranked_profiles(table_standings(frame))


def test_profiles_are_ranked_by_the_area_under_them():
    found = ranked(table(THREE))["simulated", "60 s"]
    assert [one.strategy for one in found] == ["first", "second", "last"]
    assert found[1].corners(LARGEST) == ((1.0, 0.25), (1.5, 0.5), (2.0, 0.75), (4.0, 0.75))
    assert found[2].corners(3.0) == ((1.0, 0.0), (pytest.approx(1.2), 0.25), (3.0, 0.25))


def test_only_competitors_of_one_backend_and_budget_count():
    others = [
        table({"other": [0.0] * 4}, budget="1 s"), table({"timed": [0.0] * 4}, backend="measured"),
        table({"search": [0.0] * 4}, role="search"),
    ]  # fmt: skip
    found = ranked(pd.concat([table(THREE), *others]))
    assert [one.strategy for one in found["simulated", "60 s"]] == ["first", "second", "last"]
    assert [one.strategy for one in found["simulated", "1 s"]] == ["other"]


def test_a_budget_that_is_not_there_is_refused():
    with pytest.raises(BadInput, match="no measured row"):
        profile_picture(table(THREE), "measured", "60 s")


def test_problems_are_those_asked_with_the_budget():
    found = ranked(pd.concat([table(THREE), table({"first": [0.0, 50.0]}, budget="published")]))
    (one,) = found["simulated", "published"]
    assert (one.problems, one.corners(2.0)) == (2, ((1.0, 0.5), (1.5, 1.0), (2.0, 1.0)))


def test_a_problem_that_a_strategy_lacks_is_within_no_factor():
    found = ranked(table({**THREE, "last": [0.0, 0.0, 0.0]}))["simulated", "60 s"]
    (last,) = [one for one in found if one.strategy == "last"]
    assert last.corners(LARGEST) == ((1.0, 0.75), (LARGEST, 0.75))


def curves(svg):
    """Return the points of every named curve, in factors and shares."""
    found = {}
    grid = [path.get("d") for path in ET.fromstring(svg).iter(f"{SVG}path") if path.get("class") == "grid"]
    ends = [tuple(map(float, re.findall(r"[\d.]+", d))) for d in grid]
    left, _, right, _ = next(one for one in ends if one[1] == one[3])
    bottom, top = (pick(y for _, *ys in ends for y in ys[::2]) for pick in (max, min))
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        title, line = group.find(f"{SVG}title"), group.find(f"{SVG}path")
        if title is not None:
            numbers = [float(number) for number in re.findall(r"[\d.]+", line.get("d"))]
            found[title.text] = [
                (LARGEST ** ((x - left) / (right - left)), (bottom - y) / (bottom - top))
                for x, y in zip(numbers[::2], numbers[1::2])
            ]
    return found


def test_curves_rise_by_a_problem_where_its_factor_is():
    found = curves(profile_picture(table(THREE), "simulated", "60 s"))
    assert found.keys() == THREE.keys()
    expected = {
        "first": [(1.0, 0.75), (1.1, 0.75), (1.1, 1.0), (4.0, 1.0), (4.0, 1.0)],
        "second": [(1.0, 0.25), (1.5, 0.25), (1.5, 0.5), (2.0, 0.5), (2.0, 0.75), (4.0, 0.75), (4.0, 0.75)],
        "last": [(1.0, 0.0), (1.2, 0.0), (1.2, 0.25), (4.0, 0.25), (4.0, 0.5), (4.0, 0.5), (4.0, 0.5)],
    }
    for name, points in expected.items():
        assert np.array(found[name]) == pytest.approx(np.array(points), abs=2e-3), name


def test_the_picture_says_what_it_is_of_and_reads_in_the_dark():
    svg = profile_picture(table(THREE), "simulated", "60 s")
    assert "simulated; leaderboard version 1; 4 problems (workload x machine); 60 s for learning and planning" in svg
    assert "@media (prefers-color-scheme: dark)" in svg
    assert svg == profile_picture(table(THREE).sample(frac=1.0, random_state=0), "simulated", "60 s")


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("paper", "palette"), [("#ffffff", LIGHT), ("#14181d", DARK), ("#0d1117", DARK)])
def test_every_colour_is_seen_on_light_and_on_dark(paper, palette):
    for colour in palette:
        lighter, darker = sorted((luminance(colour), luminance(paper)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 3.0, colour


def test_strategies_that_compete_have_looks_that_differ():
    ours = [name for name, strategy in strategies().items() if not strategy.role.named_only]
    looks = {name: strategy_look(name) for name in ours if name in set(pd.read_csv(STEPS)["strategy"])}
    assert len(set(looks.values())) == len(looks), "choose another palette._SPREAD, and make the pictures again"


def test_the_best_are_named_beside_their_lines_and_others_are_grey():
    many = {f"s{number:02}": [float(number), None] for number in range(NAMED + 5)}
    svg = profile_picture(table(many), "simulated", "60 s")
    named = re.findall(r'y="([\d.]+)" class="name">([^<]*)<', svg)
    assert sorted(name for _, name in named) == [f"s{number:02}" for number in range(NAMED)]
    assert np.diff(sorted(float(y) for y, _ in named)).min() >= 11.9
    assert svg.count('class="line other"') == 5
    assert "; grey: 5 others<" in svg


def test_names_are_escaped():
    svg = profile_picture(table({"<img src=x onerror=y>": [0.0], "b": [1.0]}), "simulated", "60 s")
    assert "<img" not in svg
    assert "<img src=x onerror=y>" in curves(svg)


def test_the_committed_picture_is_what_the_committed_table_gives():
    folder = ROOT / numbers.PICTURES
    there = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.glob("*/*.svg")}
    assert there == numbers.pictures(ROOT / numbers.TABLES), "make it again: python tools/document_numbers.py"


def test_pictures_are_of_the_leaderboards_table(tmp_path):
    (tmp_path / "leaderboard").mkdir()
    table(THREE).to_csv(tmp_path / "leaderboard" / "steps.csv", index=False)
    (made,) = numbers.pictures(tmp_path).items()
    assert made == ("leaderboard/profiles.svg", profile_picture(table(THREE), "simulated", "60 s"))
