"""Texts of several rows as they are written: which begins when, its pieces, and its end.

In:      Rows, and what texts begin with
Out:     pieces of text, with the number of the text each belongs to
Memory:  of each text under way what might still become a stop text
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lowtide.generation.continuations import Rows
from lowtide.generation.textstreams import Start, TextStream, ends
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import Tokenizer

__all__ = ["write_texts"]


@dataclass
class _Text:
    """A text under way."""

    number: int
    stream: TextStream
    left: int
    """Tokens that may still come."""

    def feed(self, token: int) -> str:
        self.left -= 1
        return self.stream.feed(token)

    @property
    def is_over(self) -> bool:
        return self.left == 0 or self.stream.finished


def write_texts(
    rows: Rows,
    tokenizer: Tokenizer,
    starts: Iterator[Start],
    *,
    max_new_tokens: int,
    stop: Sequence[str] = (),
) -> Iterator[tuple[int, str]]:
    """Begin texts as rows become free, and yield pieces of them with the texts' numbers.

    An empty piece follows the last of each text.
    """
    texts: dict[int, _Text] = {}
    count = 0
    while True:
        first = min((text.number for text in texts.values()), default=count)
        # Texts that are over wait for an earlier one: only so many begin before it has ended.
        while not rows.is_full and count - first < 4 * rows.num_rows:
            start = next(starts, None)
            if start is None:
                break
            slot = rows.begin(
                start.ids,
                max_new_tokens=max_new_tokens,
                seed=start.seed,
                # Without a prompt the first token may not be end-of-text: the text would be empty.
                banned_first=ends(tokenizer) if start.is_empty else (),
            )
            texts[slot] = _Text(count, TextStream(tokenizer, stop), max_new_tokens)
            count += 1
        if not texts:
            return
        for slot, token in rows.step():
            text = texts[slot]
            if piece := text.feed(token):
                yield text.number, piece
            if text.is_over:
                if piece := text.stream.end():
                    yield text.number, piece
                yield text.number, ""
                rows.end(slot)
                del texts[slot]
