"""Which rows of an encoded part have keys in a range.

In:      a part that the encode stage wrote, and a range of keys
Out:     the range of its rows, and of their tokens
Memory:  two numbers of each of two sections
"""

from __future__ import annotations

from typing import NamedTuple

from lowtide.engine.outputs import Output

__all__ = ["ChosenKeys", "RowRange", "find_rows"]


class ChosenKeys(NamedTuple):
    """The documents to read: keys from `low` to `high`, of one split or of both."""

    low: int
    high: int
    id_bytes: int
    val: bool | None
    val_limit: int

    def find_buckets(self, num_buckets: int) -> tuple[int, int]:
        """The first and the last bucket of the keys."""
        width = (1 << 64) // num_buckets
        return self.low // width, self.high // width


class RowRange(NamedTuple):
    """The range of the rows of a part, and of their tokens."""

    row: int
    row_end: int
    token: int
    token_end: int | None


def find_rows(output: Output, chosen: ChosenKeys, num_buckets: int) -> RowRange:
    """Find the range of the keys in a part."""
    first, last = chosen.find_buckets(num_buckets)
    with output.path.open("rb", buffering=0) as file:

        def end_of(name: str, bucket: int) -> int:
            if bucket < 0:
                return 0
            return output.read_from(file, name, begin=8 * bucket, end=8 * bucket + 8).cast("q")[0]

        return RowRange(
            end_of("row_ends", first - 1),
            end_of("row_ends", last),
            end_of("token_ends", first - 1),
            end_of("token_ends", last),
        )
