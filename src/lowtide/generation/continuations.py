"""Several continuations at once: each begins, goes on and ends by itself, in a row of one cache.

In:      a GPT; prompts as ids, each with a seed of its own
Out:     the next id of every row, step by step
Memory:  a cache of keys and values for the rows, as long as the longest of them

A text is the same alone and beside others: prompts are read one by one, a step computes each row by
itself (model/rowcaches.py), and every row draws from its own generator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lowtide.generation.sampling import choose_tokens
from lowtide.generation.settings import SamplingSettings
from lowtide.model.gpt import GPT
from lowtide.model.rowcaches import Steps

__all__ = ["Rows"]


@dataclass
class _Row:
    """A text under way."""

    ids: deque[int]
    """The newest of the prompt and of what was written: as many as a full context goes on with."""
    prompt: tuple[int, ...]
    generator: torch.Generator
    banned: tuple[int, ...]
    """Never the first token."""
    seen: Tensor
    """Ids that the penalty looks at [1, N], unordered."""
    written: int = 0


@dataclass
class _Read:
    """The prompt that was read last: the next text may begin in the same way."""

    prompt: tuple[int, ...] = ()
    slot: int = -1
    logits: Tensor = field(default_factory=lambda: torch.empty(0))


class Rows:
    """Up to `num_rows` texts that a model writes at once."""

    def __init__(
        self,
        model: GPT,
        num_rows: int,
        *,
        sampling: SamplingSettings | None = None,
        vocab_size: int | None = None,
        banned: Sequence[int] = (),
        context: int | None = None,
    ) -> None:
        self.sampling = sampling or SamplingSettings()
        self.vocab_size = vocab_size or model.config.vocab_size
        self.banned = tuple(banned)
        self.context = context or model.config.context_length
        self.num_rows = num_rows
        self._steps = Steps(model, num_rows)
        self._rows: list[_Row | None] = [None] * num_rows
        self._read = _Read()
        self._device = model.device

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
        seen = torch.full((1, size), ids[0], dtype=torch.long, device=self._device)
        seen[0, : len(ids)] = torch.tensor(ids)
        generator = _seeded(self._device, seed)
        newest = deque(ids, maxlen=max(1, self.context // 2))
        self._rows[slot] = _Row(newest, tuple(ids), generator, tuple(banned_first), seen)
        return slot

    def end(self, slot: int) -> None:
        """Make a row free for another text."""
        self._rows[slot] = None

    @torch.inference_mode()
    def step(self) -> list[tuple[int, int]]:
        """Write one more token of every text; return rows and ids."""
        going: list[tuple[int, _Row]] = []
        logits: dict[int, Tensor] = {}
        for slot, row in enumerate(self._rows):
            if row is None:
                continue
            if row.written == 0:
                logits[slot] = self._read_prompt(slot, row)
            elif self._steps.cache.lengths[slot] >= self.context:
                # Emptied and filled with the newer half: the cost of a token stays bounded.
                logits[slot] = self._refill(slot, tuple(row.ids))
            else:
                going.append((slot, row))
        if going:
            ids = [row.ids[-1] for _, row in going]
            found = self._steps.step([slot for slot, _ in going], ids)
            logits.update({slot: found[i] for i, (slot, _) in enumerate(going)})
        return [(slot, self._choose(slot, logits[slot])) for slot in sorted(logits)]

    def _read_prompt(self, slot: int, row: _Row) -> Tensor:
        if row.prompt == self._read.prompt:
            if slot != self._read.slot:
                self._steps.cache.copy(self._read.slot, slot, len(row.prompt))
            self._steps.cache.lengths[slot] = len(row.prompt)
            return self._read.logits
        logits = self._refill(slot, row.prompt)
        self._read = _Read(row.prompt, slot, logits.clone())
        return logits

    def _refill(self, slot: int, ids: Sequence[int]) -> Tensor:
        if slot == self._read.slot:
            self._read = _Read()
        return self._steps.read(slot, ids)

    def _choose(self, slot: int, logits: Tensor) -> int:
        row = self._rows[slot]
        assert row is not None
        banned = self.banned if row.written else (*self.banned, *row.banned)
        token = int(
            choose_tokens(
                logits[None],
                row.seen,
                self.sampling,
                vocab_size=self.vocab_size,
                banned=banned,
                generator=row.generator,
            )
        )
        # A ring: the oldest id goes once the context is full of newer ones.
        row.seen[0, (len(row.prompt) + row.written) % row.seen.shape[1]] = token
        row.written += 1
        row.ids.append(token)
        return token


def _seeded(device: torch.device, seed: int | None) -> torch.Generator:
    """Return a generator of random numbers; without a seed another one each time."""
    generator = torch.Generator(device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator
