"""Find the exact score threshold that keeps a given share of a corpus, from keys on disk.

In:      a key of every scored document, in chunks that can be read several times: its score, and a
         hash of its text that orders equal scores
Out:     ScoreCut: documents are kept if their key is at least its key
Memory:  a chunk, and 65,536 counters; four passes over the keys, eight bytes a document

The threshold depends only on the set of keys, not on workers or their order. Identical documents
have the same key and are kept or removed together.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lowtide.arrays import np
from lowtide.corpus.hub import HUB_PREFIX, is_saved_dataset
from lowtide.corpus.inputs import InputFile
from lowtide.counts import counted
from lowtide.errors import DataError, UsageError
from lowtide.quickclasses import dataclass

__all__ = ["ScoreCut", "describe_cut", "find_cut", "read_cut", "require_rereadable"]

_DIGIT_BITS = 16
_KEEP_ALL = 0


@dataclass(frozen=True)
class ScoreCut:
    """The threshold of the best share of the documents."""

    key: int
    judged: int
    """Documents that have a score."""
    kept: int
    """How many of these have a key of at least the cut's."""

    @property
    def score(self) -> float:
        """The lowest score that is kept; among equal scores, the hash of the text decides."""
        return struct.unpack("<f", struct.pack("<I", self.key >> 32))[0]

    def as_json(self) -> dict[str, Any]:
        """The cut as stored in metadata."""
        return {
            "documents": self.judged,
            "kept": self.kept,
            "cut": self.score,
            "key": f"{self.key:016x}",
        }


def find_cut(chunks: Callable[[], Iterable[memoryview]], share: float) -> ScoreCut:
    """The cut that keeps `share` of the documents, rounded up; `chunks` iterates over their keys.

    >>> keys = np.array([5 << 32, 7 << 32, 6 << 32, 7 << 32 | 1], np.uint64)
    >>> cut = find_cut(lambda: [keys.data.cast("B")], 0.5)
    >>> cut.key == 7 << 32, cut.kept, cut.judged
    (True, 2, 4)
    """
    judged = sum(chunk.nbytes for chunk in chunks()) // 8
    if judged == 0:
        return ScoreCut(_KEEP_ALL, 0, 0)
    from fractions import Fraction  # takes 1.4 ms, needed only by commands with a share

    # The decimal as written: 0.1 of 30 documents are 3, not 3.0000000000000004.
    wanted = math.ceil(Fraction(str(share)) * judged)
    # The prefix of the cut's key; how many keys are larger than all with it; how many have it.
    prefix, above, at_cut = 0, 0, judged
    for shift in range(64 - _DIGIT_BITS, -1, -_DIGIT_BITS):
        counts = _count_digits(chunks(), prefix, shift)
        digit = len(counts) - 1
        while above + counts[digit] < wanted:
            above += counts[digit]
            digit -= 1
        prefix = prefix << _DIGIT_BITS | digit
        at_cut = counts[digit]
    return ScoreCut(prefix, judged, above + at_cut)


def _count_digits(chunks: Iterable[memoryview], prefix: int, shift: int) -> list[int]:
    """For keys that begin with `prefix`, the number of keys with each next digit."""
    counts = np.zeros(1 << _DIGIT_BITS, np.int64)
    for chunk in chunks:
        digits = np.frombuffer(chunk, np.uint64) >> np.uint64(shift)
        digits = digits[digits >> np.uint64(_DIGIT_BITS) == np.uint64(prefix)]
        low = (digits & np.uint64((1 << _DIGIT_BITS) - 1)).astype(np.int64)
        counts += np.bincount(low, minlength=len(counts))
    return counts.tolist()


def describe_cut(cut: ScoreCut) -> str:
    """Describe in words which documents a score threshold keeps.

    >>> describe_cut(ScoreCut(0x3F000000 << 32, 20, 2))
    'kept the best 2 of 20 documents: those with a score of 0.5 or more'
    """
    if cut.judged == 0:
        return "no document has a score, so none was removed by it"
    documents = counted(cut.judged, "document")
    return (
        f"kept the best {cut.kept:,} of {documents}: those with a score of {cut.score:.6g} or more"
    )


def read_cut(row: Mapping[str, Any] | None) -> ScoreCut:
    """The cut that a dataset was made with."""
    try:
        known = row or {}
        return ScoreCut(int(known["key"], 16), int(known["documents"]), int(known["kept"]))
    except (KeyError, TypeError, ValueError):
        raise DataError(
            "the metadata do not say which scores the dataset was made with",
            next_step="prepare it anew from all inputs",
        ) from None


def require_rereadable(inputs: Sequence[InputFile]) -> None:
    """Refuse streamed datasets: finding the best share takes a first pass over all inputs."""
    for source in inputs:
        if not source.format.is_file and not is_saved_dataset(str(source.path)):
            raise UsageError(
                "--keep-top reads everything twice, and this dataset is a stream that may come "
                "otherwise the second time",
                path=f"{HUB_PREFIX}{source.path}",
                next_step="save it to a folder with the datasets package, or use --keep-above",
            )
