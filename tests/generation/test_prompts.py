"""Prompts of any length: all of it is printed, its end is encoded as if all of it were."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import BudgetError, DataError
from lowtide.generation import prompts
from lowtide.generation.prompts import (
    Prompt,
    _first_cut,
    _iter_lines,
    count_prompts,
    encode_end,
    iter_prompts,
    longest_prompt,
)
from lowtide.generation.settings import GenerateSettings
from lowtide.tokenizer import Tokenizer

NASTY = "The tide,  it's\tlow…\r\n\r\n  123456 潮が引く 👩‍🚀\n<|endoftext|>don't\u2028x=1;;;\n"


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return Tokenizer.load("gpt2")


def settings(**options: object) -> GenerateSettings:
    return GenerateSettings(model_name="m", **options)  # type: ignore[arg-type]


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer.load("gpt2") if kind == "gpt2" else Tokenizer.from_characters(set(NASTY))


@pytest.mark.parametrize("kind", ["gpt2", "char"])
@given(text=st.text(st.sampled_from(NASTY), max_size=300), context=st.integers(1, 40))
def test_the_end_is_encoded_as_if_all_of_it_were(
    kind: str, text: str, context: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tokenizer = tokenizer_of(kind)
    path = tmp_path_factory.getbasetemp() / "prompt.txt"
    path.write_bytes(text.encode())
    read = path.read_text(encoding="utf-8")  # line ends as in any text file
    prompts._read_through.cache_clear()
    (prompt,) = iter_prompts(settings(prompt_file=path), read_bytes=7)
    assert "".join(prompt.iter_text()) == read
    assert encode_end(tokenizer, prompt, context, first_bytes=16) == [
        int(token) for token in tokenizer.encode(read)[-context:]
    ]
    assert encode_end(tokenizer, Prompt(text), context, first_bytes=16) == [
        int(token) for token in tokenizer.encode(text)[-context:]
    ]


def test_only_the_end_of_a_long_prompt_is_read(
    gpt2: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("word " * 200_000 + "the end")
    (prompt,) = iter_prompts(settings(prompt_file=path))
    sizes: list[int] = []
    encode = gpt2.encode
    monkeypatch.setattr(gpt2, "encode", lambda data, **_: sizes.append(len(data)) or encode(data))
    ids = encode_end(gpt2, prompt, 64)
    assert gpt2.decode(ids).endswith("word word the end") and len(ids) == 64
    assert max(sizes) <= 16384


def test_an_end_without_a_place_to_cut_is_refused(gpt2: Tokenizer) -> None:
    with pytest.raises(BudgetError, match=r"the last 256 B of the prompt have no place to cut"):
        encode_end(gpt2, Prompt("a" * 1000), 2, first_bytes=16, largest_bytes=256)


def test_every_line_is_a_prompt_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("one\r\n\r\n  two, 潮が引く\rthree\n\n\nfour".encode())
    prompts._read_through.cache_clear()
    chosen = settings(prompt_file=path, each_line=True)
    texts = ["".join(prompt.iter_text()) for prompt in iter_prompts(chosen, read_bytes=7)]
    assert texts == ["one", "  two, 潮が引く", "three", "four"]
    assert count_prompts(chosen) == 4
    path.write_bytes(b"")
    prompts._read_through.cache_clear()
    assert count_prompts(chosen) == 0


def test_what_cannot_be_a_prompt_is_told_before_anything_is_printed(tmp_path: Path) -> None:
    missing = settings(prompt_file=tmp_path / "no.txt")
    with pytest.raises(DataError, match="prompt file not found"):
        next(iter_prompts(missing))
    (tmp_path / "bad.txt").write_bytes(b"good \xff bad")
    with pytest.raises(DataError, match="not UTF-8"):
        next(iter_prompts(settings(prompt_file=tmp_path / "bad.txt")))
    with pytest.raises(DataError, match="this is a folder"):
        next(iter_prompts(settings(prompt_file=tmp_path)))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="can be read only once"):
        next(iter_prompts(settings(prompt_file=tmp_path / "pipe")))


def test_sizes_of_ends_double_from_a_start_by_the_context(gpt2: Tokenizer) -> None:
    asked: list[int] = []

    class Watched(Prompt):
        def end(self, size: int) -> tuple[bytes, bool]:
            asked.append(size)
            return b"a" * 50, False

    with pytest.raises(BudgetError, match=r"8\.0 MiB"):
        encode_end(gpt2, Watched("a"), 5000)
    assert asked == [40_000 << n for n in range(8)] + [8 << 20]
    asked.clear()
    with pytest.raises(BudgetError):
        encode_end(gpt2, Watched("a"), 1)
    assert asked[:2] == [1 << 14, 1 << 15] and asked[-1] == 8 << 20


def test_exactly_as_many_ids_as_the_context_are_enough(gpt2: Tokenizer) -> None:
    asked: list[int] = []

    class Watched(Prompt):
        def end(self, size: int) -> tuple[bytes, bool]:
            asked.append(size)
            return b"xx word word", False

    assert gpt2.decode(encode_end(gpt2, Watched("a"), 2)) == " word word"
    assert len(asked) == 1


def test_characters_are_cut_where_one_begins(gpt2: Tokenizer) -> None:
    characters = Tokenizer.from_characters("a\u4e2d\U0001f600")
    for text, place in (("\U0001f600a", 0), ("\u4e2da", 0), ("aa", 0)):
        data = text.encode()
        assert _first_cut(characters, data) == place
        for lost in range(1, len(text[0].encode())):
            assert _first_cut(characters, data[lost:]) == len(text[0].encode()) - lost
    assert _first_cut(characters, b"") == 0
    assert _first_cut(characters, b"\x80" * 5) == 0
    assert _first_cut(gpt2, b"word word") == 4
    assert _first_cut(gpt2, b" word") is None  # a cut at the beginning cuts nothing
    assert _first_cut(gpt2, b"") is None


def test_a_prompt_is_nothing_until_something_is_said(tmp_path: Path) -> None:
    assert not Prompt() and not Prompt(path=tmp_path)
    assert Prompt("a") and Prompt(path=tmp_path, size_bytes=1)
    assert Prompt().begin == Prompt().size_bytes == 0
    path = tmp_path / "p.txt"
    path.write_bytes(b"0123456789")
    part = Prompt(path=path, begin=2, size_bytes=6)
    assert part.end(4) == (b"4567", False)
    assert part.end(6) == (b"234567", True)
    assert part.end(60) == (b"234567", True)
    assert Prompt("0123").end(2) == (b"23", False)
    assert Prompt("0123").end(4) == (b"0123", True)


def test_a_byte_order_mark_is_not_part_of_a_prompt(tmp_path: Path) -> None:
    path = tmp_path / "marked.txt"
    path.write_bytes("\ufeffone\r\n\r\ntwo \ufeff".encode())
    (whole,) = iter_prompts(settings(prompt_file=path))
    assert "".join(whole.iter_text()) == "one\n\ntwo \ufeff"
    assert whole.end(99) == ("one\n\ntwo \ufeff".encode(), True)
    lines = settings(prompt_file=path, each_line=True)
    assert ["".join(line.iter_text()) for line in iter_prompts(lines)] == ["one", "two \ufeff"]
    assert (count_prompts(lines), longest_prompt(lines)) == (2, 7 + 8)
    path.write_bytes(b"\xef\xbb\xbf")
    prompts._read_through.cache_clear()
    assert (count_prompts(lines), longest_prompt(lines)) == (0, 8)
    (empty,) = iter_prompts(settings(prompt_file=path))
    assert not empty and not list(filter(None, empty.iter_text()))


def test_half_a_character_at_the_end_of_a_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "half.txt"
    path.write_bytes("a\u4e2d".encode()[:-1])
    with pytest.raises(DataError, match="not UTF-8"):
        next(iter_prompts(settings(prompt_file=path)))
    with pytest.raises(DataError, match="not UTF-8"):
        list(Prompt(path=path, size_bytes=3).iter_text())


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"\na\n", [(1, 2)]),
        (b"a", [(0, 1)]),
        (b"\r\n\r\n", []),
        (b"ab\ncd", [(0, 2), (3, 5)]),
        (b"\n\n\nx\n", [(3, 4)]),
        (b"a\rb\nc", [(0, 1), (2, 3), (4, 5)]),
    ],
)
def test_where_lines_begin_and_end(tmp_path: Path, content: bytes, lines: list[object]) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(content)
    assert list(_iter_lines(path, len(content))) == lines


@pytest.mark.parametrize("content", [b"", b"\n\r\n"])
def test_a_file_without_a_line_has_no_prompt(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.txt"
    path.write_bytes(content)
    given = settings(prompt_file=path, each_line=True)
    assert (count_prompts(given), list(iter_prompts(given)), longest_prompt(given)) == (0, [], 8)
    assert longest_prompt(settings(prompt_file=path)) == len(content) + 8


@pytest.mark.parametrize(("context", "ids"), [(1, [6]), (4, [3, 4, 5, 6]), (9, [1, 2, 3, 4, 5, 6])])
def test_what_only_a_package_can_cut_is_encoded_whole(context: int, ids: list[int]) -> None:
    asked: list[str] = []

    def iter_encoded(texts: Any, special: str) -> Any:
        asked.extend(texts)
        return iter([np.array([1, 2, 3]), np.array([4]), np.array([5, 6])])

    package: Any = SimpleNamespace(kind="package", iter_encoded=iter_encoded)
    assert encode_end(package, Prompt("a text"), context) == ids and asked == ["a text"]


def test_a_prompt_file_that_changed_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    settings = GenerateSettings(model_name="m", prompt_file=path)
    for text in ("one", "three and four"):
        path.write_text(text)
        assert [prompt.size_bytes for prompt in iter_prompts(settings)] == [len(text)]
