"""What a path in a store says of its object, as a disk would."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import xxhash

from lowtide.stores import paths
from lowtide.stores.objects import ObjectInfo
from lowtide.stores.urls import StoreURL

from .conftest import RangeServer
from .memorystore import MemoryStore


def info(key: str = "a", tag: str = "x", size: int = 7) -> ObjectInfo:
    return ObjectInfo(url=StoreURL("s3", "bucket", key), size=size, tag=tag)


def test_an_object_is_a_file_to_read_whose_tag_is_its_time() -> None:
    found = paths._status(info())
    assert stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o444
    assert found.st_size == 7 and found.st_nlink == 1
    assert (found.st_ino, found.st_dev, found.st_uid, found.st_gid) == (0, 0, 0, 0)
    number = paths.tag_number(info())
    assert found.st_mtime_ns == found.st_ctime_ns == found.st_atime_ns == number
    assert found[stat.ST_MTIME] == number // 10**9
    assert 0 <= number < 1 << 63
    assert paths._status(info(tag="y")).st_mtime_ns != number


def test_the_objects_that_were_looked_at_last_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paths, "_infos", type(paths._infos)())
    for key in ("a", "b", "a", "c"):
        paths.keep_info(info(key), kept=2)
    assert list(paths._infos) == ["s3://bucket/a", "s3://bucket/c"]


def test_an_object_is_no_folder_and_no_link() -> None:
    path = paths.StorePath("s3://bucket/a/b.txt")
    assert path.is_dir() is False
    assert path.is_symlink() is False
    assert path.expanduser() is path
    assert repr(path) == "StorePath('s3://bucket/a/b.txt')"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    made = MemoryStore()
    monkeypatch.setattr(paths, "open_store", lambda url: made)
    monkeypatch.setattr(paths, "_infos", type(paths._infos)())
    return made


MIB = 1 << 20
KIB = 1 << 10


def test_what_is_read_in_order_is_fetched_in_growing_ranges(store: MemoryStore) -> None:
    data = np.arange(3 * MIB, dtype="<u4").tobytes()  # 12 MiB
    store.put("a", data)
    path = paths.StorePath("s3://bucket/a")
    with path.open(buffering=0) as file:
        assert file.readable() and file.seekable()
        assert b"".join(iter(lambda: file.read(100 * KIB), b"")) == data
        assert file.tell() == len(data)
    reads = [call[2:] for call in store.calls if call[0] == "read"]
    sizes = [256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 4 * MIB]
    assert [size for _, size in reads[:-1]] == sizes
    assert [start for start, _ in reads] == [sum(sizes[:n]) for n in range(len(reads))]
    assert sum(size for _, size in reads) == len(data)
    assert [call for call in store.calls if call[0] != "read"] == [("head", "a")]


def test_what_is_read_elsewhere_is_fetched_as_asked_for(store: MemoryStore) -> None:
    data = bytes(range(256)) * 4 * KIB  # 1 MiB
    store.put("a", data)
    with paths.StorePath("s3://bucket/a").open(buffering=0) as file:

        def take(start: int, count: int) -> list[tuple[int, ...]]:
            store.calls.clear()
            assert file.seek(start) == start
            assert file.read(count) == data[start : start + count]
            assert file.tell() == min(start + count, len(data))
            return [call[2:] for call in store.calls]

        assert take(0, 10) == [(0, 256 * KIB)]
        assert take(10, 10) == []  # held
        assert take(256 * KIB - 5, 5) == []
        assert take(700_000, 7) == [(700_000, 7)]  # somewhere else: no more than asked for
        assert take(700_003, 2) == []
        assert take(700_007, 1) == [(700_007, 256 * KIB)]  # in order again, from the least on
        assert take(5, 3) == [(5, 3)]
        assert take(len(data) - 2, 9) == [(len(data) - 2, 2)]
        assert take(len(data), 9) == []
        assert file.seek(-3, os.SEEK_END) == len(data) - 3
        assert file.seek(1, os.SEEK_CUR) == len(data) - 2
        assert file.readall() == data[-2:]
        assert file.readall() == b""
        assert file.seek(-5) == 0
        assert file.seek(len(data) + 9) == len(data) + 9
        assert file.readall() == b"" and file.read(3) == b""


def test_a_read_over_the_end_of_what_is_held_goes_on(store: MemoryStore) -> None:
    data = bytes(range(251)) * 4000
    store.put("a", data)
    with paths.StorePath("s3://bucket/a").open(buffering=0) as file:
        assert file.read(200 * KIB) == data[: 200 * KIB]
        assert file.read(200 * KIB) == data[200 * KIB : 400 * KIB]
    assert [call[2:] for call in store.calls if call[0] == "read"] == [
        (0, 256 * KIB), (256 * KIB, 512 * KIB)
    ]  # fmt: skip


def test_how_a_path_is_opened(store: MemoryStore) -> None:
    store.put("a", b"0123456789")
    path = paths.StorePath("s3://bucket/a")
    assert isinstance(path.open(buffering=0), paths._RangeFile)
    for buffering, size in ((-1, 64 * KIB), (7, 7)):
        with path.open("rb", buffering) as file:
            assert isinstance(file, io.BufferedReader)
            assert file.read(3) == b"012"
            assert len(file.peek()) == min(size, 10) - 3
    assert path.read_bytes() == b"0123456789"
    assert store.calls.count(("head", "a")) == 1  # known from then on
    with pytest.raises(io.UnsupportedOperation, match="objects are only read"):
        path.open("wb")
    for missing in ("s3://bucket/none", "s3://bucket"):
        with pytest.raises(FileNotFoundError) as caught:
            paths.StorePath(missing).open()
        assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, missing)
        assert paths.StorePath(missing).exists() is False
        assert paths.StorePath(missing).is_file() is False
    assert path.exists() is True and path.is_file() is True
    assert ("head", "") not in store.calls  # a bucket would answer


def test_an_object_of_the_same_size_is_gone_on_with(store: MemoryStore) -> None:
    store.put("a", b"01234")
    path = paths.StorePath("s3://bucket/a")
    file = path.open(buffering=0)
    store.put("a", b"56789")
    file.renew()
    assert file.read(5) == b"56789"
    assert paths._infos[str(path)].tag == "t2"
    store.put("a", b"0")
    file.renew()
    assert file._info.tag == "t2"  # of another size: not the same content
    file.close()
    assert len(file._held) == 0 and file.closed


def test_checksums_of_objects_and_files(store: MemoryStore, tmp_path: Path) -> None:
    data = bytes(range(256)) * 10_000
    store.put("a", data)
    (tmp_path / "a").write_bytes(data)
    expected = xxhash.xxh3_128_hexdigest(data)
    assert paths.checksum_path(paths.input_path("s3://bucket/a")) == expected
    assert paths.checksum_path(paths.input_path(str(tmp_path / "a"))) == expected
    assert type(paths.input_path("a")) is type(Path("a"))


@pytest.mark.parametrize(
    ("pattern", "found", "listed"),
    [
        ("a/1.txt", ["a/1.txt"], []),
        ("a", ["a/1.txt", "a/b/2.txt", "a/b/3.txt.gz", "a/c/b/2.txt"], ["a"]),
        ("a/*.txt", ["a/1.txt"], ["a"]),
        ("a/**/*.txt", ["a/1.txt", "a/b/2.txt", "a/c/b/2.txt"], ["a"]),
        ("a/b/?.txt", ["a/b/2.txt"], ["a/b"]),
        ("a/b/[23].txt*", ["a/b/2.txt", "a/b/3.txt.gz"], ["a/b"]),
        ("a/b/[!2].*", ["a/b/3.txt.gz"], ["a/b"]),
        ("*/1.txt", ["a/1.txt"], [""]),
        ("a/*/2.txt", ["a/b/2.txt"], ["a"]),
        ("**.gz", ["a/b/3.txt.gz"], [""]),
        ("none", [], ["none"]),
        ("[1]*.md", ["[1]*.md"], [""]),
    ],
)
def test_objects_by_patterns(
    store: MemoryStore, pattern: str, found: list[str], listed: list[str]
) -> None:
    for key in ("[1]*.md", "a/1.txt", "a/b/2.txt", "a/b/3.txt.gz", "a/c/b/2.txt", "z"):
        store.put(key, b"x")
    rows = list(paths.find_objects(StoreURL("s3", "bucket", pattern)))
    assert [row.url.key for row in rows] == found
    assert [call[1] for call in store.calls if call[0] == "list"] == listed
    assert list(paths._infos) == [f"s3://bucket/{key}" for key in found]  # opened as found here
    store.calls.clear()
    for row in rows:
        assert paths.StorePath(str(row.url)).read_bytes() == b"x"
    assert {call[0] for call in store.calls} <= {"read"}


def test_a_whole_bucket_is_all_that_is_in_it(server: RangeServer) -> None:
    """It was one object of 0 bytes, which was gone when it was opened."""
    server.objects |= {"a.txt": b"x", "b/c.txt": b"xy"}
    rows = paths.find_objects(StoreURL("s3", "bucket", ""))
    assert [(row.url.key, row.size) for row in rows] == [("a.txt", 1), ("b/c.txt", 2)]


def test_the_rest_of_an_object_is_asked_for_to_the_byte(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"0123456789")
    file = paths.StorePath("s3://bucket/a").open(buffering=0)
    asked: list[int] = []
    monkeypatch.setattr(file, "read", lambda size: asked.append(size))
    for place in (0, 4, 10, 12):
        file.seek(place)
        assert file.readall() == b""
    assert asked == [10, 6, 0, 0]
