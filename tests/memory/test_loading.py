"""Reading a dataset through and through leaves memory as it was, whatever its size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

MIB = 1 << 20
SMALL_TOKENS = 2 << 20
LARGE_TOKENS = 40 << 20  # 80 MiB

PEAK = """
import os, re, sys
def kib(field, pid="self"):
    text = open(f"/proc/{pid}/status").read()
    return int(re.search(field + r":\\s+(\\d+)", text).group(1))
"""

PASS = (
    PEAK
    + """
from lowtide.loader.batches import BatchLoader
from lowtide.loader.windows import TokenDataset
path, order, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
data = TokenDataset(path, split="all", seq_len=512, dtype="uint16")
with BatchLoader(data, batch_size=32, order=order, num_epochs=1, num_threads=threads,
                 prefetch_batches=4) as loader:
    for _ in range(20):
        next(loader)
    before = kib("VmHWM")
    for _ in loader:
        pass
print(kib("VmHWM") - before)
"""
)

WORKERS = (
    PEAK
    + """
import psutil
from lowtide import create_dataloaders
train, _ = create_dataloaders(sys.argv[1], batch_size=512, max_length=512, num_workers=2,
                              prefetch_factor=2, dtype="uint16")
def resident(children):  # not the batches, which are shared; of the file, wherever it lies
    return sum(kib("RssAnon", pid) + mapped(pid) for pid in children)
def mapped(pid):
    maps = psutil.Process(pid).memory_maps()
    return sum(part.rss for part in maps if part.path == sys.argv[1]) // 1024
for number, batch in enumerate(train):
    if number == 10:
        children = [child.pid for child in psutil.Process().children()]
        before = resident(children)
    if number == len(train) - 6:  # while the workers are still there
        after = resident(children)
print(after - before)
"""
)

STREAM = (
    PEAK
    + """
import numpy as np
from lowtide.loader.streaming import StreamingDataLoader
class Bytes:
    fingerprint, special_tokens = "bytes", {"<|endoftext|>": 256}
    def encode_batch(self, texts):
        return [np.frombuffer(text, dtype=np.uint8).astype(np.uint32) for text in texts]
loader = StreamingDataLoader(files=sys.argv[1], tokenizer=Bytes(), seq_len=128, batch_size=64,
                             shuffle_buffer_size=2000)
for _ in loader:
    pass
print(kib("VmHWM"))
"""
)


def run(code: str, *arguments: object) -> int:
    """Run `code` in a process of its own and give the number of KiB it prints last, in bytes."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(found.stdout.split()[-1]) * 1024


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "large.bin"
    np.random.default_rng(1).integers(0, 50257, LARGE_TOKENS, dtype=np.uint16).tofile(path)
    return path


@pytest.mark.parametrize(
    ("order", "threads"), [("shuffle", 1), ("shuffle", 2), ("random", 1), ("sequential", 1)]
)
def test_a_pass_leaves_memory_as_it_was(large_file: Path, order: str, threads: int) -> None:
    assert run(PASS, large_file, order, threads) < 6 * MIB


def test_workers_do_not_grow(large_file: Path) -> None:
    pytest.importorskip("torch")
    assert run(WORKERS, large_file) < 12 * MIB


def test_streaming_ten_times_the_text_takes_the_same_memory(tmp_path: Path) -> None:
    peaks = []
    for name, copies in (("one", 1), ("ten", 10)):
        path = tmp_path / f"{name}.txt"
        document = b"some words of text, and some more of them " * 200
        path.write_bytes((document + b"<|endoftext|>") * (600 * copies))
        peaks.append(run(STREAM, path))
    assert peaks[1] - peaks[0] < 18 * MIB  # 43 added; 61.2 and 65.6 measured
