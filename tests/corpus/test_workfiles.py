"""Work files: whole or not there, and damage is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from lowtide.corpus.workfiles import is_intact, open_work_file, write_work_file
from lowtide.errors import DataError


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "a.block"
    sections = {
        "one": memoryview(np.arange(100).tobytes()),
        "none": memoryview(b""),
        "two": memoryview(b"seven b"),
    }
    write_work_file(path, {"tokens": 5}, sections)
    work = open_work_file(path)
    assert work.header == {"tokens": 5}
    for name, data in sections.items():
        assert work.read(name) == data
    assert work.read("one", begin=16, end=32).cast("q").tolist() == [2, 3]
    assert is_intact(path)
    assert [item.name for item in tmp_path.iterdir()] == ["a.block"]


@pytest.mark.parametrize("place", [0, 20, 60, -3, -200])
def test_a_changed_byte_is_noticed(tmp_path: Path, place: int) -> None:
    path = tmp_path / "a.block"
    write_work_file(path, {}, {"one": memoryview(bytes(range(256)) * 2)})
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert not is_intact(path)


def test_a_cut_off_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.block"
    write_work_file(path, {}, {"one": memoryview(bytes(range(256)) * 2)})
    path.write_bytes(path.read_bytes()[:-8])
    assert not is_intact(path)
    with pytest.raises(DataError, match="damaged"):
        open_work_file(path).read("one")
    path.write_bytes(b"")
    with pytest.raises(DataError, match="not a work file"):
        open_work_file(path)


def test_a_read_that_comes_in_parts_is_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.block"
    data = bytes(range(200))
    write_work_file(path, {}, {"one": memoryview(b"before"), "two": memoryview(data)})
    work = open_work_file(path)
    first, more = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda file, size, at: first(file, min(size, 70), at))
    monkeypatch.setattr(os, "preadv", lambda file, views, at: more(file, [views[0][:50]], at))
    assert work.read("two") == data
    assert work.read("two", begin=3, end=180) == data[3:180]
    os.truncate(path, work.sections["two"][0] + 150)
    with pytest.raises(DataError, match="damaged"):
        work.read("two")


def test_what_is_written_is_known_as_if_it_was_opened(tmp_path: Path) -> None:
    """Sections begin at multiples of 64, behind a header that is filled up to one."""
    path = tmp_path / "deep" / "a.block"
    path.parent.mkdir()
    for size in (0, 1, 63, 64, 65, 200):
        sections = {"one": memoryview(b"x" * size), "two": memoryview(b"y" * 7)}
        made = write_work_file(path, {"name": "n" * size}, sections)
        assert made == open_work_file(path)
        begins = [offset for offset, _ in made.sections.values()]
        assert all(offset % 64 == 0 for offset in begins)
        assert begins[1] - begins[0] == -(-size // 64) * 64
        assert [count for _, count in made.sections.values()] == [size, 7]
        assert begins[0] < 64 * (3 + size // 64 + 2)
        assert made.read("two") == b"y" * 7 and is_intact(path)
    assert [one.name for one in path.parent.iterdir()] == ["a.block"]


def test_no_work_file_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "a.block"
    work = write_work_file(path, {}, {"one": memoryview(b"text")})
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        work.read("one")
        open_work_file(path)
        is_intact(path)
    with pytest.raises(DataError, match="damaged"):
        work.read("one", end=1000)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    "text", [b"{}", b"[]", b"no json", b'{"sections": {}}', b'{"header": {}}', b"[" * 100_000,
             b'{"header": {}, "sections": {"one": 5}}', b'{"header": {}, "sections": []}']
)  # fmt: skip
def test_a_header_that_is_none_is_damage(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "a.block"
    write_work_file(path, {}, {})
    head = bytearray(path.read_bytes()[:32])
    head[8:16] = len(text).to_bytes(8, "little")
    path.write_bytes(bytes(head) + text)
    with pytest.raises(DataError) as caught:
        open_work_file(path)
    assert caught.value.message == "this is not a work file of lowtide, or a damaged one"
    assert caught.value.path == path and is_intact(path) is False


def test_sizes_beyond_the_file_are_damage_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.block"
    write_work_file(path, {}, {"one": memoryview(b"text")})
    data = bytearray(path.read_bytes())
    data[8:16] = (1 << 40).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(DataError, match="not a work file"):
        open_work_file(path)
    assert is_intact(tmp_path / "not there") is False
    work = write_work_file(path, {}, {"one": memoryview(b"text")})
    os.truncate(path, work.sections["one"][0] + 3)
    assert is_intact(path) is False
