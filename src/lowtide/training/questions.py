"""Read questions of evaluation tasks from local files, in the formats they are published in.

In:      .jsonl: HellaSwag, ARC, PIQA and LAMBADA as published, or context, choices and answer
Out:     Question: a context, continuations of it, and which of them is right
Memory:  one line at a time

Texts are formatted as in other evaluation suites, so that accuracies are comparable: a line
"Question: …" and "Answer:" before a space and the choice, HellaSwag's source notes removed, only
LAMBADA's last word as the text to complete.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lowtide.corpus.cutting import PROBE_BYTES
from lowtide.corpus.nontext import explain_json, find_binary
from lowtide.errors import DataError
from lowtide.files import open_file
from lowtide.quickclasses import dataclass

__all__ = ["Question", "held_text_bytes", "iter_questions", "longest_line"]

_SHORT_LINE = 256 << 10
_LINE_TIMES = 24  # a line, its text at 4 bytes a character, that with a choice, and its ids
_PART_BYTES = 1 << 20
_BRACKETS = re.compile(r"\[.*?\]")


@dataclass(frozen=True)
class Question:
    """One line of a task."""

    context: str
    choices: tuple[str, ...]
    """Possible continuations, without the space between; a single one is a text to complete."""
    answer: int


def iter_questions(path: Path) -> Iterator[Question]:
    """Read a file line by line; a line of unknown format gives an error that names it."""
    for number, line in _iter_lines(path):
        try:
            row = json.loads(line)
            yield _read(row)
        except (
            ValueError,
            TypeError,
            KeyError,
            IndexError,
            AttributeError,
            RecursionError,
        ) as error:
            what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            if isinstance(error, UnicodeDecodeError):
                what = f"it is {explain_json(error)}"
            raise DataError(
                f"line {number} is not a question: {what}",
                path=path,
                next_step='expected {"context": …, "choices": […], "answer": 0}, {"text": …}, or a '
                "line of HellaSwag, ARC or PIQA",
            ) from None


def longest_line(path: Path, *, part_bytes: int = _PART_BYTES) -> int:
    """Bytes of the longest line of a file of questions; 0 if it cannot be read."""
    longest = size = 0
    try:
        with open_file(path) as file:
            while part := file.read(part_bytes):
                ends = part.split(b"\n")
                for end in ends[:-1]:
                    longest, size = max(longest, size + len(end)), 0
                size += len(ends[-1])
    except OSError:
        return 0  # reading it will report what is wrong
    return max(longest, size)


def held_text_bytes(longest_line: int) -> int:
    """Memory to encode a question from a line of this length; 0 if negligible.

    >>> held_text_bytes(2000), held_text_bytes(10_000_000) // 1_000_000
    (0, 240)
    """
    return 0 if longest_line <= _SHORT_LINE else _LINE_TIMES * longest_line


def _iter_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    if not path.is_file():
        raise DataError(
            "no such file of questions",
            path=path,
            next_step="name a .jsonl file, such as a validation set of ARC or HellaSwag",
        )
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1 and (found := find_binary(line[:PROBE_BYTES])) is not None:
                raise DataError(found[0], path=path, next_step="name plain jsonl")
            if line.removeprefix(codecs.BOM_UTF8).strip():
                yield number, line


def _read(row: Any) -> Question:
    if not isinstance(row, Mapping):
        raise TypeError("it holds no object")
    for key, read in _SHAPES.items():
        if key in row:
            question = read(row)
            if not question.choices or not all(question.choices):
                raise ValueError("a choice is empty" if question.choices else "it has no choices")
            if not 0 <= question.answer < len(question.choices):
                raise ValueError(f"the answer is {question.answer} of {len(question.choices)}")
            return question
    raise ValueError(f"its keys are {', '.join(map(str, row)) or 'none'}")


def _read_hellaswag(row: Mapping[str, Any]) -> Question:
    if "ctx_a" in row:
        text = f"{_text(row['ctx_a'])} {_text(row.get('ctx_b', '')).capitalize()}"
    else:
        text = _text(row["ctx"])
    if row.get("activity_label"):
        text = f"{_text(row['activity_label'])}: {text}"
    choices = tuple(map(_without_notes, _texts(row["endings"])))
    return Question(_without_notes(text), choices, _number(row["label"]))


def _without_notes(text: str) -> str:
    text = _BRACKETS.sub("", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def _read_piqa(row: Mapping[str, Any]) -> Question:
    choices = (_text(row["sol1"]), _text(row["sol2"]))
    return Question(f"Question: {_text(row['goal'])}\nAnswer:", choices, _number(row["label"]))


def _read_arc(row: Mapping[str, Any]) -> Question:
    question, choices = row["question"], row["choices" if "choices" in row else "question"]
    if isinstance(question, Mapping):  # as first published: the choices beside the question's stem
        choices, question = question["choices"], question["stem"]
    if isinstance(choices, Mapping):
        texts, labels = list(choices["text"]), list(choices["label"])
    else:
        texts = [choice["text"] for choice in choices]
        labels = [choice["label"] for choice in choices]
    if len(texts) != len(labels):
        raise ValueError(f"it has {len(texts)} choices and {len(labels)} labels")
    if row["answerKey"] not in labels:
        raise ValueError(f"answerKey is {row['answerKey']!r}, the labels are {labels}")
    right = labels.index(row["answerKey"])
    return Question(f"Question: {_text(question)}\nAnswer:", _texts(texts), right)


def _read_plain(row: Mapping[str, Any]) -> Question:
    """Texts as they are, joined by one space whether they have it already or not."""
    context = _text(row["context"]).removesuffix(" ")
    completes = "continuation" in row
    if completes and "choices" in row:
        raise ValueError("it has choices and a continuation")
    given = [row["continuation"]] if completes else row["choices"]
    choices = tuple(choice.removeprefix(" ") for choice in _texts(given))
    return Question(context, choices, 0 if completes else _number(row["answer"]))


def _read_lambada(row: Mapping[str, Any]) -> Question:
    before, _, word = _text(row["text"]).rstrip("\n").rpartition(" ")
    if not before or not word:
        raise ValueError("its text has no last word with others before it")
    return Question(before, (word,), 0)


def _texts(values: Any) -> tuple[str, ...]:
    """The texts of a list; the characters of a text are none."""
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is not a list of texts")
    return tuple(map(_text, values))


def _number(value: Any) -> int:
    """The number of a choice, which HellaSwag has as a text; a fraction would be cut off."""
    if isinstance(value, bool) or value is None or (isinstance(value, float) and value % 1):
        raise TypeError(f"the answer is {value!r}, expected the number of a choice")
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


# By a key that identifies the shape; the first one found in a line counts.
_SHAPES: dict[str, Callable[[Mapping[str, Any]], Question]] = {
    "endings": _read_hellaswag,
    "goal": _read_piqa,
    "answerKey": _read_arc,
    "context": _read_plain,
    "text": _read_lambada,
}
