"""Blocks of windows cut from a stream of encoded texts: the bounded shuffle of streaming.

In:      texts with their ids (texts)
Out:     TokenBlock: as many windows as the shuffle buffer holds, in a computed order
Memory:  one block: buffer windows x stride x 4 bytes, and the texts of one group

A block stores its starting position in the texts. A run that stops inside a block resumes by
reading that block again, so its state is a position and a count instead of a buffer of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import DataError
from lowtide.loader.batches import read_count
from lowtide.loader.ordering import derive_seed, order_indices
from lowtide.loader.textencoders import TextEncoder
from lowtide.loader.texts import Place, TextSource, iter_encoded
from lowtide.loader.windows import Tokens
from lowtide.quickclasses import dataclass

__all__ = ["BlockStart", "TokenBlock", "Windowing", "iter_token_blocks", "windows_before"]

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Windowing:
    """How a stream of tokens is cut into windows and blocks."""

    seq_len: int
    stride: int
    buffer_windows: int
    """Windows that are shuffled together; 1 or less leaves them in order."""

    def count_windows(self, num_tokens: int) -> int:
        """The number of windows of this many tokens; the last one ends with the last token."""
        last_start = num_tokens - self.seq_len - 1
        return 0 if last_start < 0 else -(-last_start // self.stride) + 1


@dataclass(frozen=True)
class BlockStart:
    """Where a block begins."""

    number: int = 0
    place: Place | None = None
    """The text of its first token; None for the beginning."""
    skip_tokens: int = 0
    """Tokens of that text that are in earlier blocks."""
    documents: int = 0
    """Documents that ended before that text."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        place = None if self.place is None else list(self.place)
        return {**self.__dict__, "place": place}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> BlockStart:
        """Make it from the result of `as_json`; DataError if it is something else."""
        given: Any = values
        place: Any = given.get("place") if isinstance(given, Mapping) else values
        numbers: list[Any] = list(place) if isinstance(place, list | tuple) else [None]
        is_place = all(isinstance(number, int) and number >= 0 for number in numbers)
        if not (place is None or is_place):
            raise DataError(
                f"a loader's state has {given!r} as block, expected the place of a block",
                next_step="take the state of another checkpoint",
            )
        return cls(
            number=read_count(values, "number"),
            place=None if place is None else tuple(numbers),
            skip_tokens=read_count(values, "skip_tokens"),
            documents=read_count(values, "documents"),
        )


@dataclass(frozen=True)
class TokenBlock:
    """Windows over tokens in memory."""

    start: BlockStart
    tokens: Ids
    num_windows: int
    windowing: Windowing
    seed: int

    def fill(self, first: int, inputs: Tokens, targets: Tokens) -> None:
        """Write windows `first` on, in the block's order, into the rows of two arrays."""
        count, length = inputs.shape
        numbers = np.arange(first, first + count, dtype=np.uint64)
        if self.windowing.buffer_windows > 1:
            numbers = order_indices(
                "shuffle",
                seed=derive_seed(self.seed, f"block {self.start.number}"),
                size=self.num_windows,
                first=first,
                count=count,
            )
        last_start = len(self.tokens) - length - 1
        for row, number in enumerate(numbers.tolist()):
            begin = min(number * self.windowing.stride, last_start)
            inputs[row] = self.tokens[begin : begin + length]
            targets[row] = self.tokens[begin + 1 : begin + length + 1]


def iter_token_blocks(
    source: TextSource,
    encoder: TextEncoder,
    windowing: Windowing,
    *,
    seed: int,
    order_files: bool,
    start: BlockStart | None = None,
    max_documents: int | None = None,
) -> Iterator[TokenBlock]:
    """Cut the texts of one epoch into blocks, from `start` on.

    A block is finished only if there is a whole window for the next one; the rest at the end
    belongs to the last block, so no tail is lost.
    """
    here = start or BlockStart()
    held = _HeldTokens(here)
    wanted = _block_tokens(windowing)
    texts = iter_encoded(
        source,
        encoder,
        seed=seed if order_files else None,
        place=here.place,
        max_documents=None if max_documents is None else max_documents - here.documents,
    )
    for text, ids in texts:
        held.append(ids, text.place, text.ends_document)
        while held.num_tokens >= wanted:
            yield held.cut(windowing, seed=seed, num_windows=_block_windows(windowing, seed, held))
    if windowing.count_windows(held.num_tokens) > 0:
        yield held.cut(windowing, seed=seed, num_windows=None)


def _block_tokens(windowing: Windowing) -> int:
    """Return the tokens of a full block and of the next one's first window."""
    windows = max(1, windowing.buffer_windows)
    return windows * windowing.stride + windowing.seq_len + 1


def _block_windows(windowing: Windowing, seed: int, held: _HeldTokens) -> int:
    """Return the windows of the next block.

    The first block of an epoch is cut short at random, so that blocks hold other windows in each
    epoch. That is done only if there are several blocks: a single one is shuffled as a whole.
    """
    if held.start.number > 0:
        return max(1, windowing.buffer_windows)
    return windows_before(1, windowing, seed=seed)


def windows_before(number: int, windowing: Windowing, *, seed: int) -> int:
    """Number of windows of an epoch before its block `number`; `seed` is the epoch's."""
    windows = max(1, windowing.buffer_windows)
    first = 1 + derive_seed(seed, "first block") % windows
    return 0 if number == 0 else first + (number - 1) * windows


class _HeldTokens:
    """Tokens that were read but are in no block yet, and their texts."""

    def __init__(self, start: BlockStart) -> None:
        self.start = start
        self.num_tokens = 0
        self._parts: list[Ids] = []
        self._marks: list[tuple[int, BlockStart]] = []  # where each text begins
        self._documents = start.documents
        self._skip = start.skip_tokens

    def append(self, ids: Ids, place: Place, ends_document: bool) -> None:
        if not self._marks or self._marks[-1][1].place != place:  # else more of the same text
            mark = BlockStart(place=place, skip_tokens=self._skip, documents=self._documents)
            self._marks.append((self.num_tokens, mark))
        self._documents += ends_document
        skipped = min(self._skip, len(ids))  # only the first text was begun by an earlier block
        self._skip -= skipped
        ids = ids[skipped:]
        self._parts.append(ids)
        self.num_tokens += len(ids)

    def cut(self, windowing: Windowing, *, seed: int, num_windows: int | None) -> TokenBlock:
        """Remove and return the next block; without a number, of all remaining tokens."""
        tokens = self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)
        if num_windows is None:
            windows = windowing.count_windows(len(tokens))
            return TokenBlock(self.start, tokens, windows, windowing, seed)
        end = (num_windows - 1) * windowing.stride + windowing.seq_len + 1
        block = TokenBlock(self.start, tokens[:end].copy(), num_windows, windowing, seed)
        self._drop(num_windows * windowing.stride, tokens)
        return block

    def _drop(self, count: int, tokens: Ids) -> None:
        position = max(i for i, (begin, _) in enumerate(self._marks) if begin <= count)
        begin, mark = self._marks[position]
        self.start = replace(
            mark, number=self.start.number + 1, skip_tokens=mark.skip_tokens + count - begin
        )
        self._marks = [(at - count, later) for at, later in self._marks[position:]]
        self._parts = [tokens[count:]]
        self.num_tokens = len(tokens) - count
