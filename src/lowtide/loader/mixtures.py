"""Mix several datasets in exact proportions, such as for replay of general text.

In:      named TokenDatasets and their weights
Out:     rows of batches, each from one of the datasets
Memory:  that of the datasets; the number of a sample alone decides its dataset
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from lowtide import _native
from lowtide.errors import DataError, UsageError
from lowtide.files import checksum_bytes
from lowtide.loader.ordering import Order, derive_seed
from lowtide.loader.windows import RowPlan, TokenDataset

__all__ = ["Mixture", "exact_weights"]

_MAX_TOTAL = 1 << 40


def exact_weights(weights: Mapping[str, float]) -> dict[str, int]:
    """Convert weights to the smallest whole numbers in the same proportions.

    Numbers are read as decimals: 0.1 is a tenth, not the nearest binary fraction.

    >>> exact_weights({"domain": 0.9, "general": 0.1})
    {'domain': 9, 'general': 1}
    """
    fractions: dict[str, Fraction] = {}
    for name, weight in weights.items():
        given: Any = weight
        is_number = not isinstance(given, str | bytes) and hasattr(given, "__float__")
        if not is_number or not math.isfinite(weight) or weight <= 0:
            raise UsageError(
                f"the weight of {name!r} is {weight!r}, expected a number above 0",
                next_step="leave a dataset out to give it no weight",
            )
        fractions[name] = Fraction(str(weight))
    scale = math.lcm(*(fraction.denominator for fraction in fractions.values()))
    numbers = {name: int(fraction * scale) for name, fraction in fractions.items()}
    common = math.gcd(*numbers.values())
    numbers = {name: number // common for name, number in numbers.items()}
    total = sum(numbers.values())
    if total > _MAX_TOTAL:  # weights of a dozen digits: rounding them here has no visible effect
        numbers = {name: max(1, number * _MAX_TOTAL // total) for name, number in numbers.items()}
    return numbers


class Mixture:
    """Datasets mixed by weight: after any number of samples each has its share, to within one.

    A dataset that ends starts its own next epoch, in another order. `len` and the epoch of a
    mixture are those of its first dataset: one epoch is when that has been seen once.

    Example: nine windows of the domain for each one of general text.

        mixture = Mixture({"domain": domain, "general": general}, {"domain": 0.9, "general": 0.1})
        loader = BatchLoader(mixture, batch_size=32)
    """

    def __init__(
        self, datasets: Mapping[str, TokenDataset], weights: Mapping[str, float] | None = None
    ) -> None:
        given: Any
        for what, given in (("datasets", datasets), ("weights", weights)):
            if not isinstance(given, Mapping | None):
                raise UsageError(
                    f"{what} is of type {type(given).__name__}, expected a dict by name",
                    next_step='give {"mine": dataset, "general": other}, and such weights',
                )
        if not datasets:
            raise UsageError(
                "a mixture needs at least one dataset, and none is named",
                next_step="name at least one dataset",
            )
        for name, given in datasets.items():
            if isinstance(given, Mixture) or not hasattr(given, "seq_len"):
                raise UsageError(
                    f"{name!r} is of type {type(given).__name__}, expected a TokenDataset",
                    next_step="give TokenDataset(path, seq_len=…)",
                )
        sizes: Mapping[str, float] = {name: len(data) for name, data in datasets.items()}
        weights = sizes if weights is None else weights
        if set(weights) != set(datasets):
            odd = ", ".join(sorted(set(weights) ^ set(datasets)))
            raise UsageError(f"datasets and weights name different things: {odd}")
        self.datasets = dict(datasets)
        self.weights = exact_weights({name: weights[name] for name in datasets})
        self._names = list(self.datasets)
        self._schedule = _native.MixtureSchedule([self.weights[name] for name in self._names])
        first = self.datasets[self._names[0]]
        self.seq_len = first.seq_len
        self.output_dtype = first.output_dtype
        for name in self._names[1:]:
            self._check_alike(self._names[0], name)

    def __reduce__(self) -> tuple[Any, ...]:
        return Mixture, (self.datasets, self.weights)  # the schedule is recomputed from the weights

    def _check_alike(self, first_name: str, name: str) -> None:
        """Refuse datasets whose windows differ in length or type, or whose tokenizers differ."""
        first, other = self.datasets[first_name], self.datasets[name]
        for what in ("seq_len", "output_dtype", "vocab_size", "tokenizer_fingerprint"):
            one, two = getattr(first, what), getattr(other, what)
            if one != two and one is not None and two is not None:
                raise DataError(
                    f"{first_name} and {name} differ in {what}: {one} and {two}",
                    path=other.source.place,
                    next_step="prepare both with the same tokenizer, and cut both alike",
                )

    def require_documents(self) -> None:
        """Refuse datasets that do not record where documents end."""
        for data in self.datasets.values():
            data.require_documents()

    def bound_ids(self, count: int) -> None:
        """Refuse ids from `count` on, as each of the datasets does."""
        for data in self.datasets.values():
            data.bound_ids(count)

    @property
    def vocab_size(self) -> int | None:
        """The size of the vocabulary, if one of the datasets records it."""
        known = [data.vocab_size for data in self.datasets.values() if data.vocab_size is not None]
        return known[0] if known else None

    @property
    def tokenizer_dir(self) -> str | None:
        """The folder of the tokenizer, if one of the datasets records it."""
        known = [data.tokenizer_dir for data in self.datasets.values() if data.tokenizer_dir]
        return known[0] if known else None

    @property
    def tokenizer_fingerprint(self) -> str | None:
        """The fingerprint of that tokenizer."""
        prints = [data.tokenizer_fingerprint for data in self.datasets.values()]
        return next((value for value in prints if value), None)

    @property
    def num_tokens(self) -> int:
        """Tokens of all datasets together."""
        return sum(data.num_tokens for data in self.datasets.values())

    @property
    def fingerprint(self) -> str:
        """A hash of the datasets, their names and weights."""
        parts = [f"{name} {self.weights[name]} {data.fingerprint}" for name, data in self._items()]
        return checksum_bytes("\n".join(parts).encode())

    def _items(self) -> list[tuple[str, TokenDataset]]:
        return list(self.datasets.items())

    def __len__(self) -> int:
        """Return the number of samples after which the first dataset has been read once."""
        first = self._names[0]
        total = sum(self.weights.values())
        return -(-len(self.datasets[first]) * total // self.weights[first])

    def samples_taken(self, samples: int) -> dict[str, int]:
        """The number of samples from each dataset among a run's first `samples` samples."""
        taken = np.empty(len(self._names), dtype=np.uint64)
        self._schedule.slots(samples, np.empty(0, dtype=np.uint32), taken)
        return dict(zip(self._names, taken.tolist(), strict=True))

    def epochs_of(self, samples: int) -> dict[str, float]:
        """The epochs of each dataset after `samples` samples of a run."""
        taken = self.samples_taken(samples)
        return {name: taken[name] / len(data) for name, data in self._items()}

    def epoch_of(self, samples: int) -> int:
        """Return the epoch of the first dataset."""
        first = self._names[0]
        return self.samples_taken(samples)[first] // len(self.datasets[first])

    def plan_rows(self, order: Order, *, seed: int, first: int, count: int) -> list[RowPlan]:
        """For each dataset, its windows among samples `first` to `first + count`."""
        sources = np.empty(count, dtype=np.uint32)
        taken = np.empty(len(self._names), dtype=np.uint64)
        self._schedule.slots(first, sources, taken)
        plans: list[RowPlan] = []
        for number, (name, data) in enumerate(self._items()):
            rows = np.flatnonzero(sources == number).astype(np.uint64)
            if len(rows) == 0:
                continue
            # Consecutive samples of a mixture are consecutive samples of each of its datasets.
            (plan,) = data.plan_rows(
                order, seed=derive_seed(seed, name), first=int(taken[number]), count=len(rows)
            )
            plans.append(RowPlan(data, plan.starts, rows))
        return plans
