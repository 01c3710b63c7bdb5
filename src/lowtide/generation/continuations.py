"""Continuous batching: each row of a cache holds a text, which starts and ends independently.

In:      steps of a network (Steps); prompts as ids, each with its own seed
Out:     the next id of every row, step by step
Memory:  a cache of keys and values for the rows, as long as the longest of them

A text does not depend on the texts in other rows: a step computes each row separately, and every
row has its own random generator. Neither torch nor JAX is imported here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lowtide.quickclasses import dataclass

__all__ = ["Chooser", "MakeChooser", "Rows", "Steps"]


class RowStore(Protocol):
    """Keys and values of the rows."""

    lengths: list[int]

    def reserve(self, positions: int) -> None:
        """Enlarge all rows to so many tokens."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of a row to another row."""
        ...


class Steps(Protocol):
    """A network that computes several texts at once."""

    @property
    def cache(self) -> RowStore:
        """The cache with its rows."""
        ...

    def read(self, prompts: Mapping[int, Sequence[int]]) -> dict[int, Any]:
        """Replace rows by prompts; return logits [V] of the next token of each."""
        ...

    def step(self, slots: Sequence[int], ids: Sequence[int]) -> Any:
        """Add one id to each of these rows; return logits [rows, V] of their next tokens."""
        ...


class Chooser(Protocol):
    """Chooses the tokens of one text, by its seed and the tokens so far."""

    def choose(self, logits: Any, banned: Sequence[int]) -> int:
        """The next token after logits [V], never one of `banned`."""
        ...


MakeChooser = Callable[[Sequence[int], int, int | None], Chooser]
"""Makes the chooser of a text, from the ids of its prompt, the maximum number of ids that a penalty
looks at, and its seed."""


@dataclass
class _Row:
    """An unfinished text."""

    ids: deque[int]
    """The newest ids of prompt and text: half a context, kept when the context is full."""
    prompt: tuple[int, ...]
    chooser: Chooser
    banned: tuple[int, ...]
    """Not allowed as the first token."""
    is_begun: bool = False
    """True if the text has a token."""


@dataclass
class _Read:
    """The prompt that was read last; its row is copied for the same prompt."""

    prompt: tuple[int, ...] = ()
    slot: int = -1
    logits: Any = None


class Rows:
    """Up to `num_rows` texts that a network writes at once; `banned` ids are never chosen."""

    def __init__(
        self,
        steps: Steps,
        make_chooser: MakeChooser,
        num_rows: int,
        *,
        context: int,
        banned: Sequence[int] = (),
    ) -> None:
        self.banned = tuple(banned)
        self.context = context
        self.num_rows = num_rows
        self._steps = steps
        self._make_chooser = make_chooser
        self._rows: list[_Row | None] = [None] * num_rows
        self._read = _Read()

    @property
    def is_full(self) -> bool:
        """True if no row is free."""
        return None not in self._rows

    def begin(
        self,
        prompt_ids: Sequence[int],
        *,
        max_new_tokens: int,
        seed: int | None = None,
        banned_first: Sequence[int] = (),
    ) -> int:
        """Begin a text in a free row, and return the row."""
        slot = self._rows.index(None)
        ids = list(prompt_ids)[-self.context :]
        size = min(self.context, len(ids) + max_new_tokens)
        self._steps.cache.reserve(size)
        newest = deque(ids, maxlen=max(1, self.context // 2))
        chooser = self._make_chooser(ids, size, seed)
        self._rows[slot] = _Row(newest, tuple(ids), chooser, tuple(banned_first))
        return slot

    def end(self, slot: int) -> None:
        """Free a row."""
        self._rows[slot] = None

    def step(self) -> list[tuple[int, int]]:
        """Choose the next token of every text; return rows and ids."""
        going: list[tuple[int, _Row]] = []
        fresh: dict[int, tuple[int, ...]] = {}
        full: dict[int, tuple[int, ...]] = {}
        for slot, row in enumerate(self._rows):
            if row is None:
                continue
            if not row.is_begun:
                fresh[slot] = row.prompt
            elif self._steps.cache.lengths[slot] >= self.context:
                # Read the newer half again, so that the cost of a token stays bounded.
                full[slot] = tuple(row.ids)
            else:
                going.append((slot, row))
        logits = self._read_prompts(fresh, full)
        if going:
            ids = [row.ids[-1] for _, row in going]
            found = self._steps.step([slot for slot, _ in going], ids)
            logits.update({slot: found[i] for i, (slot, _) in enumerate(going)})
        return [(slot, self._choose(slot, logits[slot])) for slot in sorted(logits)]

    def _read_prompts(
        self, fresh: Mapping[int, tuple[int, ...]], full: Mapping[int, tuple[int, ...]]
    ) -> dict[int, Any]:
        """Read prompts of new rows, and rows that were full, in one pass; equal prompts once."""
        found: dict[int, Any] = {}
        readers: dict[tuple[int, ...], int] = {}
        for slot, prompt in fresh.items():
            if prompt == self._read.prompt:
                self._copy(self._read.slot, slot, prompt)
                found[slot] = self._read.logits
            else:
                readers.setdefault(prompt, slot)
        wanted = {**{slot: prompt for prompt, slot in readers.items()}, **full}
        if not wanted:
            return found
        if self._read.slot in wanted:
            self._read = _Read()
        found.update(self._steps.read(wanted))
        for slot, prompt in fresh.items():
            if slot not in found:
                self._copy(readers[prompt], slot, prompt)
                found[slot] = found[readers[prompt]]
        for prompt, slot in readers.items():
            self._read = _Read(prompt, slot, found[slot])
        return found

    def _copy(self, source: int, slot: int, prompt: tuple[int, ...]) -> None:
        if slot != source:
            self._steps.cache.copy(source, slot, len(prompt))
        self._steps.cache.lengths[slot] = len(prompt)

    def _choose(self, slot: int, logits: Any) -> int:
        row = self._rows[slot]
        assert row is not None
        banned = self.banned if row.is_begun else (*self.banned, *row.banned)
        token = row.chooser.choose(logits, banned)
        row.is_begun = True
        row.ids.append(token)
        return token
