from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.errors import DataError, UsageError
from lowtide.loader.batches import BatchLoader
from lowtide.loader.mixtures import Mixture
from lowtide.loader.windows import TokenDataset

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from lowtide.loader.torchloaders import (  # noqa: E402
    LocalDataModule,
    LocalTokenizedDataset,
    LocalTokenizedDatasetFixed,
    TokenDataLoader,
    create_dataloaders,
    empty_pinned,
)


@pytest.fixture
def train_path(tmp_path: Path) -> Path:
    path = tmp_path / "owt_train_tokens.npy"
    np.save(path, np.arange(1000, dtype=np.int32))
    return path


@pytest.fixture
def val_path(tmp_path: Path) -> Path:
    path = tmp_path / "owt_valid_tokens.npy"
    np.save(path, np.arange(5000, 5200, dtype=np.int32))
    return path


def rows(batches: Any) -> list[list[int]]:
    return [inputs[:, 0].tolist() for inputs, _ in batches]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_call_of_the_guide(train_path: Path, val_path: Path, num_workers: int) -> None:
    train_loader, val_loader = create_dataloaders(
        train_data_path=train_path,
        val_data_path=val_path,
        batch_size=8,
        max_length=32,
        num_workers=num_workers,
        prefetch_factor=4,
        seed=42,
    )
    inputs, targets = next(iter(train_loader))
    assert inputs.shape == targets.shape == (8, 32)
    assert inputs.dtype == torch.int64
    seen = []
    for inputs, targets in train_loader:
        assert torch.equal(targets, inputs + 1)  # the ids count up, headers are no tokens
        seen += inputs[:, 0].tolist()
    assert sorted(seen) == [min(index * 32, 967) for index in range(32)]
    assert rows(val_loader)[0][:3] == [5000, 5032, 5064]
    assert rows(val_loader) == rows(val_loader)


def test_a_batch_has_a_row_at_least(train_path: Path) -> None:
    data = TokenDataset(train_path, split="all", seq_len=16)
    for make in (TokenDataLoader, BatchLoader):
        ids, _ = next(iter(make(data, batch_size=1, order="sequential")))
        assert ids.shape == (1, 16)
        with pytest.raises(UsageError, match="batch_size is 0"):
            make(data, batch_size=0)


def test_batches_are_the_same_for_any_number_of_workers(train_path: Path) -> None:
    data = TokenDataset(train_path, split="all", seq_len=16)
    loaders = [TokenDataLoader(data, batch_size=5, num_workers=n) for n in (0, 1, 3)]
    first = [rows(loader) for loader in loaders]
    second = [rows(loader) for loader in loaders]
    assert first[0] == first[1] == first[2]
    assert second[0] == second[1] == second[2]
    assert first[0] != second[0]
    with BatchLoader(data, batch_size=5, seed=42) as other:
        assert rows(next(other) for _ in range(12)) == first[0][:12]


def test_ranks_share_an_epoch(train_path: Path) -> None:
    data = TokenDataset(train_path, split="all", seq_len=16)
    alone = rows(TokenDataLoader(data, batch_size=6))
    ranks = [rows(TokenDataLoader(data, batch_size=3, rank=r, world_size=2)) for r in range(2)]
    assert [a + b for a, b in zip(*ranks, strict=True)] == alone


@pytest.mark.parametrize("workers", [(0, 2), (2, 0)])
def test_resume_with_another_number_of_workers(train_path: Path, workers: tuple[int, int]) -> None:
    data = TokenDataset(train_path, split="all", seq_len=16)
    whole = TokenDataLoader(data, batch_size=4)
    expected = rows(whole) + rows(whole)
    stopped = TokenDataLoader(data, batch_size=4, num_workers=workers[0])
    rows(stopped)
    found = []
    for batch in stopped:
        found += rows([batch])
        if len(found) == 5:
            break
    state = stopped.state_dict()
    assert state["samples"] == len(data) + 20 and state["epoch"] == 1
    resumed = TokenDataLoader(data, batch_size=4, num_workers=workers[1])
    resumed.load_state_dict(state)
    assert found + rows(resumed) == expected[len(expected) // 2 :]
    assert resumed.epoch == 2


def test_a_pass_left_early_is_not_gone_on_with(val_path: Path) -> None:
    data = TokenDataset(val_path, split="all", seq_len=16)
    loader = TokenDataLoader(data, batch_size=2, order="sequential")
    first = [rows([batch]) for batch, _ in zip(loader, range(3), strict=False)]
    again = [rows([batch]) for batch, _ in zip(loader, range(3), strict=False)]
    assert first == again


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_iterable_workers_do_not_overlap(
    train_path: Path, num_workers: int, persistent: bool
) -> None:
    dataset = LocalTokenizedDataset(train_path, max_length=16, seed=1)
    loader = DataLoader(
        dataset,
        batch_size=8,
        num_workers=num_workers,
        persistent_workers=persistent and num_workers > 0,
    )
    passes = [[row for batch in rows(loader) for row in batch] for _ in range(2)]
    everything = [min(index * 16, 983) for index in range(dataset.num_windows)]
    assert sorted(passes[0]) == sorted(passes[1]) == everything
    assert passes[0] != passes[1]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_iterable_batches_are_the_same_for_any_number_of_workers(train_path: Path) -> None:
    found = []
    for num_workers in (0, 2, 3):
        dataset = LocalTokenizedDataset(train_path, max_length=16, batch_size=4)
        found.append([rows(DataLoader(dataset, batch_size=None, num_workers=num_workers))] * 2)
    assert found[0] == found[1] == found[2]


def test_iterable_ranks_and_epochs(train_path: Path) -> None:
    parts = [
        LocalTokenizedDataset(train_path, max_length=16, rank=rank, world_size=3)
        for rank in range(3)
    ]
    seen = sorted(int(inputs[0]) for part in parts for inputs, _ in part)
    assert seen == [min(index * 16, 983) for index in range(parts[0].num_windows)]
    one = parts[0]
    one.set_epoch(7)
    first = [int(inputs[0]) for inputs, _ in one]
    second = [int(inputs[0]) for inputs, _ in one]
    one.set_epoch(7)
    assert [int(inputs[0]) for inputs, _ in one] == first != second
    plain = LocalTokenizedDataset(train_path, max_length=16, shuffle=False)
    assert [int(inputs[0]) for inputs, _ in plain][:3] == [0, 16, 32]


def test_map_style_dataset_in_a_plain_data_loader(train_path: Path) -> None:
    dataset = LocalTokenizedDatasetFixed(train_path, max_length=16)
    inputs, targets = dataset[3]
    assert inputs.tolist() == list(range(48, 64)) and torch.equal(targets, inputs + 1)
    batches = list(DataLoader(dataset, batch_size=10, num_workers=2))
    assert sum(len(inputs) for inputs, _ in batches) == len(dataset)
    assert rows(batches)[0] == [index * 16 for index in range(10)]


def test_data_module(train_path: Path, val_path: Path) -> None:
    module = LocalDataModule(
        train_path, val_path, batch_size=4, max_length=16, num_workers=0, seed=3
    )
    train = module.train_dataloader()
    rows(train)
    assert train is module.train_dataloader()
    other = LocalDataModule(train_path, batch_size=4, max_length=16, num_workers=0, seed=3)
    assert rows(other.val_dataloader())[0][0] == 900
    with pytest.raises(DataError, match="changed since"):  # one takes the file whole, one in part
        other.load_state_dict(module.state_dict())
    missing = LocalDataModule(train_path.with_name("none.npy"), batch_size=4)
    with pytest.raises(DataError, match=r"none\.npy not found"):
        missing.setup()
    with pytest.raises(UsageError, match="batch_size is 0"):
        create_dataloaders(train_path, batch_size=0, max_length=16)


def test_a_prepared_dataset_gives_its_own_splits(counting_dataset: Path) -> None:
    train, val = create_dataloaders(counting_dataset, batch_size=4, max_length=50, num_workers=0)
    assert max(max(batch) for batch in rows(train)) < 2000
    assert min(min(batch) for batch in rows(val)) == 5000
    _, other = create_dataloaders(
        counting_dataset, counting_dataset, batch_size=4, max_length=50, num_workers=0
    )
    assert rows(other) == rows(val)


def test_pinned_arrays_are_ordinary_arrays_elsewhere() -> None:
    array = empty_pinned((3, 5), np.dtype("int32"))
    assert array.shape == (3, 5) and array.dtype == np.int32 and array.flags.c_contiguous
    assert torch.from_numpy(array).is_pinned() == torch.cuda.is_available()


def test_only_this_module_imports_torch() -> None:
    code = (
        "import sys; import lowtide.loader.mixtures, lowtide.loader.selftest, "
        "lowtide.loader.streaming; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 62, 63, 64])
def test_batches_of_all_ranks_and_workers_are_the_epoch(
    train_path: Path, world_size: int, batch_size: int
) -> None:
    """Workers take turns batch by batch; the last batch has what is left."""
    expected = [min(index * 16, 983) for index in range(63)]
    for num_workers in (1, 2):
        starts: list[int] = []
        for rank in range(world_size):
            dataset = LocalTokenizedDataset(
                train_path, max_length=16, batch_size=batch_size, shuffle=False, rank=rank,
                world_size=world_size,
            )  # fmt: skip
            assert dataset.num_windows == 63
            for worker in range(num_workers):
                for inputs, targets in dataset._iter_batches(0, worker, num_workers, batch_size):
                    assert len(inputs) <= batch_size
                    assert torch.equal(targets[:, :-1], inputs[:, 1:])
                    starts += inputs[:, 0].tolist()
        assert sorted(starts) == expected


def test_iterable_batches_are_whole_and_passes_count(train_path: Path) -> None:
    dataset = LocalTokenizedDataset(train_path, max_length=16, batch_size=4)
    passes = [[row for batch in rows(dataset) for row in batch] for _ in range(2)]
    assert sorted(passes[0]) == sorted(passes[1]) == [min(n * 16, 983) for n in range(63)]
    assert passes[0] != passes[1]
    dataset.set_epoch(0)
    assert [row for batch in rows(dataset) for row in batch] == passes[0]


@pytest.mark.parametrize("batch_size", [1, 10, 62, 63, 64])
def test_a_pass_ends_with_its_epoch(train_path: Path, batch_size: int) -> None:
    """The last batch may have fewer rows than the others: the next pass begins at its window."""
    loader = TokenDataLoader(
        TokenDataset(train_path, split="all", seq_len=16), batch_size=batch_size
    )
    for epoch in (1, 2):
        sizes = [len(inputs) for inputs, _ in loader]
        assert sum(sizes) == 63 and loader.epoch == epoch
        assert loader.state_dict()["samples"] == 63 * epoch
    next(iter(loader))
    assert loader.state_dict()["samples"] == 63 * 2 + min(batch_size, 63)
    next(iter(loader))  # a pass that was left early: the next epoch's
    assert loader.state_dict()["samples"] == 63 * 3 + min(batch_size, 63)


def test_a_loader_knows_how_many_batches_it_has(train_path: Path) -> None:
    data = TokenDataset(train_path, split="all", seq_len=16)
    for batch_size, world_size, count in (
        (1, 1, 63),
        (63, 1, 1),
        (62, 1, 2),
        (10, 2, 4),
        (9, 7, 1),
    ):
        loader = TokenDataLoader(data, batch_size=batch_size, world_size=world_size)
        assert len(loader) == count


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": "x"}, "seed is 'x', expected a whole number"),
        ({"batch_size": 0}, "batch_size is 0, expected at least 1"),
    ],
)
def test_settings_of_the_wrong_kind_are_refused_at_once(
    train_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        LocalTokenizedDataset(train_path, 32, **options)
    with pytest.raises(UsageError, match=message):
        TokenDataLoader(TokenDataset(train_path, seq_len=32), **{"batch_size": 8, **options})


def test_data_and_orders_that_a_loader_cannot_read_are_refused_at_once(train_path: Path) -> None:
    data: Any = TokenDataset(train_path, seq_len=32)
    with pytest.raises(UsageError, match="order 'shuffled' is not one of"):
        TokenDataLoader(data, batch_size=8, order="shuffled")  # pyright: ignore
    for wrong in (str(train_path), Mixture({"mine": data})):
        with pytest.raises(UsageError, match="expected a TokenDataset"):
            TokenDataLoader(wrong, batch_size=8)  # pyright: ignore


def test_numbers_of_numpy_are_those_of_python(train_path: Path) -> None:
    """np.uint8(200) rows of two processes are 144 as np.uint8: 56 of 200 were left out."""

    def run(kind: Any) -> list[Any]:
        loader, _ = create_dataloaders(
            train_path,
            batch_size=kind(200),
            max_length=kind(3),
            num_workers=kind(0),
            world_size=kind(2),
        )
        rows = [inputs.tolist() for inputs, _ in loader]
        return [rows, json.dumps(loader.state_dict())]

    assert run(np.uint8) == run(int)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_agree_on_the_pass_whoever_read_before(train_path: Path, persistent: bool) -> None:
    """Each worker counted its own passes: after a look at a window, 29 of 100 were left out."""
    dataset = LocalTokenizedDataset(train_path, max_length=16)
    everything = [min(index * 16, 983) for index in range(dataset.num_windows)]

    def whole_passes(num_workers: int) -> list[list[int]]:
        loader = DataLoader(
            dataset,
            batch_size=None,
            num_workers=num_workers,
            persistent_workers=persistent and num_workers > 0,
        )
        passes = [[int(inputs[0]) for inputs, _ in loader] for _ in range(2)]
        assert all(sorted(one) == everything for one in passes)
        return passes

    next(iter(dataset))
    found = [whole_passes(num_workers) for num_workers in (2, 3, 0, 2)]
    assert len({tuple(one) for passes in found for one in passes}) == 8  # each in its own order


def test_the_next_pass_is_a_number(train_path: Path) -> None:
    with pytest.raises(UsageError, match="epoch is -1, expected at least 0"):
        LocalTokenizedDataset(train_path, max_length=16).set_epoch(-1)


def test_two_loops_at_once_have_their_own_places(train_path: Path) -> None:
    """The state counted the batches of one loop from the place of the other."""
    loader = TokenDataLoader(TokenDataset(train_path, split="all", seq_len=16), batch_size=4)
    first, second = iter(loader), iter(loader)
    seen: list[int] = []
    for loop in (first, first, second, second, second, first):
        next(loop)
        seen.append(loader.state_dict()["samples"])
    assert seen == [4, 8, 63 + 4, 63 + 8, 63 + 12, 12]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_of_another_loop_are_not_taken_for_its_own(train_path: Path) -> None:
    data = TokenDataset(train_path, split="all", seq_len=16)
    loader = TokenDataLoader(data, batch_size=4, num_workers=1)
    first, second = iter(loader), iter(loader)
    next(first)
    next(second)
    with pytest.raises(UsageError, match="another loop over this loader has begun"):
        next(first)
    assert len([*second]) == len(loader) - 1
