"""Score the choices of questions by their likelihood, and count how often the likeliest is right.

In:      a scorer of texts (a torch or JAX network), its tokenizer, questions
Out:     TaskResult: accuracy, plain and normalized by length, with standard errors
Memory:  `rows` rows of the longest text, logits in chunks; 256 questions, or a million characters;
         131,072 ids, since every choice is a text with the whole context

Context and choice are encoded as one text, and the ids after those of the context are the choice's,
so a choice is scored with the ids that it has in running text. A context that is too long is
truncated at its beginning.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from pathlib import Path

from lowtide.counts import counted
from lowtide.errors import DataError
from lowtide.notebooks import shown_in_notebooks
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import Tokenizer
from lowtide.training.questions import Question

__all__ = [
    "Score",
    "Scorer",
    "TaskResult",
    "TaskSize",
    "TextIds",
    "answer_questions",
    "describe_result",
    "measure_questions",
    "score_choices",
    "score_ids",
]

_GROUP = 256
"""Questions whose choices are sorted by length and computed together."""
_GROUP_CHARACTERS = 1 << 20
_PART_IDS = 1 << 17
"""Ids of texts that are in memory at once, in 5 MB."""


@dataclass(frozen=True)
class Score:
    """A model's score of one choice."""

    log_likelihood: float
    """Log-likelihood of all its tokens, in nats."""
    is_greedy: bool
    """Whether each of its tokens is the likeliest."""


TextIds = tuple[list[int], int]
"""A text, and how many of its last ids are scored."""
Scorer = Callable[[list[TextIds]], list[Score]]
"""A backend's function that scores several texts at once."""


@shown_in_notebooks()
@dataclass(frozen=True)
class TaskResult:
    """How often the likeliest choice is the right one."""

    num_questions: int
    accuracy: float
    """By the likelihood of the whole choice; of a text to complete, by the likeliest tokens."""
    accuracy_stderr: float
    accuracy_chars: float | None = None
    """By the likelihood per character; None for texts to complete."""
    accuracy_chars_stderr: float | None = None
    accuracy_bytes: float | None = None
    """By the likelihood per byte of UTF-8; None for texts to complete."""
    accuracy_bytes_stderr: float | None = None
    perplexity: float | None = None
    """Perplexity of the texts to complete, each as a whole; None for choices."""


@dataclass
class _Counts:
    """Sums over questions."""

    questions: int = 0
    with_choices: int = 0
    by: dict[str, int] = field(default_factory=dict)
    nats: float = 0.0

    def add(self, question: Question, scores: list[Score]) -> None:
        self.questions += 1
        if len(scores) == 1:
            self.nats -= scores[0].log_likelihood
            self._count("plain", right=scores[0].is_greedy)
            return
        self.with_choices += 1
        found = [score.log_likelihood for score in scores]
        sizes = {
            "plain": [1] * len(found),
            "chars": [len(choice) for choice in question.choices],
            "bytes": [len(choice.encode()) for choice in question.choices],
        }
        for name, lengths in sizes.items():
            normed = [value / length for value, length in zip(found, lengths, strict=True)]
            self._count(name, right=normed.index(max(normed)) == question.answer)

    def _count(self, name: str, *, right: bool) -> None:
        self.by[name] = self.by.get(name, 0) + right

    def result(self) -> TaskResult:
        plain, error = self._share("plain", self.questions)
        if not self.with_choices:
            perplexity = math.exp(min(self.nats / max(1, self.questions), 700.0))
            return TaskResult(self.questions, plain, error, perplexity=perplexity)
        count = self.with_choices  # a text to complete has nothing to compare the lengths of
        chars, by_bytes = self._share("chars", count), self._share("bytes", count)
        return TaskResult(self.questions, plain, error, *chars, *by_bytes)

    def _share(self, name: str, count: int) -> tuple[float, float]:
        """The share of right answers, and the standard error of a sample's mean."""
        share = self.by.get(name, 0) / max(1, count)
        return share, math.sqrt(share * (1 - share) / (count - 1)) if count > 1 else 0.0


@dataclass(frozen=True)
class TaskSize:
    """The size of a file of questions, which decides the memory."""

    questions: int
    tokens: int
    """Of the longest text that is computed."""


def measure_questions(
    tokenizer: Tokenizer, questions: Iterable[Question], *, max_tokens: int, path: Path | None
) -> TaskSize:
    """Scan questions; the longest text is that of a context and a choice.

    Choices longer than `max_tokens` are refused: they would be compared by their ends.
    """
    count, longest = 0, 1
    for question in questions:
        count += 1
        for choice in question.choices:
            if len(choice.encode()) >= max_tokens:  # a token has a byte at least
                _require_whole(tokenizer, choice, count, max_tokens, path)
            if longest < max_tokens:
                ids, _ = _encode(tokenizer, question.context, f" {choice}", max_tokens)
                longest = min(max_tokens, max(longest, len(ids) - 1))
    return TaskSize(count, longest)


def _require_whole(
    tokenizer: Tokenizer, choice: str, number: int, max_tokens: int, path: Path | None
) -> None:
    size = len(tokenizer.encode(f" {choice}", special="text"))
    if size > max_tokens:
        raise DataError(
            f"question {number:,} has a choice of {size:,} tokens, {max_tokens:,} are looked at",
            path=path,
            next_step="leave the question out, or take a model with a longer context (a larger "
            "--seq-len, where it was given)",
        )


def describe_result(result: TaskResult) -> str:
    """One line on a task."""
    text = f"accuracy {result.accuracy:.3f} ± {result.accuracy_stderr:.3f}"
    if result.accuracy_chars is not None:
        text += f"  by character {result.accuracy_chars:.3f} ± {result.accuracy_chars_stderr:.3f}"
    if result.accuracy_bytes is not None:
        text += f"  by byte {result.accuracy_bytes:.3f} ± {result.accuracy_bytes_stderr:.3f}"
    if result.perplexity is not None:
        text += f"  perplexity {result.perplexity:,.2f}"
    return f"{text}  ({counted(result.num_questions, 'question')})"


def answer_questions(
    score: Scorer,
    tokenizer: Tokenizer,
    questions: Iterable[Question],
    *,
    rows: int,
    max_tokens: int,
    on_questions: Callable[[int], None] = lambda count: None,
) -> TaskResult:
    """Score the choices of every question, some hundred questions at a time."""
    counts = _Counts()
    for group in _iter_groups(questions):
        pairs = [(question.context, choice) for question in group for choice in question.choices]
        scores = iter(score_choices(score, tokenizer, pairs, rows=rows, max_tokens=max_tokens))
        for question in group:
            counts.add(question, list(itertools.islice(scores, len(question.choices))))
        on_questions(len(group))
    return counts.result()


def _iter_groups(
    questions: Iterable[Question],
    *,
    most: int = _GROUP,
    most_characters: int = _GROUP_CHARACTERS,
) -> Iterator[list[Question]]:
    """Questions in groups of some hundred, fewer if they are long."""
    group: list[Question] = []
    characters = 0
    for question in questions:
        group.append(question)
        characters += len(question.context) + sum(map(len, question.choices))
        if len(group) == most or characters >= most_characters:
            yield group
            group, characters = [], 0
    if group:
        yield group


def score_choices(
    score: Scorer,
    tokenizer: Tokenizer,
    pairs: list[tuple[str, str]],
    *,
    rows: int,
    max_tokens: int,
) -> list[Score]:
    """Score each (context, choice), joined by a space; rows of similar length together."""
    texts = (_encode(tokenizer, context, f" {choice}", max_tokens) for context, choice in pairs)
    return [one for part in _iter_parts(texts) for one in score_ids(score, part, rows=rows)]


def _iter_parts(texts: Iterable[TextIds], *, most_ids: int = _PART_IDS) -> Iterator[list[TextIds]]:
    """Texts in parts of limited size; a part has at least one."""
    part: list[TextIds] = []
    num_ids = 0
    for text in texts:
        part.append(text)
        num_ids += len(text[0])
        if num_ids >= most_ids:
            yield part
            part, num_ids = [], 0
    if part:
        yield part


def score_ids(score: Scorer, texts: list[TextIds], *, rows: int) -> list[Score]:
    """Score the last ids of each text, as many as given with it; similar lengths together."""
    order = sorted(range(len(texts)), key=lambda number: -len(texts[number][0]))
    scores: list[Score | None] = [None] * len(texts)
    for first in range(0, len(order), rows):
        numbers = order[first : first + rows]
        found = score([texts[number] for number in numbers])
        for number, one in zip(numbers, found, strict=True):
            scores[number] = one
    return [one for one in scores if one is not None]


def _encode(
    tokenizer: Tokenizer, context: str, choice: str, max_tokens: int
) -> tuple[list[int], int]:
    """The last ids of a text, and how many of them are the choice's.

    Spaces at the context's end belong to the choice, because tokens include their leading space.
    """
    kept = context.rstrip()
    whole = tokenizer.encode(kept + context[len(kept) :] + choice, special="text")
    before = min(len(tokenizer.encode(kept, special="text")), len(whole) - 1)
    count = len(whole) - before
    ids = whole[-(max_tokens + 1) :].tolist()
    if before == 0 and len(ids) <= max_tokens:
        end = tokenizer.end_of_text_id
        ids = [0 if end is None else end, *ids]
    return ids, min(count, len(ids) - 1)
