"""Deduplication: what a set in memory would do, in partitions on disk, for any workers."""

from __future__ import annotations

import random
import struct
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import _native
from lowtide.corpus import deduplication
from lowtide.corpus.blockcleaning import CleanJob, clean_corpus
from lowtide.corpus.blocktable import load_block_table
from lowtide.corpus.cleaning import native_options
from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.reading import ReadingSettings, plan_streams
from lowtide.corpus.settings import CleaningSettings
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import open_work_file

sys.path.insert(0, str(Path(__file__).parent))
import oracle


def deduplicate(
    inputs: list[Path],
    work: Path,
    *,
    block_bytes: int,
    workers: int,
    table_bytes: int,
    cleaning: CleaningSettings,
) -> list[str]:
    """Run cleaning and deduplication over files; give the documents that are left."""
    reading = ReadingSettings(block_bytes=block_bytes)
    job = CleanJob(plan_streams(expand_inputs(inputs), reading), reading, cleaning, work / "clean")
    with WorkerPool(workers) as pool:
        clean_corpus(job, pool, on_done=lambda _: None)
        table = load_block_table(job)
        removed = deduplication.find_duplicates(
            table, work / "removed", pool, table_bytes=table_bytes, on_done=lambda _: None
        )
    documents: list[str] = []
    for block, path in enumerate(table.paths):
        stored = open_work_file(path)
        kept = _native.keep_documents(
            stored.read("text"),
            stored.read("documents"),
            removed.load(block),
            native_options(cleaning),
        )
        documents += [text.decode() for text in kept.list_texts()]
    return documents


def make_corpus(folder: Path, *, seed: int) -> list[Path]:
    chooser = random.Random(seed)
    lines = [f"line number {number} of the corpus" for number in range(60)]
    lines += ["short", "}", "", "", "    return None", "\t\t"]
    folder.mkdir()
    paths: list[Path] = []
    for number in range(3):
        documents = [
            "\n".join(chooser.choices(lines, k=chooser.randrange(1, 12))) for _ in range(40)
        ]
        documents += chooser.sample(documents, 5)
        paths.append(folder / f"{number}.txt")
        paths[-1].write_text("<|endoftext|>".join(documents))
    return paths


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("block_bytes", "workers", "table_bytes"),
    [(1 << 20, 1, 1 << 20), (2000, 2, 1 << 20), (2000, 4, 600), (700, 2, 200)],
)
def test_equal_to_a_set_in_memory(
    tmp_path: Path, seed: int, block_bytes: int, workers: int, table_bytes: int
) -> None:
    paths = make_corpus(tmp_path / "in", seed=seed)
    cleaning = CleaningSettings(min_document_chars=8, min_document_words=0)
    raw = [text for path in paths for text in path.read_bytes().split(b"<|endoftext|>")]
    cleaned = [oracle.clean_document(text) for text in raw]
    expected = list(
        oracle.remove_duplicates(
            (text for text in cleaned if len(text) >= 8), min_chars=20, min_document_chars=8
        )
    )
    found = deduplicate(
        paths,
        tmp_path / "work",
        block_bytes=block_bytes,
        workers=workers,
        table_bytes=table_bytes,
        cleaning=cleaning,
    )
    assert found == expected
    assert 0 < len(expected) < len(raw)


def test_empty_lines_on_both_sides_of_a_removed_line_are_shortened(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    again = "a line that comes a second time"
    path.write_text(f"{again}<|endoftext|>what stands before it\n\n{again}\n\n\nand after it")
    found = deduplicate(
        [path],
        tmp_path / "work",
        block_bytes=1 << 20,
        workers=1,
        table_bytes=1 << 20,
        cleaning=CleaningSettings(),
    )
    assert found == [again, "what stands before it\n\n\nand after it"]


def test_small_tables_need_several_passes(tmp_path: Path) -> None:
    paths = make_corpus(tmp_path / "in", seed=0)
    reading = ReadingSettings()
    job = CleanJob(
        plan_streams(expand_inputs(paths), reading), reading, CleaningSettings(), tmp_path / "work"
    )
    with WorkerPool(1) as pool:
        clean_corpus(job, pool, on_done=lambda _: None)
    table = load_block_table(job)
    parts = deduplication.plan_partitions(table, table_bytes=100, num_workers=1)
    assert any(part.num_passes > 1 for part in parts)
    covered = {(part.first, part.last) for part in parts}
    assert sum(last - first for first, last in covered) == 256


def test_real_text(tmp_path: Path) -> None:
    """Python's own modules, in which lines come again everywhere, and half of them once more."""
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = [(library / f"{name}.py").read_bytes() for name in ("ast", "enum", "shutil", "socket")]
    cleaning = CleaningSettings(filter=False, min_dedup_chars=0)
    raw = b"<|endoftext|>".join(texts)
    raw = raw + b"<|endoftext|>" + raw[: len(raw) // 2]
    corpus = tmp_path / "corpus.txt"
    corpus.write_bytes(raw)
    cleaned = [oracle.clean_document(text) for text in raw.split(b"<|endoftext|>")]
    expected = oracle.remove_duplicates(filter(None, cleaned), min_chars=0, min_document_chars=0)
    found = deduplicate(
        [corpus],
        tmp_path / "work",
        block_bytes=1 << 18,
        workers=2,
        table_bytes=200_000,
        cleaning=cleaning,
    )
    assert found == list(expected)


def hash_rows(hashes: list[tuple[int, int]], first_line: int) -> bytes:
    """Rows as cleaning gives them: 96 bits of hash and a line, sorted by the first byte."""
    rows = [(high, low, first_line + place) for place, (high, low) in enumerate(hashes)]
    rows.sort(key=lambda row: row[0] >> 56)
    return b"".join(struct.pack("<QII", *row) for row in rows)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 1000),
    st.integers(1, 3000),
    st.sampled_from([2, 300, 1 << 60]),
    st.sampled_from([0, 1, 13]),
)
def test_the_table_is_a_set(seed: int, count: int, kinds: int, skipped: int) -> None:
    """Hashes that agree in all but a few bits, the zero one too, while the tables grow."""
    chooser = random.Random(seed)
    finder = _native.DuplicateFinder(count, skipped)
    seen: set[tuple[int, int]] = set()
    for block in range(4):
        hashes = [
            (chooser.randrange(kinds) << chooser.choice([0, 30, 56]) & (1 << 64) - 1,
             chooser.randrange(2))
            for _ in range(count // 4)
        ]  # fmt: skip
        assert finder.add(hash_rows(hashes, block * count), 0, 1)
        expected: list[int] = []
        # Equal hashes begin with the same byte, so they stay in their order.
        for place, item in enumerate(hashes):
            if item in seen:
                expected.append(block * count + place)
            seen.add(item)
        assert finder.take().cast("I").tolist() == sorted(expected)


def test_a_full_table_says_so() -> None:
    hashes = [(number << 40, 0) for number in range(100)]
    finder = _native.DuplicateFinder(99)
    assert finder.add(hash_rows(hashes[1:], 0), 0, 1)
    assert finder.add(hash_rows(hashes[1:], 0), 0, 1)
    assert len(finder.take()) == 4 * 99
    assert not finder.add(hash_rows(hashes[:1], 0), 0, 1)
    assert not _native.DuplicateFinder(99).add(hash_rows(hashes, 0), 0, 1)


def add_in_turn(
    finder: _native.DuplicateFinder, blocks: list[bytes], *, threads: int
) -> list[list[int] | None]:
    """Add blocks by several threads at once; returns the duplicate lines of each."""

    def add(place: int) -> list[int] | None:
        lines = finder.add_in_turn(place, blocks[place])
        return None if lines is None else lines.cast("I").tolist()

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(add, range(len(blocks))))


def make_blocks(chooser: random.Random, count: int, *, kinds: int) -> list[bytes]:
    """Blocks of rows with many equal hashes, among them the zero one."""
    blocks: list[bytes] = []
    for block in range(count):
        hashes = [
            (chooser.randrange(kinds) * 0x9E3779B97F4A7C15 & (1 << 64) - 1, chooser.randrange(2))
            for _ in range(chooser.randrange(400))
        ]
        blocks.append(hash_rows(hashes, 1000 * block))
    return blocks


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_blocks_in_turn_are_as_one_after_the_other(threads: int) -> None:
    blocks = make_blocks(random.Random(threads), 60, kinds=2000)
    alone = _native.DuplicateFinder(1 << 20)
    expected: list[list[int] | None] = []
    for block in blocks:
        assert alone.add(block, 0, 1)
        expected.append(alone.take().cast("I").tolist())
    found = add_in_turn(_native.DuplicateFinder(1 << 20), blocks, threads=threads)
    assert found == expected
    assert sum(len(lines) for lines in found if lines) > 1000


@pytest.mark.parametrize("passes", [1, 2])
def test_blocks_at_once_are_as_one_after_the_other(passes: int) -> None:
    """A place is the number of a block, and a line of it."""
    blocks = make_blocks(random.Random(passes), 20, kinds=2000)
    counts = struct.pack("<20I", *(len(block) // 16 for block in blocks))
    for number in range(passes):
        alone, together = (_native.DuplicateFinder(1 << 20, skipped) for skipped in (0, 9))
        expected: list[int] = []
        for place, block in enumerate(blocks, 7):
            assert alone.add(block, number, passes)
            expected += [place << 32 | line for line in alone.take().cast("I")]
        found = together.add_blocks(b"".join(blocks), counts, 7, number, passes)
        assert found is not None and found.cast("Q").tolist() == expected
    assert len(expected) > 300
    few = _native.DuplicateFinder(9)
    assert few.add_blocks(b"".join(blocks), counts, 0, 0, 1) is None
    for wrong in (counts[:-4], counts + struct.pack("<I", 1)):
        with pytest.raises(ValueError, match="rows than there are"):
            _native.DuplicateFinder(1 << 20).add_blocks(b"".join(blocks), wrong, 0, 0, 1)
    with pytest.raises(ValueError, match="too many blocks"):
        few.add_blocks(b"", counts, (1 << 32) - 20, 0, 1)


def test_lanes_are_for_all_hashes() -> None:
    with pytest.raises(ValueError, match="first byte"):
        _native.DuplicateFinder(9, 1).add_in_turn(0, b"")
    with pytest.raises(ValueError, match="skipped_bits"):
        _native.DuplicateFinder(9, 17)


@pytest.mark.parametrize("threads", [1, 8])
def test_from_the_first_block_without_room_on_all_are_refused(threads: int) -> None:
    blocks = make_blocks(random.Random(5), 60, kinds=1 << 40)
    whole = add_in_turn(_native.DuplicateFinder(1 << 20), blocks, threads=1)
    found = add_in_turn(_native.DuplicateFinder(4000), blocks, threads=threads)
    first = found.index(None)
    assert 0 < first < 59
    assert found == whole[:first] + [None] * (60 - first)


def test_blocks_that_wait_are_stopped() -> None:
    blocks = make_blocks(random.Random(1), 3, kinds=9)
    finder = _native.DuplicateFinder(100)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(finder.add_in_turn, place, blocks[place]) for place in (1, 2)]
        finder.stop()
        for future in waiting:
            with pytest.raises(RuntimeError):
                future.result()


def test_rows_out_of_order_are_refused() -> None:
    high = 1 << 63
    rows = struct.pack("<QII", high, 0, 0) + struct.pack("<QII", 1, 0, 1)
    finder = _native.DuplicateFinder(100)
    with pytest.raises(ValueError, match="not sorted"):
        finder.add_in_turn(0, rows)
    assert finder.add_in_turn(1, hash_rows([(high, 0)], 7)) == struct.pack("<I", 7)


def test_a_file_that_is_cut_off_while_it_is_read_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(200))
    digest = xxhash.xxh3_128_digest(data)
    path = tmp_path / "0.removed"
    path.write_bytes(data + digest)
    assert deduplication.is_removed_whole(path) is True
    path.write_bytes(data[:-1] + digest)
    assert deduplication.is_removed_whole(path) is False
    status = SimpleNamespace(st_size=1000)
    monkeypatch.setattr(deduplication, "os", SimpleNamespace(fstat=lambda descriptor: status))
    assert deduplication.is_removed_whole(path) is False
    assert deduplication.is_removed_whole(tmp_path / "not there") is False


ROW = deduplication.TABLE_ROW_BYTES


@pytest.mark.parametrize(
    ("counts", "room", "workers", "expected"),
    [
        ({}, 10, 1, []),
        ({0: 3, 9: 2, 255: 5}, 10, 1, [(0, 256, 1, 10)]),
        ({0: 3, 9: 2, 255: 6}, 10, 1, [(0, 255, 1, 5), (255, 256, 1, 6)]),
        ({4: 10, 5: 10, 6: 1}, 10, 1, [(0, 5, 1, 10), (5, 6, 1, 10), (6, 256, 1, 1)]),
        ({4: 6, 5: 5}, 100, 2, [(0, 5, 1, 6), (5, 256, 1, 5)]),  # one for each worker
        ({4: 6, 5: 1, 6: 5}, 100, 2, [(0, 6, 1, 7), (6, 256, 1, 5)]),
        ({4: 11}, 10, 1, [(0, 5, 2, 11)]),  # in passes of three quarters of a table
        ({4: 14}, 10, 1, [(0, 5, 2, 14)]),
        ({255: 15}, 10, 1, [(0, 256, 3, 15)]),
        ({3: 1, 4: 15, 5: 2}, 10, 1, [(0, 4, 1, 1), (4, 5, 3, 15), (5, 256, 1, 2)]),
        ({4: 3}, 1, 1, [(0, 5, 3, 3)]),
        ({4: 3}, 0, 1, [(0, 5, 3, 3)]),
        ({4: 12}, 100, 3, [(0, 5, 1, 12)]),
        ({4: 30}, 12, 3, [(0, 5, 4, 30)]),
    ],
    ids=str,
)
def test_hashes_are_cut_into_partitions_that_fit(
    counts: dict[int, int], room: int, workers: int, expected: list[tuple[int, int, int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """From one byte to another, in so many passes, so many rows; a table has room for `room`."""
    known = [counts.get(value, 0) for value in range(256)]
    monkeypatch.setattr(deduplication, "_count_radixes", lambda _: known)
    table: Any = None
    found = deduplication.plan_partitions(
        table, table_bytes=room * ROW + ROW - 1, num_workers=workers
    )
    wanted = [
        (first, last, at, passes, rows)
        for first, last, passes, rows in expected
        for at in range(passes)
    ]
    assert [part.number for part in found] == list(range(len(wanted)))
    assert [
        (part.first, part.last, part.pass_index, part.num_passes, part.num_rows) for part in found
    ] == wanted


def test_a_modest_table_is_enough_until_there_would_be_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """16 MiB for all workers, more where it saves partitions beyond 64."""
    size = deduplication.partition_bytes
    assert [size(1000, num_workers=count) for count in (1, 2, 3)] == [
        16 << 20, 8 << 20, (16 << 20) // 3,
    ]  # fmt: skip
    assert size(100_000_000, num_workers=1) == 100_000_000 * 19 // 64
    modest = (16 << 20) // 19
    known = [modest // 2] * 256
    monkeypatch.setattr(deduplication, "_count_radixes", lambda _: known)
    table: Any = None
    found = deduplication.plan_partitions(table, table_bytes=1 << 40, num_workers=1)
    most = size(sum(known), num_workers=1) // 19
    assert max(part.num_rows for part in found) <= most
    assert len(found) == -(-256 // (most // (modest // 2)))


def test_partitions_that_are_done_are_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make_corpus(tmp_path / "in", seed=0)
    reading = ReadingSettings(block_bytes=4000)
    job = CleanJob(
        plan_streams(expand_inputs(paths), reading), reading, CleaningSettings(), tmp_path / "work"
    )
    given: list[int] = []

    def leave_out(block: int, rows: memoryview) -> memoryview:
        given.append(block)
        return rows

    def find() -> tuple[deduplication.RemovedLines, list[int]]:
        done: list[int] = []
        found = deduplication.find_duplicates(
            table, tmp_path / "deep" / "er", pool, table_bytes=40 * ROW, on_done=done.append,
            leave_out=leave_out,
        )  # fmt: skip
        return found, done

    with WorkerPool(1) as pool:
        clean_corpus(job, pool, on_done=lambda _: None)
        table = load_block_table(job)
        total = sum(table.num_hashes)
        parts = deduplication.plan_partitions(table, table_bytes=40 * ROW, num_workers=1)
        first, done = find()
        files = sorted((tmp_path / "deep" / "er").iterdir())
        assert len(files) == len(parts) == len(done) and total - len(parts) <= sum(done) <= total
        assert all(map(deduplication.is_removed_whole, files))
        assert given == [n for n in range(len(table)) if table.num_hashes[n]] * len(parts)
        times = [path.stat().st_mtime_ns for path in files]
        capacities: list[int] = []
        finder = _native.DuplicateFinder
        files[0].unlink()
        monkeypatch.setattr(
            deduplication._native, "DuplicateFinder",
            lambda capacity: capacities.append(capacity) or finder(capacity),
        )  # fmt: skip
        again, told = find()
    assert told == done and len(capacities) == 1
    assert [path.stat().st_mtime_ns for path in files[1:]] == times[1:]
    whole = [bytes(first.load(block)) for block in range(len(table))]
    assert [bytes(again.load(block)) for block in range(len(table))] == whole and any(whole)
    for lines in whole:
        numbers = memoryview(lines).cast("I").tolist()
        assert numbers == sorted(numbers)


def test_a_table_has_room_for_what_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of a partition; in passes twice their share, or what the memory allows."""
    capacities: list[int] = []

    class Finder:
        def __init__(self, capacity: int) -> None:
            capacities.append(capacity)

    monkeypatch.setattr(deduplication._native, "DuplicateFinder", Finder)

    class Table(SimpleNamespace):
        def __len__(self) -> int:
            return 0

    table: Any = Table(paths=[], num_hashes=[])
    for number, (rows, passes, room) in enumerate(((50, 1, 10), (50, 3, 100), (50, 3, 20))):
        part = deduplication.Partition(number, 0, 256, 0, passes, rows)
        path = tmp_path / f"{number}.removed"
        told = deduplication._find_in_partition(table, part, path, room * ROW, None)
        assert told == rows // passes
        assert deduplication._find_in_partition(table, part, path, room * ROW, None) == told
        assert deduplication.is_removed_whole(path)
    assert capacities == [50, 34, 20]


def test_no_file_stays_open(tmp_path: Path) -> None:
    index = struct.pack("<3Q", 0, 1, 3)
    lines = struct.pack("<3I", 7, 9, 8)
    path = tmp_path / "0.removed"
    path.write_bytes(lines + index + bytes(16))
    removed = deduplication.RemovedLines([path], 2)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert removed.load(0).cast("I").tolist() == [7]
    assert removed.load(1).cast("I").tolist() == [8, 9]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
