"""Facts about a dataset for pages: lengths of its documents, and what cleaning removed.

In:      a dataset's metadata and .docs files
Out:     DatasetFacts
Memory:  the document ends of one shard; counts of fixed size
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.dataset.layout import SPLITS, DatasetInfo
from lowtide.dataset.tokenfiles.shards import load_document_ends, may_continue
from lowtide.progress import format_count
from lowtide.quickclasses import dataclass

__all__ = ["DatasetFacts", "LengthCounts", "count_lengths", "merge_reports"]

_PER_OCTAVE = 8
_NUM_BINS = 40 * _PER_OCTAVE
_EDGES = [
    1,
    2,
    3,
    5,
    7,
    *(step * 10**power for power in range(1, 12) for step in (1, 1.5, 2, 3, 5, 7)),
]


class LengthCounts:
    """A histogram of document lengths.

    >>> lengths = LengthCounts()
    >>> lengths.add(np.array([10, 100, 100, 1000]))
    >>> lengths.count, lengths.mean, lengths.longest
    (4, 302.5, 1000)
    """

    def __init__(self) -> None:
        self._bins = np.zeros(_NUM_BINS, dtype=np.int64)
        self._columns = np.zeros(len(_EDGES), dtype=np.int64)
        self.count = 0
        self.total = 0
        self.longest = 0

    def add(self, lengths: npt.NDArray[Any]) -> None:
        """Count documents of so many tokens."""
        if not len(lengths):
            return
        places = np.floor(np.log2(np.maximum(lengths, 1)) * _PER_OCTAVE + 1e-9).astype(np.int64)
        self._bins += np.bincount(np.minimum(places, _NUM_BINS - 1), minlength=_NUM_BINS)
        columns = np.searchsorted(_EDGES, lengths, side="right") - 1
        self._columns += np.bincount(np.maximum(columns, 0), minlength=len(_EDGES))
        self.count += len(lengths)
        self.total += int(lengths.sum())
        self.longest = max(self.longest, int(lengths.max()))

    @property
    def mean(self) -> float:
        """Tokens of a document, on average."""
        return self.total / max(self.count, 1)

    def quantile(self, share: float) -> float:
        """Return the length that a share of the documents stays below, within 5 %."""
        if not self.count:
            return 0.0
        place = int(np.searchsorted(np.cumsum(self._bins), share * self.count))
        return min(2 ** ((place + 0.5) / _PER_OCTAVE), self.longest)

    def ranges(self) -> dict[tuple[int, int], int]:
        """Documents by the range of their length, from the shortest to the longest document."""
        filled = np.flatnonzero(self._columns)
        found: dict[tuple[int, int], int] = {}
        for place in range(int(filled[0]), int(filled[-1]) + 1) if len(filled) else ():
            last = int(_EDGES[place + 1]) - 1 if place + 1 < len(_EDGES) else self.longest
            found[int(_EDGES[place]), last] = int(self._columns[place])
        return found

    def columns(self) -> list[dict[str, Any]]:
        """The columns of the chart."""
        return [
            {"label": format_count(first), "text": f"{first:,} to {last:,} tokens", "count": count}
            for (first, last), count in self.ranges().items()
        ]


def count_lengths(info: DatasetInfo) -> LengthCounts:
    """Count lengths shard by shard; a document that continues in the next shard counts once.

    One that is cut at the end of train ends there if the next shard was added to the dataset. If
    validation is the end of the text, the document at the border counts in both splits.
    """
    lengths = LengthCounts()
    for split in SPLITS:
        open_tokens, before = 0, None
        for shard in info.shards[split]:
            goes_on = before is None or may_continue(before, shard.path)
            before = shard.path
            if not goes_on and open_tokens and lengths.count:
                lengths.add(np.array([open_tokens]))
                open_tokens = 0
            ends = load_document_ends(shard).astype(np.int64)
            if not len(ends):
                open_tokens += shard.num_tokens
                continue
            sizes = np.diff(ends, prepend=0)
            sizes[0] += open_tokens
            lengths.add(sizes)
            open_tokens = shard.num_tokens - int(ends[-1])
        if open_tokens and lengths.count:
            lengths.add(np.array([open_tokens]))
    return lengths


def merge_reports(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Add up what several commands removed; examples are the first one's."""
    total: dict[str, Any] = {
        "documents_in": 0, "lines_in": 0, "bytes_in": 0, "rules": {}, "languages": {},
    }  # fmt: skip
    for report in reports:
        for key in ("documents_in", "lines_in", "bytes_in"):
            total[key] += report.get(key, 0)
        for rule, row in report.get("rules", {}).items():
            known = total["rules"].setdefault(rule, {"count": 0, "bytes": 0, "examples": []})
            known["count"] += row["count"]
            known["bytes"] += row["bytes"]
            known["examples"] = known["examples"] or row.get("examples", [])
        for label, row in report.get("languages", {}).items():
            known = total["languages"].setdefault(label, {"count": 0, "bytes": 0})
            known["count"] += row["count"]
            known["bytes"] += row["bytes"]
        if unknown := report.get("unknown_characters", 0):
            total["unknown_characters"] = total.get("unknown_characters", 0) + unknown
        if "score" in report:
            total["score"] = report["score"]
    return total


@dataclass(frozen=True)
class DatasetFacts:
    """The numbers of a dataset for comparisons."""

    name: str
    info: DatasetInfo
    lengths: LengthCounts
    cleaning: dict[str, Any]
    """What all commands removed, as merge_reports returns it."""
    peak_bytes: int

    @property
    def tokens(self) -> int:
        """Tokens of both splits."""
        return sum(map(self.info.num_tokens, SPLITS))

    @property
    def documents(self) -> int:
        """Documents of both splits."""
        return sum(shard.num_documents for split in SPLITS for shard in self.info.shards[split])

    @property
    def val_share(self) -> float:
        """The validation split's share of the tokens."""
        return self.info.num_tokens("val") / max(self.tokens, 1)

    @property
    def input_files(self) -> int:
        """How many files it was made from."""
        return len(self.info.metadata.get("input_files", []))

    @property
    def tokenization(self) -> str:
        """What its tokenizer is called."""
        return str(self.info.metadata.get("tokenization", "unknown"))

    @property
    def vocab_size(self) -> int:
        """How many tokens its tokenizer has."""
        return self.info.vocab_size

    @property
    def settings(self) -> dict[str, Any]:
        """The settings it was prepared with; empty if unknown."""
        return self.info.metadata.get("settings") or {}

    @property
    def sources(self) -> dict[str, int]:
        """Tokens by input file."""
        return {row["file"]: row["tokens"] for row in self.info.metadata.get("sources", [])}

    def removed_share(self, rule: str) -> float:
        """The share of the bytes read that a rule changed or removed."""
        row = self.cleaning["rules"].get(rule, {"bytes": 0})
        return row["bytes"] / max(self.cleaning["bytes_in"], 1)
