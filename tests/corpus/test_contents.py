"""Hashes of inputs, made behind the work that reads them: the same wherever that stood."""

from __future__ import annotations

import contextlib
import itertools
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


def fold(*parts: bytes) -> str:
    """By hand: the hash of the first part, then of the hash so far and the next one's."""
    so_far = ""
    for part in map(xxhash.xxh3_128_hexdigest, parts):
        so_far = xxhash.xxh3_128_hexdigest((so_far + part).encode()) if so_far else part
    return so_far


@pytest.mark.parametrize(
    ("begin", "end", "cuts"),
    [
        (0, 250, (0, 100, 200, 250)),
        (100, 250, (100, 200, 250)),
        (200, 250, (200, 250)),
        (0, 200, (0, 100, 200)),
        (0, 101, (0, 100, 101)),
        (0, 0, (0, 0)),
        (200, 400, (200, 250, 250)),  # it has become shorter
    ],
)
def test_hashes_of_parts(
    inputs: list[contents.InputFile], begin: int, end: int, cuts: tuple[int, ...]
) -> None:
    text = inputs[0].path.read_bytes()
    expected = [text[a:b] for a, b in itertools.pairwise(cuts)]
    found = contents.hash_parts(inputs[0], begin, end, part_bytes=100)
    assert found == list(map(xxhash.xxh3_128_hexdigest, expected))
    assert contents.fold_parts(found) == fold(*expected)
    if begin == 0:
        assert hash_stored(inputs[0], until=end, part_bytes=100) == fold(*expected)
    assert hash_stored(inputs[0], part_bytes=100) == fold(text[:100], text[100:200], text[200:])


def test_what_is_gone_has_no_hash(inputs: list[contents.InputFile]) -> None:
    inputs[0].path.unlink()
    assert hash_stored(inputs[0]) is None


@pytest.mark.parametrize(
    ("index", "offset", "done", "whole", "tail"),
    [
        (0, 0, 0, 0, 0), (0, 99, 0, 0, 99), (0, 100, 0, 100, 0), (0, 249, 0, 200, 49),
        (1, 0, 1, 0, 0), (1, 99, 1, 0, 99), (4, 300, 4, 300, 0), (4, 301, 4, 300, 1),
        (5, 0, 5, 0, 0),
    ],
)  # fmt: skip
def test_a_state_at_any_place_is_gone_on_with(
    inputs: list[contents.InputFile], index: int, offset: int, done: int, whole: int, tail: int
) -> None:
    """Also where inputs were touched since, and not where what was read of one is another text."""
    expected = [hash_stored(source, part_bytes=100) for source in inputs]
    with contextlib.closing(ContentLog(inputs, part_bytes=100)) as log:
        log.reach(index, offset)
        state = log.state()
    text = inputs[index].path.read_bytes() if index < len(inputs) else b""
    parts = [text[at : at + 100] for at in range(0, whole, 100)]
    assert state == {
        "done": expected[:done],
        "fold": fold(*parts),
        "offset": whole,
        "tail": xxhash.xxh3_128_hexdigest(text[whole:offset]) if tail else "",
        "tail_bytes": tail,
        "modified_ns": [source.modified_ns for source in inputs[: done + 1]],
    }

    def restored() -> contents.InputFile | None:
        again = list(expand_inputs([source.path for source in inputs]))
        with contextlib.closing(ContentLog(again, part_bytes=100)) as log:
            changed = log.restore(state, index, offset)
            assert changed is not None or log.finish() == expected
        return changed

    assert restored() is None
    for source in inputs:
        os.utime(source.path, ns=(5, 5))
    assert restored() is None
    for number in range(min(index + bool(offset), len(inputs))):
        before = inputs[number].path.read_bytes()
        for place in (0, offset - 1) if number == index else (len(before) - 1,):
            if not 0 <= place < len(before):
                continue
            after = bytearray(before)
            after[place] ^= 1
            inputs[number].path.write_bytes(after)
            os.utime(inputs[number].path, ns=(6, 6))
            changed = restored()
            assert changed is not None and changed.index == number
            inputs[number].path.write_bytes(before)
            os.utime(inputs[number].path, ns=(5, 5))


def test_texts_that_were_read_whole_are_hashed_as_they_are(
    inputs: list[contents.InputFile],
) -> None:
    with contextlib.closing(ContentLog(inputs, part_bytes=100)) as log:
        log.reach(0, 130)
        log.reach(1, 0)
        log.add([b"first", b"second"])
        state = log.state()
        texts = list(map(xxhash.xxh3_128_hexdigest, (b"first", b"second")))
        assert state["done"] == [hash_stored(inputs[0], part_bytes=100), *texts]
        assert (state["offset"], state["tail_bytes"], state["fold"]) == (0, 0, "")
        assert len(state["modified_ns"]) == 4


def test_an_input_that_was_not_hashed_and_is_touched_counts_as_changed(
    inputs: list[contents.InputFile],
) -> None:
    times = [source.modified_ns for source in inputs]
    state = {
        "done": [None], "modified_ns": times[:2], "fold": "", "offset": 0, "tail": "",
        "tail_bytes": 0,
    }  # fmt: skip
    with contextlib.closing(ContentLog(inputs, part_bytes=100)) as log:
        assert log.restore(state, 1, 10) is None  # the same time
        assert log.restore({**state, "modified_ns": [times[0], 1]}, 1, 10) == inputs[1]
        assert log.restore({**state, "modified_ns": [1, times[1]]}, 1, 10) == inputs[0]
        assert log.restore({**state, "modified_ns": times[:1]}, 1, 0) is None
        assert log.restore({**state, "modified_ns": times[:1]}, 1, 1) == inputs[1]


def test_a_file_that_is_cut_short_while_it_is_read_has_no_hash(
    inputs: list[contents.InputFile],
) -> None:
    with contextlib.closing(ContentLog(inputs, part_bytes=100)) as log:
        log.reach(0, 100)
        log.state()
        inputs[0].path.write_bytes(b"x" * 150)
        assert log.finish()[0] is None


def test_the_thread_ends(inputs: list[contents.InputFile]) -> None:
    log = ContentLog(inputs)
    log.reach(1, 0)
    log.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        log.reach(2, 0)


def test_what_is_unchanged_has_its_size_and_its_text(inputs: list[contents.InputFile]) -> None:
    content = hash_stored(inputs[0])
    text = inputs[0].path.read_bytes()
    inputs[0].path.write_bytes(text + b"x")
    assert contents.is_unchanged(inputs[0], content) is False
    inputs[0].path.write_bytes(text[::-1])
    assert contents.is_unchanged(inputs[0], content) is False
    inputs[0].path.write_bytes(text)
    assert contents.is_unchanged(inputs[0], content) is True


def test_before_anything_is_read_a_state_has_nothing(inputs: list[contents.InputFile]) -> None:
    with contextlib.closing(ContentLog(inputs)) as log:
        assert log.state() == {
            "done": [], "fold": "", "offset": 0, "tail": "", "tail_bytes": 0,
            "modified_ns": [inputs[0].modified_ns],
        }  # fmt: skip
