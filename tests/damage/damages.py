"""Damage to files and flags, made up from a seed: the same seed gives the same damage.

In:      the bytes of a file, or the type of a flag
Out:     other bytes, something that is no file at all, or words that make no sense
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["BYTE_DAMAGES", "FILE_DAMAGES", "FLAG_WORDS", "apply_damage", "list_damages"]

HUGE = [1 << 31, 1 << 63, 10**30, -1, 1e308, 0]
ODD: list[Any] = [None, True, -1, 1.5, 1 << 62, "", "x", "\udcff\x1b[31m", [], {}, [[]], {"a": []}]


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return b"\x80"
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 8])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _nul(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + b"\0" * rng.choice([1, 100]) + data[at:]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.choice([1, 7, 1000])) + data[at:]


def _shuffle_json(data: bytes, rng: random.Random) -> bytes:
    """JSON with one value of another type, or one key less or more."""
    try:
        value = json.loads(data)
    except ValueError:
        return _flip(data, rng)
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, item in list(items)[:200]:
            places.append((node, key))
            if isinstance(item, dict | list):
                visit(item)

    if isinstance(value, dict | list):
        visit(value)
    if not places or rng.random() < 0.05:
        return json.dumps(rng.choice(ODD)).encode()
    node, key = rng.choice(places)
    what = rng.random()
    if what < 0.3:
        del node[key]
    elif what < 0.6:
        node[key] = rng.choice(ODD)
    elif what < 0.9:
        node[key] = rng.choice(HUGE)
    elif isinstance(node, dict):
        node[f"{key} "] = node.pop(key)
    else:
        node.append(rng.choice(ODD))
    return json.dumps(value).encode()


BYTE_DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "truncated": _truncate,
    "bits flipped": _flip,
    "NULs in it": _nul,
    "bytes put in": _insert,
    "JSON changed": _shuffle_json,
    "empty": lambda data, rng: b"",
    "one byte": lambda data, rng: rng.randbytes(1),
    "100,000 levels": lambda data, rng: b"[" * 100_000 + b"]" * 100_000,
    "100,000 objects": lambda data, rng: b'{"a":' * 100_000,
    "5,000 digits": lambda data, rng: b'{"vocab_size": ' + b"9" * 5_000 + b"}",
    "utf-16": lambda data, rng: data.decode("latin-1").encode("utf-16"),
    "latin-1 byte": lambda data, rng: data.replace(b"e", b"\xe9", 1),
    "another's bytes": lambda data, rng: rng.randbytes(rng.choice([10, 5_000])),
    "doubled": lambda data, rng: data * 2,
}


def _replace(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(path.name + ".moved"))
    else:
        path.unlink(missing_ok=True)


def _make_pipe(path: Path) -> None:
    _replace(path)
    os.mkfifo(path)


def _make_folder(path: Path) -> None:
    _replace(path)
    path.mkdir()


def _link_to_itself(path: Path) -> None:
    _replace(path)
    path.symlink_to(path.name)


def _link_to_nothing(path: Path) -> None:
    _replace(path)
    path.symlink_to("nothing\udcff")


def _link_to_device(path: Path) -> None:
    _replace(path)
    path.symlink_to("/dev/null")


FILE_DAMAGES: dict[str, Callable[[Path], None]] = {
    "a pipe": _make_pipe,
    "a folder": _make_folder,
    "a link to itself": _link_to_itself,
    "a link to nothing": _link_to_nothing,
    "a link to a device": _link_to_device,
    "missing": _replace,
}


def list_damages() -> list[str]:
    """Names of all kinds of damage."""
    return [*BYTE_DAMAGES, *FILE_DAMAGES]


def apply_damage(kind: str, path: Path, rng: random.Random) -> bool:
    """Damage a file; False where that leaves it as it was."""
    if kind in FILE_DAMAGES:
        FILE_DAMAGES[kind](path)
        return True
    data = path.read_bytes()
    damaged = BYTE_DAMAGES[kind](data, rng)
    if damaged == data:
        return False
    # The file may be linked to its whole twin: write a new one.
    path.unlink()
    path.write_bytes(damaged)
    return True


FLAG_WORDS = [
    "-1",
    "0",
    "1e30",
    "nan",
    "inf",
    "-inf",
    "",
    " ",
    "none",
    "null",
    "true",
    "99999999999",
]
FLAG_WORDS += [
    "1.5",
    "ünd",
    "\udcff",
    "\x1b[31m",
    "a=b",
    "../..",
    "/dev/null",
    "2GiB",
    "0x10",
    "1,2",
]
