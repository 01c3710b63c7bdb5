"""Training a tokenizer, killed anywhere and started again, ends with the same files."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FILES = ["merges.txt", "tokenizer.json", "training.json", "vocab.json"]

# Checkpoints after every step, and steps so small that there are many. Told to, it says when one is
# on the disk, and waits for a signal: whoever sends it cannot come too late.
_PROGRAM = """
import dataclasses, signal, sys
from lowtide.tokenizer import counting, training
from lowtide.tokenizer.limits import CountingLimits
limits = CountingLimits(
    checkpoint_seconds=-1.0, round_bytes=60_000, small_file_bytes=1_000, batch_bytes=50_000,
    merges_per_call=8,
)
train = training.train_tokenizer
training.train_tokenizer = lambda settings: train(dataclasses.replace(settings, limits=limits))
save = counting.CountCheckpoints.save
def save_and_wait(*arguments):
    save(*arguments)
    print("on the disk", flush=True)
    signal.pause()
if sys.argv.pop(1) == "wait":
    counting.CountCheckpoints.save = save_and_wait
from lowtide.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    source = random.Random(11)
    words = ["".join(source.choices("abcdefgé", k=source.randint(2, 9))) for _ in range(5000)]
    for name in ("a.txt", "b.txt", "c.txt.gz"):
        text = " ".join(source.choices(words, k=60_000)).encode()
        (folder / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    return folder


def start(corpus: Path, out_dir: Path, how: str = "on") -> subprocess.Popen[bytes]:
    command = ["train-tokenizer", "--input", str(corpus), "--out-dir", str(out_dir)]
    options = ["--vocab-size", "1500", "--memory", "300MiB", "--processes", "2"]
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, how, *command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def wait_for_checkpoint(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    lines = list(itertools.takewhile(lambda line: b"on the disk" not in line, process.stdout))
    assert process.poll() is None, lines


def finish(process: subprocess.Popen[bytes]) -> str:
    output = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 0, output
    return output


def contents(out_dir: Path) -> dict[str, bytes]:
    assert not (out_dir / ".work").exists()
    return {name: (out_dir / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], float]:
    """The files of a run that was never stopped, and how long it took."""
    out_dir = tmp_path_factory.mktemp("whole") / "tok"
    started = time.monotonic()
    finish(start(corpus, out_dir))
    return contents(out_dir), time.monotonic() - started


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_point(
    tmp_path: Path, corpus: Path, whole: tuple[dict[str, bytes], float], seed: int
) -> None:
    expected, seconds = whole
    source = random.Random(seed)
    out_dir = tmp_path / "tok"
    process = start(corpus, out_dir, "wait")  # the first time on its way on any machine
    wait_for_checkpoint(process)
    process.kill()
    process.communicate()
    for wait in (source.uniform(0.3, 1.0) * seconds, source.uniform(0.3, 1.0) * seconds):
        process = start(corpus, out_dir)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=wait)
        process.kill()
        process.communicate()
    finish(start(corpus, out_dir))
    assert contents(out_dir) == expected


def test_killed_after_each_checkpoint(
    tmp_path: Path, corpus: Path, whole: tuple[dict[str, bytes], float]
) -> None:
    """Killed as soon as a new checkpoint is on the disk, again and again."""
    out_dir = tmp_path / "tok"
    journal = out_dir / ".work" / "counting.json"
    seen: set[bytes] = set()
    for _ in range(4):
        process = start(corpus, out_dir, "wait")
        wait_for_checkpoint(process)
        seen.add(journal.read_bytes())
        process.kill()
        process.communicate()
    assert len(seen) == 4
    output = finish(start(corpus, out_dir))
    assert "going on at" in output
    assert contents(out_dir) == whole[0]


def test_interrupted_by_hand(
    tmp_path: Path, corpus: Path, whole: tuple[dict[str, bytes], float]
) -> None:
    out_dir = tmp_path / "tok"
    process = start(corpus, out_dir, "wait")
    wait_for_checkpoint(process)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 130, output
    assert "the same command goes on" in output
    finish(start(corpus, out_dir))
    assert contents(out_dir) == whole[0]
