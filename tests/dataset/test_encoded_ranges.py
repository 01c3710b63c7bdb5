"""Rows and ids of encoded blocks: the same for any number of threads and of open files."""

from __future__ import annotations

import os
import random
from array import array
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from lowtide import _native
from lowtide.corpus.removals import Report
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import write_work_file
from lowtide.dataset import sharding
from lowtide.dataset.encoding import EncodedTotals
from lowtide.dataset.sharding import LAST_KEY, ShardJob, plan_shards
from lowtide.dataset.staged import gathering
from lowtide.engine.outputs import PAGE_BYTES, Output, OutputWriter, open_output

COUNTS = {"counts": [], "samples": [], "remnants": [], "unknown_characters": 0}


def write_blocks(folder: Path, count: int) -> tuple[list[Path], list[tuple[int, int, list[int]]]]:
    """Work files of ids, and all documents as (key, split, ids), in the order of their keys."""
    source, paths, documents = random.Random(count), [], []
    for number in range(count):
        rows = sorted(
            (source.randrange(1 << 40), source.randrange(1 << 64), list(range(source.randrange(9))))
            for _ in range(source.randrange(1, 30))
        )
        index = array("Q")
        ids = array("H")
        for key, split, tokens in rows:
            index.extend([key, split, len(tokens), 1])
            ids.extend([token + number for token in tokens])
            documents.append((key, split, [token + number for token in tokens]))
        header = {**COUNTS, "tokens": len(ids), "documents": len(rows), "sources": [(0, 1, 2)]}
        sections = {"index": memoryview(index), "ids": memoryview(ids)}
        paths.append(folder / f"{number}.ids")
        write_work_file(paths[-1], header, sections)
    return paths, sorted(documents, key=lambda row: row[0])


def read_all(paths: list[Path], val: bool | None, num_threads: int, open_files: int) -> list[int]:
    rows = _native.RangeRows()
    names = [os.fsencode(path) for path in paths]
    rows.add_files(names, 2, 0, LAST_KEY, val, 1 << 62, num_threads=num_threads)
    rows.finish(num_threads)
    reader = _native.RangeReader(rows, 2, open_files)
    found = array("H")
    step = 7  # documents are split, and some ranges are within one
    for first in range(0, reader.num_tokens, step):
        last = min(first + step, reader.num_tokens)
        found.frombytes(reader.read(first, last, 2)[0])
    return found.tolist()


@pytest.mark.parametrize("val", [None, True, False])
def test_ids_come_in_the_order_of_keys(tmp_path: Path, val: bool | None) -> None:
    paths, documents = write_blocks(tmp_path, 80)
    wanted = [
        token
        for _, split, tokens in documents
        if val is None or (split < 1 << 62) == val
        for token in tokens
    ]
    assert len(wanted) > 500
    for num_threads, open_files in ((1, 1), (1, 100), (3, 7), (16, 1000)):
        assert read_all(paths, val, num_threads, open_files) == wanted, (num_threads, open_files)


def test_a_large_shard_is_counted_as_it_is_written(tmp_path: Path) -> None:
    """Hours of one shard looked like no progress; one that is there already counts as a whole."""
    paths, documents = write_blocks(tmp_path, 40)
    total = sum(len(tokens) for _, _, tokens in documents)
    job = ShardJob(
        root=tmp_path / "data", encoded=paths, shuffle=True, val_fraction=0.0,
        tokens_per_shard=1 << 40, vocab_size=100, chunk_bytes=200, done_folder=tmp_path / "done",
    )  # fmt: skip
    plan = plan_shards(job)
    for steps in ([100] * (total // 100) + [total % 100], [total]):
        counted: list[int] = []
        with WorkerPool(2) as pool:
            shards = sharding.write_shards(job, plan, pool, on_done=counted.append)
        assert counted == steps
        assert [shard.num_tokens for shard in shards["train"]] == [total]


def test_as_many_files_stay_open_as_may(tmp_path: Path) -> None:
    paths, _ = write_blocks(tmp_path, 40)
    rows = _native.RangeRows()
    rows.add_files([os.fsencode(path) for path in paths], 2, 0, LAST_KEY, None, 0)
    rows.finish()

    def count_open() -> int:
        links = Path("/proc/self/fd").iterdir()
        return sum(os.path.realpath(link).startswith(str(tmp_path)) for link in links)

    for open_files, kept in ((5, 5), (3, 5), (100, 40)):  # open files stay open
        reader = _native.RangeReader(rows, 2, open_files)
        reader.read(0, reader.num_tokens, 2)
        assert count_open() == kept
    del reader, rows
    assert count_open() == 0


def test_many_rows_are_sorted_by_several_threads_as_by_one(tmp_path: Path) -> None:
    """Keys that come several times stay in the order of the files."""
    source = random.Random(5)
    paths: list[Path] = []
    for number in range(6):
        keys = sorted(source.randrange(3000) for _ in range(5000))
        index = array("Q")
        for key in keys:
            index.extend([key, 0, 1, 1])
        ids = array("H", [number] * len(keys))
        sections = {"index": memoryview(index), "ids": memoryview(ids)}
        paths.append(tmp_path / f"{number}.ids")
        write_work_file(paths[-1], {**COUNTS, "tokens": len(ids)}, sections)
    one = read_all(paths, None, 1, 10)
    assert len(one) == 30_000
    assert all(read_all(paths, None, threads, 10) == one for threads in (2, 5, 16))


def test_ranges_are_as_many_as_documents_ask_for(tmp_path: Path) -> None:
    paths, documents = write_blocks(tmp_path, 5)
    given: dict[str, Any] = {
        "root": tmp_path, "encoded": paths, "shuffle": True, "val_fraction": 0.25,
        "tokens_per_shard": 100, "vocab_size": 300, "range_bytes": 2048,
    }  # fmt: skip
    plan = plan_shards(ShardJob(**given, num_documents=len(documents)))
    assert len(plan.bounds) == -(-len(documents) * sharding.ENCODED_ROW_BYTES_HELD // 2048) > 1
    by_four = ShardJob(**given, num_documents=len(documents), num_workers=4)
    assert plan_shards(by_four) == plan
    fewer = ShardJob(**given, num_documents=16)
    assert len(plan_shards(fewer).bounds) == 1


def test_totals_are_the_same_wherever_blocks_come_from(tmp_path: Path) -> None:
    """Blocks that are finished here, those that are encoded later, and files of another command."""
    paths, documents = write_blocks(tmp_path, 6)
    works = [sharding.open_work_file(path) for path in paths]
    for here in ([], works, [*works[:2], None, *works[3:]], [None, *works[1:]]):
        totals, report = EncodedTotals(1), Report()
        for work in here:
            totals.add(work)
        totals.finish(paths, report)
        assert totals.num_documents == len(documents)
        assert totals.num_tokens == sum(len(row[2]) for row in documents)
        assert [*totals.sources.iter_json([("a", {})])] == [
            {"file": "a", "documents": 6, "tokens": 12}
        ]
        assert totals.find_seen(3) is None


def write_output(path: Path, seed: int) -> tuple[Output, list[tuple[int, int, list[int]]]]:
    """A task's output for a part: documents of up to some pages, by key, in two buckets."""
    source = random.Random(seed)
    documents = sorted(
        (source.randrange(1 << 64), source.randrange(1 << 64), [seed] * source.choice((0, 9, 5000)))
        for _ in range(160)
    )
    for number, (_, _, tokens) in enumerate(documents):
        tokens[:] = [(token + number + at) % 60_000 for at, token in enumerate(tokens)]
    counter = _native.RangeCounter([0, 1 << 63], 1 << 62)
    index = array("Q", chain(*((key, one, len(ids), 1) for key, one, ids in documents)))
    counter.add(memoryview(index).cast("B"))
    with path.open("w+b") as file:
        writer = OutputWriter(file)
        writer.section("before", b"odd")
        writer.section("ids", array("H", chain(*(ids for _, _, ids in documents))).tobytes())
        writer.section("index", memoryview(index).cast("B"))
        writer.section("row_ends", counter.row_ends())
        writer.section("token_ends", counter.token_ends())
        writer.finish({})
    return open_output(path), documents


def add_outputs(outputs: list[Output], first: int, val: bool | None) -> _native.RangeRows:
    rows = _native.RangeRows()
    damaged = rows.add_outputs(
        list(map(gathering._describe, outputs)), page_bytes=PAGE_BYTES, num_buckets=2, first=first,
        last=1, id_bytes=2, low=first << 63, high=LAST_KEY, val=val, val_limit=1 << 62,
    )  # fmt: skip
    assert damaged is None
    rows.finish()
    return rows


@pytest.mark.parametrize("val", [None, True, False])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("step", [1000, 200_000, 1 << 30])
def test_ids_of_outputs_are_compared_as_they_are_read(
    tmp_path: Path, step: int, first: int, val: bool | None
) -> None:
    """Windows of pages, documents across them, and documents of the other split in between."""
    made = [write_output(tmp_path / str(seed), seed) for seed in range(3)]
    rows = add_outputs([output for output, _ in made], first, val)
    wanted = sorted(
        (document for _, documents in made for document in documents), key=lambda row: row[0]
    )
    expected = [
        token
        for key, one, ids in wanted
        if key >= first << 63 and val in (None, one < 1 << 62)
        for token in ids
    ]
    reader = _native.RangeReader(rows, 2, 100)
    found = array("H")
    for at in range(0, reader.num_tokens, step):
        found.frombytes(reader.read(at, min(at + step, reader.num_tokens), 2)[0])
    assert found.tolist() == expected
    assert len(expected) > 10_000 and rows.damaged is None


@pytest.mark.parametrize("page", [0, 1, 70, -1])
def test_a_damaged_page_of_ids_is_named(tmp_path: Path, page: int) -> None:
    """Any page of ids, also one after the first window; unaffected ranges can be read."""
    outputs = [write_output(tmp_path / str(seed), seed)[0] for seed in range(2)]
    begin, size = outputs[1].sections["ids"]
    page = page if page >= 0 else (begin + size - 1) // PAGE_BYTES
    assert size > 80 * PAGE_BYTES
    rows = add_outputs(outputs, 0, None)
    with outputs[1].path.open("r+b") as file:
        place = page * PAGE_BYTES + 5
        os.pwrite(file.fileno(), bytes([os.pread(file.fileno(), 1, place)[0] ^ 4]), place)
    reader = _native.RangeReader(rows, 2, 100)
    failed = 0
    for at in range(0, reader.num_tokens, 10_000):
        try:
            reader.read(at, min(at + 10_000, reader.num_tokens), 2)
        except ValueError:
            failed += 1
            assert rows.damaged == (os.fsencode(outputs[1].path), page)
    assert 0 < failed < 4 < reader.num_tokens // 10_000
