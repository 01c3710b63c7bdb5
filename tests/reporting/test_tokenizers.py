"""A tokenizer's page says how short text becomes, file by file, and what its tokens are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.corpus.inputs import expand_inputs
from lowtide.errors import DataError
from lowtide.reporting import tokenizers
from lowtide.reporting.reports import report as make_report
from lowtide.reporting.tokenizers import TokenizerReader, measure_source
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.training import train_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "english.txt").write_text("the low tide comes and the low tide goes\n" * 50)
    (folder / "greek.txt").write_text("η άμπωτη έρχεται και φεύγει\n" * 20)
    train_tokenizer(input=[folder / "english.txt"], vocab_size=290, out_dir=folder / "tok")
    return folder


def page_of(folder: Path, *samples: Path) -> dict[str, Any]:
    reader = TokenizerReader(folder / "tok", samples=tuple(map(str, samples)))
    assert reader.read()
    assert not reader.read()
    return reader.page()


def section(page: dict[str, Any], id: str) -> dict[str, Any]:
    return next(section for section in page["sections"] if section["id"] == id)


def test_compression_by_file(folder: Path) -> None:
    page = page_of(folder, folder / "english.txt", folder / "greek.txt")
    english, greek = section(page, "compression")["rows"]
    assert english["value"] > 3
    assert greek["value"] == 1  # not one merge helps
    assert "0.55 characters" in greek["text"]
    assert section(page, "compression")["note"] == ""


def test_measures_are_those_of_encoding_by_hand(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder / "tok")
    text = (folder / "english.txt").read_bytes()
    measure = measure_source(tokenizer, expand_inputs([folder / "english.txt"])[0], "text")
    assert (measure.num_bytes, measure.num_tokens) == (len(text), len(tokenizer.encode(text)))
    assert measure.num_distinct == len(set(tokenizer.encode(text).tolist()))


def test_without_samples_it_is_measured_on_what_it_learned_from(folder: Path) -> None:
    compression = section(page_of(folder), "compression")
    assert [Path(row["name"]).name for row in compression["rows"]] == ["english.txt"]
    assert "learned from" in compression["note"]


def test_lengths_and_kinds_count_every_ordinary_token(folder: Path) -> None:
    page = page_of(folder)
    ordinary = Tokenizer.load(folder / "tok").vocab_size - 1
    assert sum(column["count"] for column in section(page, "lengths")["bins"]) == ordinary
    assert sum(row["value"] for row in section(page, "kinds")["rows"]) == ordinary


def test_text_is_shown_token_by_token(folder: Path) -> None:
    item = section(page_of(folder), "texts")["items"][0]
    assert "".join(item["tokens"]).startswith("the low tide comes")


def test_a_text_of_one_token_says_its_bytes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("the")
    (item,) = section(page_of(folder, tmp_path / "one.txt"), "texts")["items"]
    assert item["name"].endswith(": 1 token, 3.00 bytes each") and item["tokens"] == ["the"]


def test_rows_of_jsonl_are_read_as_text(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = "".join(json.dumps({"body": "the low tide"}) + "\n" for _ in range(3))
    path.write_text(rows + '{"body": "cut o')
    reader = TokenizerReader(folder / "tok", samples=(str(path),), text_field="body")
    reader.read()
    (row,) = section(reader.page(), "compression")["rows"]
    assert "36 B" in row["text"]
    with pytest.raises(DataError, match="no text in this sample"):
        TokenizerReader(folder / "tok", samples=(str(path),)).read()


def test_a_sample_that_is_not_there_is_told(folder: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        page_of(folder, folder / "none.txt")


def test_a_browser_draws_it(
    folder: Path, tmp_path: Path, open_page: Callable[[Path | str], tuple[str, list[str]]]
) -> None:
    (tmp_path / "evil.txt").write_text("</script><b>\x1b[31m & blanks   ")
    result = make_report(
        target=folder / "tok",
        sample=[folder / "greek.txt", tmp_path / "evil.txt"],
        out=tmp_path / "page.html",
    )
    document, console = open_page(result.path)
    assert console == []
    assert document.count("data-bar=") > 4
    assert document.count("data-bin=") > 4
    assert "<b>" not in document
    assert 'class="t1"' in document


def test_what_cannot_be_printed_is_escaped_and_the_rest_is_not() -> None:
    assert tokenizers._show("naïve 水\n\t".encode()) == "naïve 水\n\t"
    assert tokenizers._show(b"\x00\x1b\xff") == "\\x00\\x1b\\xff"


@pytest.mark.parametrize(
    ("kind", "data", "name"),
    [
        ("package", {"reason": "a unigram"}, "run by the package tokenizers (a unigram)"),
        ("package", {"reason": ""}, "BPE of pieces of text"),
        ("bpe", {"pattern": "gpt2"}, "BPE, pattern gpt2"),
        ("char", {}, "characters"),
    ],
)
def test_kinds_of_tokenizers_in_words(kind: str, data: dict[str, str], name: str) -> None:
    given: Any = SimpleNamespace(kind=kind, data=SimpleNamespace(**data))
    assert tokenizers._kind_name(given) == name
