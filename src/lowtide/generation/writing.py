"""Write several texts at once, starting the next one when a row becomes free.

In:      prompts, and the steps of a network
Out:     pieces of text, with the number of the text each belongs to
Memory:  of each unfinished text the end that may be the beginning of a stop text
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lowtide.generation.continuations import MakeChooser, Rows, Steps
from lowtide.generation.prompts import Prompt
from lowtide.generation.settings import WritingSettings
from lowtide.generation.textstreams import Start, TextStream, ends, iter_starts, not_text
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import Tokenizer

__all__ = ["write_prompts", "write_texts"]


@dataclass
class _Text:
    """An unfinished text."""

    number: int
    stream: TextStream
    left: int
    """The number of tokens until its maximum length."""

    def feed(self, token: int) -> str:
        self.left -= 1
        return self.stream.feed(token)

    @property
    def is_over(self) -> bool:
        return self.left == 0 or self.stream.finished


def write_prompts(
    steps: Steps,
    make_chooser: MakeChooser,
    tokenizer: Tokenizer,
    prompts: Iterable[Prompt],
    options: WritingSettings,
) -> Iterator[tuple[int, str]]:
    """Continue prompts; yield pieces of texts like `write_texts`."""
    rows = Rows(
        steps,
        make_chooser,
        options.batch_size,
        context=options.context,
        banned=not_text(tokenizer),
    )
    starts = iter_starts(tokenizer, prompts, options)
    return write_texts(
        rows, tokenizer, starts, max_new_tokens=options.max_new_tokens, stop=options.stop
    )


def write_texts(
    rows: Rows,
    tokenizer: Tokenizer,
    starts: Iterator[Start],
    *,
    max_new_tokens: int,
    stop: Sequence[str] = (),
) -> Iterator[tuple[int, str]]:
    """Yield (number of the text, piece); an empty piece follows the last one of each text."""
    texts: dict[int, _Text] = {}
    count = 0
    while True:
        first = min((text.number for text in texts.values()), default=count)
        # Finished texts are held until earlier ones are finished, so their number is limited.
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
