"""A preparation killed at any moment goes on and ends with the bytes of one that was not."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

import pytest

from lowtide import Tokenizer

SCRIPT = """
import dataclasses, os, signal, sys
from lowtide import _native
from lowtide.dataset import chosen
from lowtide.dataset.preparation import prepare_dataset

limit = int(sys.argv[3])
plan_shares, table_bytes = chosen.plan_shares, int(sys.argv[5])
chosen.plan_shares = lambda *given: dataclasses.replace(
    plan_shares(*given), one_pass_bytes=table_bytes
)
count = 0

def die_at(function):
    def call(*given, **named):
        global count
        result = None if before else function(*given, **named)
        count += 1
        if count == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*given, **named) if before else result
    return call

# Die just before or just after one of the renames that make work count as done, by Python or in
# native code.
before = limit % 2 == 0
os.replace = die_at(os.replace)
_native.write_work_file = die_at(_native.write_work_file)
import pathlib
pathlib.Path.replace = lambda self, target: os.replace(self, target)
prepare_dataset(
    input_files=sys.argv[1].split(","), out_dir=sys.argv[2], tokenization=sys.argv[4],
    tokens_per_shard=3000, memory="1GiB", processes=int(sys.argv[6]),
    block_bytes=4096,
)
"""


LARGE, SMALL = 1 << 20, 24 * 200
"""Room for all lines of the corpus in the table of the first pass, and for a third of them."""


class Run(Protocol):
    """Prepares in a process of its own; returns its exit code and what it printed."""

    def __call__(
        self,
        out: Path,
        limit: int = 0,
        *,
        tokenization: str = "char",
        table: int = LARGE,
        processes: int = 2,
    ) -> tuple[int, str]: ...


@pytest.fixture(scope="module")
def run(corpus: list[Path], start_forks: Any) -> Run:
    def prepare(
        out: Path,
        limit: int = 0,
        *,
        tokenization: str = "char",
        table: int = LARGE,
        processes: int = 2,
    ) -> tuple[int, str]:
        given = [",".join(map(str, corpus)), out, limit, tokenization, table, processes]
        (code,), printed = start_forks((SCRIPT, given, {}))()
        return code, printed

    return prepare


def test_the_small_table_is_too_small(run: Run, tmp_path: Path) -> None:
    """Else the tests below kill and resume with one way of finding duplicates only."""
    Tokenizer.from_merges([(b"l", b"i")]).save(tmp_path)
    for table, is_full in ((LARGE, False), (SMALL, True)):
        code, printed = run(tmp_path / str(table), tokenization=str(tmp_path), table=table)
        assert code == 0, printed
        assert ("deduplicate" in printed) == is_full


def snapshot(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "metrics.jsonl"
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("corpus")
    documents = [
        "\n".join(f"document {number % 170} line {line} of it" for line in range(number % 7 + 1))
        for number in range(260)
    ]
    text = folder / "a.txt"
    text.write_text("<|endoftext|>".join(documents[:200]))
    packed = folder / "b.txt.gz"
    packed.write_bytes(gzip.compress("<|endoftext|>".join(documents[200:]).encode()))
    return [text, packed]


@pytest.fixture(scope="module")
def expected(run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("expected") / "out"
    assert run(out)[0] == 0
    return snapshot(out)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.from_merges([(b"l", b"i"), (b"n", b"e"), (b" ", b"o")]).save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def expected_pieces(
    run: Run, tokenizer: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("expected") / "pieces"
    assert run(out, tokenization=tokenizer)[0] == 0
    return snapshot(out)


@pytest.mark.parametrize("limit", [1, 2, 5, 8, 13, 16, 21, 26, 29])
def test_killed_at_a_rename(
    run: Run, expected: dict[str, bytes], tmp_path: Path, limit: int
) -> None:
    out = tmp_path / "out"
    assert run(out, limit)[0] == -signal.SIGKILL
    run(out, 7)  # and once more, wherever it is by now
    assert run(out)[0] == 0
    assert snapshot(out) == expected


@pytest.mark.parametrize(
    ("tables", "limits"),
    [
        ((LARGE, LARGE, LARGE), (4, 7)),
        ((LARGE, SMALL, LARGE), (11, 5)),
        ((SMALL, LARGE, SMALL), (20, 9)),
        ((LARGE, LARGE, SMALL), (27, 2)),
        ((SMALL, SMALL, SMALL), (33, 4)),
    ],
)
def test_killed_while_blocks_are_encoded_as_they_come(
    run: Run,
    tokenizer: str,
    expected_pieces: dict[str, bytes],
    tmp_path: Path,
    tables: tuple[int, int, int],
    limits: tuple[int, int],
) -> None:
    """Whatever fits the table of each attempt, and with another number of workers each time."""
    out = tmp_path / "out"
    first, second, third = tables
    code, _ = run(out, limits[0], tokenization=tokenizer, table=first, processes=3)
    assert code == -signal.SIGKILL
    run(out, limits[1], tokenization=tokenizer, table=second, processes=1)
    assert run(out, tokenization=tokenizer, table=third, processes=2)[0] == 0
    assert snapshot(out) == expected_pieces


def test_killed_whenever_something_new_is_there(
    run: Run, corpus: list[Path], expected: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    given = [",".join(map(str, corpus)), out, 0, "char", LARGE, 2]
    words = [sys.executable, "-c", SCRIPT, *map(str, given)]
    # Killed as soon as there is something new to see in the output, wherever the work is then.
    seen: set[str] = set()
    killed = 0
    for _ in range(4):
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            # Folders come and go meanwhile, which os.walk does not mind.
            names = {name for _, folders, files in os.walk(out) for name in (*folders, *files)}
            if names - seen:
                seen |= names
                os.kill(process.pid, signal.SIGKILL)
                killed += 1
                break
            os.sched_yield()
        process.wait()
    assert killed > 0
    if not (out / "dataset_metadata.json").exists() or (out / ".work").exists():
        assert run(out)[0] == 0
    assert snapshot(out) == expected
