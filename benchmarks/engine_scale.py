"""The engine's own costs at sizes that no test can have: planning, listing, tiny tasks.

    python benchmarks/engine_scale.py

Inputs are rows without files (planning plain text opens none), and records are generated. Printed:
seconds and peak memory of planning 1 TB, 100 TB and 1 PB; the number of passes over their hashes
with some budgets; the time to divide the hashes of a part of such a corpus, and to read them for
each part and partition, with the part in the cache and opened again; seconds to list and read the
records of 30,000 tasks; milliseconds of a task that does nothing, with one worker and with four at
once.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lowtide.corpus.inputs import InputFile, InputList, hash_inputs
from lowtide.corpus.reading import ReadingSettings, plan_streams
from lowtide.dataset.resources import Inputs, plan_shares
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.staged.duplicates import Search, count_passes
from lowtide.dataset.staged.hashing import HASH_SECTIONS
from lowtide.dataset.staged.parts import cut_parts
from lowtide.dataset.staged.plan import Sizes
from lowtide.engine.partitions import PartitionedRows, PartitionReader
from lowtide.engine.records import Records
from lowtide.engine.shared import run_shared
from lowtide.engine.tasks import Task
from lowtide.memory import MemoryBudget, process_peak_bytes

TB = 10**12
_TEXT_BYTES_PER_HASH = 384  # 5.0 MB of hashes, 16 bytes each, of 120 MB of English


def plan(total: int, num_files: int) -> dict[str, float]:
    """Plan a corpus of this many bytes and files."""
    inputs = InputList()
    for number in range(num_files):
        path = Path(f"/shared/corpus/part-{number:07d}.txt")
        inputs.append(InputFile(number, path, "text", None, total // num_files, number))
    begin = time.perf_counter()
    sizes = Sizes.of(inputs.total_bytes)
    options = ReadingSettings()
    streams = plan_streams(inputs, options)
    parts = cut_parts(streams, options, sizes.part_bytes)
    hash_inputs(inputs)
    return {
        "bytes": total,
        "files": num_files,
        "part_mib": sizes.part_bytes >> 20,
        "parts": len(parts),
        "partitions": sizes.num_partitions,
        "seconds": round(time.perf_counter() - begin, 2),
        "peak_mib": process_peak_bytes() >> 20,
    }


def count_hash_passes(memory: str, workers: int) -> dict[str, object]:
    """Number of passes over a partition's hashes, as for English: 16 bytes per 384 of text."""
    settings = PrepareSettings(
        input_files=("-",), out_dir=Path("-"), engine="files", memory=memory, num_workers=workers
    )
    shares = plan_shares(settings, MemoryBudget.from_setting(memory), Inputs())
    passes = {
        f"{total // TB} TB": count_passes(
            total // _TEXT_BYTES_PER_HASH // Sizes.of(total).num_partitions, shares.table_bytes
        )
        for total in (TB, 10 * TB, 100 * TB, 1000 * TB)
    }
    table = shares.table_bytes >> 20
    return {"memory": memory, "workers": workers, "table_mib": table, "passes": passes}


def divide_hashes(total: int, tasks: int) -> dict[str, object]:
    """Divide the hashes of some parts of a corpus of this size, and read partitions of them.

    The hashes are generated: as many per block as in English, all different.
    """
    sizes = Sizes.of(total)
    block_rows = ReadingSettings().block_bytes // _TEXT_BYTES_PER_HASH
    num_blocks = max(sizes.part_bytes // ReadingSettings().block_bytes, 1)
    source = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        records = Records(Path(folder))
        records.place.prepare()
        before = time.process_time()
        made = 0.0
        for task in range(tasks):
            with records.scratch() as scratch:
                rows = PartitionedRows(HASH_SECTIONS, sizes.partition_borders(), scratch.hold())
                for _ in range(num_blocks):
                    begin = time.process_time()
                    keys = source.integers(0, 1 << 64, (block_rows, 2), np.uint64)
                    keys = keys[np.argsort(keys[:, 0] >> np.uint64(56), kind="stable")]
                    first = (keys[:, 0] >> np.uint64(56)).astype(np.int64)
                    ends = np.searchsorted(first, np.arange(256), side="right").astype(np.int64)
                    made += time.process_time() - begin
                    rows.add(memoryview(keys).cast("B"), memoryview(ends).cast("B"))
                records.commit(
                    Task("hash", task), lambda output, rows=rows: rows.write(output) or {}
                )
        written = time.process_time() - before - made
        output = records.open(Task("hash", 0))
        read = _time_reading(lambda: records, sizes, tasks)
        read_anew = _time_reading(lambda: Records(Path(folder), places_kept=0), sizes, tasks)
        return {
            "bytes": total,
            "blocks": num_blocks,
            "partitions": sizes.num_partitions,
            "hash_mb": output.size(HASH_SECTIONS.rows) / 1e6,
            "index_mb": (output.size(HASH_SECTIONS.counts) + output.size(HASH_SECTIONS.ends)) / 1e6,
            "write_s": round(written / tasks, 2),
            "read_us_for_part_and_partition": round(1e6 * read),
            "read_us_where_the_part_is_opened_anew": round(1e6 * read_anew),
            "peak_mib": process_peak_bytes() >> 20,
        }


def _time_reading(open_records: Callable[[], Records], sizes: Sizes, tasks: int) -> float:
    """Seconds of processor time to read one part's hashes in one partition.

    Either all parts are in the cache of `open_records`, or none of them.
    """
    partitions = range(0, sizes.num_partitions, max(sizes.num_partitions // 20, 1))
    before = time.process_time()
    for partition in partitions:
        records = open_records()
        old, new = (
            PartitionReader(records, stage, HASH_SECTIONS, num_tasks=count, partition=partition)
            for stage, count in (("existing", 0), ("hash", tasks))
        )
        Search(old, new, None, sizes.shared_bits).find(0, 1, len)
    return (time.process_time() - before) / tasks / len(partitions)


def in_a_process(function: Callable[..., object], *arguments: object) -> object:
    """Run a measurement in a new process, so that its peak is separate."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def list_records(folder: Path, count: int) -> dict[str, float]:
    """List the records of a stage, and read all of them, as the tally does."""
    records = Records(folder)
    (folder / "hash").mkdir()
    for number in range(count):
        task = Task("hash", number)
        row = {"task": task.name, "files": {}, "facts": {"blocks": 1000, "open_document": None}}
        records.record_path(task).write_text(json.dumps(row))
    begin = time.perf_counter()
    found = records.list_done("hash")
    listed = time.perf_counter()
    for number in sorted(found):
        records.read(Task("hash", number))
    read = time.perf_counter()
    return {"records": len(found), "list_s": listed - begin, "read_s": read - listed}


class Nothing:
    """Tasks that commit an empty record."""

    name = "nothing"

    def __init__(self, records: Records, count: int) -> None:
        self._records = records
        self._count = count

    def count_tasks(self) -> int:
        """The given number."""
        return self._count

    def run(self, index: int) -> None:
        """Commit."""
        self._records.commit_record(Task(self.name, index), facts={})


def work(folder: Path, count: int) -> None:
    """Run one worker on tasks that do nothing."""
    records = Records(folder)

    def on_stage(name: str, count: int) -> Callable[[int], None]:
        return lambda done: None

    run_shared([Nothing(records, count)], records, num_workers=1, on_stage=on_stage)


def time_tasks(folder: Path, count: int, workers: int) -> dict[str, float]:
    """Let processes share tasks that do nothing."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(folder, count)) for _ in range(workers)]
    begin = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - begin
    return {"workers": workers, "tasks": count, "ms_per_task": 1000 * seconds / count}


def main() -> None:
    """Print one JSON row per measurement."""
    for total, num_files in ((TB, 10_000), (100 * TB, 100_000), (1000 * TB, 1_000_000)):
        print(json.dumps(in_a_process(plan, total, num_files)), flush=True)
    for memory, workers in (("4GiB", 1), ("4GiB", 16), ("64GiB", 16), ("512GiB", 16)):
        print(json.dumps(count_hash_passes(memory, workers)), flush=True)
    for total, tasks in ((TB, 8), (100 * TB, 2), (1000 * TB, 1)):
        print(json.dumps(in_a_process(divide_hashes, total, tasks)), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(list_records(Path(folder), 30_000)), flush=True)
    for workers in (1, 4):
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(time_tasks(Path(folder), 2000, workers)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
