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
from lowtide.scratch import ScratchFolder, scratch_folder


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
