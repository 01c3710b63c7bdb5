"""Text without a place to cut is found before a refusal names a budget."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from lowtide import _native
from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.reading import ReadingSettings
from lowtide.tokenizer import scanning, stretches
from lowtide.tokenizer.scanning import count_characters
from lowtide.tokenizer.stretches import Stretch, find_stretch, unseen_words

LINES = b"some words of a line\n" * 20_000
LETTERS = bytes(random.Random(0).choices(b"ACGT", k=300_000))


def look(*paths: Path, seconds: float = 30.0, streams: bool = True) -> Stretch:
    inputs = expand_inputs(paths)
    return find_stretch(
        inputs,
        ReadingSettings(),
        lambda text: _native.last_cut(text, [b"<|endoftext|>"]),
        seconds=seconds,
        streams=streams,
    )


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
@pytest.mark.parametrize(
    ("stretch", "repeats"), [(LETTERS, False), (b"ab" * 150_000, True)], ids=["letters", "repeated"]
)
def test_a_stretch_between_lines_is_measured(
    stretch: bytes, repeats: bool, suffix: str, tmp_path: Path
) -> None:
    path, text = tmp_path / f"a{suffix}", LINES + stretch + LINES
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    found = look(path)
    assert len(stretch) <= found.size_bytes + (64 << 10)
    assert found.size_bytes <= len(stretch) + (64 << 10)
    assert found.repeats is repeats
    assert found.in_stream is suffix.endswith("gz")
    assert found.text_bytes == len(text) and not found.unseen_bytes


def test_lines_have_no_long_stretch(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(LINES)
    assert look(path).size_bytes < 100


def test_the_longest_of_several_files_counts(tmp_path: Path) -> None:
    for name, size in (("a", 100_000), ("b", 300_000), ("c", 200_000)):
        (tmp_path / f"{name}.txt").write_bytes(LETTERS[:size])
    assert look(*sorted(tmp_path.iterdir())).size_bytes == 300_000


def test_compressed_files_are_left_out_where_they_are_not_held(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(LETTERS))
    assert look(path, streams=False).size_bytes == 0


def test_what_there_was_no_time_for_is_said(tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_bytes(LINES)
    second.write_bytes(LINES)
    found = look(first, second, seconds=-1.0)
    assert (found.unseen_bytes, found.text_bytes) == (2 * len(LINES), 0)
    assert "695.3 KiB of the input were not looked at" in unseen_words(712_000)
    assert unseen_words(0) == ""


def test_an_empty_file_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b""))
    assert look(path) == Stretch()
    assert count_characters(expand_inputs([path]), options=ReadingSettings()) == (0, 0)


def test_no_file_is_opened_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(LINES)
    monkeypatch.setattr(scanning, "open_stream", None)
    monkeypatch.setattr(stretches, "open_stream", None)
    assert look(path, seconds=-1.0) == Stretch(unseen_bytes=len(LINES))
    counted = count_characters(expand_inputs([path]), options=ReadingSettings(), seconds=-1.0)
    assert counted == (0, len(LINES))


def test_a_damaged_file_counts_as_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(b"no gzip at all")
    assert look(path) == Stretch(unseen_bytes=14)
