"""`convert`, `verify` and `inspect` stay inside `--memory`, however many documents there are."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lowtide.tokenizer import Tokenizer

MIB = 1 << 20
BUDGET = 144 * MIB
SMALL, LARGE = 300_000, 3_000_000
ADDED = (LARGE - SMALL) * (2 + 4 + 8)
"""Bytes of ids, lengths and pointers that the larger input has more."""

# A small process in between: the kernel charges a child with what its parent held when it started
# it, and pytest holds much.
_MEASURE = """
import os, sys
pid = os.posix_spawn(sys.executable, [sys.executable, "-c", *sys.argv[1:]], os.environ)
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""

_PLAIN = "from lowtide.cli import run; run()"
_HOLDING = {
    "convert": "from dataclasses import replace\n"
    "from lowtide.dataset.tokenfiles.streams import TokenStream\n"
    "iter_chunks = TokenStream.iter_chunks\n"
    "def iter_all(stream, first, last):\n"
    "    parts = [replace(part, index_rows=1 << 30) for part in stream.parts]\n"
    "    return iter_chunks(replace(stream, parts=parts, step_tokens=1 << 30), first, last)\n"
    "TokenStream.iter_chunks = iter_all\n",
    "verify": "from functools import partial\n"
    "from lowtide.dataset import verification\n"
    "verification._read_shard = partial(verification._read_shard, buffer_bytes=1 << 27)\n"
    "verification._Ends = partial(verification._Ends, read_bytes=1 << 27)\n",
    "inspect": "from lowtide.dataset import inspection\n"
    "read = inspection.read_shard_tokens\n"
    "def read_all(shard, dtype, begin, end):\n"
    "    whole = read(shard, dtype, 0, shard.num_tokens).astype('int64').repeat(4)\n"
    "    return read(shard, dtype, begin, end) if whole.size else whole\n"
    "inspection.read_shard_tokens = read_all\n",
}
"""What makes each verb hold its input: a peak that does not show it would prove nothing."""


def peak_of(*words: str | Path, before: str = "") -> int:
    """Run a verb; give the peak as the kernel counted it."""
    ended = subprocess.run(
        [sys.executable, "-S", "-c", _MEASURE, before + _PLAIN, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert ended.returncode == (3 if before and "OVER BUDGET" in ended.stderr else 0), ended.stderr
    assert " of 144.0 MiB budget" in ended.stderr
    return int(ended.stdout.splitlines()[-1])


def write_megatron(folder: Path, count: int) -> None:
    """Write `count` documents of one token each."""
    np.full(count, 65, "<u2").tofile(folder / "all.bin")
    with (folder / "all.idx").open("wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1))
        file.write(np.ones(count, "<i4").tobytes())
        file.write((np.arange(count, dtype="<i8") * 2).tobytes())
        file.write(np.arange(count + 1, dtype="<i8").tobytes())


def measure(folder: Path, verb: str, before: str = "") -> int:
    words = ["--memory", "144MiB"]
    if verb == "convert":
        out = folder / ("held" if before else "out")
        tokens = ["--tokens-per-shard", "100000000", "--tokenizer", folder.parent / "tokenizer"]
        return peak_of(verb, folder / "all.idx", out, *tokens, *words, before=before)
    if not (folder / "out").exists():  # the other worker of pytest has that test
        measure(folder, "convert")
    if verb == "verify":
        words += ["--processes", "1"]
    return peak_of(verb, folder / "out", *words, before=before)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("megatron")
    Tokenizer.from_merges([]).save(root / "tokenizer")
    for name, count in (("small", SMALL), ("large", LARGE)):
        (root / name).mkdir()
        write_megatron(root / name, count)
    return root / "small", root / "large"


VERBS = tuple(_HOLDING)


@pytest.mark.parametrize("verb", VERBS)
def test_ten_times_the_documents_take_no_more(folders: tuple[Path, Path], verb: str) -> None:
    small, large = (measure(folder, verb) for folder in folders)
    assert max(small, large) < BUDGET
    assert large - small < ADDED * 2 // 5  # a heap that differs by some MB from run to run
    held = measure(folders[1], verb, before=_HOLDING[verb])
    assert held - small > ADDED * 2 // 5, "the test could not have failed"
