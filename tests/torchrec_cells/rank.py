"""One of two ranks: runs the cases that it is given one after the other, and writes what became of each."""

import gc
import json
import os
import re
import traceback
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torchrec.distributed import comm
from torchrec.distributed.planner.types import PlannerError

from shardbench.base.errors import BadInput, Infeasible, Unsupported
from torchrec_cells.cases import CASES, PLANTED, Case
from torchrec_cells.models import WORLD, MissingError

WAIT = timedelta(seconds=30)
"""Until a rank gives its peer up within a collective."""
CLEAR = (BadInput, Infeasible, Unsupported, PlannerError)
"""What a user is told by: refusals with a sentence."""


def run(case: Case, folder: Path, number: int, rank: int) -> dict[str, str]:
    """Run a case in a process group of its own; a failure closes the group, so that the peer fails as well."""
    store = dist.FileStore(str(folder / f"group{number}"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=WAIT)
    seen = {"outcome": "works", "why": "", "trace": ""}
    dist.barrier()  # a rank that fails at once would leave its peer connecting
    try:
        case.run()
        dist.barrier()
    except (Exception, CheckpointException) as error:  # the latter is no Exception
        seen = told(case, error)
        traceback.clear_frames(error.__traceback__)
    # TorchRec keeps the groups of a node's ranks for good.
    comm._INTRA_PG = comm._CROSS_PG = None
    dist.destroy_process_group()
    gc.collect()
    return seen


def told(case: Case, error: BaseException) -> dict[str, str]:
    """Say what an error makes of a case's cell."""
    text = str(error).strip() or type(error).__name__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = lines[-1] if "Traceback" in text else lines[0]
    outcome = "wrong"
    if isinstance(error, CLEAR) or (case.refused and re.search(case.refused, text)):
        outcome = "clear error"
    elif isinstance(error, MissingError):
        outcome = "not in this release"
    elif case.not_on_cpu and re.search(case.not_on_cpu, text):
        outcome = "not on CPU"
    where = traceback.format_exception(error)
    return {"outcome": outcome, "why": f"{type(error).__name__}: {line}", "trace": "".join(where[-12:])}


def run_all(folder: Path, rank: int) -> None:
    """Run the cases of ``cases.json`` in a folder."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_WORLD_SIZE=str(WORLD))
    names = json.loads((folder / "cases.json").read_text())
    with (folder / f"rank{rank}.jsonl").open("a") as file:
        for number, name in enumerate(names):
            seen = run((CASES | PLANTED)[name], folder, number, rank)
            file.write(json.dumps({"case": name, **seen}) + "\n")
            file.flush()
