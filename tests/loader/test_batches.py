from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.errors import DataError, UsageError
from lowtide.loader.batches import BatchLoader, planned_bytes
from lowtide.loader.mixtures import Mixture
from lowtide.loader.windows import TokenDataset

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
    BatchLoader(data, batch_size=9, rank=1, world_size=2).load_state_dict(state)


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
