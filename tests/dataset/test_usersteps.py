"""`prepare --step`: a user's function, with every engine and number of workers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lowtide.corpus import usersteps
from lowtide.dataset.appending import append_to_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.summary import describe_preparation
from lowtide.errors import DataError, UsageError

sys.path.insert(0, str(Path(__file__).parent))
from corpora import SEPARATOR, read_documents, snapshot

SOURCE = """def keep(text):
    number = int(text.split()[1])
    if number % 3 == 0:
        return None
    if number % 5 == 0:
        return text.replace("sea", "ocean") + "\\n\\n\\n\\n\\nMore   of it.\\r\\n"
    return text
"""


def make_text(number: int) -> str:
    return f"Document {number} is about the sea\nand has line {number} of its own, too."


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    Path("my_rules.py").write_text(SOURCE)
    documents = [make_text(number) for number in range(120)]
    Path("a.txt").write_text(SEPARATOR.join(documents[:70]))
    rows = [json.dumps({"text": text}) + "\n" for text in documents[70:]]
    Path("b.jsonl").write_text("".join(rows))
    return documents


def options(out_dir: str, **more: Any) -> dict[str, Any]:
    common: dict[str, Any] = {"tokenization": "char", "processes": 2, "val_fraction": 0}
    common |= {"input_files": ["a.txt", "b.jsonl"], "step": "my_rules.py:keep"}
    common |= {"block_bytes": 2048}
    return {**common, "out_dir": out_dir, **more}


def test_what_the_function_says_is_done_and_counted(corpus: list[str]) -> None:
    result = prepare_dataset(**options("out"))
    expected = set()
    for number, text in enumerate(corpus):
        if number % 3:
            end = "\n\n\nMore of it." if number % 5 == 0 else ""  # cleaned like all text
            expected.add((text.replace("sea", "ocean") if end else text) + end)
    found = read_documents(Path("out"), "train")
    assert len(found) == 80
    assert set(found) == expected
    rules = result.report["rules"]
    assert rules["document_step"]["count"] == 40
    assert rules["document_step"]["examples"][0] == corpus[0]
    assert rules["step_changed"]["count"] == 16
    assert result.report["documents_in"] == 120
    assert "documents removed: by --step" in describe_preparation(result)
    assert not usersteps._idle  # no process is left over


def test_the_same_bytes_however_it_is_run(corpus: list[str]) -> None:
    prepare_dataset(**options("one"))
    prepare_dataset(**options("two", processes=1, memory="300MiB"))
    prepare_dataset(**options("three", engine="files"))
    assert snapshot(Path("one")) == snapshot(Path("two")) == snapshot(Path("three"))
    dry = prepare_dataset(**options("four", dry_run=True))
    assert dry.report["rules"]["document_step"]["count"] == 40


def test_a_step_that_does_nothing_changes_nothing(corpus: list[str]) -> None:
    Path("same.py").write_text("def same(text):\n    return text\n")
    prepare_dataset(**options("with", step="same.py:same"))
    prepare_dataset(**options("without", step=""))
    assert read_documents(Path("with"), "train") == read_documents(Path("without"), "train")


def test_the_source_is_part_of_the_identity(corpus: list[str]) -> None:
    prepare_dataset(**options("out"))
    assert prepare_dataset(**options("out")).was_there
    with pytest.raises(UsageError, match=r"--step .*my_rules\.py:keep, now it is none"):
        prepare_dataset(**options("out", step=""))
    Path("c.txt").write_text(SEPARATOR.join(map(make_text, range(200, 230))))
    append_to_dataset(dataset_dir="out", input_files=["c.txt"])
    assert not any("Document 201 " in text for text in read_documents(Path("out"), "train"))
    assert any("Document 202 " in text for text in read_documents(Path("out"), "train"))
    Path("my_rules.py").write_text(SOURCE.replace("% 3", "% 4"))
    with pytest.raises(UsageError, match=r"my_rules\.py:keep with other content"):
        prepare_dataset(**options("out"))
    with pytest.raises(UsageError, match="with other content"):
        append_to_dataset(dataset_dir="out", input_files=["c.txt"])


def test_a_failure_names_file_document_and_line(corpus: list[str]) -> None:
    Path("my_rules.py").write_text(
        "def keep(text):\n    return text[: 1 // (80 - int(text.split()[1]))]"
    )
    with pytest.raises(DataError, match=r"ZeroDivisionError.*\(my_rules\.py, line 2\)") as caught:
        prepare_dataset(**options("out"))
    rows = Path("b.jsonl").read_text().splitlines(keepends=True)
    begin = sum(map(len, rows[:10]))
    assert f"on the document at {begin} (byte or row)" in caught.value.message
    assert str(caught.value.path) == "b.jsonl"


def test_parts_of_large_documents_are_not_judged(corpus: list[str]) -> None:
    lines = "\n".join(f"line {number} of a long document" for number in range(400))
    Path("large.txt").write_text(lines)
    Path("none.py").write_text("def none(text):\n    return None\n")
    result = prepare_dataset(
        **options("out", input_files=["large.txt", "a.txt"], step="none.py:none")
    )
    assert read_documents(Path("out"), "train") == [lines]
    assert result.report["rules"]["document_step"]["count"] == 70
    assert result.report["rules"]["rules_unjudged"]["count"] > 1
