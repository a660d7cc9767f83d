"""Charts of one problem from its three tables: phases, embedding time, traffic, memory; and the model's error.

A row is one of the table's, with the number of its problem; those that failed are no rows.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import altair as alt
import pandas as pd

from shardbench.cost.collectives import CollectiveName
from shardbench.report.charts.look import INK, QUIET, SERIES, SHAPES, Chart
from shardbench.report.charts.strategies import Data
from shardbench.report.standing import display_name

HOST_LINK = ("host_vectors_bytes", "copied_to_device_bytes", "copied_to_host_bytes")
MEMORIES = {"hbm_memory_bytes_max": "HBM", "uvm_memory_bytes_max": "UVM"}
_STRATEGY = alt.Y("strategy:N", sort=None, title=None)
_BYTES = alt.Axis(format="~s")
_SHOWN = ("_ms", "_bytes", "_bytes_max", "_ms_min", "_ms_mean", "_ms_max")


def phases_of(throughput: pd.DataFrame) -> list[str]:
    """Return the columns of phases in a table of throughput, which stand behind the batch size in their order."""
    columns = list(throughput.columns)
    behind = columns[columns.index("batch_size") + 1 : columns.index("step_bound_ms")]
    return [name for name in behind if throughput[name].fillna(0).any()]


def collectives_of(traffic: pd.DataFrame) -> list[str]:
    """Return the columns of collectives, and of the link to the hosts, that send anything."""
    names = [*(f"{name}_bytes" for name in CollectiveName), *HOST_LINK]
    return [name for name in names if name in traffic and traffic[name].fillna(0).any()]


def table_rows(problem: int, table: pd.DataFrame, order: Iterable[str]) -> list[dict[str, Any]]:
    """Return the rows of a problem's table that ended well, strategies in this order, with what charts show."""
    ok = table[table["outcome"] == "ok"]
    place = {name: number for number, name in enumerate(order)}
    ok = ok.iloc[ok["strategy"].map(place).argsort(kind="stable")]
    shown = [name for name in table.columns if name in {"backend", "strategy"} or name.endswith(_SHOWN)]
    return [
        {
            "problem": str(problem),
            **{str(name): value for name, value in row.items() if pd.notna(value)},
            "strategy": display_name(str(row["strategy"]), role),
        }
        for row, role in zip(ok[shown].to_dict("records"), ok["role"], strict=True)
    ]


def phases(data: Data, columns: list[str]) -> Chart:
    """Return how a step's phases share it, a bar a strategy."""
    chart: alt.Chart = _parts(data, columns, "ms").encode(
        x=alt.X("ms:Q", stack="normalize", title="share of all phases", axis=alt.Axis(format="%")),
        tooltip=["strategy:N", "part:N", alt.Tooltip("ms:Q", format=".3s")],
    )
    return chart


def traffic(data: Data, columns: list[str]) -> Chart:
    """Return the bytes that all ranks send an iteration, by collective, a bar a strategy."""
    chart: alt.Chart = _parts(data, columns, "bytes").encode(
        x=alt.X("bytes:Q", title="bytes sent per iteration, all ranks together", axis=_BYTES),
        tooltip=[
            "strategy:N", "part:N", alt.Tooltip("bytes:Q", format=".3s"),
            alt.Tooltip("a2a_intra_bytes:Q", title="all-to-all inside nodes", format=".3s"),
            alt.Tooltip("a2a_inter_bytes:Q", title="all-to-all between nodes", format=".3s"),
        ],
    )  # fmt: skip
    return chart


def embedding(data: Data) -> Chart:
    """Return embedding time from the fastest to the slowest rank, CPU time where ranks have one, beside its bounds."""
    base = _of_problem(data).transform_calculate(
        **{
            end: f"isValid(datum.emb_cpu_ms_{end}) ? datum.emb_cpu_ms_{end} : datum.emb_ms_{end}"
            for end in ("min", "mean", "max")
        }
    )
    scale = alt.Scale(type="sqrt", nice=False)
    x = alt.X("max:Q", title="ms of embedding kernels per iteration (square root)", scale=scale)
    tooltip = [
        "strategy:N",
        *(
            alt.Tooltip(f"{end}:Q", title=f"{words} rank, ms", format=".3s")
            for end, words in (("min", "fastest"), ("mean", "mean of the"), ("max", "slowest"))
        ),
    ]
    bounds = {"bound_ms": "bound, any device move", "whole_table_bound_ms": "bound, whole tables"}
    dashes = alt.StrokeDash("of:N", title=None, scale=alt.Scale(domain=list(bounds.values()), range=[[1, 0], [4, 4]]))
    lines = [
        base.transform_filter(f"datum.{column} > 0")
        .transform_calculate(of=f"'{words}'")
        .mark_rule(strokeWidth=2)
        .encode(
            x=f"min({column}):Q", strokeDash=dashes,
            tooltip=["of:N", alt.Tooltip(f"min({column}):Q", title="ms", format=".3s")],
        )
        for column, words in bounds.items()
    ]  # fmt: skip
    return alt.layer(
        base.mark_rule(strokeWidth=2).encode(y=_STRATEGY, x=alt.X("min:Q"), x2="max:Q"),
        *lines,
        base.mark_tick(thickness=2, color=INK).encode(y=_STRATEGY, x="mean:Q", tooltip=tooltip),
        base.mark_point(filled=True, size=60, color=SERIES[0]).encode(y=_STRATEGY, x=x, tooltip=tooltip),
        height=alt.Step(17),
    ).add_params(_problem())


def memory(data: Data) -> Chart:
    """Return the memory of the fullest device by its kind, a row a strategy."""
    words = list(MEMORIES.values())
    chart: alt.Chart = (
        _of_problem(data)
        .transform_fold([*MEMORIES], as_=["part", "bytes"])
        .transform_filter("datum.bytes > 0")
        .transform_calculate(part=_words(MEMORIES))
        .mark_point(filled=True, size=60)
        .encode(
            y=_STRATEGY,
            x=alt.X("bytes:Q", title="bytes on the fullest device", axis=_BYTES, scale=alt.Scale(zero=True)),
            color=alt.Color("part:N", title=None, scale=alt.Scale(domain=words, range=list(SERIES[:2]))),
            shape=alt.Shape("part:N", title=None, scale=alt.Scale(domain=words, range=list(SHAPES[:2]))),
            tooltip=["strategy:N", "part:N", alt.Tooltip("bytes:Q", format=".4s")],
        )
        .properties(height=alt.Step(17))
        .add_params(_problem())
    )
    return chart


def model_error(data: Data) -> Chart:
    """Return predicted against measured times, a point a rank or step; on the line the model is right."""
    base = alt.Chart(data)
    scale = alt.Scale(type="log", zero=False, padding=8)
    x, y = (alt.X("predicted_ms:Q", title="predicted (ms, log)"), alt.Y("measured_ms:Q", title="measured (ms, log)"))
    right = base.transform_calculate(same="datum.measured_ms").mark_line(color=QUIET, strokeDash=[4, 4])
    return alt.layer(
        right.encode(x=alt.X("measured_ms:Q", scale=scale), y=alt.Y("same:Q", scale=scale)),
        base.mark_point(size=40).encode(
            x=x, y=y, color=alt.Color("quantity:N", title=None), shape=alt.Shape("quantity:N", title=None),
            tooltip=[
                "workload:N", "strategy:N", "quantity:N", "rank:N",
                *(alt.Tooltip(f"{name}_ms:Q", title=f"{name}, ms", format=".3s") for name in ("predicted", "measured")),
            ],
        ),
        height=360,
    )  # fmt: skip


def _of_problem(data: Data) -> alt.Chart:
    return alt.Chart(data).transform_filter("datum.problem === problem")


def _problem() -> alt.Parameter:
    return alt.param(name="problem", value="0")


def _parts(data: Data, columns: list[str], value: str) -> alt.Chart:
    """Return bars of columns one behind the other, in the columns' order."""
    words = {name: name.removesuffix(f"_{value}").replace("_", " ") for name in columns}
    chart: alt.Chart = (
        _of_problem(data)
        .transform_fold([*columns], as_=["column", value])
        .transform_filter(f"datum.{value} > 0")
        .transform_calculate(part=_words(words, "column"), place=f"indexof({columns}, datum.column)")
        .mark_bar()
        .encode(
            y=_STRATEGY, order=alt.Order("place:Q"),
            color=alt.Color("part:N", title=None, scale=alt.Scale(domain=list(words.values()), range=list(SERIES))),
        )
        .properties(height=alt.Step(17))
        .add_params(_problem())
    )  # fmt: skip
    return chart


def _words(words: Mapping[str, str], column: str = "part") -> str:
    """Return an expression that has words for names of columns."""
    pairs = ", ".join(f"'{name}': '{text}'" for name, text in words.items())
    return f"({{{pairs}}})[datum.{column}]"
