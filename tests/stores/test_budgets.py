"""Hostile inputs in a store: the first budget that a refusal names is enough, and is kept.

Each command is asked for its advice with 1 MiB, and then given it.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

MIB = 1 << 20
# For every input: the words without --memory. Each command is a fork, so that it finds what the
# one before it found; the peak is the kernel's since it began.
_RUN = """
import contextlib, io, json, os, re, sys
from pathlib import Path
import pyarrow.parquet
from lowtide.cli import main

def run(words, memory):
    answer = Path(sys.argv[2])
    if not os.fork():
        Path("/proc/self/clear_refs").write_text("5")
        told = io.StringIO()
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told):
            code = main([*words, "--memory", memory])
        peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) << 10
        answer.write_text(json.dumps([code, peak, told.getvalue()]))
        os._exit(0)
    os.wait()
    return json.loads(answer.read_text())

for words in json.loads(sys.argv[1]):
    refused, _, told = run(words, "1MiB")
    advice = re.findall(r"give at least --memory (\\d+)MiB", told)
    code, peak, told = run(words, f"{advice[0]}MiB")
    print(json.dumps([words[:3], refused, len(advice), int(advice[0]), code, peak, told[-400:]]))
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A long row with escapes, a large cell, a wide window, no place to cut, and one letter."""
    folder = tmp_path_factory.mktemp("texts")
    text = "two words\t\u00e9\n" * 500_000
    rows = [json.dumps({"text": row}) for row in ("a few words", text, "a few more")]
    (folder / "row.jsonl").write_text("\n".join(rows))
    pq.write_table(pa.table({"text": ["a few words", text, "a few more"]}), folder / "cell.parquet")
    window = zstandard.ZstdCompressionParameters.from_level(1, window_log=27)
    packed = zstandard.ZstdCompressor(compression_params=window)
    writer = packed.compressobj()
    (folder / "window.txt.zst").write_bytes(
        writer.compress(text[:100_000].encode()) + writer.flush()
    )
    letters = random.Random(3).choices("acgt", k=3 * MIB)
    (folder / "dna.txt").write_text("".join(letters))
    (folder / "letter.txt.gz").write_bytes(gzip.compress(b"a" * (6 * MIB), 1))
    return folder


@pytest.mark.parametrize("verb", ["pretokenize", "prepare", "train-tokenizer"])
def test_the_first_advice_works_and_is_kept(
    server: Any, inputs: Path, tmp_path: Path, verb: str
) -> None:
    server.upload(inputs, "texts")
    jobs: list[list[str]] = []
    for number, path in enumerate(sorted(inputs.iterdir())):
        url, out = f"s3://bucket/texts/{path.name}", str(tmp_path / f"{number}")
        jobs.append(
            {
                "pretokenize": ["pretokenize", url, "--out-path", f"{out}.npy"],
                "prepare": ["prepare", "--input-files", url, "--no-filter", "--out-dir", out],
                "train-tokenizer": [
                    *("train-tokenizer", "--input", url, "--vocab-size", "300", "--out-dir", out)
                ],
            }[verb]
        )
    done = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(jobs), tmp_path / "answer"],
        capture_output=True, text=True, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 5
    for words, refused, num_advices, budget, code, peak, told in rows:
        assert (refused, num_advices, code) == (1, 1, 0), (words, told)
        assert peak <= budget * MIB, (words, budget, peak / MIB)
