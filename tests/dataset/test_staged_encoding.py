"""Encoding of a part: what is kept in memory, how keys are divided, and what is counted."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.dataset.sharding import LAST_KEY
from lowtide.dataset.staged import encoding
from lowtide.dataset.staged.encoding import EncodeStage
from lowtide.engine.tasks import Task


def part_of(**changes: Any) -> Any:
    job: Any = SimpleNamespace(
        settings=SimpleNamespace(shuffle=True, dedup=False), sizes=SimpleNamespace(num_buckets=8),
        unknown_notices=[],
    )  # fmt: skip
    coding: Any = SimpleNamespace(
        coder=SimpleNamespace(id_bytes=2, count_unknown=lambda ids: 1), folder=Path()
    )
    scratch: Any = SimpleNamespace()
    return encoding._EncodedPart(job, coding, scratch, **{"range_bytes": 1000, **changes})


@pytest.mark.parametrize(
    ("documents", "shuffle", "count"),
    [
        (0, True, 1),
        (10, True, 1),
        (11, True, 2),
        (25, True, 3),
        (25, False, 1),
        (10**9, True, 1 << 16),
    ],
)
def test_keys_are_cut_so_that_rows_fit(documents: int, shuffle: bool, count: int) -> None:
    part = part_of(range_bytes=10 * encoding._ROW_BYTES_HELD)
    part.num_documents = documents
    part.job.settings.shuffle = shuffle
    ranges = list(part._iter_ranges())
    assert len(ranges) == count
    assert (ranges[0][0], ranges[-1][1]) == (0, LAST_KEY)
    assert all(one[1] + 1 == other[0] for one, other in itertools.pairwise(ranges))
    assert part._num_buckets == (8 if shuffle else 1)


def block(ids: int, rows: int = 1) -> Any:
    return SimpleNamespace(
        ids=memoryview(bytes(ids)), index=memoryview(bytes(rows * encoding.ENCODED_ROW_BYTES))
    )


def test_blocks_wait_in_memory_while_they_are_less_than_their_text() -> None:
    row = encoding._ROW_BYTES_HELD
    written: list[Any] = []
    part = part_of(held=[])
    part._write_block = written.append
    small, exact, large = block(10), block(10), block(11)
    part._hold(small, 10 + row + 5)  # five bytes less
    part._hold(exact, 10 + row - 5)
    assert part.room_bytes == 0 and part.held == [small, exact] and written == []
    part._hold(large, 10 + row)
    assert part.held is None and written == [small, exact, large]
    part._hold(small, 1 << 30)
    assert written[-1] is small  # from then on all are written
    two = part_of(held=[])
    two._hold(block(10, rows=2), 10 + 2 * row)
    assert two.room_bytes == 0


def test_blocks_that_were_used_are_not_held() -> None:
    blocks: Any = [1, 2, 3]
    rest = [(one, list(blocks)) for one in encoding._iter_freed(blocks)]
    assert rest == [(1, [2, 3]), (2, [3]), (3, [])]


def test_a_block_in_the_scratch_file_is_index_and_ids(tmp_path: Path) -> None:
    part = part_of()
    with (tmp_path / "blocks").open("x+b") as file:
        part.__dict__["file"] = file
        for ids in (b"abc", b"defg"):
            index = b"i" * encoding.ENCODED_ROW_BYTES
            part._write_block(SimpleNamespace(ids=ids, index=index))
        file.flush()
        assert (tmp_path / "blocks").read_bytes() == b"i" * 32 + b"abc" + b"i" * 32 + b"defg"
    assert [(one.index_at, one.ids_at) for one in part.blocks] == [(0, 32), (35, 67)]


def encoded(tokens: int, remnants: Any = None) -> Any:
    return SimpleNamespace(
        ids=memoryview(bytes(2 * tokens)), index=memoryview(b""), counts="counts",
        samples="samples", sources=[(1, 2, 3)], num_documents=4, num_tokens=tokens,
        remnants=remnants,
    )  # fmt: skip


@pytest.mark.parametrize("notices", [[], ["unknown characters"]])
def test_what_a_block_adds(monkeypatch: pytest.MonkeyPatch, notices: list[str]) -> None:
    picked: list[Any] = []
    monkeypatch.setattr(
        encoding._native, "pick_hashes",
        lambda hashes, documents, remnants, all_lines: picked.append(
            (hashes, bytes(documents), remnants, all_lines)
        ) or b"h",
    )  # fmt: skip
    part = part_of(held=[])
    part.job.settings.dedup = True
    part.job.unknown_notices = notices
    added: list[Any] = []
    part.report = SimpleNamespace(add=lambda *given, **more: added.append((given, more)))
    seen: list[bytes] = []
    part.__dict__["seen"] = SimpleNamespace(write=seen.append)
    cleaned = SimpleNamespace(
        text=memoryview(bytes(50)), documents=memoryview(b"docs"), hashes="hashes"
    )
    part._take(encoded(5), cleaned)
    part._take(encoded(7, remnants="rest"), cleaned)
    assert (part.num_documents, part.num_tokens) == (8, 12)
    assert part.facts() == {"tokens": 12, "documents": 8}
    assert added == [(("counts", "samples"), {"unknown_characters": 1})] * 2
    assert bytes(part.sources) == encoding.SOURCE_ROW.pack(1, 2, 3) * 2
    every = bool(notices)
    assert picked == [("hashes", b"", None, every), ("hashes", b"docs", "rest", every)]
    assert seen == [b"h", b"h"]
    part.job.settings.dedup = False
    part._take(encoded(1), cleaned)
    assert len(seen) == 2


def test_buckets_are_equal_parts_of_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    make = encoding._native.RangeCounter
    monkeypatch.setattr(
        encoding._native, "RangeCounter",
        lambda bounds, limit: made.append((list(bounds), limit)) or make(bounds, limit),
    )  # fmt: skip
    for buckets, shift in ((1, 64), (8, 61), (4096, 52)):
        encoding._Counts(buckets, 77)
        bounds, limit = made.pop()
        assert bounds == [number << shift for number in range(buckets)] and limit == 77
    counts = encoding._Counts(4, 77)
    rows = [(0, 77, 5, 1), (1 << 62, 3, 7, 1), (3 << 62, 99, 1, 1), (3 << 62, 76, 2, 1)]
    counts.add(memoryview(np.array(rows, "<u8").tobytes()))
    assert np.frombuffer(counts.row_ends(), "<i8").tolist() == [1, 2, 2, 4]
    assert np.frombuffer(counts.token_ends(), "<i8").tolist() == [5, 12, 12, 15]
    assert np.frombuffer(counts.split_tokens(), "<i8").tolist() == [5, 0, 0, 1, 0, 7, 0, 2]
    assert counts.documents == [2, 2]


@pytest.mark.parametrize(
    ("read", "count", "changed"),
    [
        ([[(0, "aa")], [(1, "bb")]], 2, None),
        ([[(0, "aa")], [(1, "cc")]], 2, 1),  # another content
        ([[(0, "aa")], []], 2, 9),  # less than before
        ([[(0, "aa")], [(1, "bb"), (2, "cc")]], 2, 2),  # more than before
        ([[(0, "aa")], [(1, "bb")]], 3, 9),  # other blocks
    ],
)
def test_a_text_that_changed_between_passes_is_noticed(
    monkeypatch: pytest.MonkeyPatch, read: Any, count: int, changed: int | None
) -> None:
    job: Any = SimpleNamespace(
        finders=[], first_input=lambda index: 9, limits=SimpleNamespace(places_bytes=3),
        changed_between_passes=lambda number: ValueError(f"input {number}"),
    )  # fmt: skip
    part: Any = encoding._EncodedPart(job, None, SimpleNamespace(folder=Path()), 1)  # type: ignore
    monkeypatch.setattr(
        encoding, "CleanPart", lambda job, index: [("b", "c", rows) for rows in read]
    )
    monkeypatch.setattr(encoding, "_iter_contents", lambda job, index: iter([(0, "aa"), (1, "bb")]))
    monkeypatch.setattr(
        encoding, "PartDuplicates", lambda *given, room_bytes: (given[1], room_bytes)
    )
    monkeypatch.setattr(
        encoding, "RemovedText", lambda lines, finders, *, first_block: (lines, first_block)
    )
    seen: list[Any] = []

    def encode(blocks: Any, removed: Any, first: int, document: Any) -> None:
        seen.append((removed, first))
        part.blocks = list(blocks)

    part.encode = encode
    tally: Any = SimpleNamespace(first_blocks=[0, 5, 5 + count], open_documents={})
    if changed is None:
        part.read(1, tally, [])
        assert seen == [(((1, 3), 5), 5)]
        return
    with pytest.raises(ValueError, match=f"input {changed}"):
        part.read(1, tally, [])


@pytest.mark.parametrize("is_done", [False, True])
def test_a_part_in_memory_is_encoded_once(monkeypatch: pytest.MonkeyPatch, is_done: bool) -> None:
    committed: list[Any] = []
    made: list[Any] = []

    class Scratch:
        def __enter__(self) -> str:
            return "scratch"

        def __exit__(self, *details: object) -> None:
            pass

    def make(job: Any, coding: Any, scratch: Any, room: int) -> Any:
        part = SimpleNamespace(held=None, write="write", facts="facts", encode=lambda *given: None)
        made.append((part, scratch, room))
        return part

    monkeypatch.setattr(encoding, "_EncodedPart", make)
    records = SimpleNamespace(
        is_done=lambda task: is_done, scratch=Scratch,
        write=lambda task, write, *, facts: committed.append((task, write, facts)) or "ids",
    )  # fmt: skip
    for range_bytes, room in ((101, 50), (1, 1)):
        job: Any = SimpleNamespace(records=records, range_bytes=range_bytes, parts=[1, 2, 3])
        stage = EncodeStage(job, lambda: None)  # type: ignore[arg-type,return-value]
        assert stage.count_tasks() == 3
        written = stage.encode_held(2, [], None, first_block=7, document=None)  # type: ignore
        assert written == (None if is_done else "ids")
        if is_done:
            assert made == [] and committed == []
            continue
        part, scratch, given = made.pop()
        assert (part.held, scratch, given) == ([], "scratch", room)
        assert committed.pop() == (Task("encode", 2), "write", "facts")
