"""Criteo's Terabyte click logs, any subset of the days, from the folder that ``shardbench prepare`` writes."""

from typing import Literal

from shardbench.datasets.access_log import ProfiledConfig
from shardbench.datasets.criteo_like import cardinalities
from shardbench.datasets.preparation.criteo_prepare import CATEGORY_NAMES, HEADER
from shardbench.datasets.preparation.downloads import Download, days_in_order
from shardbench.datasets.preparation.log_reader import LogFiles
from shardbench.model.table import Name
from shardbench.workloads.table_list import ListedTable

WIDTH = 128


class CriteoTerabyteConfig(ProfiledConfig):
    """26 one-hot tables; the last of several days tests."""

    dataset: Literal["criteo_terabyte"] = "criteo_terabyte"
    name: Name = "criteo_terabyte"
    prepared: str = "criteo_terabyte"


DOWNLOAD = Download(
    read=lambda files: LogFiles(files=files, suffix=".tsv", header=HEADER),
    tables=tuple(
        ListedTable(name=name, rows=rows, dim=WIDTH)
        for name, rows in zip(CATEGORY_NAMES, cardinalities()["terabyte_dcnv2"]["rows"])
    ),
    mode="hash",
    expected="any of day_0.gz to day_23.gz of Criteo's 1TB click logs, in order (label, 13 integers, 26 categories)",
    train_share=lambda files: (len(files) - 1) / len(files) if len(files) > 1 else 6 / 7,
    check=days_in_order,
)

CONFIG = CriteoTerabyteConfig
