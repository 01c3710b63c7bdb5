"""Files of a group: flushed before they have their names, records before what they speak of."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
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

    with pytest.raises(OSError, match="Input/output error") as caught, PublishGroup() as group:
        write(group, tmp_path / "a.npy", b"a")
        monkeypatch.setattr(os, "fsync", fail)
    assert caught.value.filename == str(tmp_path / "a.npy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("num_threads", [1, 3, 16])
def test_files_are_flushed_natively_and_the_first_that_fails_is_named(
    tmp_path: Path, num_threads: int
) -> None:
    code = (
        "import sys; from lowtide import _native; "
        "print(_native.flush_files([row.encode() for row in sys.argv[2:]], int(sys.argv[1])))"
    )  # in a process of its own: here a stand-in flushes
    names = ["a", "b", "c", "d"]
    for name in names:
        (tmp_path / name).write_bytes(b"bytes")

    def flush() -> str:
        paths = [str(tmp_path / name) for name in names]
        words = [sys.executable, "-c", code, str(num_threads), *paths]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()

    assert flush() == "None"
    (tmp_path / "c").unlink()
    assert flush() == f"(2, {errno.ENOENT})"
    names.clear()
    assert flush() == "None"


def test_a_group_is_full_with_so_many_files_and_records_do_not_count(tmp_path: Path) -> None:
    with PublishGroup(2) as group:
        write(group, tmp_path / "a.json", b"a", record=True)
        write(group, tmp_path / "a.npy", b"a")
        assert (group.num_waiting, group.is_full) == (1, False)
        write(group, tmp_path / "b.npy", b"a")
        assert (group.num_waiting, group.is_full) == (2, True)
        group.publish()
        assert (group.num_waiting, group.is_full) == (0, False)


@pytest.mark.parametrize("num_bytes", [2, 1 << 30])
def test_threads_publish_in_order_and_tell_when(tmp_path: Path, num_bytes: int) -> None:
    rows = [(tmp_path / f".{name}", tmp_path / name) for name in ("a", "b")]
    for partial, _ in rows:
        partial.write_bytes(partial.name.encode())
    with PublishThreads(2) as threads:
        found = threads.publish(
            rows, lambda: sorted(path.name for path in tmp_path.iterdir()), num_bytes=num_bytes
        )
    assert found.result() == ["a", "b"]
    assert (tmp_path / "b").read_bytes() == b".b"


def test_small_files_are_flushed_some_at_a_time_or_when_they_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    flush = publishing._native.flush_files

    def note(paths: Any, num_threads: int) -> Any:
        flushed.append(len(paths))
        return flush(paths, num_threads)

    monkeypatch.setattr(publishing._native, "flush_files", note)

    def publish(threads: PublishThreads, number: int) -> Any:
        (tmp_path / f".{number}").write_bytes(b"small")
        row = (tmp_path / f".{number}", tmp_path / str(number))
        return threads.publish([row], lambda: number, num_bytes=5)

    with PublishThreads(1) as threads:
        results = [publish(threads, number) for number in range(35)]
        assert [result.result(60) for result in results[:32]] == list(range(32))
        assert flushed == [32] and not results[32].done()
        threads.begin()
        assert [result.result(60) for result in results[32:]] == [32, 33, 34]
        last = publish(threads, 35)
    assert last.result() == 35 and flushed == [32, 3, 1]
    assert len(list(tmp_path.glob("[0-9]*"))) == 36


@pytest.mark.parametrize("num_bytes", [5, 1 << 30])
def test_a_file_that_cannot_be_published_leaves_none_of_its_row(
    tmp_path: Path, num_bytes: int
) -> None:
    rows = [(tmp_path / ".a", tmp_path / "a"), (tmp_path / ".b", tmp_path / "none" / "b")]
    for partial, _ in rows:
        partial.write_bytes(b"whole")
    told: list[str] = []
    with PublishThreads(1) as threads:
        failed = threads.publish(rows, lambda: told.append("done"), num_bytes=num_bytes)
        threads.begin()
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
