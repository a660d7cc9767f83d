"""Tensors in torch's files that somebody else may have written: nothing in them runs or is larger than the file."""

import pickle
import pickletools
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

from shardbench.base.errors import BadInput

_UNREADABLE = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, OSError, RuntimeError, SyntaxError,
    TypeError, ValueError, pickle.UnpicklingError, struct.error, zipfile.BadZipFile, zlib.error, MemoryError,
)  # fmt: skip
"""What damaged bytes make torch's unpickler raise; MemoryError, where a damaged length asks for all there is."""
_ROOM_BYTES = 1 << 20
_OLD_PICKLES = 5
_LONGEST_WORD = 4_000
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD}}}")


def tensors_in(source: Path | IO[bytes], size: int, what: str, *, mapped: bool = False) -> Any:
    """Return what ``torch.load`` gives of a file of ``size`` bytes, read without pickled code; may be memory-mapped.

    Raises BadInput, beginning ``what``, for what is damaged, and for tensors that are not as they lie in the file:
    a few bytes can stand for one of any size.
    """
    try:
        import torch  # noqa: PLC0415 - seconds, and few files need it
    except ImportError as error:
        raise BadInput(f"{what}: reading it needs torch, which is not installed here") from error
    try:
        with warnings.catch_warnings():
            # Of odd numbers and letters in damaged files, which then cannot be read.
            warnings.simplefilter("ignore")
            archive = zipfile.is_zipfile(source)
            if archive:
                _check_archive(source, size, what)
            else:
                _check_old(source)
            if not isinstance(source, Path):
                source.seek(0)
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
    """Raise BadInput where an archive unpacks to more than its size: torch packs nothing."""
    with zipfile.ZipFile(source) as archive:
        inside = sum(info.file_size for info in archive.infolist())
        if inside > size + _ROOM_BYTES:
            raise BadInput(f"{what}: unpacks from {size} bytes to {inside}, which no torch file does")
        for name in archive.namelist():
            if name.endswith(".pkl"):
                with archive.open(name) as stream:
                    _check_pickle(stream)


def _check_old(source: Path | IO[bytes]) -> None:
    """Check the pickles of a file of before archives: some pickles, one after the other, and the numbers."""
    with source.open("rb") if isinstance(source, Path) else nullcontext(source) as stream:
        stream.seek(0)
        for _ in range(_OLD_PICKLES):
            _check_pickle(stream)


def _check_pickle(stream: IO[bytes]) -> None:
    """Raise ValueError for a damaged pickle, and for words that torch would search for hours where they are wrong."""
    for _, argument, _ in pickletools.genops(stream):
        if isinstance(argument, str) and _LONG_WORD.search(argument):
            raise ValueError(f"a word of more than {_LONGEST_WORD} letters")


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
