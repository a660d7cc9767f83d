"""Peak memory of profiling, planning and counting a whole model, in a process of its own.

python -m shardbench.baselines.recshard.reproduction.peak rm3 1048576
"""

import resource
import subprocess
import sys

from shardbench.base.errors import BadInput
from shardbench.datasets.laws.rm_features import TOTAL_ROWS

from .scaled import RECSHARD, RmCondition, ask

KIB = 1024
"""The unit of ``ru_maxrss`` on Linux."""


def peak_rss_bytes(form: str, profile_samples: int) -> int:
    """Return the peak resident bytes of a fresh process that profiles and plans ``form`` and counts one batch.

    An upper bound: the system counts a process's memory from its parent's peak on. Raises BadInput
    for an unknown form, and with the last line of what the process said where it fails.
    """
    if form not in TOTAL_ROWS:
        raise BadInput(f"there is no model {form}: it is one of {', '.join(TOTAL_ROWS)}")
    command = [sys.executable, "-m", __name__, form, str(profile_samples)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        messages = process.stderr.strip().splitlines() or [f"exit status {process.returncode}"]
        raise BadInput(f"planning {form} in a process of its own failed: {messages[-1]}")
    return int(process.stdout)


def main(form: str, profile_samples: str) -> None:
    """Plan and count in this process, and print its peak bytes."""
    ask(RmCondition(form=form, row_scale=1.0, samples=int(profile_samples)).question(), RECSHARD)
    print(KIB * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


if __name__ == "__main__":
    main(*sys.argv[1:])
