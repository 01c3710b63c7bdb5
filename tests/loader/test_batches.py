from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.errors import DataError, UsageError
from lowtide.loader import batches
from lowtide.loader.batches import BatchLoader, planned_bytes
from lowtide.loader.mixtures import Mixture
from lowtide.loader.windows import TokenDataset, TokenWindows

from .conftest import MakeDataset


def take(loader: BatchLoader, count: int) -> list[list[list[int]]]:
    """Return `count` batches as plain lists, and see that targets belong to inputs."""
    batches = []
    for _ in range(count):
        inputs, targets = next(loader)
        assert np.array_equal(inputs[:, 1:], targets[:, :-1])
        batches.append(inputs.tolist())
    return batches


@pytest.fixture
def data(counting_dataset: Path) -> TokenDataset:
    return TokenDataset(counting_dataset, seq_len=40)


def test_an_epoch_has_every_window_once(data: TokenDataset) -> None:
    size = len(data)
    with BatchLoader(data, batch_size=7, num_epochs=2) as loader:
        rows = [row[0] for inputs, _ in loader for row in inputs.tolist()]
    expected = sorted(min(index * 40, data.last_start) for index in range(size))
    assert sorted(rows[:size]) == sorted(rows[size:]) == expected
    assert rows[:size] != rows[size:]
    assert rows[:size] != expected


@pytest.mark.parametrize("order", ["shuffle", "blocks", "random", "sequential"])
@pytest.mark.parametrize("world_size", [2, 3, 4, 6])
def test_ranks_share_the_same_global_batches(
    data: TokenDataset, order: Any, world_size: int
) -> None:
    with BatchLoader(data, batch_size=12, order=order, seed=3) as alone:
        expected = take(alone, 11)
    ranks = [
        BatchLoader(
            data,
            batch_size=12 // world_size,
            order=order,
            seed=3,
            rank=rank,
            world_size=world_size,
            prefetch_batches=rank,
            num_threads=1 + rank % 2,
        )
        for rank in range(world_size)
    ]
    for batch in expected:
        together = [row for loader in ranks for row in take(loader, 1)[0]]
        assert together == batch
    for loader in ranks:
        loader.close()


@given(
    order=st.sampled_from(["shuffle", "blocks", "random", "sequential"]),
    before=st.integers(0, 30),
    ahead=st.integers(0, 5),
    world_size=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 2**63),
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None
)
def test_resume_at_any_point_on_any_number_of_ranks(
    data: TokenDataset, order: Any, before: int, ahead: int, world_size: int, seed: int
) -> None:
    with BatchLoader(data, batch_size=8, order=order, seed=seed, prefetch_batches=0) as whole:
        expected = take(whole, before + 4)[before:]
    with BatchLoader(data, batch_size=8, order=order, seed=seed, prefetch_batches=ahead) as first:
        take(first, before)
        state = first.state_dict()
    assert state["samples"] == before * 8
    resumed = [
        BatchLoader(
            data,
            batch_size=8 // world_size,
            order=order,
            seed=seed,
            rank=rank,
            world_size=world_size,
            prefetch_batches=2,
        )
        for rank in range(world_size)
    ]
    for loader in resumed:
        take(loader, 1)  # what was prepared before the state came must not be delivered after it
        loader.load_state_dict(state)
        assert loader.state_dict() == state
    for batch in expected:
        assert [row for loader in resumed for row in take(loader, 1)[0]] == batch
    for loader in resumed:
        loader.close()


def test_closing_loses_nothing(data: TokenDataset) -> None:
    with BatchLoader(data, batch_size=5, prefetch_batches=0) as whole:
        expected = take(whole, 9)
    loader = BatchLoader(data, batch_size=5)
    found = take(loader, 4)
    loader.close()
    found += take(loader, 5)
    loader.close()
    assert found == expected


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12
def test_a_forked_copy_goes_on_by_itself(data: TokenDataset) -> None:
    with BatchLoader(data, batch_size=5, prefetch_batches=0) as whole:
        expected = take(whole, 6)[3:]
    with BatchLoader(data, batch_size=5, prefetch_batches=3) as loader:
        take(loader, 3)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writer, b"ok" if take(loader, 3) == expected else b"no")
            finally:
                os._exit(0)
        os.close(writer)
        assert os.read(reader, 2) == b"ok"
        os.close(reader)
        os.waitpid(child, 0)
        assert take(loader, 3) == expected


def test_epoch_counts_delivered_samples(data: TokenDataset) -> None:
    with BatchLoader(data, batch_size=len(data), prefetch_batches=3) as loader:
        assert loader.epoch == 0
        take(loader, 2)
        assert loader.epoch == 2 and loader.samples == 2 * len(data)


def test_a_finite_pass_deals_out_its_last_batch(data: TokenDataset) -> None:
    size = len(data)
    loaders = [
        BatchLoader(data, batch_size=8, order="sequential", num_epochs=1, rank=rank, world_size=3)
        for rank in range(3)
    ]
    per_rank = [[inputs for inputs, _ in loader] for loader in loaders]
    assert len({len(batches) for batches in per_rank}) == 1
    assert sum(len(batch) for batches in per_rank for batch in batches) == size
    last = [len(batches[-1]) for batches in per_rank]
    assert max(last) - min(last) <= 1
    rows = sorted(int(row[0]) for batches in per_rank for batch in batches for row in batch)
    assert rows == [min(index * 40, data.last_start) for index in range(size)]
    for loader in loaders:
        loader.close()


def test_random_order_takes_any_token_as_a_start(data: TokenDataset) -> None:
    with BatchLoader(data, batch_size=500, order="random", seed=9) as loader:
        starts = {int(row[0]) for row in next(loader)[0]}
    assert any(start % 40 for start in starts)
    assert max(starts) > data.last_start - 50 and min(starts) < 50


def test_segments_come_with_batches(make_dataset: MakeDataset) -> None:
    root = make_dataset([[np.arange(7), np.arange(7)], [np.arange(7)] * 6])
    data = TokenDataset(root, seq_len=10)
    with BatchLoader(data, batch_size=3, segments=True) as loader:
        for batch, _ in zip(loader, range(6), strict=False):
            # ids count from 0 in each document here, so positions are ids after the first document
            later = batch.segment_ids > 0
            assert np.array_equal(batch.positions[later], batch.inputs[later])
            assert np.array_equal(np.diff(batch.segment_ids) == 1, batch.inputs[:, 1:] == 0)


def test_segments_need_documents(tmp_path: Path, data: TokenDataset) -> None:
    np.save(tmp_path / "plain.npy", np.arange(900, dtype=np.int32))
    plain = TokenDataset(tmp_path / "plain.npy", seq_len=40)
    for source in (plain, Mixture({"data": data, "plain": plain})):
        with pytest.raises(DataError, match="where documents end"):
            BatchLoader(source, batch_size=3, segments=True)
    with BatchLoader(Mixture({"data": data}), batch_size=3, segments=True) as loader:
        assert next(loader).segment_ids.shape == (3, 40)


def test_state_of_other_data_or_settings_is_refused(
    make_dataset: MakeDataset, data: TokenDataset
) -> None:
    state = BatchLoader(data, batch_size=4).state_dict()
    assert len(repr(state)) < 250
    other = TokenDataset(make_dataset([[np.arange(1999)]], name="other"), seq_len=40)
    windows = TokenDataset(data.source.path, seq_len=40, stride=20)
    for changed in (other, windows):
        with pytest.raises(DataError, match="the data, or how it is cut"):
            BatchLoader(changed, batch_size=4).load_state_dict(state)
    with pytest.raises(DataError, match=r"seed was 0 .* now it is 1[\s\S]*give seed=0"):
        BatchLoader(data, batch_size=4, seed=1).load_state_dict(state)
    with pytest.raises(DataError, match="order was 'shuffle'"):
        BatchLoader(data, batch_size=4, order="random").load_state_dict(state)
    with pytest.raises(DataError, match="version 7"):
        BatchLoader(data, batch_size=4).load_state_dict({**state, "version": 7})
    with pytest.raises(DataError, match="a loader's state is without order, seed, samples"):
        wanted = ("version", "fingerprint")
        BatchLoader(data, batch_size=4).load_state_dict({name: state[name] for name in wanted})
    with pytest.raises(UsageError, match=r"is a dict from state_dict\(\), not \[\]"):
        BatchLoader(data, batch_size=4).load_state_dict([])  # pyright: ignore
    for samples in (-5, "7", 1.5, None, True, 1 << 62):
        with pytest.raises(DataError, match=f"a loader's state has {samples!r} as samples"):
            BatchLoader(data, batch_size=4).load_state_dict({**state, "samples": samples})
    BatchLoader(data, batch_size=9, rank=1, world_size=2).load_state_dict(state)


def test_arguments_of_the_wrong_kind_are_refused(data: TokenDataset) -> None:
    """At once, not in a thread with the first batch."""
    for options, message in (
        ({"seed": "x"}, "seed is 'x', expected a whole number"),
        ({"seed": 1.5}, "seed is 1.5, expected a whole number"),
        ({"rank": "0"}, "rank is '0', expected a whole number"),
        ({"world_size": 1.5}, "world_size is 1.5, expected a whole number"),
    ):
        with pytest.raises(UsageError, match=message):
            BatchLoader(data, batch_size=4, **options)
    path: Any = data.source.path
    with pytest.raises(UsageError, match="expected a TokenDataset or a Mixture") as caught:
        BatchLoader(path, batch_size=4)
    assert caught.value.next_step == "give TokenDataset(path, seq_len=…)"
    with BatchLoader(data, batch_size=4, seed=np.int64(-3)) as loader:  # pyright: ignore
        assert next(loader)[0].shape == (4, 40)


def test_a_changed_shard_is_refused_on_resume(make_dataset: MakeDataset) -> None:
    root = make_dataset([[np.arange(500)]])
    state = BatchLoader(TokenDataset(root, seq_len=40), batch_size=4).state_dict()
    make_dataset([[np.arange(1, 501)]])
    with pytest.raises(DataError, match="changed since"):
        BatchLoader(TokenDataset(root, seq_len=40), batch_size=4).load_state_dict(state)


def test_an_error_in_a_thread_reaches_the_caller_each_time(counting_dataset: Path) -> None:
    data = TokenDataset(counting_dataset, seq_len=40)
    os.truncate(counting_dataset / "train" / "shard_00004.bin", 10)
    with BatchLoader(data, batch_size=4, order="sequential") as loader:
        take(loader, 6)
        for _ in range(2):
            with pytest.raises(DataError, match=r"shard_00004\.bin"):
                take(loader, 10)
        assert loader.samples == 24


def test_a_program_may_end_without_closing(counting_dataset: Path) -> None:
    code = (
        "import gc, sys, threading\n"
        "from lowtide import BatchLoader, TokenDataset\n"
        "data = TokenDataset(sys.argv[1], seq_len=40)\n"
        "gone = BatchLoader(data, batch_size=4)\n"
        "next(gone)\n"
        "del gone\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "loader = BatchLoader(data, batch_size=4, prefetch_batches=50)\n"
        "next(loader)\n"
    )
    command = [sys.executable, "-c", code, str(counting_dataset)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_pinned_memory_holds_the_same_batches(data: TokenDataset) -> None:
    pytest.importorskip("torch")
    with (
        BatchLoader(data, batch_size=4) as plain,
        BatchLoader(data, batch_size=4, pin_memory=True) as pinned,
    ):
        assert take(plain, 5) == take(pinned, 5)


def test_planned_bytes_are_what_the_arrays_take(data: TokenDataset) -> None:
    with BatchLoader(data, batch_size=16, prefetch_batches=3) as loader:
        inputs, targets = next(loader)
        planned = planned_bytes(batch_size=16, seq_len=40, prefetch_batches=3)
        assert planned == 4 * (inputs.nbytes + targets.nbytes)


def test_settings_that_make_no_sense(data: TokenDataset) -> None:
    for options, message in (
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 1, "prefetch_batches": -1}, "prefetch_batches is -1"),
        ({"batch_size": 1, "rank": 2, "world_size": 2}, "rank 2 does not lie between 0 and 1"),
        ({"batch_size": 1, "order": "sorted"}, "order 'sorted'"),
    ):
        with pytest.raises(UsageError, match=message):
            BatchLoader(data, **options)


def test_no_thread_is_left_after_the_with(counting_dataset: Path) -> None:
    before = set(threading.enumerate())
    data = TokenDataset(counting_dataset, split="train", seq_len=16)
    with BatchLoader(data, batch_size=4, num_threads=3) as loader:
        next(iter(loader))
        started = set(threading.enumerate()) - before
        assert len(started) == 3
    assert not any(thread.is_alive() for thread in started)


class Numbers:
    """A source of samples that are their numbers; one of them cannot be read."""

    seq_len, output_dtype = 2, np.dtype(np.int64)

    def __init__(self, size: int = 10, bad: int | None = None) -> None:
        self.size, self.bad = size, bad
        self.fingerprint = "numbers"
        self.required = 0

    def __len__(self) -> int:
        return self.size

    def epoch_of(self, samples: int) -> int:
        return samples // self.size

    def require_documents(self) -> None:
        self.required += 1

    def plan_rows(self, order: str, *, seed: int, first: int, count: int) -> list[Any]:
        assert (order, seed) == ("sequential", 7)
        numbers = np.arange(first, first + count, dtype=np.uint64)
        return [SimpleNamespace(dataset=self, starts=numbers, rows=None)]

    def fill_rows(self, starts: Any, rows: Any, inputs: Any, targets: Any) -> None:
        if self.bad is not None and self.bad in starts.tolist():
            raise DataError(f"no sample {self.bad}")
        inputs[:] = starts[:, None]
        targets[:] = starts[:, None] + 1

    def fill_segments(self, starts: Any, rows: Any, segment_ids: Any, positions: Any) -> None:
        segment_ids[:] = starts[:, None] % 3
        positions[:] = starts[:, None] % 5


def numbers_of(source: Any, **more: Any) -> BatchLoader:
    given = {"batch_size": 3, "order": "sequential", "seed": 7, **more}
    return BatchLoader(source, **given)


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_samples_are_counted_as_they_are_given_out(prefetch: int) -> None:
    source: Any = Numbers()
    with numbers_of(source, prefetch_batches=prefetch, num_epochs=2) as loader:
        assert (loader.samples, loader.epoch) == (0, 0)
        sizes = []
        for inputs, targets in loader:
            assert inputs[:, 0].tolist() == list(range(sum(sizes), sum(sizes) + len(inputs)))
            assert (targets == inputs + 1).all()
            sizes.append(len(inputs))
            assert (loader.samples, loader.epoch) == (sum(sizes), sum(sizes) // 10)
            planned = loader._planned - loader.samples
            assert planned == min(3 * prefetch, 20 - loader.samples)
        assert sizes == [3] * 6 + [2]
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(loader)
        assert loader.state_dict() == {
            "version": 1, "samples": 20, "epoch": 2, "order": "sequential", "seed": 7,
            "fingerprint": "numbers",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "rank", "world", "end", "share"),
    [
        (0, 0, 1, None, (0, 4, 0, 4)), (8, 1, 2, None, (8, 16, 12, 4)),
        (8, 0, 1, 12, (8, 12, 8, 4)), (8, 0, 1, 11, (8, 11, 8, 3)), (8, 0, 1, 9, (8, 9, 8, 1)),
        (8, 0, 1, 8, None), (9, 0, 1, 8, None), (8, 0, 2, 11, (8, 11, 8, 1)),
        (8, 1, 2, 11, (8, 11, 9, 2)), (0, 2, 3, 2, (0, 2, 1, 1)), (0, 0, 3, 2, (0, 2, 0, 0)),
    ],
)  # fmt: skip
def test_the_rows_of_a_rank(
    first: int, rank: int, world: int, end: int | None, share: tuple[int, ...] | None
) -> None:
    found = batches.rank_share(first, batch_size=4, rank=rank, world_size=world, end=end)
    assert found == (None if share is None else batches.Share(*share))


@pytest.mark.parametrize(
    ("rank", "world", "fits"),
    [(0, 1, True), (1, 1, False), (-1, 2, False), (1, 2, True), (0, 0, False)],
)
def test_ranks_that_there_are(rank: int, world: int, fits: bool) -> None:
    if fits:
        batches.check_rank(rank, world)
        return
    with pytest.raises(UsageError, match=f"rank {rank} does not lie between 0 and {world - 1}"):
        batches.check_rank(rank, world)


def test_settings_are_taken_from_the_least_value_on() -> None:
    source: Any = Numbers()
    for name, least in (("batch_size", 1), ("prefetch_batches", 0), ("num_workers", 0)):
        numbers_of(source, **{name: least})
        with pytest.raises(UsageError, match=f"{name} is 2.5, expected a whole number"):
            numbers_of(source, **{name: 2.5})
        with pytest.raises(UsageError, match=f"{name} is {least - 1}, expected at least {least}"):
            numbers_of(source, **{name: least - 1})
    numbers_of(source)
    assert source.required == 0
    numbers_of(source, segments=True)
    assert source.required == 1


@pytest.mark.parametrize("prefetch", [0, 2])
def test_documents_come_with_rows(prefetch: int) -> None:
    source: Any = Numbers()
    with numbers_of(source, prefetch_batches=prefetch, segments=True) as loader:
        next(loader)
        found = next(loader)
    assert isinstance(found, TokenWindows)
    assert found.inputs[:, 0].tolist() == [3, 4, 5] and found.targets[:, 1].tolist() == [4, 5, 6]
    assert found.segment_ids[:, 0].tolist() == [0, 1, 2]
    assert found.positions[:, 1].tolist() == [3, 4, 0] and found.positions.dtype == np.int32


def test_after_an_error_the_batch_is_still_missing_until_the_place_changes() -> None:
    source: Any = Numbers(bad=4)
    with numbers_of(source, prefetch_batches=2) as loader:
        begin = loader.state_dict()
        next(loader)
        for _ in range(2):
            with pytest.raises(DataError, match="no sample 4"):
                next(loader)
            assert loader.samples == 3
        source.bad = None
        loader.load_state_dict(begin)
        assert loader.samples == loader._planned == 0
        assert next(loader)[0][:, 0].tolist() == [0, 1, 2]


def test_threads_are_named_and_as_many_as_asked_for() -> None:
    source: Any = Numbers()
    loader = numbers_of(source, num_workers=3)
    next(loader)
    assert loader._workers is not None
    threads = loader._workers._threads
    assert [thread.name for thread in threads] == [f"lowtide-batch-{n}" for n in range(3)]
    assert all(thread.daemon for thread in threads)
    loader.close()
    assert not any(thread.is_alive() for thread in threads)
    assert loader._workers is None and len(loader._queue) == 0
    assert next(loader)[0][:, 0].tolist() == [3, 4, 5]
    loader.close()


@pytest.mark.parametrize(("name", "value"), [("order", "shuffle"), ("seed", 8)])
def test_a_state_of_another_order_says_which(name: str, value: Any) -> None:
    source: Any = Numbers()
    state = {**numbers_of(source).state_dict(), name: value}
    here = {"order": "sequential", "seed": 7}[name]
    with pytest.raises(DataError) as caught:
        numbers_of(source).load_state_dict(state)
    assert caught.value.message == (
        f"the loader's {name} was {value!r} when its state was saved, now it is {here!r}"
    )
    assert caught.value.next_step == f"give {name}={value!r} to go on, or start a new run"


def test_closing_in_a_fork_leaves_the_threads_of_the_parent_alone() -> None:
    source: Any = Numbers()
    loader = numbers_of(source)
    next(loader)
    parents = loader._workers
    assert parents is not None
    loader._pid += 1  # as if this was a child of the process that made them
    loader.close()
    assert loader._workers is None and loader._finalizer is None
    assert all(thread.is_alive() for thread in parents._threads)
    parents.stop()


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ({}, 3 * 10 * 16 * 5),
        ({"segments": True}, 3 * 10 * 24 * 5),
        ({"item_bytes": 4}, 3 * 10 * 8 * 5),
        ({"prefetch_batches": 0}, 3 * 10 * 16),
        ({"prefetch_batches": 2, "item_bytes": 2, "segments": True}, 3 * 10 * 12 * 3),
    ],
)
def test_planned_bytes_of_every_kind(more: dict[str, Any], size: int) -> None:
    assert planned_bytes(batch_size=3, seq_len=10, **more) == size


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int64, np.array])
def test_numbers_of_numpy_are_those_of_python(counting_dataset: Path, kind: Any) -> None:
    """np.uint8(200) rows began their second batch with row 144, and no state could be saved."""

    def run(kind: Any) -> tuple[list[Any], str]:
        data = TokenDataset(counting_dataset, seq_len=kind(4), stride=kind(3))
        options = {"batch_size": kind(200), "num_epochs": kind(100), "prefetch_batches": kind(0)}
        ranks = {"rank": kind(1), "world_size": kind(2), "seed": kind(5)}
        loader = BatchLoader(data, **options, **ranks)
        return take(loader, 4), json.dumps(loader.state_dict())

    assert run(kind) == run(int)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_goes_on_by_itself(data: TokenDataset, copied: Callable[[Any], Any]) -> None:
    """copy.copy took batches of the first one's queue; others failed once threads ran."""
    with BatchLoader(data, batch_size=3) as loader:
        take(loader, 2)
        with copied(loader) as other:
            expected = take(BatchLoader(data, batch_size=3, prefetch_batches=0), 6)[2:]
            assert [take(one, 1)[0] for one in (loader, other) * 4] == [
                rows for rows in expected for _ in range(2)
            ]


@pytest.mark.parametrize("prefetch_batches", [0, 1, 4])
def test_threads_that_share_a_loader_take_each_batch_once(
    data: TokenDataset, prefetch_batches: int
) -> None:
    """Without prefetching two of them took the same batch, and others went missing."""
    with BatchLoader(data, batch_size=1, num_epochs=3) as alone:
        expected = sorted(inputs.tolist() for inputs, _ in alone)
    with BatchLoader(data, batch_size=1, num_epochs=3, prefetch_batches=prefetch_batches) as loader:
        found: list[Any] = []
        start = threading.Barrier(8)

        def take_all() -> None:
            start.wait()
            for inputs, _ in loader:
                found.append(inputs.tolist())

        threads = [threading.Thread(target=take_all) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == expected
        assert loader.samples == 3 * len(data)


def test_a_batch_that_was_waited_for_when_an_interrupt_came_is_not_left_out() -> None:
    """It was requested and nobody took it, and the next call gave the one behind it."""
    main = threading.get_ident()
    interrupted = threading.Event()

    class Slow(Numbers):
        def plan_rows(self, order: Any, *, seed: int, first: int, count: int) -> list[Any]:
            if first == 6 and not interrupted.is_set():
                signal.pthread_kill(main, signal.SIGINT)
                interrupted.wait()
            return super().plan_rows(order, seed=seed, first=first, count=count)

    source: Any = Slow()
    with numbers_of(source) as loader:
        found = []
        while len(found) < 6:
            try:
                found.append(next(loader)[0].tolist())
            except KeyboardInterrupt:
                interrupted.set()
    assert interrupted.is_set()
    plain: Any = Numbers()
    with numbers_of(plain) as loader:
        assert found == [next(loader)[0].tolist() for _ in range(6)]


def test_without_workers_the_calling_thread_makes_the_batches(data: TokenDataset) -> None:
    before = set(threading.enumerate())
    with BatchLoader(data, batch_size=3, num_workers=0) as loader:
        found = take(loader, 5)
        assert set(threading.enumerate()) == before
    with BatchLoader(data, batch_size=3) as loader:
        assert found == take(loader, 5)
    with pytest.raises(UsageError, match="num_workers is -1, expected at least 0"):
        BatchLoader(data, batch_size=3, num_workers=-1)


def test_no_more_threads_are_started_than_batches_are_requested(data: TokenDataset) -> None:
    """A million were started, until the system refused and nothing in the process could."""
    before = set(threading.enumerate())
    with BatchLoader(data, batch_size=3, num_workers=1_000_000, prefetch_batches=5) as loader:
        next(loader)
        assert len(set(threading.enumerate()) - before) == 5


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_threads_that_the_system_does_not_allow_are_done_without(
    data: TokenDataset, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BatchLoader(data, batch_size=3, num_workers=0) as plain:
        expected = [next(plain)[0].tolist() for _ in range(10)]
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_some(thread: threading.Thread) -> None:
        if len(started) == allowed:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with BatchLoader(data, batch_size=3, num_workers=3) as loader:
        assert [next(loader)[0].tolist() for _ in range(10)] == expected
    assert len(started) == allowed
