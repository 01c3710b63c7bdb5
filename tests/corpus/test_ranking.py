"""The cut of the best share: that of sorting all keys, whatever their order and chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.corpus import ranking
from lowtide.corpus.inputs import InputFile
from lowtide.corpus.ranking import ScoreCut, describe_cut, find_cut, read_cut, require_rereadable
from lowtide.corpus.settings import CleaningSettings
from lowtide.errors import DataError, UsageError

KEYS = st.integers(0, (1 << 64) - 1) | st.integers(0, 3).map(lambda low: (0x3F800054 << 32) | low)


@given(
    keys=st.lists(KEYS, min_size=1, max_size=60),
    share=st.sampled_from([0.01, 0.1, 0.3, 0.5, 0.999, 1.0]),
    chunk=st.integers(1, 7),
)
@settings(max_examples=60, deadline=None)
def test_the_cut_is_that_of_sorting(keys: list[int], share: float, chunk: int) -> None:
    chunks = [np.array(keys[at : at + chunk], np.uint64) for at in range(0, len(keys), chunk)]
    cut = find_cut(lambda: [memoryview(part).cast("B") for part in chunks], share)
    wanted = next(count for count in range(1, 61) if count >= round(share * len(keys), 9))
    assert cut.key == sorted(keys, reverse=True)[wanted - 1]
    assert cut.kept == sum(key >= cut.key for key in keys)
    assert cut.judged == len(keys)
    assert read_cut(cut.as_json()) == cut


def test_a_tenth_of_thirty_is_three() -> None:
    keys = np.arange(30, dtype=np.uint64)
    assert find_cut(lambda: [memoryview(keys).cast("B")], 0.1).kept == 3
    assert find_cut(list, 0.1) == ScoreCut(0, 0, 0)


def test_the_score_of_a_cut() -> None:
    assert ScoreCut(0x3F400000 << 32 | 77, 9, 3).score == 0.75


def test_a_cut_that_is_not_there() -> None:
    with pytest.raises(DataError, match="do not say which scores"):
        read_cut(None)
    with pytest.raises(DataError, match="do not say which scores"):
        read_cut({"key": "zz", "documents": 1, "kept": 1})


def test_streams_are_refused(tmp_path: Path) -> None:
    require_rereadable([InputFile(0, tmp_path / "a.txt", "text", None, 3)])
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "state.json").touch()
    require_rereadable([InputFile(0, saved, "hub", None, 0, split="train")])
    with pytest.raises(UsageError, match="reads everything twice, and this dataset is a stream"):
        require_rereadable([InputFile(0, Path("owner/name"), "hub", None, 0, split="train")])


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"keep_top": 0.1}, "--keep-top 0.1 needs a model"),
        ({"keep_top": 0.0, "score": "m.bin"}, "--keep-top 0.0 must be above 0"),
        ({"keep_top": 1.5, "score": "m.bin"}, "--keep-top 1.5 must be above 0, and 1 at most"),
        ({"keep_top": 0.1, "score": "m.bin", "keep_above": 0.2}, "two ways to say"),
    ],
)
def test_settings_that_make_no_sense(more: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        CleaningSettings(**more)  # type: ignore[arg-type]


def test_a_cut_of_no_documents_says_so() -> None:
    assert describe_cut(ScoreCut(0, 0, 0)) == "no document has a score, so none was removed by it"


def test_digits_are_counted_of_keys_that_begin_alike() -> None:
    keys = np.array(
        [0x0001_0002_0003_0004, 0x0001_0002_0003_FFFF, 0x0001_FFFE_0003_0004, 7], np.uint64
    )
    chunks = [memoryview(keys[:2]).cast("B"), memoryview(keys[2:]).cast("B")]
    first = ranking._count_digits(chunks, 0, 48)
    assert len(first) == 1 << 16 and (first[0], first[1], sum(first)) == (1, 3, 4)
    second = ranking._count_digits(chunks, 1, 32)
    assert (second[2], second[0xFFFE], sum(second)) == (1 + 1, 1, 3)
    last = ranking._count_digits(chunks, 0x0001_0002_0003, 0)
    assert (last[4], last[0xFFFF], sum(last)) == (1, 1, 2)


def test_a_cut_is_read_as_it_was_written() -> None:
    row = {"key": "00000000000000ff", "documents": "30", "kept": 3.0}
    assert read_cut(row) == ScoreCut(255, 30, 3)
    assert ScoreCut(255, 30, 3).as_json() == {
        "documents": 30, "kept": 3, "cut": 0.0, "key": "00000000000000ff",
    }  # fmt: skip
    for missing in row:
        with pytest.raises(DataError, match="do not say which scores"):
            read_cut({name: value for name, value in row.items() if name != missing})
