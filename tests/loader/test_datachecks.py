"""The check beside a run: what it compares, what it finds, what it leaves out the next time."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.pretokenization import pretokenize_file
from lowtide.errors import DataError
from lowtide.loader import datachecks
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
