"""The plan of a preparation as data: everything that decides its result and its work files.

In:      settings, inputs as they are on disk, a tokenizer's fingerprint
Out:     canonical JSON, created once in the work folder; a worker with a different plan is refused
Memory:  a few numbers

Every number here follows from the bytes of the inputs, never from workers or memory, so that all
workers write the same files.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from lowtide import __version__
from lowtide.corpus.inputs import InputFile, hash_inputs
from lowtide.quickclasses import dataclass

__all__ = ["PreparePlan", "Sizes"]

_MOST_PARTS = 30_000
_MOST_STORED_PARTS = 4_000
_MOST_SMALL_PARTITIONS = 256
_SMALL_PARTITION_TEXT_BYTES = 64 << 20
_MOST_PARTITIONS = 8192
_PARTITION_TEXT_BYTES = 32 << 30
"""32 GiB of English are 89 million hashes, a table of 1.6 GiB."""
_KEY_VALUES = 1 << 16  # partitions are divided by the first 16 bits of a hash
_LEAST_GROUP_BYTES = 16 << 20
_MIB = 1 << 20


@dataclass(frozen=True)
class Sizes:
    """The numbers that shape work files and tasks."""

    part_bytes: int
    """Approximate stored bytes of the inputs per task."""
    num_partitions: int
    """Hashes are compared in this many tasks, divided by their first bits."""
    num_buckets: int = 4096
    """Number of ranges of shuffle keys by which documents are counted."""
    group_bytes: int = 256 << 20
    """Approximate bytes of the shards that one task writes."""

    @classmethod
    def of(cls, total_bytes: int, *, is_stored: bool = False) -> Sizes:
        """Choose sizes for inputs of this many bytes.

        With a work folder in a store, all sizes are larger: what a task reads from a task of
        another stage takes several requests, each of which costs time and money.

        >>> Sizes.of(1 << 40).part_bytes >> 20, Sizes.of(5 << 20).num_partitions
        (35, 1)
        >>> Sizes.of(120 << 20).group_bytes >> 20, Sizes.of(1 << 40).group_bytes >> 20
        (16, 256)
        >>> Sizes.of(1 << 40, is_stored=True).part_bytes >> 20
        263
        >>> [Sizes.of(size << 40).num_partitions for size in (1, 8, 100, 1000)]
        [256, 256, 3072, 8192]
        """
        # The same number for each first byte, so that no partition has rows of two.
        large = min(total_bytes // _PARTITION_TEXT_BYTES, _MOST_PARTITIONS) // 256 * 256
        if is_stored:
            part = max(32 * _MIB, -(-total_bytes // _MOST_STORED_PARTS // _MIB) * _MIB)
            small = min(max(total_bytes >> 30, 1), _MOST_SMALL_PARTITIONS)
            return cls(part, max(small, large), group_bytes=1 << 30)
        part = max(16 * _MIB, -(-total_bytes // _MOST_PARTS // _MIB) * _MIB)
        small = min(max(total_bytes // _SMALL_PARTITION_TEXT_BYTES, 1), _MOST_SMALL_PARTITIONS)
        # Two tasks for each of sixteen cores; more would read a little of every part too often.
        group = min(max(total_bytes // 64, _LEAST_GROUP_BYTES), cls.group_bytes)
        return cls(part, max(small, large), group_bytes=group)

    def partition_borders(self) -> list[tuple[int, int]]:
        """First and last + 1 of the first 16 bits of each partition's hashes.

        Up to 256 partitions consist of whole first bytes, by which blocks sort their rows.

        >>> Sizes(1, 3).partition_borders()
        [(0, 21760), (21760, 43520), (43520, 65536)]
        """
        count = self.num_partitions
        unit = _KEY_VALUES // 256 if count <= 256 else 1
        borders = [_KEY_VALUES // unit * number // count * unit for number in range(count + 1)]
        return list(itertools.pairwise(borders))

    @property
    def shared_bits(self) -> int:
        """First bits that the hashes of one partition share, or nearly so."""
        return self.num_partitions.bit_length() - 1


class PreparePlan(NamedTuple):
    """The data that all workers on a preparation agree on."""

    verb: str
    version: str
    settings: dict[str, Any]
    tokenizer: str | None
    """Its fingerprint; None if it is made from the corpus (char)."""
    block_bytes: int
    sizes: dict[str, int]
    num_inputs: int
    input_bytes: int
    inputs: str
    """A hash of all inputs' paths, sizes and times."""

    @classmethod
    def of(
        cls,
        settings: dict[str, Any],
        inputs: Sequence[InputFile],
        *,
        tokenizer: str | None,
        block_bytes: int,
        sizes: Sizes,
    ) -> PreparePlan:
        """Make the plan of `lowtide prepare`."""
        return cls(
            verb="prepare",
            version=__version__,
            settings=settings,
            tokenizer=tokenizer,
            block_bytes=block_bytes,
            sizes=asdict(sizes),
            num_inputs=len(inputs),
            input_bytes=sum(source.size_bytes for source in inputs),
            inputs=hash_inputs(inputs),
        )

    def as_json(self) -> dict[str, Any]:
        """The plan as plain values."""
        return self._asdict()
