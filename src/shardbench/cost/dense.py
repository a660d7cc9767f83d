"""The time of the dense model: matrix products, each bound by its arithmetic or by its bytes, and what lies between.

A layer is three products (forward, gradient of the input, gradient of the weights). Each takes the longer of its
operations at the rate of the number format and of its operands' bytes at the rate of memory, so that a product's
efficiency follows from its size; a fixed time a layer stands for the start of its kernels.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from shardbench.base.arrays import Floats
from shardbench.base.errors import BadInput
from shardbench.cost.load import VECTOR_BYTES
from shardbench.model.machine import Machine, dense_key
from shardbench.model.plan import DenseHome
from shardbench.model.table import HISTORY_FLOPS, DenseShape, Pooling, Table

BACKWARD_DENSE = 2.0
"""The MLPs' backward pass computes two products (input and weight gradients) for the forward's one."""
PRODUCTS = 1.0 + BACKWARD_DENSE
"""Products of a layer, forward and backward."""
VECTOR_PASSES, HISTORY_PASSES, PAIR_PASSES = 4.0, 5.0, 12.0
"""Copies, forward and backward, of what lies between the dense model's products: pooled vectors are joined and split
again, histories are scored, weighed and summed, and pairs of dot products are picked out of a square, which goes number
by number. They are as a CPU rank's times have them, each at the one rate that a machine states."""
SEQUENCE_SHARE = 0.666
"""Share of the rate of large half-precision products that a sequence model reaches: one published run of DLRMv4 takes
138.4 ms for 138.5 TFLOP on an MI350X, whose data sheet and the shared efficiency give 1,504 TFLOP a second."""
ATTENTION_SHARE = 0.574
"""Share of that rate that attention reaches, from another model and GPU, as DLRMv4's runs do not state its time. A
published step of HSTU on H100 (gemm_h100 in published/copies.json) has 185.4 ms, of which 10.6 are of embeddings, 2.9
of exchanges, 39.5 of element-wise kernels and 49.1 of products. The rest is for the causal attention of 8 layers of
width 1,024 over 32 samples of 4,099 events, 30.8 TFLOP with the backward pass as two and a half forward ones."""
SEQUENCE_PASSES = 23.0
"""Copies, forward and backward, of what a sequence model's layers hand on: the element-wise kernels of that step, of
131,168 events, at the rate that an H100 copies half-precision numbers with."""
INPUT_BYTES_PER_S = 2.07e9
"""Rate at which a sequence model's hosts feed a device: the run on the MI350X idles 104.1 ms for 215.6 MB."""


class Format(StrEnum):
    """Number formats of the dense model's products."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"

    @property
    def bytes(self) -> int:
        """Return the bytes of one number in memory."""
        return 2 if self is Format.FP16 else 4


@dataclass(frozen=True, kw_only=True)
class Product:
    """The product of an [m, k] and a [k, n] matrix."""

    m: float
    k: float
    n: float

    @property
    def flops(self) -> float:
        """Return the floating-point operations (multiply and add = 2)."""
        return 2.0 * self.m * self.k * self.n

    @property
    def numbers(self) -> float:
        """Return the numbers that are read and written once, of both operands and the result."""
        return self.m * self.k + self.k * self.n + self.m * self.n


def products_s(products: Iterable[Product], machine: Machine, format_: Format = Format.FP32) -> float:
    """Return the seconds of matrix products, one after another, without the start of their kernels."""
    rate, memory = product_rate(machine, format_), machine.constants.hbm_bytes_per_s
    return sum(max(p.flops / rate, format_.bytes * p.numbers / memory) for p in products)


def product_rate(machine: Machine, format_: Format) -> float:
    """Return the operations a second that large products reach; raises BadInput for a format the machine lacks."""
    if format_ is Format.FP32:
        return machine.constants.dense_flop_per_s
    if machine.matrix is None:
        raise BadInput(
            f"machine {machine.name} does not state its {format_} products: add [constants.dense_half_rate] and tf32's"
        )
    matrix = machine.matrix
    return matrix.dense_half_flop_per_s if format_ is Format.FP16 else matrix.dense_tf32_flop_per_s


@dataclass(frozen=True, kw_only=True)
class DenseWork:
    """What a dense model around some tables computes, whichever machine it runs on."""

    layers: tuple[tuple[int, int], ...]
    """Numbers in and out of every linear layer."""
    queries: int
    """Attentions, one a feature of an unpooled table."""
    flops_per_sample: int
    moved_per_sample: float
    """Numbers that are copied between products, but for those of histories."""

    @classmethod
    def of(cls, dense: DenseShape, tables: tuple[Table, ...]) -> "DenseWork":
        """Return the work of a dense model around these tables."""
        pooled = [table for table in tables if table.pooling is Pooling.SUM]
        moved = VECTOR_PASSES * sum(table.dim * table.features for table in pooled)
        if dense.interacts_by_dot(tables):
            moved += PAIR_PASSES * (1 + sum(table.features for table in pooled)) ** 2
        return cls(
            layers=dense.layers(tables),
            queries=len(dense.queries(tables)),
            flops_per_sample=dense.flops_per_sample(tables),
            moved_per_sample=moved,
        )


def sequence_s(dense: DenseShape, machine: Machine, samples: float) -> dict[str, float]:
    """Return the seconds of a stated sequence model by part, forward and backward, for so many samples on a device.

    Products and attention take their operations at shares of one rate, what lies between them its bytes. Hosts hold
    every device up for as long. Raises BadInput for a machine that states no rate of half-precision products.
    """
    rate, copied = product_rate(machine, Format.FP16), machine.constants.activation_bytes_per_s
    return {
        "products": samples * (dense.sequence_flops - dense.attention_flops) / (SEQUENCE_SHARE * rate),
        "attention": samples * dense.attention_flops / (ATTENTION_SHARE * rate),
        "element-wise": samples * dense.sequence_numbers * SEQUENCE_PASSES * Format.FP16.bytes / copied,
        "hosts": samples * dense.input_bytes / INPUT_BYTES_PER_S,
    }


def dense_s(
    history_columns: Floats,
    machine: Machine,
    dense: DenseShape,
    tables: tuple[Table, ...],
    batch_size: int,
    *,
    home: DenseHome = DenseHome.DEVICES,
    work: DenseWork | None = None,
) -> float:
    """Return the seconds of the dense model, forward and backward, on devices or hosts.

    What was measured on this machine (``Machine.dense_steps``) goes before the formula. Devices wait for the one whose
    samples have the longest histories: ``history_columns`` [world] are lookups of unpooled tables times their widths.
    A GPU's layers are bound by their bytes where those take longer; on CPUs these are within the rate, which is
    calibrated. ``work`` is that of the model around these tables, for whoever asks for many machines. Raises BadInput
    for a GPU's hosts without a stated rate.
    """
    if machine.dense_steps and home is DenseHome.DEVICES:
        measured = machine.dense_steps.get(dense_key(dense, tables, batch_size, machine.topology.world_size))
        if measured is not None:
            return measured
    work = work or DenseWork.of(dense, tables)
    samples = batch_size / machine.topology.world_size
    flop = PRODUCTS * (samples * work.flops_per_sample + HISTORY_FLOPS * history_columns)
    widths, constants, host = work.layers, machine.constants, machine.host
    # An attention starts about as many kernels as a layer.
    layers = len(widths) + 2 * work.queries
    # Bytes that a rank copies between the dense model's products, forward and backward, [world].
    moved = VECTOR_BYTES * (samples * work.moved_per_sample + HISTORY_PASSES * history_columns)
    fixed = constants.dense_step_s + layers * constants.dense_layer_s
    seconds = fixed + flop / constants.dense_flop_per_s + moved / constants.activation_bytes_per_s
    if dense.sequence_flops:
        seconds += sum(sequence_s(dense, machine, samples).values())
    if machine.device == "cuda":
        # What layers take beyond their arithmetic.
        products = [Product(m=samples, k=i, n=o) for i, o in widths]
        least = sum(p.flops for p in products) / constants.dense_flop_per_s
        seconds += PRODUCTS * (products_s(products, machine) - least)
    if home is DenseHome.DEVICES:
        return float(seconds.max())
    if machine.device == "cpu" and host is None:
        # A CPU machine's devices are its CPUs.
        return float(seconds.mean())
    if host is None:
        raise BadInput(f"machine {machine.name} does not state its CPUs: add [constants.host_dense_rate] and host_link")
    fixed = host.dense_step_s + layers * host.dense_layer_s
    return fixed + float(flop.sum()) / machine.topology.nodes / host.dense_flop_per_s
