from __future__ import annotations

import math
import pickle
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import _native
from lowtide.errors import DataError, UsageError
from lowtide.loader import mixtures
from lowtide.loader.batches import BatchLoader
from lowtide.loader.mixtures import Mixture, exact_weights
from lowtide.loader.windows import TokenDataset

from .conftest import MakeDataset


def schedule(weights: list[int], first: int, count: int) -> tuple[list[int], list[int]]:
    sources = np.empty(count, dtype=np.uint32)
    taken = np.empty(len(weights), dtype=np.uint64)
    _native.MixtureSchedule(weights).slots(first, sources, taken)
    return sources.tolist(), taken.tolist()


def plain_schedule(weights: list[int], count: int) -> list[int]:
    """The rule as it is stated: samples in the order of (2j + 1) / w."""
    taken = [0] * len(weights)
    order = []
    for _ in range(count):
        source = min(range(len(weights)), key=lambda i: Fraction(2 * taken[i] + 1, weights[i]))
        taken[source] += 1
        order.append(source)
    return order


@given(
    weights=st.lists(st.integers(1, 1000), min_size=1, max_size=6),
    first=st.integers(0, 150),
    count=st.integers(0, 60),
)
def test_the_schedule_is_the_stated_rule_from_any_sample(
    weights: list[int], first: int, count: int
) -> None:
    expected = plain_schedule(weights, first + count)
    sources, taken = schedule(weights, first, count)
    assert sources == expected[first:]
    assert taken == [expected[:first].count(i) for i in range(len(weights))]


@given(
    weights=st.lists(st.integers(1, 2**40), min_size=1, max_size=8),
    first=st.integers(0, 2**50),
)
def test_shares_are_exact_at_every_sample(weights: list[int], first: int) -> None:
    _, taken = schedule(weights, first, 0)
    assert sum(taken) == first
    for weight, count in zip(weights, taken, strict=True):
        assert abs(count - Fraction(weight * first, sum(weights))) < max(1.0, len(weights) / 2)


def test_weights_are_read_as_written() -> None:
    assert exact_weights({"a": 0.7, "b": 0.2, "c": 0.1}) == {"a": 7, "b": 2, "c": 1}
    assert exact_weights({"a": 30, "b": 10}) == {"a": 3, "b": 1}
    assert exact_weights({"a": 1e-9, "b": 1}) == {"a": 1, "b": 10**9}
    rounded = exact_weights({"a": 0.123456789012345, "b": 1e-14})
    assert sum(rounded.values()) <= (1 << 40) + 1 and rounded["b"] == 1
    for weight in (0, -1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="the weight of 'a'"):
            exact_weights({"a": weight})


@pytest.fixture
def mixture(make_dataset: MakeDataset) -> Mixture:
    domain = make_dataset([[np.arange(0, 900)]], name="domain")
    general = make_dataset([[np.arange(10_000, 10_400)], [np.arange(10_400, 11_000)]], name="gen")
    return Mixture(
        {
            "domain": TokenDataset(domain, seq_len=30),
            "general": TokenDataset(general, seq_len=30),
        },
        {"domain": 0.75, "general": 0.25},
    )


def test_batches_hold_exact_shares(mixture: Mixture) -> None:
    with BatchLoader(mixture, batch_size=16) as loader:
        for _ in range(20):
            inputs, targets = next(loader)
            assert int((inputs[:, 0] >= 10_000).sum()) == 4
            assert np.array_equal(targets, inputs + 1)


def test_each_dataset_has_its_own_exact_epochs(mixture: Mixture) -> None:
    domain, general = mixture.datasets.values()
    with BatchLoader(mixture, batch_size=4, num_epochs=2) as loader:
        rows = np.concatenate([inputs[:, 0] for inputs, _ in loader])
    own = rows[rows < 10_000].tolist()
    size = len(domain)
    assert sorted(own[:size]) == sorted(own[size : 2 * size])
    assert len(set(own[:size])) == size
    other = rows[rows >= 10_000][: len(general)].tolist()
    assert len(set(other)) == len(other)
    assert mixture.epoch_of(len(rows)) == 2
    taken = mixture.samples_taken(len(rows))
    assert sum(taken.values()) == len(rows)
    assert mixture.epochs_of(len(rows))["domain"] == taken["domain"] / size


def test_mixtures_resume_on_other_ranks(mixture: Mixture) -> None:
    with BatchLoader(mixture, batch_size=6, seed=5) as whole:
        for _ in range(13):
            next(whole)
        state = whole.state_dict()
        expected = [next(whole)[0].tolist() for _ in range(9)]
    halves = [BatchLoader(mixture, batch_size=3, seed=5, rank=r, world_size=2) for r in range(2)]
    for loader in halves:
        loader.load_state_dict(state)
    for batch in expected:
        assert [row for loader in halves for row in next(loader)[0].tolist()] == batch
    for loader in halves:
        loader.close()


def test_other_weights_are_other_data(mixture: Mixture) -> None:
    state = BatchLoader(mixture, batch_size=4).state_dict()
    changed = Mixture(mixture.datasets, {"domain": 0.5, "general": 0.5})
    with pytest.raises(DataError, match="changed since"):
        BatchLoader(changed, batch_size=4).load_state_dict(state)
    same = Mixture(mixture.datasets, {"domain": 3, "general": 1})
    BatchLoader(same, batch_size=4).load_state_dict(state)


def test_without_weights_sizes_decide(mixture: Mixture) -> None:
    by_size = Mixture(mixture.datasets)
    sizes = [len(data) for data in mixture.datasets.values()]
    assert Fraction(*by_size.weights.values()) == Fraction(*sizes)
    assert len(by_size) == sum(sizes)


def test_datasets_that_do_not_fit_together(make_dataset: MakeDataset, tmp_path: Path) -> None:
    one = TokenDataset(make_dataset([[np.arange(90)]], name="one"), seq_len=8)
    longer = TokenDataset(one.source.path, seq_len=9)
    other = make_dataset([[np.arange(90)]], name="two", tokenizer="tokenizer-b")
    with pytest.raises(DataError, match="differ in seq_len: 8 and 9"):
        Mixture({"one": one, "longer": longer})
    with pytest.raises(DataError, match="differ in tokenizer_fingerprint: tokenizer-a and"):
        Mixture({"one": one, "other": TokenDataset(other, seq_len=8)})
    np.save(tmp_path / "plain.npy", np.arange(90, dtype=np.int32))
    plain = TokenDataset(tmp_path / "plain.npy", seq_len=8)
    mixed = Mixture({"plain": plain, "one": one})
    assert mixed.vocab_size == 60000 and mixed.tokenizer_dir == one.tokenizer_dir
    with pytest.raises(UsageError, match="different things: two"):
        Mixture({"one": one}, {"one": 1, "two": 2})
    with pytest.raises(UsageError, match="a mixture needs at least one dataset"):
        Mixture({})


def test_a_pickled_mixture_is_the_same(mixture: Mixture) -> None:
    copy = pickle.loads(pickle.dumps(mixture))
    assert copy.fingerprint == mixture.fingerprint
    batches = [
        next(BatchLoader(one, batch_size=10, prefetch_batches=0))[0] for one in (mixture, copy)
    ]
    np.testing.assert_array_equal(*batches)


@pytest.mark.parametrize(
    ("weights", "exact"),
    [
        ({"a": 0.9, "b": 0.1}, [9, 1]),
        ({"a": 2, "b": 4}, [1, 2]),
        ({"a": 0.25, "b": 0.5, "c": 1}, [1, 2, 4]),
        ({"a": 5}, [1]),
        ({"a": 1e-3, "b": 1}, [1, 1000]),
    ],
)
def test_weights_are_the_smallest_whole_numbers(
    weights: dict[str, float], exact: list[int]
) -> None:
    assert list(exact_weights(weights).values()) == exact
    for wrong in (0, -1, math.inf, math.nan):
        with pytest.raises(UsageError, match=f"the weight of 'x' is {wrong}"):
            exact_weights({**weights, "x": wrong})


def test_weights_of_many_digits_are_rounded() -> None:
    most = mixtures._MAX_TOTAL
    found = exact_weights({"a": 1, "b": 0.123456789012345})
    assert sum(found.values()) <= most
    assert found["b"] / found["a"] == pytest.approx(0.123456789012345)
    tiny = exact_weights({"a": 1, "b": 1e-18})
    assert tiny["b"] == 1  # never none


class Sized:
    """A dataset of so many windows."""

    seq_len, output_dtype, num_tokens = 4, np.dtype(np.int64), 100

    def __init__(self, size: int, **more: Any) -> None:
        self.size = size
        self.vocab_size = self.tokenizer_dir = self.tokenizer_fingerprint = None
        self.fingerprint = f"of {size}"
        self.source = SimpleNamespace(place="here")
        self.__dict__.update(more)

    def __len__(self) -> int:
        return self.size


def mixed(weights: dict[str, float] | None = None, **datasets: Any) -> Mixture:
    return Mixture(datasets, weights)


def test_an_epoch_of_a_mixture_is_one_of_its_first_dataset() -> None:
    for size, weights, samples in (
        (10, {"a": 1, "b": 2}, 30),
        (10, {"a": 3, "b": 2}, 17),
        (9, {"a": 3, "b": 1}, 12),
    ):
        mixture = mixed(weights, a=Sized(size), b=Sized(5))
        assert len(mixture) == samples
        assert mixture.epoch_of(samples) == 1 and mixture.epoch_of(samples - 1) in (0, 1)
        taken = mixture.samples_taken(samples)
        assert sum(taken.values()) == samples and taken["a"] >= size
        assert mixture.epochs_of(samples) == {"a": taken["a"] / size, "b": taken["b"] / 5}


def test_what_one_of_the_datasets_knows() -> None:
    about = {"vocab_size": 50, "tokenizer_dir": "tok", "tokenizer_fingerprint": "print"}
    plain = mixed(a=Sized(5), b=Sized(6))
    assert (plain.vocab_size, plain.tokenizer_dir, plain.tokenizer_fingerprint) == (None,) * 3
    for datasets in ((Sized(5), Sized(6, **about)), (Sized(5, **about), Sized(6))):
        mixture = mixed(a=datasets[0], b=datasets[1])
        assert {name: getattr(mixture, name) for name in about} == about
    assert plain.num_tokens == 200 and plain.weights == {"a": 5, "b": 6}


@pytest.mark.parametrize("what", ["seq_len", "output_dtype", "vocab_size", "tokenizer_fingerprint"])
def test_datasets_that_differ_are_named(what: str) -> None:
    one, two = Sized(5, **{what: 7}), Sized(5, **{what: 8})
    with pytest.raises(DataError) as caught:
        mixed(a=Sized(5, **{what: 7}), c=one, b=two)
    assert caught.value.message == f"a and b differ in {what}: 7 and 8"
    if what in ("vocab_size", "tokenizer_fingerprint"):
        mixed(a=one, b=Sized(5))  # not known of one


def test_a_mixture_of_nothing_or_of_other_names_is_refused() -> None:
    with pytest.raises(UsageError, match="needs at least one dataset"):
        mixed()
    with pytest.raises(UsageError, match=r"name different things: b, c$"):
        mixed({"a": 1, "c": 1}, a=Sized(5), b=Sized(5))


@pytest.mark.parametrize("weights", [{"a": "1"}, {"a": None}, [1.0], {"a": b"1"}])
def test_weights_of_the_wrong_kind_are_refused(weights: Any) -> None:
    data = TokenDataset(np.arange(100), seq_len=4)
    with pytest.raises(UsageError, match="expected a"):
        Mixture({"a": data}, weights)


def test_what_is_no_dataset_is_not_mixed() -> None:
    data: Any = TokenDataset(np.arange(100), seq_len=4)
    for wrong in ([data], {"a": "ids.npy"}, {"a": Mixture({"b": data})}):
        with pytest.raises(UsageError, match="expected a"):
            Mixture(wrong)
