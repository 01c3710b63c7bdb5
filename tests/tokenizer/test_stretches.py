"""Text without a place to cut is found before a refusal names a budget."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide import _native
from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.reading import ReadingSettings
from lowtide.errors import DataError
from lowtide.tokenizer import stretches
from lowtide.tokenizer.scanning import count_characters
from lowtide.tokenizer.stretches import Stretch, find_stretch, unseen_words

LINES = b"some words of a line\n" * 20_000
LETTERS = bytes(random.Random(0).choices(b"ACGT", k=300_000))


def look(*paths: Path, streams: bool = True) -> Stretch:
    inputs = expand_inputs(paths)
    return find_stretch(
        inputs,
        ReadingSettings(),
        lambda text: _native.last_cut(text, [b"<|endoftext|>"]),
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


def test_all_of_the_text_is_looked_at_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An hour between two looks at the clock: the last stretch counts, and the wait is told."""
    clock = itertools.count(0.0, 3600.0)
    (tmp_path / "a.txt").write_bytes(LINES + LETTERS[:100_000])
    (tmp_path / "b.txt").write_bytes(LINES + LETTERS)
    monkeypatch.setattr(stretches, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    inputs = sorted(tmp_path.iterdir())
    found = look(*inputs)
    assert found.size_bytes >= len(LETTERS) and not found.unseen_bytes
    assert "all text is looked at, to name one that is enough" in capsys.readouterr().err
    counted = count_characters(expand_inputs(inputs), options=ReadingSettings())
    assert counted == (len(set(LINES + LETTERS)), 0)


def test_what_could_not_be_looked_at_is_said() -> None:
    assert "695.3 KiB of the input were not looked at" in unseen_words(712_000)
    assert unseen_words(0) == ""


def test_an_empty_file_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b""))
    assert look(path) == Stretch()
    assert count_characters(expand_inputs([path]), options=ReadingSettings()) == (0, 0)


def test_a_damaged_file_counts_as_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(b"no gzip at all")
    assert look(path) == Stretch(unseen_bytes=14)


def test_separators_one_after_the_other_have_no_place_to_cut_between_them(tmp_path: Path) -> None:
    """A part that begins inside of one must not be taken for text before it."""
    (tmp_path / "a.txt").write_bytes(LINES + b"<|endoftext|>" * 30_000)
    assert look(tmp_path / "a.txt").size_bytes >= 13 * 30_000


def test_of_two_stretches_the_one_that_holds_more_is_kept() -> None:
    sizes = [
        stretches._held(Stretch(size_bytes=1000, in_stream=in_stream, repeats=repeats))
        for repeats in (False, True)
        for in_stream in (False, True)
    ]
    assert sizes == [1000, 2000, 4000, 4000]


def test_what_shrinks_to_less_than_a_share_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[int] = []

    def compress(text: bytes, level: int) -> bytes:
        levels.append(level)
        return text[: len(text) // 1000]

    monkeypatch.setattr(stretches, "zlib", SimpleNamespace(compress=compress))
    shrinks = stretches._SHRINKS
    assert stretches._is_same(b"x" * (1000 * shrinks)) is True
    assert stretches._is_same(b"x" * 1000) is (shrinks < 1000)
    assert levels == [1, 1]  # the quickest
    for size, same in ((shrinks * 3, False), (shrinks * 3 + 1, True)):
        monkeypatch.setattr(stretches, "zlib", SimpleNamespace(compress=lambda text, level: b"abc"))
        assert stretches._is_same(b"x" * size) is same


def test_how_far_a_look_is_counts_all_files_and_what_fails_is_not_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []

    @contextlib.contextmanager
    def tell(total: int) -> Any:
        told.append(f"of {total}")
        yield told.append

    monkeypatch.setattr(stretches, "_tell_if_long", tell)

    def look(source: Any) -> Any:
        yield 30
        if source.size_bytes == 50:
            raise DataError("damaged")
        if source.size_bytes == 70:
            raise OSError("gone")
        yield source.size_bytes

    inputs: Any = [SimpleNamespace(size_bytes=size) for size in (100, 50, 70, 40)]
    assert stretches.look_through(inputs, look) == 20 + 40
    assert told == ["of 260", 30, 100, 130, 180, 250, 260]


def test_a_look_is_told_after_some_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not at the limit, but beyond it; and once."""
    quiet = stretches._QUIET_SECONDS
    clock = iter([0.0, quiet, quiet + 0.5])
    monkeypatch.setattr(stretches, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with stretches._tell_if_long(100) as advance:
        advance(10)
        assert "all text is looked at" not in capsys.readouterr().err
        advance(20)
        advance(30)  # the clock is not asked again
    assert capsys.readouterr().err.count("all text is looked at") == 1


FILES_THAT_ARE_GONE = """
import sys, tracemalloc
from pathlib import Path
from lowtide.corpus.inputs import InputFile, InputList
from lowtide.corpus.reading import ReadingSettings
from lowtide.tokenizer.stretches import find_stretch

count = int(sys.argv[1])
gone = InputList(InputFile(n, Path(f"gone/{n}.txt"), "text", None, 9) for n in range(count))
tracemalloc.start()
found = find_stretch(gone, ReadingSettings(), len)
print(found.unseen_bytes, tracemalloc.get_traced_memory()[1])
"""


def test_many_files_stay_in_their_compact_list() -> None:
    """A budget was refused in more memory than it had, for 200,000 files.

    In a process of its own: threads of other tests would be counted.
    """
    count = 20_000
    command = [sys.executable, "-c", FILES_THAT_ARE_GONE, str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    unseen, peak = map(int, done.stdout.split())
    assert unseen == 9 * count
    assert peak < 300 * count
