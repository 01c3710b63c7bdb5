"""Long lists in JSON: the same bytes as ever, and rows that stay in the file until read."""

from __future__ import annotations

import gc
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import files, longjson
from lowtide.errors import DataError
from lowtide.longjson import Rows, StoredRows, read_long_json, write_long_json

VALUES: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


def lazy(rows: list[Any]) -> Rows:
    return Rows(len(rows), lambda: iter(rows))


@given(first=VALUES, rows=st.lists(VALUES, max_size=5), names=st.lists(st.text(), max_size=5))
def test_the_same_bytes_and_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, first: Any, rows: list[Any], names: list[str]
) -> None:
    path = tmp_path_factory.mktemp("json") / "a.json"
    plain = {"first": first, "names": names, "rows": rows, "events": [{"names": names}], "z": 1}
    write_long_json(
        path,
        {**plain, "names": lazy(names), "rows": lazy(rows), "events": [{"names": lazy(names)}]},
    )
    assert path.read_bytes() == files.json_bytes(plain)
    found = longjson._read_parts(path, ("names", "rows"))
    assert {key: list(value) if key in ("names", "rows") else value for key, value in found.items()}
    assert [list(found["names"]), list(found["rows"])] == [names, rows]
    assert (len(found["names"]), len(found["rows"])) == (len(names), len(rows))
    assert isinstance(found["events"][0]["names"], StoredRows) == bool(names)
    assert {key: found[key] for key in ("first", "events", "z")} == {
        key: plain[key] for key in ("first", "events", "z")
    }


def test_what_json_turns_into_text_is_turned_into_the_same(tmp_path: Path) -> None:
    plain = {3: (1, ()), 2.5: {}, None: [[]], True: {"a": float("inf")}, "b": "\n\u2028\u00e9"}
    write_long_json(tmp_path / "a.json", plain)
    assert (tmp_path / "a.json").read_bytes() == files.json_bytes(plain)


def test_rows_stay_those_that_were_there_when_the_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, {"rows": [{"file": f"{n}.txt"} for n in range(50_000)], "more": 1})
    assert path.stat().st_size > longjson._LONG_BYTES
    found = read_long_json(path, ("rows",))
    rows = found["rows"]
    assert isinstance(rows, StoredRows)
    files.write_json(path, {"rows": []})
    assert rows[49_999] == {"file": "49999.txt"}
    assert rows[-1] == rows[49_999]
    assert list(rows[2:4]) == [{"file": "2.txt"}, {"file": "3.txt"}]
    assert len(rows[49_990:]) == 10
    with pytest.raises(IndexError):
        rows[50_000]
    assert pickle.loads(pickle.dumps(rows)) == rows
    assert rows == list(rows)
    assert rows != [{}]


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_a_file_written_otherwise_is_read_whole(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "a.json"
    value = {"rows": [{"file": f"{n}.txt", "n": n} for n in range(60_000)]}
    path.write_text(json.dumps(value, indent=indent))
    assert read_long_json(path, ("rows",)) == value


def test_damage_is_told_by_whoever_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, {"rows": [{"file": f"{n}.txt"} for n in range(50_000)]})
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="not JSON"):
        read_long_json(path, ("rows",))
    path.write_bytes(data.replace(b'"40000.txt"', b'"40000.tx'))
    with pytest.raises(DataError, match="not JSON"):
        list(read_long_json(path, ("rows",))["rows"])
    with pytest.raises(DataError, match="not found"):
        read_long_json(tmp_path / "none.json", ("rows",))


def test_rows_are_taken_as_of_a_list() -> None:
    rows = lazy(list(range(9)))
    for part in (slice(None, None, 2), slice(5, 1, -2), slice(2, 5), slice(7, 3)):
        assert list(rows[part]) == list(range(9))[part]
    assert rows == list(range(9))
    assert rows != list(range(8))
    assert rows != [0, *range(2, 10)]
    assert (rows == "012345678") is False
    assert rows.__eq__(5) is NotImplemented


def test_parts_of_rows_are_rows_again() -> None:
    rows = lazy(list(range(9)))
    part = rows[3:7]
    assert isinstance(part, Rows)
    assert (len(part), list(part), part[1], part[-1]) == (4, [3, 4, 5, 6], 4, 6)
    empty = rows[7:3]
    assert isinstance(empty, Rows)
    assert (len(empty), list(empty)) == (0, [])
    assert isinstance(rows[0:9:2], list)


NESTED = {
    "first": {"rows": ["not at the top", 1]},
    "rows": [{"a": [1, {"b": []}], "c": {}}, [], "]", 5, [["x"]], {"file": "}", "n": [2, 3]}],
    "events": [{"name": "e", "rows": [[1, 2], {"z": "[\n"}]}, {"rows": ["only"]}, {"rows": []}],
    "empty": [],
    "last": ["rows that stay in the file: 0"],
    "text": "rows",
}


def test_lists_are_found_at_their_depths_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, NESTED)
    found = longjson._read_parts(path, ("rows",))
    assert found == NESTED
    assert type(found["first"]["rows"]) is list
    assert isinstance(found["rows"], StoredRows) and len(found["rows"]) == 6
    assert [type(event["rows"]) for event in found["events"]] == [StoredRows, StoredRows, list]
    assert [len(event["rows"]) for event in found["events"]] == [2, 1, 0]
    assert found["rows"][5] == NESTED["rows"][5]  # the last line of it closes two brackets
    assert longjson._read_parts(path, ()) == NESTED
    assert longjson._read_parts(path, ("last", "events")) == {
        **NESTED, "last": ["rows that stay in the file: 0"]
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        '{\n  "rows": [\n    1,\n    2\n',  # cut off
        '{\n  "rows": [\n    1,\n   2\n  ]\n}\n',  # another indent
        '[\n  "rows"\n]\n',
        "3\n",
        '{\n  "rows": [\n    1\n  ]\n',
    ],
)
def test_what_lowtide_does_not_write_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ValueError):
        longjson._read_parts(path, ("rows",))


def test_rows_are_read_in_steps_and_longer_ones_whole(tmp_path: Path) -> None:
    """A row that reaches over several steps of 256 KiB, and one that ends where a step does."""
    step = longjson._STEP_BYTES
    rows = ["a", "b" * (3 * step), "c", "d" * step, {"e": "f" * (step // 2)}, 7]
    path = tmp_path / "a.json"
    write_long_json(path, {"rows": lazy(rows), "z": "y" * step})
    assert path.read_bytes() == files.json_bytes({"rows": rows, "z": "y" * step})
    found = read_long_json(path, ("rows",))
    assert isinstance(found["rows"], StoredRows)
    assert list(found["rows"]) == rows and found["z"] == "y" * step


def test_a_file_is_long_beyond_a_mebibyte(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for more, kind in ((0, list), (1, StoredRows)):
        frame = len(files.json_bytes({"rows": [""]}))
        files.write_json(path, {"rows": ["a" * (longjson._LONG_BYTES - frame + more)]})
        assert path.stat().st_size == longjson._LONG_BYTES + more
        assert type(read_long_json(path, ("rows",))["rows"]) is kind


def test_rows_close_their_file_when_nobody_has_them(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, {"rows": [1, 2]})

    def opened() -> list[str]:
        links = Path("/proc/self/fd").iterdir()
        return [link.name for link in links if os.path.realpath(link) == str(path.resolve())]

    found = longjson._read_parts(path, ("rows",))
    assert len(opened()) == 1
    del found
    gc.collect()
    assert opened() == []


def test_what_is_no_file_is_refused_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a device that says it is long: it is not read as one of our files."""
    path = tmp_path / "a.json"
    files.write_json(path, {"rows": ["a" * longjson._LONG_BYTES]})
    asked: list[Path] = []
    real = files.require_file
    monkeypatch.setattr(files, "require_file", lambda path: asked.append(path) or real(path))
    read_long_json(path, ("rows",))
    assert asked == [path]
