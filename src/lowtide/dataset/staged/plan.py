"""The plan of a preparation as data: everything that decides its result and its work files.

In:      settings, inputs as they are on disk, a tokenizer's fingerprint
Out:     canonical JSON, created once in the work folder; a worker with another one is refused
Memory:  a few numbers

Every number here follows from the bytes of the inputs, never from workers or memory, so that all
workers make the same files.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import xxhash

from lowtide import __version__
from lowtide.corpus.inputs import InputFile
from lowtide.engine.records import PLAN_NAME, Records
from lowtide.errors import DataError, UsageError

__all__ = ["PreparePlan", "Sizes", "commit_plan", "hash_inputs", "read_plan"]

_MOST_PARTS = 30_000
_MOST_PARTITIONS = 256  # of hashes by their first byte
_PARTITION_TEXT_BYTES = 64 << 20
_MIB = 1 << 20


@dataclass(frozen=True)
class Sizes:
    """The numbers that shape work files and tasks."""

    part_bytes: int
    """About so much of the inputs, as stored, is one task."""
    num_partitions: int
    """Hashes are compared in so many tasks, by their first byte."""
    num_buckets: int = 4096
    """Documents are counted by so many ranges of their place in the shuffle."""
    group_bytes: int = 256 << 20
    """Shards of about so many bytes together are written by one task."""

    @classmethod
    def of(cls, total_bytes: int) -> Sizes:
        """Choose sizes for inputs of so many bytes.

        >>> Sizes.of(1 << 40).part_bytes >> 20, Sizes.of(5 << 20).num_partitions
        (35, 1)
        """
        part = max(16 * _MIB, -(-total_bytes // _MOST_PARTS // _MIB) * _MIB)
        partitions = min(max(total_bytes // _PARTITION_TEXT_BYTES, 1), _MOST_PARTITIONS)
        return cls(part, partitions)

    def partition_borders(self) -> list[tuple[int, int]]:
        """First and last + 1 of the first bytes of each partition's hashes."""
        borders = [256 * number // self.num_partitions for number in range(self.num_partitions + 1)]
        return list(itertools.pairwise(borders))


@dataclass(frozen=True)
class PreparePlan:
    """What all workers on a preparation agree on."""

    verb: str
    version: str
    settings: dict[str, Any]
    tokenizer: str | None
    """Its fingerprint; None where it is made from the corpus (char)."""
    block_bytes: int
    sizes: dict[str, int]
    num_inputs: int
    input_bytes: int
    inputs: str
    """A hash of every input's path, size and time."""

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

    def as_bytes(self) -> bytes:
        """The plan as canonical JSON."""
        return json.dumps(asdict(self), sort_keys=True, indent=1).encode() + b"\n"


def hash_inputs(inputs: Sequence[InputFile]) -> str:
    """A hash of what inputs are there: the same wherever they are listed."""
    digest = xxhash.xxh3_128()
    for source in inputs:
        row = [str(source.path), source.split, source.size_bytes, source.modified_ns]
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


def read_plan(records: Records) -> dict[str, Any] | None:
    """The plan of a work folder as JSON; None where there is none yet."""
    path = records.folder / PLAN_NAME
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataError(f"the plan of this work cannot be read: {error}", path=path) from None
    if not isinstance(value, dict):
        raise DataError("expected the plan of a preparation", path=path)
    return value


def commit_plan(plan: PreparePlan, records: Records) -> None:
    """Create the plan in the work folder, or see that the one there is the same."""
    records.folder.mkdir(parents=True, exist_ok=True)
    if records.create(PLAN_NAME, plan.as_bytes()):
        return
    stored = read_plan(records)
    mine = json.loads(plan.as_bytes())
    difference = next(_iter_differences(stored or {}, mine), None)
    if difference is not None:
        raise UsageError(
            f"the work here is of another plan: {difference}",
            path=records.folder,
            next_step="start every worker with the same command, the same inputs and the same "
            "version; or choose another --work-dir",
        )


_IN_WORDS = {
    "inputs": "its inputs have other names, sizes or times",
    "tokenizer": "its tokenizer is another one",
}


def _iter_differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for name in [*now, *(set(before) - set(now))]:
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _iter_differences(old, new)
        elif name in _IN_WORDS:
            yield _IN_WORDS[name]
        else:
            yield f"{name.replace('_', '-')} was {old}, now it is {new}"
