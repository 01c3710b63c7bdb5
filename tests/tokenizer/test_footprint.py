"""Peaks of tokenizer training are foreseen from a sample (compared with runs: tests/planning)."""

import math
from pathlib import Path

import pytest

from lowtide import _native
from lowtide.corpus.inputs import expand_inputs
from lowtide.tokenizer import footprint
from lowtide.tokenizer.footprint import estimate_distinct_bytes, planned_peak_bytes


def write_words(path: Path, count: int, *, distinct: int) -> None:
    path.write_text("".join(f" word{number % distinct}" for number in range(count)))


def exact(path: Path) -> int:
    text, begin, seen = path.read_bytes(), 0, set[bytes]()
    for end in _native.split("gpt2", text).tolist():
        seen.add(text[begin:end])
        begin = end
    return sum(map(len, seen))


def test_small_texts_are_counted_whole(tmp_path: Path) -> None:
    write_words(tmp_path / "a.txt", 3000, distinct=3000)
    size = (tmp_path / "a.txt").stat().st_size
    found = estimate_distinct_bytes(expand_inputs([tmp_path]), size)
    assert found is not None and found <= exact(tmp_path / "a.txt")
    assert found > 0.9 * exact(tmp_path / "a.txt")


def test_repeated_text_is_told_from_new_text(tmp_path: Path) -> None:
    for name, distinct in (("old", 1000), ("new", 10**9)):
        (tmp_path / name).mkdir()
        for part in range(2):
            write_words(tmp_path / name / f"{part}.txt", 800_000, distinct=distinct)
    inputs = {name: expand_inputs([tmp_path / name]) for name in ("old", "new")}
    size = {name: sum(row.size_bytes for row in rows) for name, rows in inputs.items()}
    old, new = (estimate_distinct_bytes(inputs[name], size[name]) for name in ("old", "new"))
    assert old is not None and new is not None
    assert old < 20_000 < 1_000_000 < new


def test_nothing_is_said_of_files_that_are_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(b"x" * 100)
    assert estimate_distinct_bytes(expand_inputs([tmp_path]), 400) is None
    (tmp_path / "a.txt.gz").unlink()
    (tmp_path / "empty.txt").touch()
    assert estimate_distinct_bytes(expand_inputs([tmp_path / "empty.txt"]), 0) is None


def test_more_of_anything_takes_more() -> None:
    small = planned_peak_bytes(10**6, vocab_size=1000, num_workers=2)
    assert small < planned_peak_bytes(10**9, vocab_size=1000, num_workers=2)
    assert small < planned_peak_bytes(10**6, vocab_size=100_000, num_workers=2)
    assert small <= planned_peak_bytes(10**6, vocab_size=1000, num_workers=16)
    many = planned_peak_bytes(10**6, vocab_size=1000, num_workers=2, distinct_bytes=10**8)
    assert many > 10**9


def test_the_larger_of_counting_and_writing_is_planned() -> None:
    mib = 1 << 20

    def planned(workers: int, vocab_size: int, distinct: int | None, text: int = 10**6) -> int:
        return planned_peak_bytes(
            text, vocab_size=vocab_size, num_workers=workers, distinct_bytes=distinct
        )

    assert planned(16, 1000, 10**6) == int((22 + 2.25 * 16) * mib + 15.4e6)
    assert planned(64, 1000, 10**6) == int((22 + 2.25 * 64) * mib + 15.4e6)
    assert planned(5, 1000, 10**7) == int((22 + 2.25 * 5) * mib + 11e7)
    assert planned(1, 50_000, 10**6) == int((22 + 6 + 0.97) * mib + 700 * 50_000 + 9e6)
    assert planned(3, 50_000, None) == planned(3, 50_000, int(67 * 10**3.48))


def test_slices_are_spread_over_all_files(tmp_path: Path) -> None:
    size = footprint._SLICE_BYTES
    data = bytes(range(256)) * (size // 256)
    (tmp_path / "a.txt").write_bytes(data[: size // 2])
    (tmp_path / "b.txt").write_bytes(data * 600)
    (tmp_path / "c.txt").write_bytes(data)
    files = expand_inputs([tmp_path])
    total = sum(row.size_bytes for row in files)
    slices = list(footprint._iter_slices(files, total))
    assert len(slices) == 256
    assert slices[0] == data[: size // 2] and slices[-1] == data  # the first and the last bytes
    few = list(footprint._iter_slices(files[:1], size // 2))
    assert few == [data[: size // 2]]
    two = list(footprint._iter_slices(files[2:], size))
    assert two == [data]


@pytest.mark.parametrize("size", [1, 16_383, 16_384, 16_385, 40_000, 300 * 16_384])
def test_every_slice_lies_where_it_is_looked_for(tmp_path: Path, size: int) -> None:
    data = bytes(number * 7 // 5 % 251 for number in range(size))
    cut = size // 3
    for name, part in (("a", data[:cut]), ("b", b""), ("c", data[cut:])):
        (tmp_path / f"{name}.txt").write_bytes(part)
    files = expand_inputs([tmp_path])
    count = min(256, -(-size // 16_384))
    last = max(0, size - 16_384)
    places = [last * number // max(count - 1, 1) for number in range(count)]
    expected = []
    for place in places:
        end = cut if place < cut else size
        expected.append(data[place : min(place + 16_384, end)])
    assert list(footprint._iter_slices(files, size)) == expected


def test_growth_is_what_half_of_the_slices_says_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices in turn; where all was seen, or nothing, no more is expected."""
    (tmp_path / "a.txt").write_text("x" * 100)
    inputs = expand_inputs([tmp_path])
    slices = [b"aa bb", b"aa cccc", b"aa eee", b"dd"]
    monkeypatch.setattr(footprint, "_iter_slices", lambda files, size: iter(slices))
    half = len("aa") + len(" bb") + len(" eee")
    whole = half + len(" cccc") + len("dd")
    sampled = sum(map(len, slices))
    grown = whole * (1000 / sampled) ** (0.93 * math.log2(whole / half))
    assert estimate_distinct_bytes(inputs, 1000) == int(grown)
    assert estimate_distinct_bytes(inputs, sampled + 1) == int(
        whole * ((sampled + 1) / sampled) ** (0.93 * math.log2(whole / half))
    )
    assert estimate_distinct_bytes(inputs, sampled) == whole
    monkeypatch.setattr(footprint, "_iter_slices", lambda files, size: iter([b"", b"dd"]))
    assert estimate_distinct_bytes(inputs, 1000) == 2
