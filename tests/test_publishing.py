"""Files of a group: flushed before they have their names, records before what they speak of."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from lowtide import files, publishing, unfinished
from lowtide.publishing import PublishGroup, PublishThreads, keep_unfinished


def write(group: PublishGroup, path: Path, data: bytes, *, record: bool = False) -> None:
    publisher = group.add_record if record else group.add
    with files.atomic_file(path, publisher=publisher) as file:
        file.write(data)


@pytest.mark.parametrize("count", [1, 40])
def test_a_name_stands_for_flushed_bytes_and_records_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    done: list[tuple[str, Any]] = []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        done.append(("sync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        real_sync(descriptor)

    def replace(partial: Path, path: Path) -> Path:
        assert ("sync", str(partial)) in done
        done.append(("name", path.name))
        return real_replace(partial, path)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    with PublishGroup(size=count) as group:
        for number in range(count):
            write(group, tmp_path / f"{number}.json", b"record", record=True)
            write(group, tmp_path / f"{number}.npy", b"%d" % number)
            assert group.is_full == (number == count - 1)
        assert all(path.name.startswith(".") for path in tmp_path.iterdir())
        group.publish()
        assert group.num_waiting == 0
    assert {path.name for path in tmp_path.glob("*.npy")} == {f"{n}.npy" for n in range(count)}
    assert (tmp_path / f"{count - 1}.npy").read_bytes() == b"%d" % (count - 1)
    names = [row for row in done if row[0] == "name" or row[1] == str(tmp_path)]
    records, folder = [("name", f"{n}.json") for n in range(count)], ("sync", str(tmp_path))
    others = [("name", f"{n}.npy") for n in range(count)]
    assert names == [*records, folder, *others, folder]


def test_what_is_held_is_let_go_when_all_have_their_names(tmp_path: Path) -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def lock() -> Generator[None]:
        yield
        seen.append(f"lock, {len(list(tmp_path.glob('*.npy')))}")

    with PublishGroup() as group:
        group.hold(lock())
        write(group, tmp_path / "a.npy", b"a")
        group.call_after(lambda: seen.append("after"))
        assert seen == []
    assert seen == ["after", "lock, 1"]


def test_an_error_elsewhere_does_not_undo_finished_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="another file"), PublishGroup() as group:
        write(group, tmp_path / "a.npy", b"a")
        raise ValueError("another file")
    assert (tmp_path / "a.npy").read_bytes() == b"a"


def test_a_disk_that_fails_names_the_file_and_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "failed")

    with pytest.raises(OSError, match="failed") as caught, PublishGroup() as group:
        write(group, tmp_path / "a.npy", b"a")
        monkeypatch.setattr(os, "fsync", fail)
    assert caught.value.filename == str(tmp_path / "a.npy")
    assert list(tmp_path.iterdir()) == []


def test_the_threads_of_a_group_end_with_it_and_few_files_need_none(tmp_path: Path) -> None:
    for count, has_threads in ((2, False), (3, True), (40, True)):
        with PublishGroup() as group:
            for number in range(count):
                write(group, tmp_path / f"{count}-{number}.npy", b"a")
        assert (group._pool is not None) is has_threads
        if group._pool is not None:
            assert not any(thread.is_alive() for thread in group._pool._threads)


def test_a_group_is_full_with_so_many_files_and_records_do_not_count(tmp_path: Path) -> None:
    with PublishGroup(2) as group:
        write(group, tmp_path / "a.json", b"a", record=True)
        write(group, tmp_path / "a.npy", b"a")
        assert (group.num_waiting, group.is_full) == (1, False)
        write(group, tmp_path / "b.npy", b"a")
        assert (group.num_waiting, group.is_full) == (2, True)
        group.publish()
        assert (group.num_waiting, group.is_full) == (0, False)


def test_threads_publish_in_order_and_tell_when(tmp_path: Path) -> None:
    rows = [(tmp_path / f".{name}", tmp_path / name) for name in ("a", "b")]
    for partial, _ in rows:
        partial.write_bytes(partial.name.encode())
    with PublishThreads(2) as threads:
        found = threads.publish(rows, lambda: sorted(path.name for path in tmp_path.iterdir()))
    assert found.result() == ["a", "b"]
    assert (tmp_path / "b").read_bytes() == b".b"


def test_a_file_that_cannot_be_published_leaves_none_of_its_row(tmp_path: Path) -> None:
    rows = [(tmp_path / ".a", tmp_path / "a"), (tmp_path / ".b", tmp_path / "none" / "b")]
    for partial, _ in rows:
        partial.write_bytes(b"whole")
    told: list[str] = []
    with PublishThreads(1) as threads:
        failed = threads.publish(rows, lambda: told.append("done"))
        with pytest.raises(FileNotFoundError):
            failed.result()
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and not told


def test_few_stretches_wait_for_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a descriptor; what finds no room is left to the flush of its file."""
    may_end, begun = threading.Event(), list[tuple[int, int]]()

    def wait(descriptor: int, offset: int, size: int) -> None:
        may_end.wait(60)
        begun.append((offset, size))

    monkeypatch.setattr(publishing._native, "start_writeback", wait)
    copies, dup = list[int](), os.dup
    monkeypatch.setattr(os, "dup", lambda file: copies.append(dup(file)) or copies[-1])
    closed, close = list[int](), os.close
    monkeypatch.setattr(os, "close", lambda file: closed.append(file) or close(file))
    with (tmp_path / "a").open("wb") as file, PublishThreads(2) as threads:
        for number in range(100):
            threads.start_writeback(file.fileno(), 8 * number, 8)
        assert len(copies) == 8 and not set(copies) & set(closed)
        may_end.set()
    assert sorted(begun) == [(8 * number, 8) for number in range(8)]
    assert set(copies) <= set(closed)


@pytest.mark.parametrize("named", [True, False])
def test_a_finished_file_that_waits_for_its_name_is_no_leftover(
    tmp_path: Path, named: bool
) -> None:
    path = tmp_path / "shard.bin"
    with contextlib.ExitStack() as stack:
        kept: list[Path] = []

        def keep(unnamed: Path, name: Path) -> None:
            stack.enter_context(keep_unfinished(unnamed))
            kept.append(unnamed)

        with files.atomic_file(path, publisher=keep) as file:
            file.write(b"tokens")
        unfinished._remove_unused(kept[0])
        assert kept[0].read_bytes() == b"tokens" and not path.exists()
        if named:
            kept[0].replace(path)
    assert [item.name for item in tmp_path.iterdir()] == (["shard.bin"] if named else [])
