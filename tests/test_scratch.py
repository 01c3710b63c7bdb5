"""Temporary folders go with their process, in whatever way it ends."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from lowtide import cli, scratch
from lowtide.errors import DataError, FullScratchError
from lowtide.scratch import ScratchFolder, scratch_file, scratch_folder


@pytest.fixture(autouse=True)
def own_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def killed_folder(root: Path) -> Path:
    """A folder whose process was killed with a file in it."""
    program = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from lowtide.scratch import ScratchFolder\n"
        "folder = ScratchFolder('test'); (folder.path / 'large').write_bytes(b'x')\n"
        "print(folder.path, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        with scratch_folder("other"):
            assert (path / "large").exists()  # it lives: nobody else takes it away
        process.send_signal(signal.SIGKILL)
        process.wait()
    return path


def test_what_a_kill_leaves_is_removed_on_the_next_start(own_tmpdir: Path) -> None:
    path = killed_folder(own_tmpdir)
    assert (path / "large").exists()
    with scratch_folder("other") as mine:
        assert not path.exists()
        assert mine.exists()
    assert list(own_tmpdir.iterdir()) == []


def test_any_command_removes_what_a_kill_left(own_tmpdir: Path) -> None:
    path = killed_folder(own_tmpdir)
    assert cli.main(["inspect", str(own_tmpdir / "nothing")]) == 1
    assert not path.exists()


def test_only_our_own_folders_are_removed(own_tmpdir: Path) -> None:
    others = [
        own_tmpdir / name for name in ("lowtide-old", "lowtide.x", "data", "lowtide.a.B2345678")
    ]
    for path in others:
        path.mkdir()
    target = own_tmpdir / "target"
    target.mkdir()
    link = own_tmpdir / "lowtide.link.abcdefgh"
    link.symlink_to(target)
    file = own_tmpdir / "lowtide.file.abcdefgh"
    file.write_text("x")
    with scratch_folder("other"):
        pass
    assert all(path.exists() for path in [*others, target, link, file])


def test_folders_of_one_process_live_side_by_side() -> None:
    first = ScratchFolder("one")
    second = ScratchFolder("two")
    assert first.path.exists()
    assert second.path.exists()
    first.remove()
    assert not first.path.exists()
    assert second.path.exists()
    second.remove()
    second.remove()


def test_a_folder_elsewhere_is_hidden(tmp_path: Path) -> None:
    with scratch_folder("dry-run", inside=tmp_path) as folder:
        assert folder.name.startswith(".lowtide.dry-run.")
        assert folder.parent == tmp_path


def test_a_folder_is_locked_once_and_its_descriptors_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    first = scratch._lock(tmp_path)
    assert first is not None
    assert scratch._lock(tmp_path) is None
    assert scratch._lock(tmp_path / "not there") is None
    assert open_files() == before + 1
    os.close(first)

    def no_locks(*given: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(scratch.fcntl, "flock", no_locks)
    unlocked = scratch._lock(tmp_path)
    assert unlocked is not None
    os.close(unlocked)
    monkeypatch.setattr(scratch.fcntl, "flock", lambda *given: tmp_path.rename(f"{tmp_path}-gone"))
    assert scratch._lock(tmp_path) is None
    assert open_files() == before


def test_folders_are_opened_as_such_and_no_link_is_followed(
    own_tmpdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever takes the place of a folder between looking and opening."""
    left = own_tmpdir / "lowtide.test.abcdefgh"
    left.mkdir()
    opened: list[tuple[Path, int]] = []
    real = os.open
    monkeypatch.setattr(scratch.shutil, "rmtree", lambda path, ignore_errors: path.rmdir())
    monkeypatch.setattr(
        os, "open", lambda path, flags: opened.append((path, flags)) or real(path, flags)
    )
    scratch.remove_leftovers()
    expected = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    assert opened == [(left, expected)] * 2
    assert not left.exists()


def test_a_forked_process_leaves_the_folder_of_the_other(own_tmpdir: Path) -> None:
    """A child that ends by itself ran finalizers and contexts, which removed it."""
    program = (
        "import os, sys, tempfile, weakref; tempfile.tempdir = sys.argv[1]\n"
        "from lowtide.scratch import ScratchFolder, scratch_folder\n"
        "folder = ScratchFolder('test')\n"
        "weakref.finalize(sys, folder.remove)\n"
        "with scratch_folder('other') as other:\n"
        "    if (child := os.fork()) == 0:\n"
        "        with scratch_folder('own') as own:\n"
        "            pass\n"
        "        sys.exit(own.exists())\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    assert folder.path.exists() and other.exists()\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, str(own_tmpdir)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert list(own_tmpdir.iterdir()) == []


def test_leftovers_are_removed_where_the_folder_is_made(own_tmpdir: Path, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    left = [
        own_tmpdir / "lowtide.test.abcdefgh",
        inside / ".lowtide.test.abcdefgh",
        inside / "lowtide.test.abcdefgh",
    ]
    for path in left:
        path.mkdir()
    with scratch_folder("dry-run", inside=inside) as folder:
        assert folder.parent == inside
        assert [path.exists() for path in left] == [True, False, False]
    with scratch_folder("dry-run") as folder:
        assert folder.parent == own_tmpdir and folder.name.startswith("lowtide.dry-run.")
        assert not left[0].exists()


def test_nothing_stays_open_and_all_leftovers_go(
    own_tmpdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_files() -> set[str]:
        return {path.name for path in Path("/proc/self/fd").iterdir()}

    before = open_files()
    held = ScratchFolder("held")
    during = open_files()
    for name in ("lowtide.test.abcdefgh", "lowtide.test.bbcdefgh"):
        (own_tmpdir / name).mkdir()
    scratch.remove_leftovers()
    assert list(own_tmpdir.iterdir()) == [held.path]
    assert open_files() == during
    held.remove()
    assert held._descriptor == -1
    assert open_files() == before
    # A descriptor of somebody else with the same number is not closed by a second call.
    again = os.open(own_tmpdir, os.O_RDONLY)
    held.remove()
    os.fstat(again)
    os.close(again)

    def no_locks(*given: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    (own_tmpdir / "lowtide.test.abcdefgh").mkdir()
    monkeypatch.setattr(scratch.fcntl, "flock", no_locks)
    scratch.remove_leftovers()
    assert (own_tmpdir / "lowtide.test.abcdefgh").is_dir()  # a disk without locks
    assert open_files() == before


def test_a_folder_of_another_user_is_let_be(
    own_tmpdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_tmpdir / "lowtide.test.abcdefgh").mkdir()
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    scratch.remove_leftovers()
    assert (own_tmpdir / "lowtide.test.abcdefgh").is_dir()


def test_a_full_disk_is_named_by_the_temporary_folder(own_tmpdir: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(FullScratchError) as caught, scratch_folder("test"):
        raise full
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(own_tmpdir))
    with pytest.raises(FullScratchError), scratch_file() as file:
        file.write(b"x")
        raise full
    with pytest.raises(FullScratchError), scratch_folder("test") as folder:
        raise OSError(errno.EDQUOT, "", str(folder / "a"))
    assert list(own_tmpdir.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "elsewhere"),
        OSError(errno.EIO, "Input/output error"),
    ],
)
def test_other_errors_are_left_as_they_are(own_tmpdir: Path, error: OSError) -> None:
    with pytest.raises(OSError) as caught, scratch_folder("test"), scratch_file():
        raise error
    assert caught.value is error
    with pytest.raises(OSError) as caught, scratch_folder("test", inside=own_tmpdir):
        raise error
    assert caught.value is error


def test_a_machine_without_a_temporary_folder_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in [...]")

    monkeypatch.setattr(tempfile, "gettempdir", find_none)
    monkeypatch.setenv("TMPDIR", "/full")
    with pytest.raises(DataError, match="no folder for temporary files") as caught:
        ScratchFolder("test")
    assert caught.value.path == "/full" and "set TMPDIR" in str(caught.value)
    scratch.remove_leftovers()  # commands that need none go on
