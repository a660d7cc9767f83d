"""Taobao's user behaviour, from the folder that ``shardbench prepare`` writes: a sample is what a user did once."""

from typing import Literal

from shardbench.datasets.access_log import ProfiledConfig
from shardbench.datasets.preparation.downloads import Download
from shardbench.datasets.preparation.log_reader import LogFiles
from shardbench.datasets.sequence import TAOBAO_ROWS, TAOBAO_WIDTH
from shardbench.model.table import Name
from shardbench.workloads.table_list import ListedTable


class TaobaoConfig(ProfiledConfig):
    """Three one-hot tables: user, item and category."""

    dataset: Literal["taobao"] = "taobao"
    name: Name = "taobao"
    prepared: str = "taobao"


DOWNLOAD = Download(
    read=lambda files: LogFiles(files=files, suffix=".csv", header=("user", "item", "category", "behaviour", "time")),
    time="time",
    tables=tuple(ListedTable(name=name, rows=rows, dim=TAOBAO_WIDTH) for name, rows in TAOBAO_ROWS.items()),
    mode="vocabulary",
    expected="UserBehavior.csv of Taobao (user, item, category, behaviour, seconds since 1970; no line of names)",
    train_share=lambda files: 8 / 9,
)

CONFIG = TaobaoConfig
