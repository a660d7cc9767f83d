"""The command ``prepare``: makes of a downloaded public data set the folder that its workload reads."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from shardbench.base.errors import BadInput
from shardbench.base.serialise import to_data
from shardbench.cli.options import JsonOption, tell
from shardbench.cli.progress import counting_rows

Preparable = Literal["criteo_kaggle", "criteo_terabyte", "criteo_multi_hot", "taobao", "avazu", "yambda"]
"""Data sets that need preparing; each but those of SPLIT_WHEN_READ is a module of that name with a DOWNLOAD."""
SPLIT_WHEN_READ = {"criteo_kaggle": "train_share", "yambda": "test_day"}
"""What a suite states to split them, since preparing them does not."""
RowMode = Literal["hash", "vocabulary"]
"""The ways in which values of categories become rows."""


def prepare_command(
    dataset: Annotated[Preparable, typer.Argument(help="The data set that the files are of.")],
    files: Annotated[list[Path], typer.Argument(help="The files that you downloaded, and last the folder to write.")],
    *,
    mode: Annotated[
        RowMode | None, typer.Option(help="How categories become rows; the data set's own way where left out.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Rows of every hashed table; the published number where left out.")
    ] = None,
    train_share: Annotated[
        float | None,
        typer.Option(help="Share of samples, earliest first, that trains; the data set's own if left out."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the hash.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Prepare a downloaded data set. It becomes the arrays that its workload reads."""
    if len(files) < 2:
        raise BadInput("give the files that you downloaded, and then the folder to write")
    *sources, target = files
    options: dict[str, Any] = {"rows": rows, "seed": seed}
    if train_share is not None:
        if dataset in SPLIT_WHEN_READ:
            raise BadInput(f"{dataset} is split when it is read: state {SPLIT_WHEN_READ[dataset]} in the suite")
        options["train_share"] = train_share
    with counting_rows(as_json) as show:
        note = _prepare(dataset, sources, target, mode, {**options, "progress": show})
    data = {"dataset": dataset, "target": str(target), "prepared": to_data(note)}
    tell(data, [f"{dataset}: {note.samples} samples in {target}"], as_json=as_json)


def _prepare(dataset: str, sources: list[Path], target: Path, mode: RowMode | None, options: dict[str, Any]) -> Any:
    if dataset == "criteo_kaggle":
        from shardbench.datasets.preparation import criteo_prepare  # noqa: PLC0415

        if len(sources) > 1:
            raise BadInput(f"{dataset} is one file, not {len(sources)}")
        return criteo_prepare.prepare(sources[0], target, mode=mode or "hash", **options)
    if dataset == "yambda":
        from shardbench.datasets.preparation import yambda_prepare  # noqa: PLC0415

        return yambda_prepare.prepare(sources, target, mode=mode, **options)
    from shardbench.datasets.preparation.downloads import prepare_download  # noqa: PLC0415

    download = import_module(f"shardbench.datasets.{dataset}").DOWNLOAD
    return prepare_download(download, sources, target, mode=mode, **options)
