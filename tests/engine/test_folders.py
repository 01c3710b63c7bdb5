"""Files in the shared folder are on the disk before they have their names."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.engine import folders, storefolders
from lowtide.engine.folders import DiskFolder, work_folder_beside
from lowtide.errors import UsageError
from lowtide.stores.paths import StorePath
from lowtide.unfinished import mark_used, remove_leftovers, unused_name


def note_sizes(sizes: list[int], mapping: Callable[..., Any]) -> Callable[..., Any]:
    def note(pool: ThreadPoolExecutor, function: Any, given: list[Any]) -> Any:
        sizes.append(len(given))
        return mapping(pool, function, given)

    return note


def create(folder: DiskFolder) -> None:
    assert folder.create("plan.json", b"{}")


def publish(folder: DiskFolder) -> None:
    with folder.scratch_file("hash") as (partial, file):
        file.write(b"result")
        file.flush()
        assert folder.publish(partial, "hash", "00007", "checksum") == "00007.out"


def commit(folder: DiskFolder) -> None:
    publish(folder)
    assert folder.create("hash/hash-00007.done", b"{}")


RESULT, RECORD = ["flush 6 bytes", "name"], ["flush 2 bytes", "name"]


@pytest.mark.parametrize(
    ("write", "expected"), [(create, RECORD), (publish, RESULT), (commit, RESULT + RECORD)]
)
def test_a_file_is_flushed_before_it_gets_its_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[DiskFolder], None],
    expected: list[str],
) -> None:
    """Names are not flushed: a task whose record is lost is done again."""
    events: list[str] = []
    link = os.link

    def traced_fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        events.append("flush folder" if path.is_dir() else f"flush {path.stat().st_size} bytes")

    def traced_link(source: Path, target: Path) -> None:
        events.append("name")
        link(source, target)

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "link", traced_link)
    write(DiskFolder(tmp_path))
    assert events == expected


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("data/mine", "data/mine.work"),
        ("/data/mine/", "/data/mine.work"),
        (".", "{here}/b.work"),
        ("..", "{here}.work"),
    ],
)
def test_the_work_folder_is_beside_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, expected: str
) -> None:
    here = tmp_path.resolve() / "a"
    (here / "b").mkdir(parents=True)
    monkeypatch.chdir(here / "b")
    assert str(work_folder_beside(Path(output))) == expected.format(here=here)


def test_the_work_folder_of_a_store_is_beside_the_output() -> None:
    assert str(work_folder_beside(StorePath("s3://b/data/mine"))) == "s3://b/data/mine.work"


def test_the_root_of_a_disk_has_no_work_folder_beside_it() -> None:
    with pytest.raises(UsageError, match="this folder has no name"):
        work_folder_beside(Path("/"))


def test_what_is_removed_may_be_gone_already(tmp_path: Path) -> None:
    folder = DiskFolder(tmp_path / "work")
    publish(folder)
    create(folder)
    folder.remove(["plan.json", "never there"])
    assert folder.path.is_dir() and not (folder.path / "plan.json").exists()
    folder.remove(["plan.json", *(path.name for path in folder.path.iterdir())])
    assert not folder.path.exists()


@pytest.mark.parametrize(
    ("count", "stretches"), [(0, []), (999, [999]), (1000, [1000]), (2001, [1000, 1000, 1])]
)
def test_objects_under_a_name_are_removed_in_stretches(
    monkeypatch: pytest.MonkeyPatch, count: int, stretches: list[int]
) -> None:
    removed: list[list[str]] = []
    store = SimpleNamespace(
        delete=lambda urls: removed.append([str(url) for url in urls]),
        iter_objects=lambda url: (SimpleNamespace(url=url / str(n)) for n in range(count)),
    )
    monkeypatch.setattr(storefolders, "open_store", lambda url: store)
    folder = storefolders.StoreFolder(Path("s3://bucket/work"))
    folder.remove(["leases"])
    assert removed[0] == ["s3://bucket/work/leases"]
    assert [len(urls) for urls in removed[1:]] == stretches
    assert [url for urls in removed[1:] for url in urls] == [
        f"s3://bucket/work/leases/{number}" for number in range(count)
    ]


def test_another_worker_may_remove_a_folder_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DiskFolder(tmp_path / "work")
    create(folder)
    monkeypatch.setattr(Path, "is_dir", lambda path: path.name == "hash")  # it was one, just before
    folder.remove(["hash", "plan.json"])
    assert not folder.path.exists()


def test_files_of_a_folder_are_removed_some_at_a_time(tmp_path: Path) -> None:
    """As many files as the text has parts: their names are not kept in memory."""
    for number in range(2500):
        (tmp_path / str(number)).touch()
    (tmp_path / "folder").mkdir()
    most: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "map", note_sizes(most, ThreadPoolExecutor.map))
        with ThreadPoolExecutor(2) as pool:
            folders._remove_files(tmp_path, pool)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert len(most) >= 3 and max(most) <= 1024


def test_what_a_killed_worker_left_of_the_plan_is_removed_at_the_end(tmp_path: Path) -> None:
    folder = DiskFolder(tmp_path / "work")
    create(folder)
    left, written = (unused_name(folder.path / "plan.json", "partial") for _ in range(2))
    left.touch()
    with written.open("x+b") as file:
        mark_used(file.fileno())  # another worker begins
        folder.remove(["hash", "plan.json"])
        assert list(folder.path.iterdir()) == [written]
    folder.remove(["hash", "plan.json"])
    assert not folder.path.exists()


def test_a_small_file_is_marked_while_it_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DiskFolder(tmp_path / "work")
    kept: list[list[str]] = []

    def flush(descriptor: int) -> None:
        remove_leftovers(folder.path)
        kept.append([path.suffix for path in folder.path.iterdir()])

    monkeypatch.setattr(os, "fsync", flush)
    assert folder.create("plan.json", b"{}")
    assert kept == [[".partial"]]


def test_what_a_link_names_is_not_removed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for number in range(20):
        (mine / str(number)).touch()
    folder = DiskFolder(tmp_path / "work")
    create(folder)
    (folder.path / "hash").symlink_to(mine)
    folder.remove(["hash", "plan.json"])
    assert len(list(mine.iterdir())) == 20


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_a_lease_of_a_disk_is_its_owners_file(tmp_path: Path) -> None:
    folder, before = DiskFolder(tmp_path), descriptors()
    lease: Any = folder.create_lease("leases/a", b"first")
    assert lease is not None and (tmp_path / "leases" / "a").read_bytes() == b"first"
    assert folder.create_lease("leases/a", b"other") is None
    assert folder.read_lease("leases/a") == folders.SeenLease(b"first", "")
    assert folder.read_lease("leases/none") is None
    lease.renew(b"again")
    assert (tmp_path / "leases" / "a").read_bytes() == b"again"
    taken: Any = folder.replace_lease("leases/a", b"taken", folders.SeenLease(b"again", ""))
    assert (tmp_path / "leases" / "a").read_bytes() == b"taken"
    lease.renew(b"lost!")  # into a file that was removed
    lease.release()
    assert (tmp_path / "leases" / "a").read_bytes() == b"taken"  # not ours to remove
    lease.release()
    lease.renew(b"gone!")
    assert lease.descriptor is None
    taken.release()
    assert list((tmp_path / "leases").iterdir()) == []
    assert descriptors() == before


def test_a_file_of_a_disk_is_created_once(tmp_path: Path) -> None:
    folder = DiskFolder(tmp_path)
    before = descriptors()
    assert folder.create("a/b", b"1") is True
    assert folder.create("a/b", b"2") is False
    assert folder.read("a/b") == b"1"
    assert (folder.exists("a/b"), folder.exists("a/c")) == (True, False)
    (tmp_path / "a" / ".hidden").touch()
    os.utime(tmp_path / "a" / "b", ns=(0, 1_500_000_000))
    assert folder.find_time("a/b") == 1.5
    assert (folder.list_names("a"), folder.list_names()) == (["b"], ["a"])
    assert folder.list_names("none") == [] == folder.list_names("a/b")
    assert descriptors() == before
    assert [path.name for path in (tmp_path / "a").iterdir() if "partial" in path.name] == []


@pytest.mark.parametrize(
    ("there", "name"), [(None, "t.out"), (b"12345", "t.out"), (b"12346", None), (b"1234", None)]
)
def test_a_result_of_a_disk_has_the_name_of_its_task(
    tmp_path: Path, there: bytes | None, name: str | None
) -> None:
    folder, before = DiskFolder(tmp_path), descriptors()
    if there is not None:
        (tmp_path / "hash").mkdir()
        (tmp_path / "hash" / "t.out").write_bytes(there)
    with folder.scratch_file("hash") as (partial, file):
        file.write(b"12345")
        file.flush()
        assert partial.parent == tmp_path / "hash" and partial.name.startswith(".result.")
        assert folder.publish(partial, "hash", "t", "sum") == name
    assert not partial.exists()
    assert folder.output_path("hash", "t.out").read_bytes() == (there or b"12345")
    assert descriptors() == before
    with folder.scratch_folder() as made:
        assert made.parent == tmp_path / "scratch" and made.is_dir()
    assert not made.exists()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_a_disk_without_hard_links_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As shares of Windows and mounted buckets, which a plan is the first to meet."""

    folder = DiskFolder(tmp_path / "work")

    def refuse(*given: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError if number == errno.EMLINK else UsageError) as caught:
        folder.create("plan.json", b"{}")
    if isinstance(caught.value, UsageError):
        assert "has no hard links" in caught.value.message
        assert caught.value.path == folder.path
    assert not list(folder.path.iterdir())
