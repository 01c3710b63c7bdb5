from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.cli import main
from lowtide.errors import DataError
from lowtide.loader import selftest
from lowtide.loader.selftest import check_loading
from lowtide.loader.windows import RowPlan, TokenDataset


def test_the_report_of_a_good_dataset(counting_dataset: Path) -> None:
    report = check_loading(counting_dataset, seq_len=64, batch_size=4, seconds=0.05)
    assert report.num_tokens == 2000 and report.checked_windows == report.num_windows == 32
    assert report.batch_shape == (4, 64)
    assert report.tokens_per_second == report.read_tokens / report.read_seconds
    text = str(report)
    for words in ("first batch", "exactly once", "resume", "tokens/s", "memory"):
        assert words in text


def test_the_command(counting_dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(counting_dataset), "--test-loading"]) == 0
    assert "exactly once" in capsys.readouterr().out


def test_the_command_on_files_of_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "ids.npy", np.arange(5000, dtype=np.int32))
    np.arange(5000, dtype=np.uint32).tofile(tmp_path / "raw.bin")
    assert main(["inspect", str(tmp_path / "ids.npy"), "--test-loading"]) == 0
    assert "exactly once" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "raw.bin"), "--dtype", "uint32", "--start", "7"]) == 0
    shown = capsys.readouterr().out
    assert "Total tokens: 5,000" in shown
    assert "train tokens 7 to 107:\n7 8 9 " in shown


def test_short_data_is_tried_with_short_windows(tmp_path: Path) -> None:
    np.save(tmp_path / "few.npy", np.arange(30, dtype=np.int32))
    report = check_loading(tmp_path / "few.npy", split="all", seconds=0.01)
    assert report.batch_shape == (32, 29)


def test_overlap_and_wrong_targets_are_found(
    counting_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Repeating(TokenDataset):
        def plan_rows(self, *arguments: object, **options: object) -> list[RowPlan]:
            (plan,) = super().plan_rows(*arguments, **options)  # pyright: ignore[reportArgumentType]
            plan.starts[-1] = plan.starts[0]
            return [plan]

    monkeypatch.setattr(selftest, "TokenDataset", Repeating)
    with pytest.raises(DataError, match="came twice"):
        check_loading(counting_dataset, seq_len=64, batch_size=4, seconds=0.01)
    data = TokenDataset(counting_dataset, seq_len=64)
    inputs, _ = data.get_batch([0, 1])
    with pytest.raises(DataError, match="not the inputs moved"):
        selftest._check_batch(data, (inputs, inputs), 2)
    with pytest.raises(DataError, match="expected"):
        selftest._check_batch(data, (inputs, inputs), 3)


def test_speed_is_that_of_the_batches_that_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock that goes on by a second at every look, and batches of ten tokens."""
    ticks, sizes = itertools.count(), iter([1000, 1700])
    monkeypatch.setattr(selftest, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setattr(selftest, "tree_resident_bytes", lambda: next(sizes))
    batches = itertools.count()
    loader: Any = batches
    assert selftest._measure(loader, 10, 4.0) == (30, 4, 700)
    assert next(batches) == 3 + 3
    ticks, sizes = itertools.count(), iter([0, 0])
    assert selftest._measure(loader, 10, 0.5) == (10, 2, 0)  # one at least


def test_the_words_of_the_report() -> None:
    report = selftest.LoadingReport(
        description="what it is", num_tokens=5, num_windows=4321, batch_shape=(4, 64),
        first_batch_seconds=0.01234, tokens_per_second=1_234_567.0, checked_windows=1234,
        read_tokens=9876, read_seconds=2.04, memory_growth_bytes=3 << 20,
    )  # fmt: skip
    assert str(report).splitlines() == [
        "what it is",
        "first batch    12.3 ms, inputs and targets 4 x 64, targets one token further",
        "order          1,234 of 4,321 windows come exactly once per epoch, two ranks share them "
        "without overlap",
        "resume         a loader set to a saved state gives the same batches",
        "speed          1.23M tokens/s shuffled, 9.88k tokens in 2.0s",
        "memory         grew by 3.0 MiB meanwhile",
    ]
    assert str(dataclasses.replace(report, memory_growth_bytes=-5)).endswith(
        "grew by 0 B meanwhile"
    )


def test_figures_are_those_of_what_was_measured(
    counting_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count(10.0, 0.5)
    monkeypatch.setattr(selftest, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    measured: list[Any] = []

    def measure(loader: Any, batch_tokens: int, seconds: float) -> tuple[int, float, int]:
        measured.append((batch_tokens, seconds))
        return 1000, 4.0, 77

    monkeypatch.setattr(selftest, "_measure", measure)
    report = check_loading(counting_dataset, seq_len=64, batch_size=4, seconds=0.5)
    assert measured == [(256, 0.5)]
    assert (report.first_batch_seconds, report.tokens_per_second) == (0.5, 250.0)
    assert (report.read_tokens, report.read_seconds, report.memory_growth_bytes) == (1000, 4.0, 77)
    assert report.description == TokenDataset(counting_dataset, seq_len=64).describe()


@pytest.mark.parametrize(
    ("first", "count", "shown"),
    [
        (0, 3, (0, 3)),
        (-5, 2, (0, 2)),
        (85, 100, (85, 90)),
        (90, 5, None),
        (999, 5, None),
        (3, 0, None),
        (3, -1, None),
    ],
)
def test_ids_of_a_split_are_shown(
    tmp_path: Path, first: int, count: int, shown: tuple[int, int] | None
) -> None:
    np.save(tmp_path / "ids.npy", np.arange(100, 200, dtype=np.int32))
    lines = selftest.describe_tokens(tmp_path / "ids.npy", first=first, count=count).splitlines()
    head = TokenDataset(tmp_path / "ids.npy", seq_len=1).describe().splitlines()[:-1]
    assert lines[: len(head)] == head
    rest = []
    if shown is not None:
        ids = range(100 + shown[0], 100 + shown[1])
        rest = [f"train tokens {shown[0]} to {shown[1]}:", " ".join(map(str, ids))]
    assert lines[len(head) :] == rest


class Planned:
    """A dataset of windows that come as they are given."""

    def __init__(self, indices: list[int], size: int, stride: int = 4) -> None:
        self.indices, self.size, self.stride = indices, size, stride
        self.source = SimpleNamespace(path=Path("ids.npy"))
        self.asked: list[tuple[str, int, int, int]] = []

    def __len__(self) -> int:
        return self.size

    def plan_rows(self, order: str, *, seed: int, first: int, count: int) -> list[Any]:
        self.asked.append((order, seed, first, count))
        last = self.size * self.stride - 2  # the last window begins earlier than its stride says
        starts = [min(self.stride * index, last) for index in self.indices[first : first + count]]
        return [SimpleNamespace(starts=np.array(starts, np.uint64))]


def test_every_window_is_seen_once() -> None:
    order = [7, 0, 12, 3, 9, 1, 2, 4, 11, 5, 6, 8, 10]
    data: Any = Planned(order, 13)
    assert selftest._check_order(data, chunk_windows=5) == 13
    assert data.asked == [("shuffle", 0, 0, 5), ("shuffle", 0, 5, 5), ("shuffle", 0, 10, 3)]
    for one in range(13):
        for other in range(13):
            twice = list(order)
            twice[one] = order[other]
            if one != other:
                repeated: Any = Planned(twice, 13)
                with pytest.raises(DataError, match="a window came twice in one epoch"):
                    selftest._check_order(repeated, chunk_windows=5)
    assert selftest._check_order(data, most_windows=13) == 13
    assert selftest._check_order(data, most_windows=12) == 0


def test_shapes_of_both_arrays_are_looked_at(counting_dataset: Path) -> None:
    data = TokenDataset(counting_dataset, seq_len=8)
    inputs, targets = data.get_batch([0, 1, 2])
    selftest._check_batch(data, (inputs, targets), 3)
    for batch in ((inputs[:2], targets), (inputs, targets[:2]), (inputs[:, :-1], targets)):
        with pytest.raises(DataError, match=r"batches are .*, expected \(3, 8\)"):
            selftest._check_batch(data, batch, 3)
