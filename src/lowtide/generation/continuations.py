"""Several continuations at once: each begins, goes on and ends by itself, in a row of one cache.

In:      steps of a network (Steps); prompts as ids, each with a seed of its own
Out:     the next id of every row, step by step
Memory:  a cache of keys and values for the rows, as long as the longest of them

A text is the same alone and beside others: prompts are read one by one, a step computes each row by
itself, and every row draws from its own generator. Neither torch nor JAX is imported here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lowtide.quickclasses import dataclass

__all__ = ["Chooser", "Rows", "Steps"]


class RowStore(Protocol):
    """Keys and values of the rows."""

    lengths: list[int]

    def reserve(self, positions: int) -> None:
        """Make room for rows of so many tokens."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Let a row begin as another one does."""
        ...


class Steps(Protocol):
    """A network that writes several texts at once."""

    @property
    def cache(self) -> RowStore:
        """Where its rows are."""
        ...

    def read(self, prompts: Mapping[int, Sequence[int]]) -> dict[int, Any]:
        """Begin rows anew, each with these ids; logits [V] of the token after them."""
        ...

    def step(self, slots: Sequence[int], ids: Sequence[int]) -> Any:
        """Add one id to each of these rows; logits [rows, V] of the tokens after them."""
        ...


class Chooser(Protocol):
    """Chooses the tokens of one text, by its seed and the tokens so far."""

    def choose(self, logits: Any, banned: Sequence[int]) -> int:
        """The next token after logits [V], never one of `banned`."""
        ...


@dataclass
class _Row:
    """A text under way."""

    ids: deque[int]
    """The newest of the prompt and of what was written: as many as a full context goes on with."""
    prompt: tuple[int, ...]
    chooser: Chooser
    banned: tuple[int, ...]
    """Never the first token."""
    is_begun: bool = False
    """True once a token of it is written."""


@dataclass
class _Read:
    """The prompt that was read last: the next text may begin in the same way."""

    prompt: tuple[int, ...] = ()
    slot: int = -1
    logits: Any = None


class Rows:
    """Up to `num_rows` texts that a network writes at once.

    `make_chooser` is called with the ids of a prompt, how many ids a text may have that are looked
    at, and its seed.
    """

    def __init__(
        self,
        steps: Steps,
        make_chooser: Callable[[Sequence[int], int, int | None], Chooser],
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
        """True while no further text can begin."""
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
        """Make a row free for another text."""
        self._rows[slot] = None

    def step(self) -> list[tuple[int, int]]:
        """Write one more token of every text; return rows and ids."""
        going: list[tuple[int, _Row]] = []
        fresh: dict[int, tuple[int, ...]] = {}
        full: dict[int, tuple[int, ...]] = {}
        for slot, row in enumerate(self._rows):
            if row is None:
                continue
            if not row.is_begun:
                fresh[slot] = row.prompt
            elif self._steps.cache.lengths[slot] >= self.context:
                # Emptied and filled with the newer half: the cost of a token stays bounded.
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
        """Read prompts and rows that are filled again, all of them at once; equal prompts once."""
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
