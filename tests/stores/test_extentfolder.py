"""The folder of a cache by itself: what it counts, what it removes and what it keeps."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.errors import BudgetError, LowtideError
from lowtide.stores import extentfiles, extentfolder
from lowtide.stores.extentfiles import (
    EXTENT_BYTES,
    TRAILER_BYTES,
    UnfinishedExtent,
    disk_bytes,
    is_whole,
    remove_unlocked,
    write_extent,
)
from lowtide.stores.extentfolder import ExtentFolder
from lowtide.stores.extents import FETCH_THREADS
from lowtide.stores.urls import StoreURL

BLOCK = 4096
BASE = BLOCK  # the file that counts


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    made = ExtentFolder(tmp_path / "cache", 20 * BLOCK)
    yield made
    made.close()


def put_extent(folder: ExtentFolder, number: int, size: int = BLOCK - TRAILER_BYTES) -> str:
    """Put an extent of a block into the folder, as a thread that fetched it would."""
    name = f"{number:016x}-0.{size}"
    assert extentfolder.EXTENT_NAME.fullmatch(name)
    (folder.path / "extents" / name).write_bytes(bytes(size + TRAILER_BYTES))
    with folder.counting() as count:
        folder.known[name] = disk_bytes(size)
        count.bytes += disk_bytes(size)
    return name


def there(folder: ExtentFolder) -> set[str]:
    return {path.name for path in (folder.path / "extents").iterdir()}


def test_room_is_made_up_to_the_last_byte(folder: ExtentFolder) -> None:
    names = [put_extent(folder, number) for number in range(3)]
    with folder.counting() as count:
        assert count.bytes == BASE + 3 * BLOCK
        assert folder.make_room(count, folder.max_bytes - count.bytes) and there(folder) == {*names}
        assert folder.make_room(count, folder.max_bytes - count.bytes + 1)
        assert len(there(folder)) == 2 and count.bytes == BASE + 2 * BLOCK
        left = there(folder)
        far = {name: (float(number), True) for number, name in enumerate(sorted(left))}
        assert not folder.make_room(count, folder.max_bytes, far.__getitem__, beyond=0.0)
        assert there(folder) == {min(left)}  # what is no farther away stays
        with pytest.raises(BudgetError, match="is full of what is being read") as refused:
            folder.make_room(count, folder.max_bytes)
        assert "give --cache-size 51MiB or more" in str(refused.value)
        assert "4.0 KiB are in use" in str(refused.value) and not there(folder)


def test_the_size_that_a_full_cache_asks_for_is_enough_to_read_in_order(
    folder: ExtentFolder,
) -> None:
    reading = 6 * FETCH_THREADS * disk_bytes(EXTENT_BYTES)
    with folder.counting() as count:
        for size in (1, 200 << 20):
            with pytest.raises(BudgetError) as refused:
                folder.make_room(count, folder.max_bytes + size)
            wanted = int(str(refused.value).partition("--cache-size ")[2].partition("MiB")[0])
            assert wanted << 20 >= count.bytes + max(size, reading)


def test_a_large_cache_is_freed_by_a_share_at_once(tmp_path: Path) -> None:
    # A tenth is two blocks of twenty.
    folder = ExtentFolder(tmp_path / "cache", 20 * BLOCK, many=5, spare_share=10)
    for number in range(5):
        put_extent(folder, number)
    with folder.counting() as count:
        folder.evict(count, 1)
        assert len(there(folder)) == 4 and len(folder.known) == 4
    for number in range(5, 7):
        put_extent(folder, number)
    with folder.counting() as count:
        folder.evict(count, 1)
        assert len(there(folder)) == 4 and count.bytes == BASE + 4 * BLOCK
        folder.evict(count, 0)
        assert len(there(folder)) == 4
    folder.close()


def test_what_is_forgotten_is_counted_no_more(folder: ExtentFolder) -> None:
    first, second = put_extent(folder, 0), put_extent(folder, 1, 2 * BLOCK)
    folder.forget(first)
    assert first not in folder.known and there(folder) == {first, second}
    before = folder.used_bytes()
    folder.forget(second, remove=True)
    assert folder.used_bytes() == before - disk_bytes(2 * BLOCK) and there(folder) == {first}
    folder.forget("of nobody", remove=True)
    assert folder.used_bytes() == before - disk_bytes(2 * BLOCK)
    assert folder.removable_bytes() == BLOCK and first in folder.known  # found again by its name


def test_small_files_are_counted_by_what_they_add(folder: ExtentFolder) -> None:
    data = bytearray(10)
    store: Any = SimpleNamespace(read_whole=lambda url, most_bytes: (None, data))
    url = StoreURL("s3", "bucket", "data/mine/metadata.json")
    path = folder.keep_file(store, url, most_bytes=100)
    assert path.read_bytes() == data and path.name == "metadata.json"
    assert folder.used_bytes() == BASE + disk_bytes(10)
    for size in (3 * BLOCK, 20, 20):
        data = bytearray(size)
        assert folder.keep_file(store, url, most_bytes=100) == path
        assert folder.used_bytes() == BASE + disk_bytes(size)
    other = folder.keep_file(store, StoreURL("s3", "bucket", "data/other/a.json"), most_bytes=100)
    assert len(path.parent.name) == len(other.parent.name) == 16
    assert other.parent != path.parent and other.parent.parent == path.parent.parent


def test_who_comes_first_counts_anew_and_removes_what_was_left(tmp_path: Path) -> None:
    folder = ExtentFolder(tmp_path / "cache", 20 * BLOCK)
    name = put_extent(folder, 0)
    (folder.path / "extents" / "1.abc.fetching").write_bytes(bytes(3 * BLOCK))
    (folder.path / "notes.txt").write_bytes(bytes(BLOCK + 1))
    folder.close()
    again = ExtentFolder(tmp_path / "cache", 20 * BLOCK)
    assert there(again) == {name} and again.known == {name: BLOCK}
    assert again.used_bytes() == BASE + BLOCK + disk_bytes(BLOCK + 1)
    with again.counting() as count:
        count.bytes = -5
    assert again.used_bytes() == 0
    (again.path / "usage").write_text("no number")
    assert again.used_bytes() == BASE + BLOCK + disk_bytes(BLOCK + 1)
    again.close()


def begin_extent(folder: ExtentFolder, number: int) -> tuple[Any, UnfinishedExtent]:
    size = BLOCK - TRAILER_BYTES
    extent: Any = SimpleNamespace(name=f"{number:016x}-0.{size}", size=size)
    with folder.counting() as count:
        return extent, folder.begin(count, extent)


def test_what_a_killed_process_counted_is_counted_no_more(folder: ExtentFolder) -> None:
    """One that runs meanwhile keeps the bytes of what it fetches."""
    extent, fetched = begin_extent(folder, 1)
    other = ExtentFolder(folder.path, 20 * BLOCK)
    _, killed = begin_extent(other, 2)
    killed.close()  # as its end does
    assert folder.used_bytes() == BASE + 2 * BLOCK
    third = ExtentFolder(folder.path, 20 * BLOCK)
    assert there(third) == {fetched.path.name}
    assert third.used_bytes() == folder.used_bytes() == BASE + BLOCK
    write_extent(fetched.path, bytes(extent.size))
    folder.end(fetched, extent, is_whole=True)
    assert there(folder) == {extent.name} and folder.used_bytes() == BASE + BLOCK
    opened = other.open_extent(extent)
    assert opened is not None
    os.close(opened)
    for each in (other, third):
        each.close()


def test_a_cache_is_full_only_of_what_is_there(folder: ExtentFolder) -> None:
    """Workers are killed again and again while another one goes on."""
    for number in range(40):
        with folder.counting() as count:
            folder.make_room(count, BLOCK)
        begin_extent(folder, number)[1].close()
        folder._fetching.clear()
    assert folder.used_bytes() <= 20 * BLOCK


def test_unfinished_files_of_this_process_stay_on_a_disk_without_locks(
    folder: ExtentFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extentfiles, "try_lock", lambda descriptor, how: True)
    extent, fetched = begin_extent(folder, 1)
    (folder.path / "usage").write_text("nonsense")
    assert folder.used_bytes() == BASE + BLOCK
    folder.end(fetched, extent, is_whole=False)
    assert folder.used_bytes() == BASE and not there(folder)


def test_an_unfinished_file_that_somebody_removed_is_no_extent(folder: ExtentFolder) -> None:
    extent, fetched = begin_extent(folder, 1)
    fetched.path.unlink()
    folder.end(fetched, extent, is_whole=True)
    assert not there(folder) and folder.used_bytes() == BASE
    assert folder.open_extent(extent) is None


def test_an_extent_that_another_process_fetched_first_is_kept(folder: ExtentFolder) -> None:
    extent, fetched = begin_extent(folder, 1)
    assert put_extent(folder, 1) == extent.name
    folder.end(fetched, extent, is_whole=True)
    assert there(folder) == {extent.name} and folder.used_bytes() == BASE + BLOCK


def test_an_extent_with_other_bytes_is_removed_when_it_is_opened(folder: ExtentFolder) -> None:
    name = put_extent(folder, 0)  # without the checksum that belongs behind its bytes
    extent: Any = SimpleNamespace(name=name, size=BLOCK - TRAILER_BYTES)
    assert folder.open_extent(extent) is None
    assert not there(folder) and not folder.known and folder.used_bytes() == BASE
    assert folder.open_extent(extent) is None  # which is not there at all
    assert folder.used_bytes() == BASE


def test_what_another_process_removed_is_forgotten_and_was_counted_by_it(
    folder: ExtentFolder,
) -> None:
    gone, kept = put_extent(folder, 0), put_extent(folder, 1)
    (folder.path / "extents" / gone).unlink()
    with folder.counting() as count:
        before = count.bytes
        far = {gone: (2.0, True), kept: (1.0, True)}
        folder.evict(count, 1, far.__getitem__)
        assert count.bytes == before - BLOCK  # of the other one
    assert not folder.known and not there(folder)


def test_what_other_processes_brought_is_removed_where_our_own_is_not_enough(
    folder: ExtentFolder,
) -> None:
    name = put_extent(folder, 0)
    folder.known.clear()  # of another process, which counted it
    with folder.counting() as count:
        assert folder.make_room(count, folder.max_bytes - BASE)
    assert not there(folder) and name not in folder.known


def extent_of(name: str, size: int = BLOCK - TRAILER_BYTES) -> Any:
    return SimpleNamespace(name=name, size=size)


def test_an_extent_that_is_gone_is_known_no_more(folder: ExtentFolder) -> None:
    name = put_extent(folder, 1)
    (folder.path / "extents" / name).unlink()
    assert folder.open_extent(extent_of(name)) is None and name not in folder.known


@pytest.mark.parametrize("size", [1, 100, (1 << 18) - 1, 1 << 18, (1 << 18) + 1])
def test_an_extent_is_whole_as_it_was_written_and_not_otherwise(tmp_path: Path, size: int) -> None:
    path = tmp_path / "extent"
    write_extent(path, bytes(range(256)) * (size // 256) + bytes(size % 256))
    whole = path.read_bytes()

    def is_kept(data: bytes) -> bool:
        path.write_bytes(data)
        with path.open("rb") as file:
            return is_whole(file.fileno(), size)

    assert is_kept(whole)
    for wrong in (whole[:-1], whole + b"\0", bytes([whole[0] ^ 1]) + whole[1:]):
        assert not is_kept(wrong)
    assert not is_kept(whole[:-1] + bytes([whole[-1] ^ 1]))


def test_an_error_of_the_disk_names_the_file_or_else_the_cache(tmp_path: Path) -> None:
    for error, named in (
        (FileNotFoundError(2, "gone", str(tmp_path / "a")), tmp_path / "a"),
        (OSError(28, "full"), tmp_path),
    ):
        with (
            pytest.raises(LowtideError, match="the cache cannot be read or written") as caught,
            extentfolder.about_cache(tmp_path),
        ):
            raise error
        assert str(caught.value.path) == str(named)
    with (
        pytest.raises(FileNotFoundError),
        extentfolder.about_cache(tmp_path, but=FileNotFoundError),
    ):
        raise FileNotFoundError(2, "gone")


def test_an_extent_that_ends_early_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "extent"
    path.write_bytes(bytes(100 + TRAILER_BYTES))
    with path.open("rb") as file:
        monkeypatch.setattr(extentfiles.os, "pread", lambda *given: b"")  # cut off meanwhile
        assert is_whole(file.fileno(), 100) is False


def test_an_extent_that_is_read_or_gone_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "extent"
    path.write_bytes(b"x")
    with path.open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        assert remove_unlocked(path) is False
        assert path.exists()
    assert remove_unlocked(path) is True
    assert not path.exists()
    assert remove_unlocked(path) is False


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_nothing_stays_open(tmp_path: Path) -> None:
    before = descriptors()
    folder = ExtentFolder(tmp_path / "cache", 20 * BLOCK)
    opened = descriptors()
    assert len(opened) == len(before) + 1
    name = put_extent(folder, 1)
    path = folder.path / "extents" / name
    with path.open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        inside = descriptors()
        assert remove_unlocked(path) is False  # it is read
        assert descriptors() == inside
    assert remove_unlocked(path) is True
    assert remove_unlocked(path) is False  # gone
    assert descriptors() == opened
    folder.make_again()
    assert len(descriptors()) == len(opened)
    folder.close()
    assert descriptors() == before
    folder.close()  # a second time closes nothing: the number may be somebody else's
    with (tmp_path / "other").open("w") as other:
        folder.close()
        other.write("x")


def test_an_extent_of_a_folder_made_again_is_compared_again(tmp_path: Path) -> None:
    folder = ExtentFolder(tmp_path / "cache", 200 * BLOCK)
    extent: Any = SimpleNamespace(name="0" * 16 + "-0.5", size=5)
    path = folder.path / "extents" / extent.name
    write_extent(path, b"01234")
    opened = folder.open_extent(extent)
    assert opened is not None
    os.close(opened)
    shutil.rmtree(folder.path)
    folder.make_again()
    assert folder.known == {}
    path.write_bytes(bytes(5 + TRAILER_BYTES))  # other bytes under its name
    assert folder.open_extent(extent) is None
    assert not path.exists()
    folder.close()


@pytest.mark.parametrize(("needed", "fits"), [(100 + BASE, True), (101 + BASE, False)])
def test_a_disk_has_room_for_what_is_in_use_already(
    folder: ExtentFolder, monkeypatch: pytest.MonkeyPatch, needed: int, fits: bool
) -> None:
    monkeypatch.setattr(extentfolder, "free_disk_bytes", lambda path: 100)
    assert folder.used_bytes() == BASE
    if fits:
        folder.require_disk(needed)
        return
    with pytest.raises(BudgetError) as caught:
        folder.require_disk(needed)
    assert caught.value.message == ("the disk of the cache has 100 B free, reading needs 4.1 KiB")


def test_a_count_that_cannot_be_read_is_made_anew(folder: ExtentFolder) -> None:
    put_extent(folder, 1)
    usage = folder.path / "usage"
    assert usage.read_text() == f"{BASE + BLOCK:<31}\n"
    usage.write_text("nonsense")
    assert folder.used_bytes() == BASE + BLOCK
    assert usage.read_text().strip() == str(BASE + BLOCK)  # and written
    with folder.counting() as count:
        count.bytes = -7
    assert usage.read_text() == f"{0:<31}\n"
    before = usage.stat().st_mtime_ns
    with folder.counting():
        pass
    assert usage.stat().st_mtime_ns == before  # nothing changed, nothing is written


def test_what_nobody_ranks_is_wanted_at_once(folder: ExtentFolder) -> None:
    names = {put_extent(folder, number) for number in range(2)}
    with folder.counting() as count:
        folder.evict(count, BLOCK, beyond=0.0)
        assert there(folder) == names  # no farther away than that
        folder.evict(count, BLOCK)
        assert len(there(folder)) == 1


def test_room_for_a_small_file_is_what_it_adds(
    folder: ExtentFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(folder, "make_room", lambda count, size: asked.append(size))
    url = StoreURL("s3", "bucket", "data/a.json")
    for size, more in ((10, BLOCK), (20, 0), (2 * BLOCK, 2 * BLOCK), (10, -2 * BLOCK)):
        store: Any = SimpleNamespace(
            read_whole=lambda url, most_bytes, size=size: (None, bytes(size))
        )
        before = folder.used_bytes()
        path = folder.keep_file(store, url, most_bytes=99)
        assert path.stat().st_size == size
        assert asked.pop() == more == folder.used_bytes() - before


def test_an_extent_is_compared_the_first_time_it_is_opened(
    folder: ExtentFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that another process brought, which is known from then on."""
    extent: Any = SimpleNamespace(name="0" * 16 + "-0.5", size=5)
    write_extent(folder.path / "extents" / extent.name, b"01234")
    compared: list[int] = []
    real = extentfolder.is_whole
    monkeypatch.setattr(
        extentfolder, "is_whole", lambda file, size: compared.append(size) or real(file, size)
    )
    assert extent.name not in folder.known
    for _ in range(3):
        opened = folder.open_extent(extent)
        assert opened is not None
        os.close(opened)
    assert compared == [5]
    assert folder.known[extent.name] == BLOCK


def test_an_extent_that_changed_under_its_reader_is_fetched_again(folder: ExtentFolder) -> None:
    """It was intact when it was fetched, and each time until then."""
    extent, fetched = begin_extent(folder, 1)
    write_extent(fetched.path, bytes(extent.size))
    folder.end(fetched, extent, is_whole=True)
    path = folder.path / "extents" / extent.name
    for _ in range(2):
        opened = folder.open_extent(extent)
        assert opened is not None
        os.close(opened)
    status = path.stat()
    with path.open("r+b") as file:
        file.write(b"?")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert folder.open_extent(extent) is None
    assert not path.exists() and folder.used_bytes() == BASE


def test_room_is_looked_for_twice(folder: ExtentFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time with what other processes brought."""
    calls: list[str] = []
    monkeypatch.setattr(folder, "evict", lambda *given, **more: calls.append("evict"))
    monkeypatch.setattr(folder, "_list_extents", lambda: calls.append("list"))
    with folder.counting() as count, pytest.raises(BudgetError):
        folder.make_room(count, folder.max_bytes)
    assert calls == ["evict", "list"] * 2
    calls.clear()
    with folder.counting() as count:
        assert folder.make_room(count, folder.max_bytes, beyond=3.0) is False
    assert calls == ["evict"]


def test_an_extent_that_was_removed_is_compared_again_when_it_comes_back(
    folder: ExtentFolder,
) -> None:
    extent: Any = SimpleNamespace(name="0" * 16 + "-0.5", size=5)
    path = folder.path / "extents" / extent.name
    for remove in ("evict", "forget"):
        write_extent(path, b"01234")
        with folder.counting() as count:
            count.bytes += BLOCK
        opened = folder.open_extent(extent)
        assert opened is not None
        os.close(opened)
        if remove == "evict":
            with folder.counting() as count:
                folder.evict(count, BLOCK)
        else:
            folder.forget(extent.name, remove=True)
        assert not path.exists() and extent.name not in folder.known
        path.write_bytes(bytes(5 + TRAILER_BYTES))  # other bytes, by another process
        assert folder.open_extent(extent) is None
        assert not path.exists()
