"""Hashes of inputs, made behind the work that reads them: the same wherever that stood."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import xxhash

from lowtide.corpus import contents
from lowtide.corpus.contents import ContentLog, describe_inputs, find_difference, hash_stored
from lowtide.corpus.inputs import expand_inputs

SIZES = (250, 100, 0, 99, 301)


@pytest.fixture
def inputs(tmp_path: Path) -> list[contents.InputFile]:
    for number, size in enumerate(SIZES):
        (tmp_path / f"{number}.txt").write_bytes((bytes(range(97, 122)) * 20)[:size])
    return list(expand_inputs([str(tmp_path)]))


@pytest.mark.parametrize("steps", [[], [50], [100, 130], [99, 100, 101, 249], [250]], ids=str)
def test_where_the_work_stood_changes_no_hash(
    inputs: list[contents.InputFile], steps: list[int]
) -> None:
    hasher = ContentLog(inputs, part_bytes=100)
    for offset in steps:
        hasher.reach(0, offset)
    hasher.reach(4, 42)
    assert hasher.finish() == [hash_stored(source, part_bytes=100) for source in inputs]
    hasher.close()


def test_a_state_has_whole_parts_and_what_stands_behind_them(
    inputs: list[contents.InputFile],
) -> None:
    hasher = ContentLog(inputs, part_bytes=100)
    hasher.reach(0, 130)
    state = hasher.state()
    assert (state["offset"], state["tail_bytes"]) == (100, 30)
    hasher.close()
    again = ContentLog(inputs, part_bytes=100)
    assert again.restore(state, 0, 130) is None
    assert again.finish() == [hash_stored(source, part_bytes=100) for source in inputs]
    again.close()


def test_what_changed_since_a_record_is_said(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("high tide")
    inputs = expand_inputs([text])
    rows = list(describe_inputs(inputs, [hash_stored(inputs[0])]))
    unknown = [{**rows[0], "content": None}]
    assert find_difference(inputs, rows) is None
    assert find_difference(inputs, unknown) is None

    os.utime(text, ns=(1, 1))
    touched = expand_inputs([text])
    assert find_difference(touched, rows) is None
    assert find_difference(touched, unknown) == (
        f"{text} was changed since, and nothing says what it held"
    )
    text.write_text("low tides")
    assert find_difference(expand_inputs([text]), rows) == (
        f"{text} holds other text of the same size than then"
    )
    text.write_text("ebb")
    assert find_difference(expand_inputs([text]), rows) == f"{text} had 9 bytes then, now 3"


def test_a_file_that_changed_before_it_was_hashed_has_no_hash(tmp_path: Path) -> None:
    """Its bytes are not known to be those that were read."""
    (tmp_path / "a.txt").write_text("low tide")
    (tmp_path / "b.txt").write_text("high tide")
    inputs = expand_inputs([tmp_path])
    with contextlib.closing(ContentLog(inputs)) as log:
        (tmp_path / "a.txt").write_text("lowtide!")
        hashes = log.finish()
    assert hashes[0] is None and hashes[1] is not None


def test_a_state_of_other_inputs_names_the_first_that_is_not_known(
    inputs: list[contents.InputFile],
) -> None:
    hasher = ContentLog(inputs, part_bytes=100)
    state = {"done": ["a", "b"], "modified_ns": [1, 2], "fold": "", "offset": 0}
    assert hasher.restore(state, 3, 0) == inputs[3]
    assert hasher.restore(state, 9, 0) == inputs[-1]
    assert hasher.restore(state, 2, 7) == inputs[2]
    hasher.close()


def test_an_input_that_is_gone_is_changed(inputs: list[contents.InputFile]) -> None:
    content = hash_stored(inputs[0])
    assert contents.is_unchanged(inputs[0], content) is True
    assert contents.is_unchanged(inputs[0], None) is False
    inputs[0].path.unlink()
    assert contents.is_unchanged(inputs[0], content) is False


@pytest.mark.parametrize(
    ("offset", "limit"), [(0, 3 << 19), (7, (1 << 20) + 1), (1 << 20, 9 << 20), (0, 0)]
)
def test_a_part_is_so_many_bytes_and_no_more(tmp_path: Path, offset: int, limit: int) -> None:
    """Of a file of two and a half buffers."""
    data = bytes(range(256)) * (10 << 10)
    (tmp_path / "a").write_bytes(data)
    part = data[offset : offset + limit]
    found = contents._hash_part(tmp_path / "a", offset, limit)
    assert found == (xxhash.xxh3_128_hexdigest(part), len(part))
