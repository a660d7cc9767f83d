"""Records whose texts are markup, as other people's packages could bring them, and the page of them."""

from pathlib import Path
from typing import Any

import pandas as pd
import records as make

from shardbench.records.record import Record
from shardbench.records.trial import Outcome
from shardbench.report.charts.study import plot_chart
from shardbench.report.page.figures import figure
from shardbench.report.page.write import Extra, page
from shardbench.report.plot import Plot

MARKUP = '<img src=x onerror="window.ran = 1">'
CLOSING = "</title></text></script><script>window.ran = 1</script>"


def renamed(record: Record, **texts: str) -> Record:
    """The record with other texts in its spec; unchecked, as checks would refuse most of them."""
    return record.model_copy(update={"spec": record.spec.model_copy(update=texts)})


def records() -> list[Record]:
    """Two groups, in which strategy, workload, machine and cause are markup."""
    failure = make.failed(strategy="bad")
    cause = failure.failure.model_copy(update={"cause": CLOSING}) if failure.failure else None
    made = [
        renamed(make.ok("first"), strategy=MARKUP),
        renamed(make.ok("second", (50.0, 51.0)), strategy=CLOSING),
        renamed(failure.model_copy(update={"failure": cause}), strategy=f"bad {MARKUP}"),
        renamed(make.ok("third", workload="other"), workload=MARKUP, machine=CLOSING),
    ]
    assert made[2].outcome is Outcome.OOM
    return made


def page_text() -> str:
    """The page of those records, with a section of a study that is markup, too."""
    plot = Plot(title=MARKUP, table="t", x="x", y="y", series="series")
    chart = plot_chart(plot, pd.DataFrame({"x": [MARKUP, CLOSING], "y": [1.0, 2.0], "series": [MARKUP, CLOSING]}))
    given: dict[str, Any] = {"title": MARKUP, "note": CLOSING, "headers": (MARKUP,), "rows": ((CLOSING,),)}
    extra = Extra(id="extra", numeric=(False,), figures=(figure(MARKUP, CLOSING, chart),), command=MARKUP, **given)
    return page("hostile", records(), Path("nowhere"), extras=[extra], code=[MARKUP])
