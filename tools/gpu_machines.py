"""Writes into the machine files of GPUs what follows from their data sheets, the shared constants and their errors.

``python tools/gpu_machines.py`` rewrites the constants that ``shardbench.cost.published.gpus`` derives, in every file
that it knows, and leaves all others as they are. A file that has a base states only what differs from it. Every file of
a GPU also says how far held-out published steps, of all GPUs together, trust such files, and how far ratios of two
plans are off (``pair_error.py``).
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from pair_error import gpu_pair_error
from published_held_out import ERROR_OF, stated_factor

from shardbench.base.atomic import write_atomically
from shardbench.calibrate.write import trust_lines
from shardbench.cost.published.agreement import published_trust
from shardbench.cost.published.gpus import DataSheet, known_gpus, rates, shared
from shardbench.cost.uncertainty import with_pairs
from shardbench.model.machine_file import KEYS, UNITS

FILES = Path("benchmarks/machines")
SLICES = {"a100-24gb-512th-2x8": ("a100-40gb-2x8", 512)}
"""Machines with a part of all rates of another one."""
TRUST = "[trust]"
UNJUDGED = "assumption: a factor 2, nothing judges it"
SWITCH = "nccl 2.32.3's own table: 0.85 of the links on Hopper, 0.74 on Blackwell"
FITTED = "fitted once to published points of all GPUs (docs/costmodel.md, section 4)"
_SHARES = {
    "cache_bandwidth": ("cache", "cache", "GB/s"), "intra_bandwidth": ("link", "", "GB/s a direction"),
    "inter_bandwidth": ("nic", "nic", "GB/s"), "dense_rate": ("fp32", "product_fp32", "TFLOP/s of FP32"),
    "dense_tf32_rate": ("tf32", "product_tensor", "TFLOP/s of TF32"),
    "dense_half_rate": ("fp16", "product_tensor", "TFLOP/s of FP16"), "vector_copy": ("hbm", "copy", "GB/s"),
    "reduce": ("hbm", "copy", "GB/s"), "activation_copy": ("hbm", "copy", "GB/s"),
    "lookup_copy": ("hbm", "copy", "GB/s"), "length_copy": ("hbm", "copy", "GB/s"),
}  # fmt: skip
"""Peak of the data sheet, share and words by key, where a constant is a share of a peak."""
_UNIT = {"bytes_per_s": "GB/s", "bytes": "B", "flop_per_s": "TFLOP/s", "ratio": "ratio", "s": "us"}
"""The unit by dimension; of what a slice slows, nanoseconds."""
_SLOWED = ("lookup_copy", "length_copy", "bucketise", "warp")
_SLICED = ("bandwidth", "dense_rate", "dense_tf32_rate", "dense_half_rate", "vector_copy", "reduce", "activation_copy")


def source(key: str, sheet: DataSheet) -> str:
    """Return the words that say where a constant comes from."""
    if key == "switch_reduction":
        return SWITCH if sheet.switch else "no switch between its GPUs adds up"
    if key == "collective_call":
        return known_gpus().shares["collective_call_s"].source
    if key not in _SHARES:
        return f"shared by all GPUs, {FITTED}"
    peak, share, words = _SHARES[key]
    share = share or sheet.fabric
    if key == "dense_tf32_rate" and sheet.tf32 == sheet.fp32:
        share = "product_fp32"
    rate_share = known_gpus().shares[share]
    passes = {
        "vector_copy": ", each byte read and written", "activation_copy": ", each byte read and written",
        "reduce": ", as block copies (assumption)",
        "lookup_copy": ", 8 bytes as vectors' (assumption)", "length_copy": ", 4 bytes as vectors' (assumption)",
    }.get(key, "")  # fmt: skip
    origin = FITTED if rate_share.fitted else rate_share.source
    return f"{sheet.source}: {getattr(sheet, peak):g} {words}; times {rate_share.value:g}{passes}: {origin}"


def block(key: str, value: float, origin: str, errors: Mapping[str, str]) -> str:
    """Return the lines of one constant; ``errors`` are the words of what judges it, by key."""
    unit = "ns" if key in _SLOWED else _UNIT[KEYS[key].dimension]
    judged = errors.get(key, UNJUDGED)
    number = float(f"{value / UNITS[unit][1]:.4g}")
    error = stated_factor(judged) or 2
    return (
        f'[constants.{key}]\nvalue = {number:.10g}\nunit = "{unit}"\nsource = "{origin}"\n'
        f'error = {error:g}\nerror_source = "{judged}"'
    )


def with_error(key: str, lines: str) -> str:
    """Return the lines of a constant with its error, where held-out points judge it."""
    if key not in ERROR_OF or "error = " not in lines:
        return lines
    lines = re.sub(r"^error = .*$", f"error = {stated_factor(ERROR_OF[key]) or 2:g}", lines, flags=re.M)
    return re.sub(r"^error_source = .*$", f'error_source = "{ERROR_OF[key]}"', lines, flags=re.M)


def gpu_files() -> list[str]:
    """Return the names of all machine files of GPUs."""
    return sorted(file.stem for file in FILES.glob("*.toml") if not file.stem.startswith("cpu-"))


def file_text(name: str) -> str:
    """Return the text of a machine file as it has to be."""
    text = (FILES / f"{name}.toml").read_text()
    # Blank lines part what each constant states, by its head.
    blocks = {lines.partition("\n")[0]: lines for lines in re.split("\n{2,}", text.rstrip())}
    trust = blocks.pop(TRUST, None)
    of, part = SLICES.get(name, (name, 1))
    sheet = known_gpus().gpus.get(of)
    if sheet is not None:
        base = known_gpus().gpus.get(tomllib.loads(text).get("base", ""))
        # What nothing judges differs from what it is based on by its error alone.
        inherited = rates(base, shared()) if base is not None and base.judged == sheet.judged else {}
        for key, whole in rates(sheet, shared()).items():
            value, origin, head = whole, source(key, sheet), f"[constants.{key}]"
            if part > 1 and any(word in key for word in _SLICED):
                value, origin = whole / part, f"a {part}th of {of}"
            elif part > 1 and key in _SLOWED:
                value, origin = whole * part, f"{part} times {of}"
            if inherited.get(key) == value:
                blocks.pop(head, None)
            else:
                blocks[head] = block(key, value, origin, ERROR_OF if sheet.judged else {})
        if sheet.judged:
            blocks = {head: with_error(head.removeprefix("[constants.")[:-1], own) for head, own in blocks.items()}
    if sheet.judged if sheet is not None else trust is not None:
        trust = "\n".join(trust_lines(with_pairs(published_trust(), gpu_pair_error())))
    return "\n\n".join([*blocks.values(), *([trust] if trust else [])]) + "\n"


def main() -> None:
    """Run the command line, from the repository's root."""
    for name in gpu_files():
        write_atomically(FILES / f"{name}.toml", file_text(name))


if __name__ == "__main__":
    main()
