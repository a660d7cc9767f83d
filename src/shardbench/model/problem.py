"""What a strategy is asked, restricted to what it declared to see."""

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, NoReturn, cast

from shardbench.base.errors import BadInput, Undeclared
from shardbench.base.serialise import content_hash, to_data, to_json
from shardbench.model.machine import Machine, Topology
from shardbench.model.profile import AccessProfile, InputSample
from shardbench.model.table import Exchanged, KnownDense, Optimizer, Precision, Scheduled, StepSchedule, Table


class Sees(StrEnum):
    """Information a strategy may declare."""

    TABLES = "tables"
    """Rows, widths, pooling mode of every table."""
    ACCESS_PROFILE = "access_profile"
    """Train-split counts, mean pooling factor, coverage."""
    INPUTS = "inputs"
    """Which rows single train inputs ask for together (a sample), and how many inputs there are."""
    MACHINE = "machine"
    """Bandwidths, latencies and kernel constants (shape and capacities are always visible)."""


class Withheld:
    """An object in the place of undeclared information; any use of it raises Undeclared."""

    def __init__(self, needs: Sees) -> None:
        object.__setattr__(self, "_needs", needs)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        needs = object.__getattribute__(self, "_needs")
        raise Undeclared(f"the strategy touched '{needs}' without declaring Sees.{needs.name}; add it to its sees")

    __getattr__ = __iter__ = __len__ = __getitem__ = __call__ = __bool__ = __contains__ = _refuse
    __eq__ = __hash__ = __setattr__ = __delattr__ = __repr__ = __str__ = _refuse

    def __reduce__(self) -> tuple[type["Withheld"], tuple[Sees]]:
        # It goes to the process that plans, where the withheld information must not be.
        return Withheld, (object.__getattribute__(self, "_needs"),)


MAX_BYTES = 1 << 60
"""No problem's tables are larger in all, so that sums of bytes are whole numbers of 64 bits."""
_FIELD_OF = {Sees.TABLES: "tables", Sees.ACCESS_PROFILE: "profiles", Sees.INPUTS: "inputs", Sees.MACHINE: "machine"}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Place these tables on this machine for this global batch size.

    ``profiles[i]`` belongs to ``tables[i]``. ``topology`` repeats the machine's shape and
    capacities, which every strategy sees. ``batch_size`` is the global batch. ``inputs`` is None where nothing is
    known of single inputs, ``dense`` where nothing is of the model around the tables.
    """

    name: str
    tables: tuple[Table, ...]
    profiles: tuple[AccessProfile, ...]
    machine: Machine
    topology: Topology
    batch_size: int
    precision: Precision = Precision.FP32
    optimizer: Optimizer = Optimizer.SGD
    exchange: Exchanged = Precision.FP32
    schedule: Scheduled = StepSchedule.SEQUENTIAL
    inputs: InputSample | None = None
    dense: KnownDense = None

    def __post_init__(self) -> None:
        if not self.tables:
            raise BadInput(f"problem {self.name} has no tables")
        if len(self.tables) != len(self.profiles):
            raise BadInput(f"problem {self.name}: {len(self.tables)} tables but {len(self.profiles)} profiles")
        # Withheld inputs are not checked: a copy of what a strategy sees is still a problem.
        if isinstance(self.inputs, InputSample) and len(self.inputs.coldest) != len(self.tables):
            raise BadInput(f"problem {self.name}: {len(self.tables)} tables, inputs of {len(self.inputs.coldest)}")
        if len({t.name for t in self.tables}) != len(self.tables):
            raise BadInput(f"problem {self.name}: two tables share a name")
        for table, profile in zip(self.tables, self.profiles):
            if table.rows != profile.rows:
                raise BadInput(f"profile of {table.name} is for {profile.rows} rows, the table has {table.rows}")
        if sum(map(self.weight_bytes, self.tables)) > MAX_BYTES:
            raise BadInput(f"problem {self.name}: its tables take more than {MAX_BYTES} bytes: lower rows or dim")
        if self.batch_size < self.topology.world_size:
            raise BadInput(f"batch size {self.batch_size} gives some of {self.topology.world_size} ranks no sample")

    @classmethod
    def of(
        cls, name: str, tables: tuple[Table, ...], profiles: tuple[AccessProfile, ...], machine: Machine, **rest: Any
    ) -> "Problem":
        """Pose a problem on a machine's own topology; ``rest`` are other fields."""
        return cls(name=name, tables=tables, profiles=profiles, machine=machine, topology=machine.topology, **rest)

    @property
    def sent_ratio(self) -> float:
        """Return the bytes of a number that ranks exchange over those of the fp32 one that kernels write."""
        return self.exchange.bytes / Precision.FP32.bytes

    @property
    def world_size(self) -> int:
        """Return the number of devices in all."""
        return self.topology.world_size

    @cached_property
    def fingerprint(self) -> str:
        """Return the hash of everything a strategy could see."""
        return content_hash(to_json(self))

    def restricted_to(self, sees: frozenset[Sees]) -> "Problem":
        """Return the same problem, of which whatever is not in ``sees`` raises Undeclared when it is touched."""
        copy = object.__new__(Problem)
        for field in dataclasses.fields(self):
            object.__setattr__(copy, field.name, getattr(self, field.name))
        for needs, name in _FIELD_OF.items():
            if needs not in sees:
                object.__setattr__(copy, name, cast(Any, Withheld(needs)))
        return copy

    def seen_hash(self) -> str:
        """Return the hash of all that is not withheld."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return content_hash(*([name, to_data(value)] for name, value in fields.items() if type(value) is not Withheld))

    def weight_bytes(self, table: Table) -> int:
        """Return the bytes of one table's weights and optimiser state."""
        return table.rows * self.row_bytes(table.dim)

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of weights and optimiser state of one row in so many columns."""
        return columns * self.precision.bytes + self.optimizer.state_bytes(columns)
