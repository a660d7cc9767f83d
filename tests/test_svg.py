import re
from xml.etree import ElementTree

import pytest

from shardbench.base.errors import BadInput
from shardbench.report.page.palette import series_look
from shardbench.report.page.svg.marks import drawing, group, text
from shardbench.report.page.svg.plane import Frame, Line, NamedPoint, lines, points
from shardbench.report.page.svg.rows import Bars, Devices, Reference, side_by_side, stacked
from shardbench.report.page.svg.scale import CAP, Scale, cap, label, span


def row(name, *parts, **more):
    return Bars(strategy=0, name=name, parts=parts, value=f"{sum(parts)}", words=name, **more)


def of_class(svg, kind):
    return [one for one in ElementTree.fromstring(svg).iter() if kind in one.get("class", "").split()]


def test_words_cannot_become_markup():
    words = '</text><script>alert("1")</script>'
    made = drawing(10, 10, words, text(0, 0, words) + group("", words=words))
    tree = ElementTree.fromstring(made)
    assert {one.tag for one in tree.iter()} == {"svg", "text", "title", "g"}
    assert tree.get("aria-label") == words
    assert [one.text for one in tree.iter() if one.tag in ("text", "title")] == [words] * 2


def test_series_differ_by_colour_and_then_by_dashes():
    assert len({series_look(number) for number in range(36)}) == 36


def test_an_axis_places_values_and_keeps_those_beyond_at_its_end():
    scale = Scale(low=0.0, high=10.0, start=100.0, stop=200.0)
    assert [scale.at(value) for value in (0.0, 5.0, 10.0, 12.0, -1.0)] == [100.0, 150.0, 200.0, 200.0, 100.0]
    assert (scale.beyond(10.0), scale.beyond(10.1)) == (False, True)
    log = Scale(low=0.1, high=10.0, start=0.0, stop=100.0, log=True)
    assert [log.at(value) for value in (0.1, 1.0, 10.0)] == pytest.approx([0.0, 50.0, 100.0])


def test_an_axis_without_length_is_refused():
    with pytest.raises(BadInput, match="has no length"):
        Scale(low=0.0, high=1.0, start=0.0, stop=1.0, log=True)
    with pytest.raises(BadInput, match="has no length"):
        Scale(low=1.0, high=1.0, start=0.0, stop=1.0)


@pytest.mark.parametrize(
    ("low", "high", "log", "labels"),
    [
        (0.0, 10.0, False, ["0", "2", "4", "6", "8", "10"]),
        (0.0, 0.0031, False, ["0", "0.001", "0.002", "0.003"]),
        (0.0, 52000.0, False, ["0", "10,000", "20,000", "30,000", "40,000", "50,000"]),
        (0.9, 11.0, True, ["1", "1.5", "2", "3", "5", "7", "10"]),
        (0.001, 900.0, True, ["0.001", "0.01", "0.1", "1", "10", "100"]),
        (1.0, 1.75, True, ["1", "1.2", "1.4", "1.6"]),
        (1.01, 1.04, True, ["1.01", "1.015", "1.02", "1.025", "1.03", "1.035", "1.04"]),
    ],
)
def test_ticks_are_round_and_few(low, high, log, labels):
    assert [words for _, words in Scale(low=low, high=high, start=0.0, stop=1.0, log=log).ticks()] == labels


def test_labels_are_never_exponents():
    assert [label(value) for value in (0.0, 1e-7, 1234.5, 2.5e6, 3e12)] == ["0", "0.0000001", "1,234.5", "2.5M", "3T"]


def test_the_cap_leaves_room_for_most_and_cuts_outliers():
    assert cap([1.0, 2.0, 3.0]) == 3.0
    assert cap([1.0, 1.0, 2.0, 500.0]) == CAP * 1.5
    assert cap([]) == cap([0.0]) == 1.0


def test_a_span_holds_all_values():
    for log in (False, True):
        scale = span([3.0, 5.0, 4.0], 0.0, 1.0, log=log)
        assert scale.low < 3.0 < 5.0 < scale.high
    assert span([3.0], 0.0, 1.0, log=False).low < 3.0
    assert span([3.0, 5.0], 0.0, 1.0, log=False, zero=True).low == 0.0


def test_bars_are_cut_at_the_cap_and_marked():
    rows = [row("a", 1.0, 1.0, whole=2.0, low=1.5, high=900.0), row("b", 1.0), row("c", 100.0, 5.0)]
    svg = stacked("steps", rows, "ms")
    assert len(of_class(svg, "fill")) == 4, "the part that begins beyond the cap is not drawn"
    assert len(of_class(svg, "beyond")) == 1
    assert len(of_class(svg, "diamond")) == 1
    right = [
        float(x) for one in of_class(svg, "fill") for x in re.findall(r"^M([\d.]+) [\d.]+h([\d.]+)", one.get("d"))[0]
    ]
    ends = [x + width for x, width in zip(right[::2], right[1::2])]
    assert max(ends) <= 800


def test_lengths_are_in_proportion():
    svg = stacked("steps", [row("a", 1.0, 3.0)], "ms")
    first, second = (float(re.search(r"h([\d.]+)", one.get("d"))[1]) for one in of_class(svg, "fill"))
    assert second / first == pytest.approx(3.0, rel=1e-2)


def test_few_devices_are_dots_and_many_a_box():
    def devices(values):
        return Devices(strategy=0, name="a", values=(tuple(values),), value="", words="")

    few = side_by_side("ranks", [devices([1.0, 2.0, 2.0])], "ms", [Reference(value=0.5, series=2)])
    assert (len(of_class(few, "point")), len(of_class(few, "fill")), len(of_class(few, "reference"))) == (2, 0, 1)
    many = side_by_side("ranks", [devices(float(i) for i in range(1, 1001))], "ms")
    assert (len(of_class(many, "point")), len(of_class(many, "fill"))) == (1, 1)
    assert len(many) < 2500


def test_names_of_lines_keep_their_distance():
    frame = Frame(
        width=400, height=300, x=span([0, 1], 40, 300, log=False), y=span([0, 1], 260, 20, log=False), x_title="x",
        y_title="y",
    )  # fmt: skip
    drawn = [Line(look=series_look(i), points=((0.0, 0.0), (1.0, 0.01 * i)), name=f"line {i}") for i in range(12)]
    svg = frame.draw("lines", lines(frame, drawn))
    heights = sorted(float(one.get("y")) for one in of_class(svg, "name"))
    assert len(heights) == 12
    assert min(b - a for a, b in zip(heights, heights[1:])) >= 11.9
    assert heights[-1] <= 260.1


def test_names_of_points_do_not_lie_on_each_other():
    frame = Frame(
        width=400, height=300, x=span([0, 1], 40, 300, log=False), y=span([0, 1], 260, 20, log=False), x_title="x",
        y_title="y",
    )  # fmt: skip
    drawn = [NamedPoint(look=series_look(i), x=0.5, y=0.5, name=f"point {i}", words=f"point {i}") for i in range(30)]
    svg = frame.draw("points", points(frame, drawn))
    places = [(one.get("x"), one.get("y")) for one in of_class(svg, "name")]
    assert 2 <= len(places) == len(set(places)) <= 10
    assert len(of_class(svg, "point")) == 30, "a point without room for its name is still there"
