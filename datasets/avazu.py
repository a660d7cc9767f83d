"""Avazu's click-through rate challenge, from the folder that ``shardbench prepare`` writes."""

from typing import Literal

from shardbench.datasets.access_log import ProfiledConfig
from shardbench.datasets.preparation.downloads import Download
from shardbench.datasets.preparation.log_reader import LogFiles
from shardbench.model.table import Name
from shardbench.workloads.table_list import ListedTable

FEATURES = (
    "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category", "device_id",
    "device_ip", "device_model", "device_type", "device_conn_type", *(f"C{number}" for number in range(14, 22)),
)  # fmt: skip
WIDTH = 16


class AvazuConfig(ProfiledConfig):
    """21 one-hot tables; nine of the ten days train."""

    dataset: Literal["avazu"] = "avazu"
    name: Name = "avazu"
    prepared: str = "avazu"


DOWNLOAD = Download(
    read=lambda files: LogFiles(files=files, suffix=".csv"),
    time="hour",
    tables=tuple(ListedTable(name=name, dim=WIDTH) for name in FEATURES),
    mode="vocabulary",
    expected="train.gz of Avazu's challenge, or its train.csv (a first line of names: id, click, hour, C1, ...)",
    train_share=lambda files: 9 / 10,
)

CONFIG = AvazuConfig
