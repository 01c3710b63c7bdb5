"""Locks whose files are used again: each output is locked in its turn, and nothing stays behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.errors import UsageError
from lowtide.files import hold_lock
from lowtide.sparelocks import reusing_locks


def locks_in(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


def test_the_file_of_a_lock_becomes_that_of_the_next(tmp_path: Path) -> None:
    with reusing_locks():
        with hold_lock(tmp_path / "a"):
            first = locks_in(tmp_path)
        with hold_lock(tmp_path / "b"):
            assert locks_in(tmp_path) == {".b.lock": first[".a.lock"]}
            with (
                pytest.raises(UsageError, match="another lowtide command"),
                hold_lock(tmp_path / "b"),
            ):
                pass
    assert locks_in(tmp_path) == {}


def test_the_lock_of_another_command_is_never_replaced(tmp_path: Path) -> None:
    with hold_lock(tmp_path / "b"), reusing_locks():
        with hold_lock(tmp_path / "a"):
            pass
        with pytest.raises(UsageError, match="another lowtide command"), hold_lock(tmp_path / "b"):
            pass
        assert set(locks_in(tmp_path)) == {".b.lock"}
    assert locks_in(tmp_path) == {}
