"""Tensors in torch's files that somebody else may have written: nothing in them runs, or is larger than the file."""

import pickle
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from shardbench.base.errors import BadInput

_UNREADABLE = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, OSError, RuntimeError, SyntaxError,
    TypeError, ValueError, pickle.UnpicklingError, struct.error, zipfile.BadZipFile, zlib.error, MemoryError,
)  # fmt: skip
"""Damaged bytes lead torch's unpickler anywhere. MemoryError: a length that was damaged asks for all there is."""
_ROOM_BYTES = 1 << 20


def tensors_in(source: Path | IO[bytes], size: int, what: str, *, mapped: bool = False) -> Any:
    """What ``torch.load`` gives of a file of ``size`` bytes, read without pickled code; may be memory-mapped.

    Raises BadInput, beginning ``what``, for what is damaged, and for tensors that are not as they lie in the file:
    a few bytes can stand for one of any size.
    """
    import torch  # noqa: PLC0415 - seconds, and few files need it

    try:
        archive = zipfile.is_zipfile(source)
        if archive:
            _check_archive(source, size, what)
        if not isinstance(source, Path):
            source.seek(0)
        with warnings.catch_warnings():
            # Of odd numbers in damaged files, which then cannot be read.
            warnings.simplefilter("ignore")
            loaded = torch.load(source, map_location="cpu", weights_only=True, mmap=mapped and archive)
    except _UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"{what}: not a readable torch file ({reason[:80]})") from error
    for tensor in _tensors(loaded):
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise BadInput(f"{what}: holds a tensor that is not dense numbers")
        if tensor.numel() * tensor.element_size() > min(tensor.untyped_storage().nbytes(), size):
            raise BadInput(f"{what}: holds a tensor of {tensor.numel()} numbers, which are not in the file")
    return loaded


def _check_archive(source: Path | IO[bytes], size: int, what: str) -> None:
    """Torch packs nothing, so that an archive is as large as what is in it."""
    with zipfile.ZipFile(source) as archive:
        inside = sum(info.file_size for info in archive.infolist())
    if inside > size + _ROOM_BYTES:
        raise BadInput(f"{what}: unpacks from {size} bytes to {inside}, which no torch file does")


def _tensors(loaded: Any) -> Iterator[Any]:
    import torch  # noqa: PLC0415 - as above

    left, seen = [loaded], set()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, dict):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            left += list(one)
