"""Parquet with long documents, as a stock writer stores it: all in one page, a small budget."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

MIB = 1 << 20
_RUN = """
import re, sys
from lowtide.cli import main
code = main(sys.argv[1:])
status = open("/proc/self/status").read()
print("PEAK", int(re.search(r"VmHWM:\\s+(\\d+)", status).group(1)) * 1024)
sys.exit(code)
"""
# A small process in between: the kernel charges a child with what its parent held when it started
# it, and pytest holds much.
_BETWEEN = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = random.Random(5)
    words = ["".join(source.choices("etaoinshrdlu", k=6)) for _ in range(2000)]
    lines = ["\n" + " ".join(source.choices(words, k=20)) for _ in range(20_000)]
    texts = ["".join(source.choices(lines, k=2400)) for _ in range(140)]
    path = tmp_path_factory.mktemp("documents") / "documents.parquet"
    pq.write_table(pa.table({"text": texts}), path)
    with pq.ParquetFile(path) as file:
        assert file.metadata.row_group(0).column(0).total_uncompressed_size > 40 * MIB
    return path


@pytest.mark.parametrize("verb", ["train-tokenizer", "pretokenize"])
def test_long_documents_in_one_page(verb: str, documents: Path, tmp_path: Path) -> None:
    out = ["--out-path", tmp_path / "ids.npy"]
    words = [verb, documents, *out]
    if verb == "train-tokenizer":
        words = [verb, "--input", documents, "--out-dir", tmp_path / "tok", "--vocab-size", 300]
    limits = ["--memory", "192MiB", "--processes", "1"]
    command = [sys.executable, "-c", _RUN, *map(str, words), *limits]
    ended = subprocess.run(
        [sys.executable, "-S", "-c", _BETWEEN, *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout.split("PEAK ")[1].split()[0]) < 192 * MIB
