"""The report of removals by cleaning: counts, bytes and a few examples for each rule.

In:      the counts of blocks, in order
Out:     the report, in the form of the metadata
Memory:  three examples for each rule; a row for each language
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lowtide import _native
from lowtide.corpus.ranking import ScoreCut

__all__ = ["RULES", "RULE_TEXTS", "Report"]

RULES = tuple(name for name, _ in _native.CLEANING_RULES)
"""Names of changes and removals, as in reports."""
RULE_TEXTS = dict(_native.CLEANING_RULES)
"""A description of each for users."""
_SAMPLES_PER_RULE = 3


class Report:
    """Counts of what was read and removed: documents and bytes per rule, with a few examples."""

    def __init__(self) -> None:
        self.documents_in = 0
        self.lines_in = 0
        self.bytes_in = 0
        self.counts = [[0, 0] for _ in RULES]
        self.samples: list[list[str]] = [[] for _ in RULES]
        self.languages: dict[str, list[int]] = {}
        self.cut: ScoreCut | None = None
        self.unknown_characters = 0
        """Characters of kept text that a character tokenizer does not have."""

    def add(
        self,
        counts: list[Any],
        samples: list[Any],
        *,
        documents_in: int = 0,
        lines_in: int = 0,
        bytes_in: int = 0,
        languages: Mapping[str, Sequence[int]] | None = None,
        unknown_characters: int = 0,
    ) -> None:
        """Add the counts of one block; blocks in order give the same examples each time."""
        for label, (count, size) in (languages or {}).items():
            row = self.languages.setdefault(label, [0, 0])
            row[0] += count
            row[1] += size
        self.documents_in += documents_in
        self.lines_in += lines_in
        self.bytes_in += bytes_in
        self.unknown_characters += unknown_characters
        for row, (count, size) in zip(self.counts, counts, strict=False):  # rules are only added
            row[0] += count
            row[1] += size
        for rule, text in samples:
            if len(self.samples[rule]) < _SAMPLES_PER_RULE:
                self.samples[rule].append(
                    text if isinstance(text, str) else text.decode("utf-8", "replace")
                )

    def add_state(self, state: Mapping[str, Any]) -> None:
        """Add what `as_state` returned elsewhere, or the header of a block's work file."""
        self.add(
            state["counts"],
            state["samples"],
            documents_in=state["documents_in"],
            lines_in=state["lines_in"],
            bytes_in=state["bytes_in"],
            languages=state.get("languages"),
            unknown_characters=state.get("unknown_characters", 0),  # not in earlier versions
        )

    def as_state(self) -> dict[str, Any]:
        """Return the argument of `add_state`, so that reports of several tasks can be added up."""
        return {
            "documents_in": self.documents_in,
            "lines_in": self.lines_in,
            "bytes_in": self.bytes_in,
            "counts": self.counts,
            "samples": [(rule, text) for rule, texts in enumerate(self.samples) for text in texts],
            "languages": self.languages,
            "unknown_characters": self.unknown_characters,
        }

    def as_json(self) -> dict[str, Any]:
        """Return the report as it goes into the metadata."""
        return {
            "documents_in": self.documents_in,
            "lines_in": self.lines_in,
            "bytes_in": self.bytes_in,
            "rules": {
                rule: {"count": count, "bytes": size, "examples": self.samples[number]}
                for number, (rule, (count, size)) in enumerate(zip(RULES, self.counts, strict=True))
                if count
            },
            **self._languages_as_json(),
            **({} if self.cut is None else {"score": self.cut.as_json()}),
            **({"unknown_characters": self.unknown_characters} if self.unknown_characters else {}),
        }

    def _languages_as_json(self) -> dict[str, Any]:
        """Documents and bytes by language, the most frequent first, if a model identifies it."""
        if not self.languages:
            return {}
        rows = sorted(self.languages.items(), key=lambda row: (-row[1][0], row[0]))
        return {"languages": {label: {"count": n, "bytes": size} for label, (n, size) in rows}}
