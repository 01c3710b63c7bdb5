"""Shared outputs are tested for writing before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.engine.heldoutputs import require_writable


def test_a_folder_that_can_be_written_or_made_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    before = sorted(tmp_path.rglob("*"))
    for name in ("there", "link", "new", "new/deeper", "there/new"):
        require_writable(tmp_path / name)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "error", "named"),
    [
        ("file", NotADirectoryError, "file"),
        ("file/new/deeper", NotADirectoryError, "file"),
        ("nowhere", FileNotFoundError, "nowhere"),  # a link that leads to nothing
    ],
)
def test_what_can_be_no_folder_is_named(
    tmp_path: Path, name: str, error: type[OSError], named: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    with pytest.raises(error) as caught:
        require_writable(tmp_path / name)
    assert caught.value.filename == str(tmp_path / named)
