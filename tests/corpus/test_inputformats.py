"""Formats of inputs: one table, and nobody else asks for a format by its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lowtide
from lowtide.corpus.inputformats import COMPRESSIONS, FORMATS, TEXT_SUFFIXES, classify, is_known
from lowtide.corpus.inputs import InputFile

SOURCE = Path(lowtide.__file__).parent


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("compression", [None, *COMPRESSIONS])
def test_a_suffix_says_the_format_and_the_compression(kind: str, compression: str | None) -> None:
    for suffix in FORMATS[kind].suffixes:
        end = COMPRESSIONS[compression].suffix if compression else ""
        for name in (f"a{suffix}{end}", f"A{suffix}{end}".upper(), f"v1.2{suffix}{end}"):
            assert classify(Path(name)) == (kind, compression)
            assert is_known(Path(name))
            assert Path(name).suffix.lower() in TEXT_SUFFIXES


@pytest.mark.parametrize("name", ["README", "a.gz", "a.bin", ".jsonl", "txt"])
def test_other_names_are_not_known_and_are_text_if_named(name: str) -> None:
    assert not is_known(Path(name))
    assert classify(Path(name))[0] == "text"


@pytest.mark.parametrize(
    ("kind", "compression", "in_order"),
    [
        ("text", None, False),
        ("jsonl", None, False),
        ("text", "gzip", True),
        ("parquet", None, True),
        ("hub", None, False),
    ],
)
def test_what_one_worker_reads_alone(kind: str, compression: str | None, in_order: bool) -> None:
    source = InputFile(0, Path("a"), kind, compression, 1)
    assert source.is_read_in_order == in_order


def test_formats_are_not_asked_for_by_name_elsewhere() -> None:
    asked = re.compile(r"source\.kind (==|!=|in) |row\.kind (==|!=|in) ")
    stages = ("corpus", "tokenizer", "dataset", "loader", "planning")
    paths = [path for stage in stages for path in (SOURCE / stage).rglob("*.py")]
    assert paths and [path.name for path in paths if asked.search(path.read_text())] == []
