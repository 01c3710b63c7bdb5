"""Hashes of inputs, made behind the work that reads them: the same wherever that stood."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.corpus import contents
from lowtide.corpus.contents import ContentLog, hash_stored
from lowtide.corpus.inputs import expand_inputs

SIZES = (250, 100, 0, 99, 301)


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[contents.InputFile]:
    monkeypatch.setattr(contents, "PART_BYTES", 100)
    for number, size in enumerate(SIZES):
        (tmp_path / f"{number}.txt").write_bytes((bytes(range(97, 122)) * 20)[:size])
    return list(expand_inputs([str(tmp_path)]))


@pytest.mark.parametrize("steps", [[], [50], [100, 130], [99, 100, 101, 249], [250]], ids=str)
def test_where_the_work_stood_changes_no_hash(
    inputs: list[contents.InputFile], steps: list[int]
) -> None:
    hasher = ContentLog(inputs)
    for offset in steps:
        hasher.reach(0, offset)
    hasher.reach(4, 42)
    assert hasher.finish() == [hash_stored(source) for source in inputs]
    hasher.close()


def test_a_state_has_whole_parts_and_what_stands_behind_them(
    inputs: list[contents.InputFile],
) -> None:
    hasher = ContentLog(inputs)
    hasher.reach(0, 130)
    state = hasher.state()
    assert (state["offset"], state["tail_bytes"]) == (100, 30)
    hasher.close()
    again = ContentLog(inputs)
    assert again.restore(state, 0, 130) is None
    assert again.finish() == [hash_stored(source) for source in inputs]
    again.close()
