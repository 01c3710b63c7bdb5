"""Every native entry point takes any number and any buffer: a result or an error, never a crash.

The names of the entry points are read from the module, so that a new one without a row here fails.
Calls run in one child process, which must live to the end: a crash or an endless loop would take
the process of the test with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide import _native

PROGRAM = Path(__file__).parent / "call_with_nonsense.py"
# They take neither numbers nor buffers.
PLAIN = {
    "ReadError",
    "character_classes",
    "has_quick_products",
    "vector_bits",
    "CleanOptions",
    "CleanedBlock",
    "EncodedBlock",
    "KeptDocuments",
    "ModelError",
    "WordList",
}


def entry_points() -> list[str]:
    return sorted(
        name
        for module in (_native, _native.testing)
        for name in dir(module)
        if not name.startswith("_") and callable(getattr(module, name))
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, int]]:
    folder = tmp_path_factory.mktemp("native")
    # Always the usual build: under a sanitizer, memory that is not to be had ends the process.
    usual = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)],
        env=usual,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    rows: dict[str, tuple[int, int]] = {}
    for line in done.stdout.splitlines():
        name, results, errors = line.split()
        rows[name] = int(results), int(errors)
    return rows


@pytest.mark.parametrize("name", [name for name in entry_points() if name not in PLAIN])
def test_nonsense_is_an_error(name: str, report: dict[str, tuple[int, int]]) -> None:
    results, errors = report[name]
    assert results + errors >= 3
    assert errors >= 1 or name in ("keep_freed_memory", "find_bytes", "scan_line")


def test_ids_of_no_bytes_and_windows_of_no_bytes_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(b"low tide\n" * 100)
    vocabulary = _native.Vocabulary(
        "gpt2", [bytes([byte]) for byte in range(256)], None, [], whole_pieces=False, cache_bytes=0
    )
    good = {
        "input_path": str(text),
        "begin": 0,
        "stop": 900,
        "end": 900,
        "output_path": "out",
        "output_offset": 0,
        "id_bytes": 2,
        "specials": False,
        "num_threads": 1,
        "window_bytes": 64,
    }
    with (tmp_path / "out").open("wb") as out:
        assert vocabulary.encode_file(output_file=out.fileno(), **good) == (900, 900)
        for name, value in [
            ("id_bytes", 0),
            ("id_bytes", 3),
            ("window_bytes", 0),
            ("num_threads", 0),
            ("num_threads", 1 << 40),
            ("begin", 901),
            ("output_offset", (1 << 64) - 1),
        ]:
            with pytest.raises(ValueError):
                vocabulary.encode_file(output_file=out.fileno(), **{**good, name: value})
        with pytest.raises(OSError, match="Stale"):  # the file is shorter than was said
            vocabulary.encode_file(output_file=out.fileno(), **{**good, "end": 1 << 50})


def test_names_need_not_be_utf8(tmp_path: Path) -> None:
    folder = tmp_path / "d\udcff"
    folder.mkdir()
    text = folder / "t\udcfe.txt"
    text.write_bytes(b"low tide\n" * 1000)
    counter = _native.PieceCounter(
        "gpt2", [], num_threads=1, table_bytes=1 << 20, window_bytes=1 << 16, spill_dir=folder
    )
    assert counter.count_file(text, 0, 9000, 9000) == 9000
    runs = counter.checkpoint()
    assert all(Path(run).parent == folder and Path(run).exists() for run in runs)
    stream = _native.TokenStream(
        [(str(folder / "gone.bin"), 0, 4, "", 0, False)], item_bytes=2, id_limit=9, max_open_files=1
    )
    import numpy as np

    with pytest.raises(_native.ReadError) as caught:
        stream.read(0, np.zeros(4, np.uint16))
    assert caught.value.args[1] == str(folder / "gone.bin")
