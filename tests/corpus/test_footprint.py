"""What reading holds besides blocks: the most of all inputs, and of stores the first few."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.corpus import footprint
from lowtide.corpus.footprint import reader_bytes
from lowtide.corpus.textblocks import ReadingSettings
from lowtide.stores.paths import READER_BYTES, StorePath


def source(path: Path, *, packed: int = 0, own: int | None = None) -> Any:
    """An input whose decompression takes `packed`, or whose format says what it takes."""
    about = SimpleNamespace(reader_bytes=None if own is None else lambda *_: own)
    return SimpleNamespace(
        path=path, format=about, compression="gzip" if packed else None, packed=packed
    )


def test_the_most_of_all_inputs_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "window_bytes", lambda one: one.packed)
    local = Path("a.txt")
    rows = [source(local), source(local, packed=70), source(local, own=50), source(local, packed=9)]
    assert reader_bytes(rows, ReadingSettings()) == 70
    assert reader_bytes([*rows, source(local, own=80, packed=999)], ReadingSettings()) == 80
    assert reader_bytes(rows[:1], ReadingSettings()) == reader_bytes([], ReadingSettings()) == 0


def test_of_a_store_the_first_sixteen_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a request; what its reader holds comes on top."""
    monkeypatch.setattr(footprint, "window_bytes", lambda one: one.packed)
    stored = [source(StorePath(f"s3://bucket/{n}.txt.gz"), packed=n + 1) for n in range(20)]
    assert reader_bytes(stored, ReadingSettings()) == 16 + READER_BYTES
    assert reader_bytes(stored[:16], ReadingSettings()) == 16 + READER_BYTES
    assert reader_bytes(stored[:3], ReadingSettings()) == 3 + READER_BYTES
    local = source(Path("a.txt.gz"), packed=99)
    assert reader_bytes([*stored, local], ReadingSettings()) == 99 + READER_BYTES
