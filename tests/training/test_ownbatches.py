"""A user's own batches: what would train something else than it seems to is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lowtide.errors import DataError
from lowtide.training.ownbatches import OwnBatches

IDS = np.arange(12).reshape(3, 4)


class Source:
    """The given batches, one after the other."""

    def __init__(self, *batches: Any) -> None:
        self._batches = iter(batches)

    def __next__(self) -> Any:
        return next(self._batches)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("inputs", "targets"),
    [(IDS, IDS), (IDS.astype(np.uint16), torch.tensor(IDS)), (IDS[:0], IDS[:0])],
)
@pytest.mark.parametrize("vocab_size", [12, None])
def test_ids_are_passed_on(inputs: Any, targets: Any, vocab_size: int | None) -> None:
    found = next(OwnBatches(Source((inputs, targets)), vocab_size=vocab_size))
    assert found[0] is inputs and found[1] is targets


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ((IDS + 0.5, IDS), "inputs of float64, expected arrays or tensors of whole numbers"),
        ((IDS, torch.zeros(3, 4)), "targets of torch.float32"),
        ((IDS, IDS.tolist()), "targets of list"),
        (IDS, "is of type ndarray, expected a tuple of inputs and targets"),
        ((IDS, IDS, IDS), "is of type tuple"),
        ((IDS, IDS[:2]), r"shapes \(3, 4\) and \(2, 4\)"),
    ],
)
@pytest.mark.parametrize("vocab_size", [12, None])
def test_what_is_no_batch_is_refused(batch: Any, said: str, vocab_size: int | None) -> None:
    with pytest.raises(DataError, match=said) as caught:
        next(OwnBatches(Source(batch), vocab_size=vocab_size))
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ((IDS, IDS.reshape(4, 3)), r"shapes \(3, 4\) and \(4, 3\), expected rows of tokens"),
        ((IDS.ravel(), IDS.ravel()), r"shapes \(12,\) and \(12,\)"),
        ((IDS, IDS - 1), "targets with id -1, expected from 0 to 11"),
        ((torch.tensor(IDS) + 1, IDS), "inputs with id 12, expected from 0 to 11"),
    ],
)
def test_a_gpt_takes_rows_of_its_own_ids(batch: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        next(OwnBatches(Source(batch), vocab_size=12))


def test_a_module_may_have_other_targets() -> None:
    labels = np.array([-100, 0, 7])
    assert next(OwnBatches(Source((IDS, labels)), vocab_size=None))[1] is labels


def test_an_end_is_told() -> None:
    batches = OwnBatches(Source((IDS, IDS)), vocab_size=12)
    next(batches)
    with pytest.raises(DataError, match="came to their end"):
        next(batches)
