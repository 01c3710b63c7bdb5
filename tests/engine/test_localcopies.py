"""Copies of sections that native code reads: their location and removal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lowtide.engine.localcopies import LocalCopies
from lowtide.stores.paths import StorePath


def test_sections_of_objects_are_copied_one_behind_the_other(tmp_path: Path) -> None:
    asked: list[tuple[Any, ...]] = []
    output: Any = SimpleNamespace(
        path=StorePath("s3://bucket/a"),
        copy=lambda name, file, *, begin, end: (
            asked.append((name, begin, end)) or file.write(name.encode())
        ),
    )
    copies = LocalCopies(tmp_path)
    assert copies.find(output, "rows", begin=2, end=9) == (tmp_path / "copies", 0)
    assert copies.find(output, "ends") == (tmp_path / "copies", 4)
    assert asked == [("rows", 2, 9), ("ends", 0, None)]
    assert (tmp_path / "copies").read_bytes() == b"rowsends"
    copies.clear()
    assert list(tmp_path.iterdir()) == []
    copies.clear()
    assert copies.find(output, "rows") == (tmp_path / "copies", 0)


def test_sections_on_a_disk_are_compared_and_stay_where_they_are(tmp_path: Path) -> None:
    asked: list[tuple[Any, ...]] = []
    output: Any = SimpleNamespace(
        path=tmp_path / "a.out",
        sections={"rows": (100, 50)},
        check=lambda name, *, begin, end: asked.append((name, begin, end)),
    )
    found = LocalCopies(tmp_path / "none").find(output, "rows", begin=7, end=9)
    assert found == (tmp_path / "a.out", 107)
    assert asked == [("rows", 7, 9)]
