"""Hashes that later appends need: collected, written, read and sorted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from lowtide.corpus.workfiles import open_work_file, write_work_file
from lowtide.dataset import seen
from lowtide.dataset.seen import (
    ROW_BYTES,
    copy_seen,
    iter_seen,
    read_seen,
    seen_path,
    sort_seen,
    write_seen,
    write_seen_block,
)


@pytest.mark.parametrize("all_lines", [False, True])
def test_hashes_come_from_encoded_blocks_or_are_picked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_lines: bool
) -> None:
    picked: list[Any] = []

    def pick(hashes: Any, documents: Any, remnants: Any, every: bool) -> bytes:
        picked.append((bytes(hashes), bytes(documents), remnants, every))
        return b"p" * ROW_BYTES

    monkeypatch.setattr(seen._native, "pick_hashes", pick)
    cleaned, encoded = [], []
    for number, remnants in enumerate(([], [[1, 2]], [])):
        block, ids = tmp_path / f"{number}.block", tmp_path / f"{number}.ids"
        hashes, kept = (memoryview(data) for data in (b"h%d" % number, bytes([number]) * ROW_BYTES))
        write_work_file(block, {}, {"hashes": hashes, "documents": memoryview(b"docs")})
        write_work_file(ids, {"remnants": remnants}, {"seen": kept})
        cleaned.append(block)
        encoded.append(ids)

    def find(block: int) -> tuple[int, int] | None:
        return open_work_file(encoded[block]).sections["seen"] if block == 0 else None

    row = write_seen(tmp_path, 7, cleaned, encoded, all_lines=all_lines, find=find)
    data = (tmp_path / row["file"]).read_bytes()
    first = [(b"h0", b"", [], True)] if all_lines else []
    assert picked == [
        *first, (b"h1", b"docs", [[1, 2]], all_lines), (b"h2", b"", [], all_lines),
    ]  # fmt: skip
    assert data == (b"p" if all_lines else b"\0") * ROW_BYTES + b"p" * 2 * ROW_BYTES
    assert row == {
        "file": "seen/00007.hashes", "rows": 3, "xxh3_128": xxhash.xxh3_128_hexdigest(data),
    }  # fmt: skip


def test_hashes_are_read_in_steps_or_a_stretch(tmp_path: Path) -> None:
    step = seen._STEP_ROWS * ROW_BYTES
    data = np.arange(step // 4 + 6, dtype="<u4").tobytes()
    rows = [
        copy_seen(tmp_path, 0, [memoryview(data[:24]), memoryview(data[24:])]),
        copy_seen(tmp_path, 1, []),
        copy_seen(tmp_path, 12, [memoryview(data[:24])]),
    ]
    assert [row["rows"] for row in rows] == [len(data) // ROW_BYTES, 0, 2]
    assert [len(part) for part in iter_seen(tmp_path, rows)] == [step, 24, 24]
    assert b"".join(iter_seen(tmp_path, rows)) == data + data[:24]
    assert read_seen(tmp_path, rows[0], 12, 36) == data[12:36]
    assert seen_path(tmp_path, 12) == tmp_path / "seen" / "00012.hashes"


def test_hashes_are_sorted_by_their_first_byte_and_stay_in_order(tmp_path: Path) -> None:
    words = np.array(
        [[1, 0x05000000, 11], [2, 0xFF000001, 12], [3, 0x05000002, 13], [4, 0x00FFFFFF, 14]], "<u4"
    )
    hashes, ends = sort_seen(words.tobytes())
    found = np.frombuffer(hashes, "<u4").reshape(4, -1)
    assert found[:, :3].tolist() == words[[3, 0, 2, 1]].tolist()
    assert not found[:, 3:].any()
    counts = np.frombuffer(ends, "<i8").tolist()
    assert len(counts) == 256
    assert (counts[0], counts[4], counts[5], counts[254], counts[255]) == (1, 1, 3, 3, 4)
    write_seen_block(tmp_path / "a.block", words.tobytes())
    work = open_work_file(tmp_path / "a.block")
    assert bytes(work.read("hashes")) == bytes(hashes)
    assert bytes(work.read("radix_ends")) == bytes(ends)
    assert all(not len(work.read(name)) for name in ("documents", "characters", "text"))
    header = work.header
    assert all(not header[name] for name in header if name != "counts")
    assert header["counts"] and all(tuple(row) == (0, 0) for row in header["counts"])
