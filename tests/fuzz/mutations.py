"""Valid files made wrong: as bytes, and along their structure (TOML, JSON, lines of cells, headers of arrays)."""

import copy
import gzip
import io
import json
import re
import tomllib
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import zstandard

DEEP = "@@DEEP@@"
"""Stands for nesting of which the text is made when the document is written."""
DEPTH = 20_000
ODD: tuple[tuple[Any, ...], ...] = (
    (None,), (True,), (0,), (-1,), (1, 3, 7, 255, 65_536),
    (2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63), -(10**30)),
    tuple(10**n for n in range(1, 400)), (10**12, 4 * 10**9),
    ([5], [""], [{}], [None, 1]), (0.5, -0.0, 1e-320, 1e18, 1e308, -1e308),
    (float("inf"), float("-inf"), float("nan")), ("",),
    (
        "x", "0", "1e9", "nan", "../../etc/passwd", "/", ".", "-", "\u202e\u0000", "a\nb", "\ud800",
        "\u001b[2J\u009b31m",
    ),
    ("x" * 300, "x" * 70_000), ([],), ({},), ([[]],), ({"x": {}},), (DEEP,),
)  # fmt: skip
"""Odd values by kind."""
TOKENS = (
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r\n", b"\n\n", b'"', b"'", b"\\", b"\\ud800", b"NaN",
    b"-Infinity", b"1e999", b"-1", b"9" * 5_000, b"[" * 5_000, b'{"a":' * 5_000, b"]", b"}", b",", b"\t", b"|", b"=",
    b"\x1b[2J", b"x" * 3_000, b"1979-05-27T07:32:00Z", b"0x7f", b"null", b"true", b"[[workloads]]\n",
)  # fmt: skip


def _odd(random: Random) -> Any:
    return copy.deepcopy(random.choice(random.choice(ODD)))


def some_bytes(data: bytes, random: Random) -> bytes:
    """One to three changes of bytes: bits, cuts, copies, other bytes."""
    made = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(made) + 1)
        how = random.randrange(8)
        end = min(len(made), at + random.choice((1, 2, 4, 8, 16, 100)))
        if how == 0 and at < len(made):
            made[at] ^= 1 << random.randrange(8)
        elif how == 1 and at < len(made):
            made[at] = random.randrange(256)
        elif how == 2:
            del made[at:end]
        elif how == 3:
            made[at:at] = made[at:end] * random.choice((1, 2, 50))
        elif how == 4:
            made[at:at] = random.choice(TOKENS)
        elif how == 5:
            made[at:end] = random.choice(TOKENS)
        elif how == 6:
            del made[at:]
        else:
            made[at:end] = random.randbytes(end - at)
    return bytes(made)


def changed_tree(tree: Any, random: Random) -> Any:
    """The tree with one to three nodes odd, gone, doubled, or in another's place."""
    made = copy.deepcopy(tree)
    for _ in range(random.randrange(1, 4)):
        places = _places(made)
        if not places:
            return made
        holder, key = random.choice(places)
        how = random.randrange(8)
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder, dict):
            holder[random.choice(("x", "", "a.b", "name", "kind", "\n", "y" * 5_000))] = holder[key]
        elif how == 2 and isinstance(holder, list):
            holder.extend([copy.deepcopy(holder[key])] * random.choice((1, 10)))
        elif how == 3:
            other, name = random.choice(places)
            holder[key] = copy.deepcopy(other[name]) if _has(other, name) else None
        elif how == 4 and isinstance(holder[key], int | float | str):
            holder[key] = random.choice(([holder[key]], {"x": holder[key]}, str(holder[key])))
        elif how == 5 and isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] = holder[key] * random.choice((-1, 2, 10**3, 10**6, 10**12)) + random.choice((0, 1, -1))
        else:
            holder[key] = _odd(random)
    return made


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else 0 <= key < len(holder)


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    left = [tree]
    while left:
        one = left.pop()
        keys = list(one) if isinstance(one, dict) else list(range(len(one)))
        found += [(one, key) for key in keys]
        left += [one[key] for key in keys if isinstance(one[key], dict | list)]
    return found


def json_bytes(tree: Any) -> bytes:
    """As JSON, with what it does not allow (NaN), on one line."""
    text = json.dumps(tree, separators=(",", ":"))
    return text.replace(f'"{DEEP}"', "[" * DEPTH + "]" * DEPTH).encode()


def toml_bytes(tree: dict[str, Any]) -> bytes:
    """As TOML, a line a key of the top."""
    lines = [f"{_key(key)} = {_inline(value)}" for key, value in tree.items() if value is not None]
    return "\n".join(lines).replace(f'"{DEEP}"', "[" * DEPTH + "]" * DEPTH).encode(errors="surrogatepass")


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        inside = (f"{_key(key)} = {_inline(one)}" for key, one in value.items() if one is not None)
        return f"{{{', '.join(inside)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_inline(one) for one in value if one is not None)}]"
    if isinstance(value, float):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    return json.dumps(value) if isinstance(value, bool | int) else str(value)


def toml(data: bytes, random: Random) -> bytes:
    """Of TOML: its tree changed, or its bytes."""
    if random.randrange(4) == 0:
        return some_bytes(data, random)
    made = toml_bytes(changed_tree(_toml_tree(data), random))
    return made if random.randrange(8) else some_bytes(made, random)


@cache
def _toml_tree(data: bytes) -> dict[str, Any]:
    return tomllib.loads(data.decode())


def as_json(data: bytes, random: Random) -> bytes:
    """Of JSON: likewise; at times a key stands twice."""
    how = random.randrange(5)
    if how == 0:
        return some_bytes(data, random)
    if how == 1:
        name = re.search(rb'"(\w+)":', data)
        return data.replace(name[0], name[0] + b"null," + name[0], 1) if name else some_bytes(data, random)
    return json_bytes(changed_tree(json.loads(data), random))


def lines(data: bytes, random: Random) -> bytes:
    """Of lines of cells: cells odd, gone or more; lines doubled, in another order, or cut."""
    if random.randrange(3) == 0:
        return some_bytes(data, random)
    rows = data.split(b"\n")
    sign = b"\t" if b"\t" in data else b","
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(rows))
        cells = rows[at].split(sign)
        cell, how = random.randrange(len(cells)), random.randrange(7)
        if how == 0:
            rows.insert(at, rows[random.randrange(len(rows))])
        elif how == 1:
            del cells[cell]
            rows[at] = sign.join(cells)
        elif how == 2:
            rows[at] = sign.join([*cells, b"1" * random.choice((1, 300))])
        elif how == 3:
            # A column stands twice where all lines are as much longer.
            other = random.randrange(len(cells))
            rows = [sign.join([row, *row.split(sign)[other : other + 1]]) if row else row for row in rows]
        elif how == 4:
            rows[at] = rows[at] * random.choice((2, 100))
        else:
            odd = _odd(random)
            cells[cell] = (odd if isinstance(odd, str) else str(odd)).encode(errors="surrogatepass")
            rows[at] = sign.join(cells)
    return b"\n".join(rows)


def packed(inside: Callable[[bytes, Random], bytes], pack: Callable[[bytes], bytes]) -> Any:
    """What is packed changed and packed again, or its packed bytes."""

    def change(data: bytes, random: Random) -> bytes:
        if random.randrange(3):
            return pack(inside(_unpack(data), random))
        return some_bytes(data, random)

    return change


def _unpack(data: bytes) -> bytes:
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else zstandard.ZstdDecompressor().decompress(data)


def gz(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def npy(data: bytes, random: Random) -> bytes:
    """Of a .npy file: the words of its header, its lengths, or its bytes."""
    if random.randrange(3) == 0:
        return some_bytes(data, random)
    size = int.from_bytes(data[8:10], "little")
    header = data[10 : 10 + size].decode("latin1")
    header = random.choice(
        (
            lambda: re.sub(r"'shape': \([^)]*\)", f"'shape': {_shape(random)}", header),
            lambda: re.sub(r"'descr': '[^']*'", f"'descr': {random.choice(_DTYPES)}", header),
            lambda: header.replace("False", random.choice(("True", "None", "1", "'x'", "False"))),
            lambda: header.replace("'shape'", random.choice(("'descr'", "'x'", "0", "'shape', 'y'"))),
            lambda: random.choice(("(" * 3_000, "{" * 2_000, "[" * 1_000 + "]" * 1_000, "-" * 3_000 + "1", "1", "")),
        )
    )()
    coded = header.encode("latin1")
    length = random.choice((len(coded), len(coded), size, 0, 65_535)).to_bytes(2, "little")
    return data[:8] + length + coded + data[10 + size :]


_DTYPES = (
    "'|O'", "'<i8'", "'>i4'", "'<f8'", "'<U7'", "'<M8[s]'", "[('a', '<i8')]", "'<i99'", "'V0'", "3", "None", "'?'",
)  # fmt: skip


def _shape(random: Random) -> str:
    large = random.choice((0, -1, 1, 7, 2**31, 2**40, 2**62, 10**30))
    return random.choice(
        (f"({large},)", f"({large}, {large})", "()", "(3.5,)", "('a',)", f"[{large}]", "(1,) * 9", "(0,)")
    )


def zipped(inside: Callable[[bytes, Random], bytes]) -> Callable[[bytes, Random], bytes]:
    """Of an archive: one of its files changed, gone, doubled or renamed; or its bytes."""

    def change(data: bytes, random: Random) -> bytes:
        if random.randrange(3) == 0:
            return some_bytes(data, random)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = [(name, archive.read(name)) for name in archive.namelist()]
        at = random.randrange(len(parts))
        name, content = parts[at]
        how = random.randrange(6)
        if how == 0:
            del parts[at]
        elif how == 1:
            parts.append((f"{random.choice(('', '../', 'x'))}{name}", content))
        elif how == 2:
            other = random.randrange(len(parts))
            parts[at] = (name, parts[other][1])
        else:
            parts[at] = (name, inside(content, random))
        made = io.BytesIO()
        method = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        with warnings.catch_warnings(), zipfile.ZipFile(made, "w", method) as archive:
            warnings.simplefilter("ignore")  # of names that are there twice
            for each, content in parts:
                archive.writestr(each, content)
        return made.getvalue()

    return change
