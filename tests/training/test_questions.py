"""Tasks: published shapes give the texts that evaluation suites score."""

import gzip
import json
import os
from pathlib import Path

import pytest

from lowtide.errors import DataError
from lowtide.training import questions
from lowtide.training.questions import Question, iter_questions

HELLASWAG = {
    "activity_label": "Removing ice from car",
    "ctx_a": "Then, the man writes over the snow [header] covering the window.",
    "ctx_b": "then",
    "endings": [", the man adds wax [title] Done", "he stops  here."],
    "label": "1",
}
ARC = {
    "question": "Which is wet?",
    "choices": {"text": ["sand", "the sea"], "label": ["A", "B"]},
    "answerKey": "B",
}
OLD_ARC = {
    "question": {
        "stem": "Which is wet?",
        "choices": [{"text": "sand", "label": "1"}, {"text": "the sea", "label": "2"}],
    },
    "answerKey": "2",
}
PIQA = {"goal": "Dry a towel.", "sol1": "Hang it up.", "sol2": "Sink it.", "label": 0}
LAMBADA = {"text": "the tide was low and then the tide was high"}


@pytest.mark.parametrize(
    ("row", "question"),
    [
        (
            HELLASWAG,
            Question(
                "Removing ice from car: Then, the man writes over the snow covering the window. "
                "Then",
                (", the man adds wax. Done", "he stops here."),
                1,
            ),
        ),
        (ARC, Question("Question: Which is wet?\nAnswer:", ("sand", "the sea"), 1)),
        (OLD_ARC, Question("Question: Which is wet?\nAnswer:", ("sand", "the sea"), 1)),
        (PIQA, Question("Question: Dry a towel.\nAnswer:", ("Hang it up.", "Sink it."), 0)),
        (LAMBADA, Question("the tide was low and then the tide was", ("high",), 0)),
        (
            {"context": "One plus one is", "choices": ["two", "three", "four"], "answer": 0},
            Question("One plus one is", ("two", "three", "four"), 0),
        ),
        ({"context": "high and", "continuation": "low"}, Question("high and", ("low",), 0)),
        ({"context": "high and", "continuation": " low"}, Question("high and", ("low",), 0)),
        ({"context": "high and ", "continuation": "low "}, Question("high and", ("low ",), 0)),
        (
            {"context": "A:\n", "choices": [" b", "  c"], "answer": 1},
            Question("A:\n", ("b", " c"), 1),
        ),
    ],
)
def test_published_rows_become_questions(row, question, tmp_path):
    path = tmp_path / "task.jsonl"
    path.write_text(f"{json.dumps(row)}\n\n{json.dumps(row)}\n")
    assert list(iter_questions(path)) == [question, question]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not a question"),
        ("[1]", "it holds no object"),
        ('{"prompt": "a"}', "its keys are prompt"),
        (json.dumps({**ARC, "answerKey": "E"}), "answerKey is 'E', the labels are"),
        (json.dumps({**PIQA, "label": 2}), "the answer is 2 of 2"),
        (json.dumps({**PIQA, "sol1": ""}), "a choice is empty"),
        (json.dumps({"goal": "x", "sol1": "a", "label": 0}), "sol2 is missing"),
        ('{"text": "word"}', "no last word"),
        ('{"context": "a", "choices": [1, 2], "answer": 0}', "1 is not text"),
        ("[" * 100000, "line 2 is not a question"),
        ('{"context": "a", "choices": ["b", "c"], "answer": 0.5}', "the answer is 0.5, expected"),
        ('{"context": "a", "choices": ["b", "c"], "answer": true}', "the answer is True, expected"),
        ('{"context": "a", "choices": ["b", "c"], "answer": null}', "the answer is None, expected"),
        ('{"context": "a", "choices": "bc", "answer": 0}', "'bc' is not a list of texts"),
        ('{"context": "a", "choices": [], "answer": 0}', "it has no choices"),
        ('{"context": "a", "choices": ["b"], "answer": 0, "continuation": "c"}', "choices and a"),
        (json.dumps({**HELLASWAG, "endings": "abcd"}), "'abcd' is not a list"),
        (json.dumps({**HELLASWAG, "ctx_a": None}), "None is not text"),
        (json.dumps({**PIQA, "goal": None}), "None is not text"),
        (json.dumps({**ARC, "question": 3}), "3 is not text"),
        (
            json.dumps({**ARC, "choices": {"text": ["a", "b"], "label": ["A"]}}),
            "it has 2 choices and 1 labels",
        ),
    ],
)
def test_lines_that_are_none_are_named(line, message, tmp_path):
    path = tmp_path / "task.jsonl"
    path.write_text(f"{json.dumps(PIQA)}\n{line}\n")
    with pytest.raises(DataError, match=message) as caught:
        list(iter_questions(path))
    assert caught.value.path == path and caught.value.next_step


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip.compress(b"{}", mtime=0), "this file is compressed with gzip, expected text"),
        (b"PAR1\0\1", "this looks like a binary file: byte 4 is NUL"),
        (b'{"a": "\xe9"}', r"line 1 is not a question: it is not UTF-8 \(byte 7 is 0xe9\)"),
    ],
)
def test_questions_that_are_no_text_are_named(data, message, tmp_path):
    """The answer was the message of a decoder: 'utf-8' codec can't decode byte 0x8b."""
    path = tmp_path / "task.jsonl"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        list(iter_questions(path))
    assert caught.value.path == path and caught.value.next_step


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        list(iter_questions(tmp_path / "none.jsonl"))


def test_the_longest_line_is_measured_without_reading_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for text, longest in ((b"", 0), (b"ab\n", 2), (b"a\n" + b"b" * 40 + b"\ncd", 40), (b"abc", 3)):
        path.write_bytes(text)
        assert questions.longest_line(path, part_bytes=7) == longest
    assert questions.longest_line(tmp_path / "none") == 0


def test_only_long_questions_count() -> None:
    assert questions.held_text_bytes(200_000) == 0
    assert questions.held_text_bytes(1_000_000) == 24_000_000
    assert questions.held_text_bytes(1 << 40) == 24 << 40


def test_a_line_may_have_any_length_that_the_budget_holds(tmp_path: Path) -> None:
    context = "a" * (17 << 20)
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"context": context, "choices": ["b", "c"], "answer": 1})
    )
    (question,) = iter_questions(tmp_path / "a.jsonl")
    assert len(question.context) == len(context)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert questions.longest_line(tmp_path / "pipe") == 0
    with pytest.raises(DataError, match="no such file of questions"):
        list(iter_questions(tmp_path / "pipe"))
