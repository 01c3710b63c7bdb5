"""Atomic writes: what is under its final name is whole, whatever happens."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from lowtide import files, unfinished
from lowtide.errors import DataError, UsageError, from_os_error
from lowtide.files import (
    atomic_file,
    checksum_bytes,
    checksum_file,
    create_file,
    free_disk_bytes,
    hold_lock,
    publish,
    read_json,
    write_bytes,
    write_json,
)
from lowtide.unfinished import unused_name


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_json_holds_names_that_are_no_text(tmp_path: Path) -> None:
    name = os.fsdecode(b"bad\xff.txt")
    write_json(tmp_path / "a.json", {"file": name, "other": "ü"})
    assert read_json(tmp_path / "a.json") == {"file": name, "other": "ü"}
    assert b'"bad\\udcff.txt"' in (tmp_path / "a.json").read_bytes()


def test_write_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    write_bytes(target, b"old")
    write_bytes(target, b"new")
    assert target.read_bytes() == b"new"
    assert names_in(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt()])
def test_a_failed_block_keeps_the_old_file(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "a.bin"
    write_bytes(target, b"old")
    with pytest.raises(type(error)), atomic_file(target) as file:
        file.write(b"half")
        raise error
    assert target.read_bytes() == b"old"
    assert names_in(tmp_path) == ["a.bin"]


def test_kill_leaves_no_half_file_and_the_next_command_cleans_up(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    write_bytes(target, b"old")
    program = (
        "import sys; from lowtide.files import atomic_file\n"
        "with atomic_file(sys.argv[1]) as file:\n"
        "    file.write(b'half' * 1_000_000); file.flush()\n"
        "    print('written', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert target.read_bytes() == b"old"
    left = next(name for name in names_in(tmp_path) if name != "a.bin")
    assert re.fullmatch(r"\.a\.bin\.[0-9a-f]{16}\.partial", left)
    with atomic_file(target) as file, hold_lock(target):
        file.write(b"new")  # its own unfinished file is in use, and stays
    assert target.read_bytes() == b"new"
    assert names_in(tmp_path) == ["a.bin"]


def test_file_is_flushed_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.bin"
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def traced_fsync(descriptor: int) -> None:
        is_folder = Path(f"/proc/self/fd/{descriptor}").resolve() == tmp_path.resolve()
        events.append("flush folder" if is_folder else "flush file")
        fsync(descriptor)

    def traced_replace(self: Path, to: Path) -> Path:
        events.append("rename")
        return replace(self, to)

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(Path, "replace", traced_replace)
    write_bytes(target, b"x")
    assert events == ["flush file", "rename", "flush folder"]


def test_a_full_disk_names_the_file_meant_and_leaves_nothing(tmp_path: Path) -> None:
    # /dev/full answers every write as a full disk does.
    target = tmp_path / "a.bin"
    with pytest.raises(OSError, match="No space left") as caught, atomic_file(target) as file:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, file.fileno())
        os.close(full)
        file.write(b"x" * 100)
    assert caught.value.errno == errno.ENOSPC
    error = from_os_error(caught.value)
    assert str(error).startswith(f"the disk is full\n  file: {target}\n  next: free some space")
    assert names_in(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_that_fills_up_while_writing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this sandbox forbids mounting")
    try:
        write_bytes(disk / "a.bin", b"old")
        with (
            pytest.raises(OSError, match="No space left") as caught,
            atomic_file(disk / "a.bin") as file,
        ):
            for _ in range(64):
                file.write(b"x" * (1 << 16))
        assert caught.value.filename == str(disk / "a.bin")
        assert (disk / "a.bin").read_bytes() == b"old"
        assert names_in(disk) == ["a.bin"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_numpys_short_write_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # ndarray.tofile says "64 requested and 8 written", without a number.
    monkeypatch.setattr(files, "free_disk_bytes", lambda _: 0)
    with pytest.raises(OSError, match="No space left") as caught, atomic_file(tmp_path / "a.bin"):
        raise OSError("64 requested and 8 written")
    assert caught.value.filename == str(tmp_path / "a.bin")
    monkeypatch.setattr(files, "free_disk_bytes", lambda _: 1 << 30)
    with (
        pytest.raises(OSError, match="64 requested and 8 written"),
        atomic_file(tmp_path / "a.bin"),
    ):
        raise OSError("64 requested and 8 written")


@pytest.mark.usefixtures("ordinary_user")
def test_no_permission_names_the_file_meant(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(PermissionError) as caught:
        write_bytes(tmp_path / "a.bin", b"x")
    assert caught.value.filename == str(tmp_path / "a.bin")


def test_a_parent_that_is_a_file_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError) as caught:
        write_bytes(tmp_path / "file" / "a.bin", b"x")
    assert caught.value.filename == str(tmp_path / "file" / "a.bin")


def test_publish_takes_what_another_program_wrote(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    (tmp_path / "unnamed").write_bytes(b"whole")
    publish(tmp_path / "unnamed", target)
    assert target.read_bytes() == b"whole"
    assert names_in(tmp_path) == ["a.bin"]


def test_json_round_trip_and_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = {"text": "größer 字", "list": [1, 2.5, None]}
    write_json(path, value)
    assert read_json(path) == value
    path.write_bytes(b'{"half": ')
    with pytest.raises(DataError, match="not JSON") as caught:
        read_json(path)
    assert caught.value.path == path
    with pytest.raises(DataError, match="not found"):
        read_json(tmp_path / "absent.json")


@given(st.binary(max_size=5000))
def test_checksum_of_bytes_is_xxh3_128(data: bytes) -> None:
    assert checksum_bytes(data) == xxhash.xxh3_128(data).hexdigest()


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_checksum_of_a_file_is_that_of_its_bytes(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.bin"
    data = bytes(index * 7 % 251 for index in range(1000)) * (size // 1000 + 1)
    path.write_bytes(data[:size])
    assert checksum_file(path) == checksum_bytes(data[:size])


def test_free_space_of_a_place_that_is_not_there_yet(tmp_path: Path) -> None:
    free = free_disk_bytes(tmp_path / "not" / "there" / "yet")
    total = shutil.disk_usage(tmp_path).total
    assert 0 <= free <= total


def test_a_planted_link_is_never_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    planted = tmp_path / ".a.bin.0123456789abcdef.partial"
    planted.symlink_to(victim)
    monkeypatch.setattr(unfinished.secrets, "token_hex", lambda _: "0123456789abcdef")
    with pytest.raises(FileExistsError):  # even if the name is guessed
        write_bytes(tmp_path / "a.bin", b"x")
    (tmp_path / ".a.bin.lock").symlink_to(victim)
    with pytest.raises(DataError, match="this is a link"), hold_lock(tmp_path / "a.bin"):
        pass
    with pytest.raises(FileExistsError):
        create_file(tmp_path / ".a.bin.lock")
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_one_command_at_a_time_and_the_other_hears_who(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "out"
    if kind == "folder":
        target.mkdir()
    with (
        hold_lock(target),
        pytest.raises(UsageError, match=f"process {os.getpid()} on .* since 20"),
        hold_lock(target),
    ):
        raise AssertionError("two owners")
    with hold_lock(target):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == (["out"] if kind == "folder" else [])


def test_a_killed_owner_loses_its_lock(tmp_path: Path) -> None:
    program = (
        "import sys; from lowtide.files import hold_lock\n"
        "with hold_lock(sys.argv[1]):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match=f"process {process.pid} "), hold_lock(tmp_path):
            pass
        process.kill()
    with hold_lock(tmp_path):
        pass


def test_a_lock_removed_by_its_owner_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The owner ends between our open and our lock: the file we then lock has no name any more.
    flock, opened = fcntl.flock, []

    def end_first(descriptor: int, operation: int) -> None:
        if not opened:
            (tmp_path / ".lock").unlink()
        opened.append(descriptor)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", end_first)
    with hold_lock(tmp_path), pytest.raises(UsageError), hold_lock(tmp_path):
        pass
    assert len(opened) == 3


def test_a_disk_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    notices: list[str] = []
    with hold_lock(tmp_path, on_notice=notices.append):
        write_bytes(tmp_path / "a.bin", b"x")
    assert notices == [f"{tmp_path}: this disk has no locks; see that no other command writes here"]
    assert names_in(tmp_path) == ["a.bin"]


def test_new_files_have_the_permissions_of_any_other(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", 1)
        assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o640
        with hold_lock(tmp_path / "out"):
            (lock,) = [path for path in tmp_path.iterdir() if "lock" in path.name]
            assert lock.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("number", "raised"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)]
)
def test_folders_that_cannot_be_flushed_are_let_be_and_broken_disks_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, raised: bool
) -> None:
    closed: list[int] = []
    close = os.close

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(os, "close", lambda descriptor: closed.append(1) or close(descriptor))
    if raised:
        with pytest.raises(OSError, match="Input/output"):
            files.sync_directory(tmp_path)
    else:
        files.sync_directory(tmp_path)
    assert closed == [1]


def test_who_holds_a_lock_is_said_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    owner = {"pid": 7, "host": "here", "since": "now", "command": "lowtide \x1b" + "x" * 300}
    for content, words in (
        (json.dumps(owner), f"process 7 on here since now (lowtide ?{'x' * 191})"),
        ("", "its process is not known yet"),
        ("[]", "its process is not known yet"),
        (json.dumps({"pid": 7}), "its process is not known yet"),
    ):
        path.write_text(content)
        descriptor = os.open(path, os.O_RDONLY)
        assert files._read_owner(descriptor) == words
        os.close(descriptor)


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["/usr/bin/lowtide", "train", "--debug"], "lowtide train --debug"),
        (["/lib/lowtide/__main__.py", "plan"], "lowtide plan"),
        ([""], "python"),
        ([], "python"),
    ],
)
def test_a_command_is_named_as_it_was_given(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], command: str
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    owner = files._describe_owner()
    assert owner["command"] == command and owner["pid"] == os.getpid()
    assert set(owner) == {"pid", "host", "command", "since"}


def test_folders_made_for_a_lock_go_with_it_unless_something_is_there(tmp_path: Path) -> None:
    with hold_lock(tmp_path / "a" / "b", create_folder=True):
        assert (tmp_path / "a" / "b").is_dir()
    assert not (tmp_path / "a").exists()
    with hold_lock(tmp_path / "a" / "b", create_folder=True):
        (tmp_path / "a" / "kept").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["kept"]


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (files.require_file, files.read_whole):
        with pytest.raises(OSError, match="No such device"):
            read(tmp_path / "pipe")
        with pytest.raises(OSError, match="Is a directory"):
            read(tmp_path)
    (tmp_path / "file").write_bytes(b"x")
    files.require_file(tmp_path / "file")
    assert files.read_whole(tmp_path / "file") == b"x"


def test_a_file_at_the_largest_size_is_read_and_beyond_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert files.read_whole(path, most_bytes=5) == b"12345"
    path.write_bytes(b"123456")
    with pytest.raises(DataError, match="a file of 6 bytes, expected 5 at most"):
        files.read_whole(path, most_bytes=5)


def test_json_is_readable_and_plain(tmp_path: Path) -> None:
    assert files.json_bytes({"a": ["é", 1]}) == '{\n  "a": [\n    "é",\n    1\n  ]\n}\n'.encode()


def test_the_checksum_of_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        files.checksum_file(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        files.checksum_file(tmp_path)


def test_no_descriptor_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of files are written by one process, and refused ones are tried again."""
    path = tmp_path / "file"
    (tmp_path / "partial").write_bytes(b"1")
    os.mkfifo(tmp_path / "pipe")
    leftover = unused_name(path, "partial")

    def refused() -> None:
        with hold_lock(path):
            with pytest.raises(UsageError), hold_lock(path):
                pass
            with pytest.raises(OSError), files.open_file(tmp_path / "pipe"):
                pass

    def failed() -> None:
        with pytest.raises(ValueError), files.atomic_file(path):
            raise ValueError

    def leave_and_remove() -> None:
        leftover.write_bytes(b"")
        with hold_lock(path):
            assert not leftover.exists()

    def take_again() -> None:
        """The lock that was opened is removed before it is locked, once."""
        lock = fcntl.flock
        tried: list[int] = []

        def flock(descriptor: int, operation: int) -> None:
            lock(descriptor, operation)
            tried.append(1)
            if len(tried) == 1:
                (tmp_path / ".file.lock").unlink()

        with monkeypatch.context() as patch:
            patch.setattr(files.fcntl, "flock", flock)
            with hold_lock(path):
                assert len(tried) == 2

    for use in (
        lambda: files.publish(tmp_path / "partial", tmp_path / "partial"),
        lambda: files.sync_directory(tmp_path),
        lambda: files.write_bytes(path, b"1"),
        lambda: files.checksum_file(path),
        lambda: files.read_whole(path),
        refused,
        failed,
        leave_and_remove,
        take_again,
    ):
        before = sorted(Path("/proc/self/fd").iterdir())
        use()
        assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_a_lock_holds_its_owner_alone_whatever_stood_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / ".out.lock"
    lock.write_text("x" * 1000)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/lowtide", "prepare", "--out-dir", "out"])
    with hold_lock(tmp_path / "out"):
        owner = json.loads(lock.read_bytes())
        assert (owner["pid"], owner["command"]) == (os.getpid(), "lowtide prepare --out-dir out")
        with pytest.raises(UsageError) as caught, hold_lock(tmp_path / "out"):
            pass
    assert caught.value.message == (
        f"another lowtide command is at work here: process {owner['pid']} on {owner['host']} since "
        f"{owner['since']} (lowtide prepare --out-dir out)"
    )
    assert not lock.exists()


def test_a_link_put_in_the_place_of_a_lock_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking: the file that is locked has another name by then."""
    lock, flock = tmp_path / ".out.lock", fcntl.flock

    def replace(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        if not lock.is_symlink():
            lock.rename(tmp_path / "moved")
            lock.symlink_to("moved")

    monkeypatch.setattr(files.fcntl, "flock", replace)
    with pytest.raises(DataError, match="this is a link"), hold_lock(tmp_path / "out"):
        pass


def test_an_address_is_no_output(tmp_path: Path) -> None:
    for path in ("s3://bucket/a", tmp_path / "gs:/bucket/a", "abfss://c@h/a", "s3a:/bucket"):
        with pytest.raises(UsageError, match="is an address"), hold_lock(path, create_folder=True):
            pass
    with hold_lock(tmp_path / "s3", create_folder=True):
        assert (tmp_path / "s3").is_dir()
    assert list(tmp_path.iterdir()) == []


def test_all_may_write_what_the_mask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with hold_lock(tmp_path / "out"):
            assert (tmp_path / ".out.lock").stat().st_mode & 0o777 == 0o666
        os.close(files.create_file(tmp_path / "new"))
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o666
    finally:
        os.umask(before)


@pytest.mark.parametrize(("free", "full"), [((1 << 20) - 1, True), (1 << 20, False)])
def test_an_error_without_a_number_is_a_full_disk_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, full: bool
) -> None:
    monkeypatch.setattr(files, "free_disk_bytes", lambda path: free)
    with pytest.raises(OSError) as caught, files.atomic_file(tmp_path / "file"):
        raise OSError("5 requested and 3 written")
    assert (caught.value.errno == errno.ENOSPC) is full
    assert caught.value.filename == (str(tmp_path / "file") if full else None)
