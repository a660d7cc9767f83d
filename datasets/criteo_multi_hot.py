"""MLPerf DLRM-DCNv2's multi-hot samples, any subset of the days, from the folder that ``shardbench prepare`` writes."""

from pathlib import Path
from typing import Literal

from shardbench.base.errors import BadInput
from shardbench.datasets.access_log import ProfiledConfig
from shardbench.datasets.criteo_like import cardinalities
from shardbench.datasets.preparation.criteo_prepare import CATEGORY_NAMES
from shardbench.datasets.preparation.downloads import Download, days_in_order
from shardbench.datasets.preparation.multi_hot_days import MultiHotDays
from shardbench.model.table import Name
from shardbench.workloads.table_list import ListedTable

_PUBLISHED = cardinalities()["terabyte_dcnv2"]
_ONE_DAYS_SHARE = 6 / 7


class CriteoMultiHotConfig(ProfiledConfig):
    """26 tables of 1 to 100 lookups a sample each; the last of several days tests."""

    dataset: Literal["criteo_multi_hot"] = "criteo_multi_hot"
    name: Name = "criteo_multi_hot"
    prepared: str = "criteo_multi_hot"


def _read(files: tuple[Path, ...]) -> MultiHotDays:
    return MultiHotDays(files=files, features=tuple(zip(CATEGORY_NAMES, _PUBLISHED["multi_hot"])))


def _train_share(files: tuple[Path, ...]) -> float:
    """Return the share of samples on all days but the last."""
    samples = _read(files).samples()
    if len(samples) == 1:
        return _ONE_DAYS_SHARE
    if samples[-1] == 0:
        raise BadInput(f"{files[-1].name} has no sample, but its samples are to test: give a day that has some")
    # In the middle of two shares, so that rounding takes no sample away.
    return (sum(samples[:-1]) + 0.5) / sum(samples)


DOWNLOAD = Download(
    read=_read,
    tables=tuple(
        ListedTable(name=name, rows=rows, dim=_PUBLISHED["dim"])
        for name, rows in zip(CATEGORY_NAMES, _PUBLISHED["rows"])
    ),
    mode="ids",
    expected=(
        "any of day_0_sparse_multi_hot.npz to day_23_sparse_multi_hot.npz of MLPerf DLRM-DCNv2, in order (arrays '0' "
        "to '25', int32 [samples, hotness of the feature]; dense and labels are not needed)"
    ),
    train_share=_train_share,
    check=days_in_order,
)

CONFIG = CriteoMultiHotConfig
