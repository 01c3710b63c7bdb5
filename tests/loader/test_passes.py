"""Workers begin the same pass, in whatever order they begin it."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lowtide.loader.passes import Passes


def make_passes(num_workers: int = 8) -> Passes:
    table = np.zeros((Passes.rows, num_workers + 1), np.int64)
    return Passes(SimpleNamespace(numpy=lambda: table))


def begin(passes: Passes, seed: int, num_workers: int, places: Iterable[int]) -> list[int]:
    """The pass of each worker, in the order in which they begin it."""
    return [
        passes.begin(SimpleNamespace(id=place, num_workers=num_workers, seed=seed + place))
        for place in places
    ]


def test_workers_that_did_not_begin_join_the_next_pass() -> None:
    """A loop may be left before all of its workers have begun."""
    passes = make_passes()
    assert begin(passes, 10, 3, [1]) == [0]
    assert begin(passes, -20, 3, [2, 0, 1]) == [1, 1, 1]
    assert begin(passes, -20, 3, [1, 0, 2]) == [2, 2, 2]  # workers that stay
    assert begin(passes, -20, 4, [3, 0, 1, 2]) == [3, 3, 3, 3]  # torch.manual_seed, another number
    assert [passes.begin(None), passes.begin(None)] == [4, 5]
    assert begin(passes, 30, 2, [1, 0]) == [6, 6]
    passes.set_next(2)
    assert begin(passes, 30, 2, [0, 1]) == [2, 2]


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3), st.randoms()), max_size=12))
def test_each_pass_is_begun_by_all_of_its_workers(loops) -> None:
    passes, last = make_passes(), -1
    for seed, (num_workers, stays, random) in enumerate(loops):
        for _ in range(1 + stays):
            places = random.sample(range(num_workers), num_workers)
            assert begin(passes, seed, num_workers, places) == [last + 1] * num_workers
            last += 1
