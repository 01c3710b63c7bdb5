"""Records in a scratch file: read as they were put, and a disk that fills or fails is an error."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from lowtide.errors import LowtideError
from lowtide.ladder import filehome
from lowtide.ladder.filehome import FileHome

sys.path.insert(0, str(Path(__file__).parent))
from late_streams import use_late_streams
from random_records import use_in_any_order, write_records

SIZES = {"a": 8, "b": 5000, "c": 4096, "d": 3}
CPU = torch.device("cpu")


@pytest.fixture(params=["cpu", "gpu"])
def home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[FileHome]:
    """On a GPU's side its memory is not the host's: nobody reads what is not copied."""
    use_late_streams(monkeypatch)
    staged = request.param == "gpu"
    home = FileHome(SIZES, CPU, tmp_path / "scratch", slots=2, staged=staged)
    write_records(home, SIZES)
    yield home
    home.close()


def _fail(code: int) -> Any:
    def call(*_given: Any) -> int:
        raise OSError(code, os.strerror(code))

    return call


def test_records_are_read_as_they_were_put_in_any_order(home: FileHome, tmp_path: Path) -> None:
    assert not list(tmp_path.iterdir())  # without a name, its room comes back by itself
    use_in_any_order(home, SIZES, 100)


def test_a_gpu_is_waited_for_before_what_it_used_is_written_or_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    class Event:
        def record(self) -> None:
            calls.append("mark")

        def synchronize(self) -> None:
            calls.append("wait")

    write, read = os.pwritev, os.preadv
    home = FileHome(SIZES, CPU, tmp_path / "scratch", slots=1, staged=True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(os, "pwritev", lambda *given: calls.append("write") or write(*given))
    monkeypatch.setattr(os, "preadv", lambda *given: calls.append("read") or read(*given))
    home.write("a", torch.full((8,), 7, dtype=torch.uint8))
    home.wait()
    assert calls == ["mark", "wait", "write"]
    home.begin("a")
    assert home.get("a").tolist() == [7] * 8
    home.drop("a")
    home.begin("d")
    home.get("d")
    assert calls[3:] == ["read", "mark", "wait", "read"]
    home.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", ["pwritev", "preadv"])
def test_a_disk_that_fails_is_named(
    home: FileHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    home.wait()
    monkeypatch.setattr(os, call, _fail(code))
    with pytest.raises(LowtideError, match="the last checkpoint is whole") as failed:
        home.write("b", torch.zeros(SIZES["b"], dtype=torch.uint8))
        home.read("b")
    assert failed.value.path == tmp_path / "scratch"
    assert os.strerror(code) in str(failed.value)


def test_no_record_is_read_after_its_writing_failed(
    home: FileHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.wait()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", _fail(errno.EIO))
        home.write("b", torch.ones(SIZES["b"], dtype=torch.uint8))
        with pytest.raises(LowtideError, match="the disk failed"):
            home.wait()
    with pytest.raises(LowtideError, match="the disk failed"):
        home.read("b")  # the old bytes are there, and would be wrong


@pytest.mark.parametrize("call", ["open", "pwritev", "posix_fallocate"])
def test_a_disk_without_room_for_the_file_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(os, call, _fail(errno.ENOSPC))
    expected = r"the scratch file takes 20\.0 KiB, .* \(No space left on device\)"
    with pytest.raises(LowtideError, match=expected) as failed:
        FileHome(SIZES, CPU, tmp_path / "scratch")
    assert "--offload-dir on a larger disk" in str(failed.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_disk_that_reserves_nothing_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", _fail(code))
    home = FileHome(SIZES, CPU, tmp_path / "scratch")
    home.write("b", torch.full((SIZES["b"],), 7, dtype=torch.uint8))
    assert set(home.read("b").tolist()) == {7}
    home.close()


@pytest.mark.parametrize("refuses", ["open", "write"])
def test_a_disk_that_wants_its_page_cache_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    opened, written = os.open, os.pwritev
    direct: set[int] = set()

    def open_file(path: Any, flags: int, mode: int) -> int:
        if flags & os.O_DIRECT and refuses == "open":
            raise OSError(errno.EINVAL, "no")
        file = opened(path, flags & ~os.O_DIRECT, mode)
        if flags & os.O_DIRECT:
            direct.add(file)
        return file

    def write(file: int, *given: Any) -> int:
        if file in direct:
            direct.remove(file)
            raise OSError(errno.EINVAL, "no")
        return written(file, *given)

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "pwritev", write)
    home = FileHome(SIZES, CPU, tmp_path / "scratch")
    home.write("c", torch.full((SIZES["c"],), 9, dtype=torch.uint8))
    assert set(home.read("c").tolist()) == {9}
    home.close()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_made(tmp_path: Path) -> None:
    home = FileHome(SIZES, CPU, tmp_path / "new" / "disk" / "scratch")
    home.close()
    assert list(tmp_path.rglob("*")) == [tmp_path / "new", tmp_path / "new" / "disk"]
    (tmp_path / "file").write_text("")
    with pytest.raises(LowtideError, match=r"cannot be made \(File exists\)"):
        FileHome(SIZES, CPU, tmp_path / "file" / "scratch")


def test_a_home_that_is_closed_leaves_no_thread_no_file_and_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[object] = []
    ended: list[tuple[str, bool]] = []
    monkeypatch.setattr(filehome.HostMemory, "close", lambda self: closed.append(self))
    shutdown = ThreadPoolExecutor.shutdown

    def note(self: ThreadPoolExecutor, wait: bool = True, *, cancel_futures: bool = False) -> None:
        ended.append((self._thread_name_prefix, cancel_futures))  # type: ignore[attr-defined]
        shutdown(self, wait, cancel_futures=cancel_futures)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", note)
    home = FileHome(SIZES, CPU, tmp_path / "scratch", slots=2)
    write_records(home, SIZES)
    home.wait()
    home.close()
    assert ended == [("lowtide-read", True), ("lowtide-write", True)]
    assert closed == home._staging and len(closed) == 2
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(home._file)


def test_records_begin_on_pages_and_the_file_has_room_for_all(tmp_path: Path) -> None:
    home = FileHome(SIZES, CPU, tmp_path / "scratch", slots=1)
    assert home._offsets == {"a": 0, "b": 4096, "c": 12288, "d": 16384}
    assert os.fstat(home._file).st_size == 20480
    assert [memory.bytes.numel() for memory in home._staging] == [8192]
    home.close()
    nothing = FileHome({}, CPU, tmp_path / "scratch", slots=1)
    assert nothing._staging[0].bytes.numel() == 0
    nothing.close()


@pytest.mark.parametrize(("staged", "locked", "is_locked"), [
    (False, False, True), (True, True, True), (True, False, False),
])  # fmt: skip
def test_memory_counts_as_locked_where_a_gpu_copies_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staged: bool, locked: bool, is_locked: bool
) -> None:
    class Memory(filehome.HostMemory):
        def __init__(self, size: int) -> None:
            super().__init__(size, lock=False)
            self.is_locked = locked

    monkeypatch.setattr(filehome, "HostMemory", Memory)
    home = FileHome(SIZES, CPU, tmp_path / "scratch", slots=2, staged=staged)
    assert home.is_locked is is_locked
    home.close()


@pytest.mark.parametrize(("asked", "free"), [(20480, 20479), (20480, 20480)])
def test_the_room_of_the_disk_is_looked_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int, free: int
) -> None:
    monkeypatch.setattr(filehome, "free_disk_bytes", lambda folder: free)
    if asked <= free:
        os.close(filehome._make_scratch(tmp_path / "new" / "scratch", asked))
        return
    with pytest.raises(LowtideError, match="No space left on device"):
        filehome._make_scratch(tmp_path / "new" / "scratch", asked)
    assert not (tmp_path / "new").exists()


def test_a_scratch_file_that_ended_early_is_named(home: FileHome, monkeypatch: Any) -> None:
    home.wait()
    monkeypatch.setattr(os, "preadv", lambda *given: 0)
    with pytest.raises(LowtideError, match="ended early; the last checkpoint") as failed:
        home.get("b")
    home._ring.held.clear()
    assert "the same command again" in str(failed.value.next_step)


@pytest.mark.parametrize("code", [None, errno.EINVAL])
def test_nobody_else_reads_the_scratch_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    """Past the page cache, or where the disk cannot do that, through it."""
    opened: list[tuple[int, int]] = []
    open_file, direct = os.open, getattr(os, "O_DIRECT", 0)

    def note(path: Any, flags: int, mode: int = 0) -> int:
        opened.append((flags & direct, mode))
        if code is not None and flags & direct:
            raise OSError(code, os.strerror(code))
        return open_file(path, flags, mode)

    monkeypatch.setattr(os, "open", note)
    home = FileHome(SIZES, CPU, tmp_path / "scratch", slots=1)
    tries = [(direct, 0o600)] if code is None else [(direct, 0o600), (0, 0o600)]
    assert opened == tries
    assert os.fstat(home._file).st_mode & 0o777 == 0o600
    home.close()
