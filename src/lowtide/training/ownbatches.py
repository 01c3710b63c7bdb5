"""Batches of a user's own iterator, checked before anything is computed with them.

In:      any iterator of batches with a state (batchsources.py)
Out:     the same batches; DataError for those that would train something else than they seem to
Memory:  none of its own
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowtide.arrays import np
from lowtide.errors import DataError

if TYPE_CHECKING:
    from lowtide.training.batchsources import BatchSource

__all__ = ["OwnBatches"]

_BOTH = "inputs and targets"


class OwnBatches:
    """Passes batches on; refuses what is no ids, and an end, which a run does not know.

    `vocab_size` is None for a user's own module, which may have targets of its own kind.
    """

    def __init__(self, source: BatchSource, *, vocab_size: int | None) -> None:
        self._source, self._vocab_size = source, vocab_size

    def __next__(self) -> tuple[Any, Any]:
        try:
            batch = next(self._source)
        except StopIteration:
            raise DataError(
                "the batches given as data came to their end",
                next_step="let __next__ begin again: a run takes them without end",
            ) from None
        if not isinstance(batch, tuple | list) or len(batch) != 2:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _refused(f"is of type {type(batch).__name__}", f"a tuple of {_BOTH}")
        inputs, targets = batch
        for name, ids in (("inputs", inputs), ("targets", targets)):
            _require_ids(name, ids, self._vocab_size)
        shapes = tuple(inputs.shape), tuple(targets.shape)
        fits = shapes[0][:1] == shapes[1][:1]  # which is all that an own loss needs
        if self._vocab_size is not None:
            fits = shapes[0] == shapes[1] and len(shapes[0]) == 2
        if not fits:
            raise _refused(f"has {_BOTH} of shapes {shapes[0]} and {shapes[1]}", "rows of tokens")
        return inputs, targets

    def state_dict(self) -> dict[str, Any]:
        """The position of the next batch."""
        return self._source.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position."""
        self._source.load_state_dict(state)

    def close(self) -> None:
        """Close the user's iterator."""
        self._source.close()


def _require_ids(name: str, ids: Any, vocab_size: int | None) -> None:
    """Refuse what is no array or tensor of whole numbers, or has ids outside of a vocabulary."""
    is_tensor = hasattr(ids, "is_floating_point")
    kind = getattr(getattr(ids, "dtype", None), "kind", "") if not is_tensor else ""
    if is_tensor and not (ids.is_floating_point() or ids.is_complex()):
        kind = "i"
    if kind not in ("i", "u"):  # fractions would be cut off
        found = getattr(ids, "dtype", type(ids).__name__)
        raise _refused(f"has {name} of {found}", "arrays or tensors of whole numbers")
    on_device = is_tensor and ids.device.type != "cpu"  # to look at them there would take time
    if vocab_size is None or on_device or 0 in ids.shape:
        return
    array = np.asarray(ids)
    least, most = int(array.min()), int(array.max())
    if least < 0 or most >= vocab_size:
        raise _refused(
            f"has {name} with id {least if least < 0 else most}",
            f"from 0 to {vocab_size - 1}, the ids of the model",
        )


def _refused(found: str, expected: str) -> DataError:
    return DataError(
        f"a batch given as data {found}, expected {expected}",
        next_step="correct what the iterator returns",
    )
