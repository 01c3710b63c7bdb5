"""`train-tokenizer --memory 256MiB` stays inside it, whatever the size of the text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

MIB = 1 << 20
BUDGET = 256 * MIB


def write_text(path: Path, *, size_bytes: int, seed: int) -> None:
    """Write text in which new words never end, as in real text, only more of them."""
    source = np.random.default_rng(seed)
    letters = np.frombuffer(b"etaoinshrdlucmfgypwbvkxjqz", np.uint8)
    places = [slice(i, i + i % 9 + 4) for i in range(0, 3900, 3)]
    with path.open("w") as file:
        written = 0
        while written < size_bytes:
            common = letters[source.integers(len(letters), size=4000)].tobytes().decode()
            words = [common[place] for place in places]
            line = " ".join(words) + ".\n"
            written += file.write(line)


# A small process in between: the kernel charges a child with what its parent held when it started
# it, and pytest holds much.
_MEASURE = """
import os, sys
pid = os.posix_spawn(sys.executable, [sys.executable, "-m", "lowtide", *sys.argv[1:]], os.environ)
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak_of(*words: object) -> tuple[int, str]:
    """Run train-tokenizer; give its peak, as the kernel counted it, and its progress."""
    ended = subprocess.run(
        [sys.executable, "-S", "-c", _MEASURE, "train-tokenizer", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout.splitlines()[-1]), ended.stderr


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same kind of text once and ten times as long."""
    folder = tmp_path_factory.mktemp("texts")
    write_text(folder / "small.txt", size_bytes=2 * MIB, seed=1)
    write_text(folder / "large.txt", size_bytes=20 * MIB, seed=2)
    return folder / "small.txt", folder / "large.txt"


def test_one_and_ten_times_the_text(tmp_path: Path, texts: tuple[Path, Path]) -> None:
    notes: list[str] = []
    for number, path in enumerate(texts):
        out_dir = tmp_path / str(number)
        peak, printed = peak_of(
            *("--input", path, "--out-dir", out_dir, "--vocab-size", 400),
            *("--memory", "256MiB", "--processes", 2),
        )
        assert peak < BUDGET
        rows = [json.loads(line) for line in (out_dir / "metrics.jsonl").read_text().splitlines()]
        assert rows[-1]["budget_bytes"] == BUDGET
        assert 0.8 * peak <= rows[-1]["peak_memory_bytes"] <= peak
        notes.append(printed)
    assert "learning at full speed needs" not in notes[0]
    assert "learning at full speed needs" in notes[1]


def test_the_smallest_budget_named_is_enough(tmp_path: Path) -> None:
    write_text(tmp_path / "text.txt", size_bytes=6 * MIB, seed=3)
    words = ["--input", tmp_path / "text.txt", "--out-dir", tmp_path / "tok", "--vocab-size", "260"]
    command = [sys.executable, "-m", "lowtide", "train-tokenizer", *map(str, words)]
    refused = subprocess.run(
        [*command, "--memory", "32MiB"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    smallest = int(refused.stderr.split("--memory ")[1].split("MiB")[0])
    peak, printed = peak_of(*words, "--memory", f"{smallest}MiB")
    assert peak < smallest * MIB
    assert "spilled and merged" in printed
    assert "in rounds over a file" in printed


def test_special_tokens_count(tmp_path: Path) -> None:
    text, config = tmp_path / "text.txt", tmp_path / "many.json"
    text.write_text("a little text\n" * 1000)
    settings = {"special_tokens": [f"<{i}>" for i in range(40_000)], "vocab_size": 41_000}
    config.write_text(
        json.dumps({"input": [str(text)], "out_dir": str(tmp_path / "tok")} | settings)
    )
    command = [sys.executable, "-m", "lowtide", "train-tokenizer", "--config-file", str(config)]
    refused = subprocess.run(
        [*command, "--memory", "32MiB"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    smallest = int(refused.stderr.split("--memory ")[1].split("MiB")[0])
    peak, _ = peak_of("--config-file", config, "--memory", f"{smallest}MiB")
    assert 0.7 * smallest * MIB < peak < smallest * MIB
