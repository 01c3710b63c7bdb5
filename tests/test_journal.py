"""The journal: what was written is read, and nothing else is taken for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import DataError
from lowtide.journal import Journal, read_notes, write_notes


def read(path: Path, **changes: Any) -> tuple[dict[str, Any] | None, list[str]]:
    notices: list[str] = []
    journal = Journal(path, **{"verb": "prepare", "version": 2, **changes})
    return journal.read(on_notice=notices.append), notices


@given(st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=9)))
def test_notes_come_back(notes: dict[str, Any]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "place.json"
        for name in ("version", "verb", "checksum"):
            notes.pop(name, None)
        Journal(path, verb="prepare", version=2).write(notes)
        assert read(path) == (notes, [])
        assert json.loads(path.read_text())["version"] == 2


def test_a_name_that_is_no_utf8_comes_back(tmp_path: Path) -> None:
    notes = {"name": "a\udcff.txt"}
    Journal(tmp_path / "place.json", verb="prepare", version=2).write(notes)
    assert read(tmp_path / "place.json") == (notes, [])


def test_no_file_is_no_place(tmp_path: Path) -> None:
    assert read(tmp_path / "place.json") == (None, [])
    assert read_notes(tmp_path / "place.json") is None


@pytest.mark.parametrize("changes", [{"verb": "append"}, {"version": 1}])
def test_notes_of_another_kind_are_not_used(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "place.json"
    Journal(path, verb="prepare", version=2).write({"offset": 7})
    notes, notices = read(path, **changes)
    assert notes is None
    assert notices == ["place.json is of another version of lowtide: the work begins anew"]


def test_notes_without_a_checksum_are_of_an_earlier_version(tmp_path: Path) -> None:
    path = tmp_path / "place.json"
    path.write_text(json.dumps({"verb": "prepare", "version": 2, "offset": 7}))
    assert read(path)[0] is None and "another version" in read(path)[1][0]
    assert read_notes(path) == {"verb": "prepare", "version": 2, "offset": 7}


@pytest.mark.parametrize(("before", "after"), [("7", "8"), ("prepare", "prepair"), ("{", "[")])
def test_damaged_notes_are_not_used(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "place.json"
    Journal(path, verb="prepare", version=2).write({"offset": 7, "other": [1, {"a": 2}]})
    text = path.read_text()
    path.write_text(text.replace(before, after, 1))
    notes, notices = read(path)
    assert notes is None and "cannot be read, the work begins anew" in notices[0]
    with pytest.raises(DataError, match=r"checksum|not JSON"):
        read_notes(path)
    write_notes(path, {"verb": "prepare", "version": 2, "offset": 9})
    assert read(path) == ({"offset": 9}, [])


def test_what_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "place.json").write_text("[1]")
    with pytest.raises(DataError, match="expected an object"):
        read_notes(tmp_path / "place.json")


def test_a_removed_place_is_gone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "place.json", verb="prepare", version=2)
    journal.write({"offset": 7})
    journal.remove()
    journal.remove()
    assert read(tmp_path / "place.json") == (None, [])


def test_a_checksum_stands_at_the_end_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "place.json"
    write_notes(path, {"verb": "prepare"})
    text = path.read_text()
    assert read_notes(path) is not None
    for damaged in (
        text + "\n",  # something behind it
        json.dumps(json.loads(text)),  # on one line: not as it is written
        text.replace('"checksum": "', '"checksum": "0'),
    ):
        path.write_text(damaged)
        with pytest.raises(DataError, match="these notes do not have their checksum"):
            read_notes(path)
    with pytest.raises(ValueError, match="notes without a key"):
        write_notes(path, {})
