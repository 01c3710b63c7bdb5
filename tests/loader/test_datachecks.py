"""The check beside a run: what it compares, what it finds, what it leaves out the next time."""

from __future__ import annotations

import itertools
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xxhash

from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.pretokenization import pretokenize_file
from lowtide.errors import DataError
from lowtide.loader import checkedfiles, datachecks
from lowtide.loader.batches import BatchLoader
from lowtide.loader.checkedfiles import CheckedFiles
from lowtide.loader.datachecks import DataCheck
from lowtide.loader.mixtures import Mixture
from lowtide.loader.windows import TokenDataset


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "lowtide" / "checked"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {number} of many words\n\n" for number in range(900)))
    return path


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    rows = tmp_path / "a.jsonl"
    rows.write_text("".join(f'{{"text": "line {number} of words"}}\n' for number in range(3000)))
    prepare_dataset(
        input_files=[rows],
        out_dir=tmp_path / "data",
        tokenization="char",
        tokens_per_shard=5000,
        val_fraction=0.3,
        filter=False,
        dedup=False,
    )
    return tmp_path / "data"


def flip(path: Path, place: int = -5) -> None:
    """Change one bit, and leave size and time of change as they were."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def check(*datasets: Any, seconds: float = 60, **options: Any) -> DataCheck:
    """Compare the files of datasets; of small ones, too, it is noted that they are whole."""
    options = {"known": CheckedFiles(least_bytes=1), **options}
    with DataCheck(datasets, **options) as found:
        found.rest = found.finish(seconds)  # pyright: ignore
    return found


def problem_of(*datasets: Any) -> str:
    found = check(*datasets)
    with pytest.raises(DataError) as caught:
        found.require_whole()
    assert caught.value.next_step is not None
    assert "--no-check-data" in caught.value.next_step
    return str(caught.value.path)


def test_whole_files_are_no_problem(dataset: Path) -> None:
    found = check(TokenDataset(dataset, seq_len=8), TokenDataset(dataset, split="val", seq_len=8))
    found.require_whole()
    assert found.problem is None
    assert found.rest is None  # pyright: ignore
    assert found._num_checked == len(list(dataset.glob("*/*.bin"))) * 2  # pyright: ignore


@pytest.mark.parametrize("name", ["train/*.bin", "val/*.bin", "train/*.docs"])
def test_one_flipped_bit_is_found(dataset: Path, name: str) -> None:
    path = sorted(dataset.glob(name))[0]
    flip(path)
    assert problem_of(TokenDataset(dataset, split="all", seq_len=8)) == str(path)


def test_only_files_that_are_read_are_compared(dataset: Path) -> None:
    flip(min(dataset.glob("val/*.bin")))
    assert check(TokenDataset(dataset, split="train", seq_len=8)).problem is None


def test_loaders_and_mixtures_are_looked_into(dataset: Path) -> None:
    path = min(dataset.glob("val/*.bin"))
    data = {split: TokenDataset(dataset, split=split, seq_len=8) for split in ("train", "val")}
    loader = BatchLoader(Mixture(data), batch_size=2)
    flip(path)
    assert problem_of(loader) == str(path)
    loader.close()
    assert check(iter([])).problem is None  # what has no files has nothing to compare


def test_an_npy_is_compared_with_its_record(text: Path) -> None:
    path = pretokenize_file(file=text, tokenization="char").path
    assert check(TokenDataset(path, seq_len=8)).problem is None
    flip(path)
    for split in ("train", "val"):
        assert problem_of(TokenDataset(path, split=split, seq_len=8)) == str(path)


def test_files_without_checksums_are_taken_as_they_are(tmp_path: Path) -> None:
    np.save(tmp_path / "own.npy", np.arange(100, dtype="<u2"))
    found = check(TokenDataset(tmp_path / "own.npy", seq_len=8))
    assert found.problem is None
    assert found._files == []  # pyright: ignore


def test_what_was_whole_is_not_read_again(
    dataset: Path, cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    plain = datachecks.open_file
    monkeypatch.setattr(
        datachecks, "open_file", lambda path: (read.append(Path(path).name), plain(path))[1]
    )
    data = TokenDataset(dataset, split="all", seq_len=8)
    check(data)
    assert len(read) == len(set(read)) > 4
    read.clear()
    again = check(data)
    assert read == []
    assert again.rest is None  # pyright: ignore
    # One that was written to is read again, and only that one.
    path = sorted(dataset.glob("train/*.bin"))[1]
    flip(path)
    assert problem_of(data) == str(path)
    assert read == [path.name]
    for record in cache_home.glob("*.jsonl"):
        record.write_bytes(b"\xff[1,\n" * 3 + b"[]\n{}\n7\n")
    assert problem_of(data) == str(path)


def test_small_files_leave_no_lines(dataset: Path, cache_home: Path) -> None:
    check(TokenDataset(dataset, seq_len=8), known=CheckedFiles(least_bytes=1 << 20))
    assert not cache_home.exists()


def test_a_cache_folder_that_cannot_be_written_to_costs_nothing(
    dataset: Path, tmp_path: Path, cache_home: Path
) -> None:
    cache_home.parent.parent.mkdir()
    cache_home.parent.write_text("a file is in the way")
    assert check(TokenDataset(dataset, seq_len=8)).problem is None


def test_a_record_that_has_grown_too_large_begins_anew(dataset: Path, cache_home: Path) -> None:
    path = min(dataset.glob("train/*.bin"))
    known = CheckedFiles(least_bytes=1, most_record_bytes=10)
    for _ in range(3):
        known.add(path, "0" * 32, path.stat())
    (record,) = cache_home.iterdir()
    assert record.read_bytes().count(b"\n") == 1
    assert not known.holds(path, "0" * 32)  # too long to be read


def test_what_there_was_no_time_for_is_said(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    plain = datachecks._LocalFile.pieces  # pyright: ignore

    def slow(self: Any, buffer: memoryview) -> Any:
        gate.wait()
        yield from plain(self, buffer)

    monkeypatch.setattr(datachecks._LocalFile, "pieces", slow)  # pyright: ignore
    with DataCheck([TokenDataset(dataset, seq_len=8)]) as found:
        rest = found.finish(0)
        found.require_whole()
        gate.set()
    assert rest is not None
    assert rest.startswith(f"{len(found._files)} of {len(found._files)} files")  # pyright: ignore
    assert "lowtide verify" in rest


def test_a_slice_of_work_is_followed_by_a_pause_nine_times_as_long(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by a thousandth of a second each time it is looked at."""
    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) / 1000)
    monkeypatch.setattr(datachecks, "time", clock)
    found = DataCheck([TokenDataset(dataset, seq_len=8)], known=CheckedFiles(least_bytes=1))
    pauses: list[float] = []
    monkeypatch.setattr(found._wake, "wait", pauses.append)
    found._slice_began = 0.0
    for _ in range(25):
        found._pause()
    assert pauses == pytest.approx([0.09, 0.09])


def test_switched_off_nothing_is_read(dataset: Path) -> None:
    flip(min(dataset.glob("train/*.bin")))
    assert check(TokenDataset(dataset, seq_len=8), wanted=False).problem is None


def test_one_process_of_a_machine_compares(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = TokenDataset(dataset, seq_len=8)
    alone = DataCheck([data])._files  # pyright: ignore
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    second = DataCheck([data])._files  # pyright: ignore
    half = len(alone) // 2
    assert second == alone[half:] + alone[:half]
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert DataCheck([data])._files == []  # pyright: ignore


def test_all_processes_stop_where_one_finds_damage(dataset: Path) -> None:
    class Group:
        def any(self, flag: bool) -> bool:
            return True

    found = check(TokenDataset(dataset, seq_len=8))
    with pytest.raises(DataError, match="another process"):
        found.require_whole(Group())


def test_a_file_that_is_gone_is_named(dataset: Path) -> None:
    data = TokenDataset(dataset, seq_len=8)
    path = sorted(dataset.glob("train/*.bin"))[0]
    path.unlink()
    found = check(data)
    assert found.problem is not None
    assert str(found.problem.path) == str(path)


class Stored:
    """An object of a store, of which the cache has some extents."""

    def __init__(self, data: bytes, extent_bytes: int, held: int) -> None:
        self.data = data
        self.info = SimpleNamespace(url="s3://bucket/a.bin", size=len(data))
        self.asked: list[tuple[int, int]] = []
        self.read: list[tuple[int, int]] = []
        self._extents = [
            SimpleNamespace(name=f"e{at}", begin=at, size=min(extent_bytes, len(data) - at))
            for at in range(0, len(data), extent_bytes)
        ]
        known = {extent.name for extent in self._extents[:held]}
        self.folder = SimpleNamespace(known=known)

    def extents(self, begin: int, end: int) -> list[Any]:
        self.asked.append((begin, end))
        return self._extents

    def read_into(self, extent: Any, start: int, piece: memoryview) -> None:
        self.read.append((extent.begin + start, len(piece)))
        begin = extent.begin + start
        piece[:] = self.data[begin : begin + len(piece)]


def stored_file(stored: Any, checksum: str = "") -> Any:
    checksum = checksum or xxhash.xxh3_128_hexdigest(stored.data)
    return datachecks._StoredFile(stored, stored, checksum)  # pyright: ignore


def test_an_object_is_compared_once_all_of_it_is_in_the_cache() -> None:
    data = bytes(range(100))
    for held, there in ((0, False), (2, False), (3, True)):
        assert stored_file(Stored(data, 40, held)).is_there() is there
    stored: Any = Stored(data, 40, 3)
    file = stored_file(stored)
    assert file.path == "s3://bucket/a.bin"
    pieces = [bytes(piece) for piece in file.pieces(memoryview(bytearray(16)))]
    assert b"".join(pieces) == data
    assert stored.read == [
        (0, 16), (16, 16), (32, 8), (40, 16), (56, 16), (72, 8), (80, 16), (96, 4),
    ]  # fmt: skip
    assert set(stored.asked) == {(0, 100)}


def run_check(*files: Any, finish: bool = False, **more: Any) -> tuple[DataCheck, list[float]]:
    """The work of the thread on these files, in this one; how long it would have waited."""
    found = DataCheck([], known=CheckedFiles(least_bytes=1))
    found._files = list(files)  # pyright: ignore
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if more.get("after"):
            more["after"](found, len(waits))

    found._wake = SimpleNamespace(wait=wait, is_set=lambda: finish, set=lambda: None)  # type: ignore[assignment]
    found._work()  # pyright: ignore
    return found, waits


def test_what_is_not_there_yet_is_looked_at_again_a_second_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datachecks, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    early, late = Stored(b"abc", 2, 2), Stored(b"defg", 2, 0)

    def arrive(_: DataCheck, count: int) -> None:
        if count == 2:
            late.folder.known = {"e0", "e2"}

    found, waits = run_check(stored_file(late), stored_file(early), after=arrive)
    assert found.problem is None and found._num_checked == 2  # pyright: ignore
    assert waits == [1.0, 1.0, 0]
    found, waits = run_check(stored_file(Stored(b"x", 1, 0)), finish=True)
    assert (found._num_checked, waits) == (0, [])  # pyright: ignore


def test_looking_at_very_many_objects_is_a_tenth_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look of two seconds is followed by eighteen of waiting."""
    clock = itertools.count(0.0, 2.0)
    monkeypatch.setattr(datachecks, "time", SimpleNamespace(perf_counter=lambda: next(clock)))

    def stop(found: DataCheck, _: int) -> None:
        found._stopped = True  # pyright: ignore

    _, waits = run_check(stored_file(Stored(b"x", 1, 0)), after=stop)
    assert waits == [18.0]


def test_a_check_that_is_stopped_looks_at_nothing_more() -> None:
    stored: Any = Stored(bytes(64), 8, 8)

    def stop(found: DataCheck, _: int) -> None:
        found._stopped = True  # pyright: ignore

    found = DataCheck([], known=CheckedFiles(least_bytes=1))
    found._stopped = True  # pyright: ignore
    assert found._check(stored_file(stored), memoryview(bytearray(8))) is False  # pyright: ignore
    assert stored.asked == [] == stored.read
    found._stopped = False  # pyright: ignore
    found._pause = lambda: stop(found, 0)  # type: ignore[method-assign]
    assert found._check(stored_file(stored), memoryview(bytearray(8))) is False  # pyright: ignore
    assert len(stored.read) == 1 and found._num_checked == 0  # pyright: ignore


def test_an_object_that_is_damaged_is_named() -> None:
    found, _ = run_check(stored_file(Stored(b"abc", 2, 2), "0" * 32))
    assert found.problem is not None and found.problem.path == "s3://bucket/a.bin"
    found.start()
    assert found.finish(0) is None  # the damage is said, not what is left
    with pytest.raises(DataError, match="checksum"):
        found.require_whole()


def test_a_thread_is_started_once_and_waited_for(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float | None] = []
    made: list[Any] = []

    class Thread:
        def __init__(self, **given: Any) -> None:
            made.append(given)

        def start(self) -> None:
            made.append("started")

        def join(self, seconds: float | None = None) -> None:
            waited.append(seconds)

    threads = SimpleNamespace(Thread=Thread, Event=threading.Event)
    monkeypatch.setattr(datachecks, "threading", threads)
    with DataCheck([TokenDataset(dataset, seq_len=8)]) as found:
        found.start()
        found.start()
        assert not found._wake.is_set()  # pyright: ignore
        assert found.finish(3.5) is not None
        assert found._wake.is_set() and not found._stopped  # pyright: ignore
    assert [one if one == "started" else (one["name"], one["daemon"]) for one in made] == [
        ("lowtide-check", True), "started",
    ]  # fmt: skip
    assert waited == [3.5, 1.0] and found._stopped  # pyright: ignore
    with DataCheck([]) as nothing:
        assert nothing.finish(9.0) is None
    assert waited == [3.5, 1.0] and len(made) == 2


def test_one_of_many_files_is_said_to_be_left(dataset: Path) -> None:
    found = DataCheck([TokenDataset(dataset, seq_len=8)])
    found.start = lambda: None  # type: ignore[method-assign]
    total = len(found._files)  # pyright: ignore
    found._num_checked = total - 1  # pyright: ignore
    assert found.finish(0) == (
        f"1 of {total} files of ids could not be compared with their checksums meanwhile; "
        "lowtide verify DATASET reads all of them"
    )


def test_files_are_divided_among_the_machines_of_a_run(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = TokenDataset(dataset, split="all", seq_len=8)
    alone = DataCheck([data])._files  # pyright: ignore
    for size in (1, 2, 3, 7):
        monkeypatch.setenv("WORLD_SIZE", str(size))
        for rank in range(size):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("LOCAL_RANK", "0")
            first = len(alone) * rank // size
            assert DataCheck([data])._files == alone[first:] + alone[:first]  # pyright: ignore


def test_a_line_is_kept_of_large_files_alone(tmp_path: Path) -> None:
    folder = tmp_path / "lines"
    path = tmp_path / "a.bin"
    path.write_bytes(b"x" * 100)
    for least, kept in ((99, True), (100, True), (101, False)):
        known = CheckedFiles(folder / str(least), least_bytes=least)
        known.add(path, "sum", path.stat())
        assert known.holds(path, "sum") is kept
        assert known.holds(path, "other") is False
        assert (folder / str(least)).exists() is kept
    status = path.stat()
    (record,) = (folder / "100").iterdir()
    assert record.name == f"{xxhash.xxh3_64_hexdigest(os.fsencode(tmp_path.resolve()))}.jsonl"
    times = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    assert json.loads(record.read_text()) == ["a.bin", *times, "sum"]
    assert record.stat().st_mode & 0o600 == 0o600


def test_a_record_is_read_again_where_it_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / name for name in ("a.bin", "b.bin")]
    for path in paths:
        path.write_bytes(b"x" * 100)
    read: list[Path] = []
    plain = checkedfiles.read_whole
    monkeypatch.setattr(
        checkedfiles, "read_whole", lambda path: (read.append(path), plain(path))[1]
    )
    ours, theirs = (CheckedFiles(tmp_path / "lines", least_bytes=1) for _ in range(2))
    assert not ours.holds(paths[0], "sum") and read == []
    ours.add(paths[0], "sum", paths[0].stat())
    assert ours.holds(paths[0], "sum") and ours.holds(paths[0], "sum") and len(read) == 1
    theirs.add(paths[1], "sum", paths[1].stat())
    assert ours.holds(paths[1], "sum") and len(read) == 2


def test_a_record_may_be_as_long_as_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"x" * 100)
    CheckedFiles(tmp_path / "lines", least_bytes=1).add(path, "sum", path.stat())
    (record,) = (tmp_path / "lines").iterdir()
    size = record.stat().st_size
    for most, kept in ((size, True), (size - 1, False)):
        known = CheckedFiles(tmp_path / "lines", least_bytes=1, most_record_bytes=most)
        assert known.holds(path, "sum") is kept
    CheckedFiles(tmp_path / "lines", least_bytes=1, most_record_bytes=size).add(
        path, "sum", path.stat()
    )
    assert record.stat().st_size == 2 * size  # it was not too long yet


def test_no_file_of_lines_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"x" * 100)
    known = CheckedFiles(tmp_path / "lines", least_bytes=1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        known.add(path, "sum", path.stat())
    assert len(list(Path("/proc/self/fd").iterdir())) == before
