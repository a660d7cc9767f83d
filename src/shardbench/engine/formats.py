"""TorchRec's names of number formats: those of weights, and the codecs that convert what ranks exchange."""

from typing import Any

import torch
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.modules.embedding_configs import DataType

from shardbench.base.errors import BadInput
from shardbench.model.table import Precision

DATA_TYPES = {Precision.FP32: DataType.FP32, Precision.FP16: DataType.FP16, Precision.BF16: DataType.BF16}
TENSOR_TYPES = {Precision.FP32: torch.float32, Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}


def codecs_registry(exchange: Precision | str) -> Any:
    """Return the ``qcomm_codecs_registry`` of sharders whose modules exchange vectors and gradients so; None for fp32.

    It converts the all-to-alls of pooled vectors and of sequences, and reduce-scatters with their all-gathers.
    """
    kind = CommType(Precision(exchange).value)
    config = QCommsConfig(forward_precision=kind, backward_precision=kind)
    # For CPUs TorchRec would take fp16 in place of bf16, which gloo sends and sums today.
    return get_qcomm_codecs_registry(config, device=torch.device("cuda"))


def exchange_of(registry: Any) -> Precision:
    """Return the format in which sharders with this ``qcomm_codecs_registry`` exchange vectors and gradients.

    Raises BadInput for other formats than fp32, fp16 and bf16, and where collectives or directions differ.
    """
    if not registry:
        return Precision.FP32
    both = {codec.quantized_dtype for codecs in registry.values() for codec in (codecs.forward, codecs.backward)}
    precisions = {tensor: precision for precision, tensor in TENSOR_TYPES.items()}
    if len(both) != 1 or len(registry) < len(codecs_registry(Precision.FP16)) or not both <= set(precisions):
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in both))
        raise BadInput(f"the sharders' codecs are of {names}: give all collectives, both ways, one of fp32, fp16, bf16")
    return precisions[both.pop()]
