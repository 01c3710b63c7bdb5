"""Blocks of a corpus are cleaned once, in their places, and told of in order."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from lowtide.corpus import blockcleaning
from lowtide.corpus.blockcleaning import CleanJob, clean_corpus, has_many_streams, write_block
from lowtide.corpus.blocktable import OpenDocument, find_score_cut, load_block_table
from lowtide.corpus.cleaning import DOCUMENT_ROW_BYTES
from lowtide.corpus.inputhashes import hash_input
from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.reading import ReadingSettings, Stream, iter_blocks, plan_streams
from lowtide.corpus.settings import CleaningSettings
from lowtide.corpus.textblocks import TextBlock
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import WorkFile, open_work_file

sys.path.insert(0, str(Path(__file__).parent))
from fasttext_files import TinyModel

BLOCK = 400
READING = ReadingSettings(block_bytes=BLOCK)
PLAIN = CleaningSettings(filter=False, dedup=False)


def text_of(name: str, documents: int) -> str:
    """Documents of 40 bytes with their separators."""
    return "".join(
        f"{name}{number:06d} some words{'.' * 8}<|endoftext|>" for number in range(documents)
    )


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """Two small files that share a block, one of 3 blocks, a compressed one, another small one."""
    folder = tmp_path / "in"
    folder.mkdir()
    texts = {"a": 2, "b": 2, "c": 30, "d": 40, "e": 1}
    for name, documents in texts.items():
        (folder / f"{name}.txt").write_text(text_of(name, documents))
    packed = folder / "d.txt"
    (folder / "d.txt.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    return sorted(folder.iterdir())


def job_of(inputs: list[Path], work: Path, **more: Any) -> CleanJob:
    reading = more.pop("reading", READING)
    streams = plan_streams(expand_inputs(inputs), reading)
    return CleanJob(streams, reading, more.pop("cleaning", PLAIN), work, **more)


class Notes:
    """A consumer that notes what it is told."""

    def __init__(self, takes: Callable[[str], bool] = lambda _: False) -> None:
        self.taken: list[tuple[int, str]] = []
        self.passed: list[tuple[int, str]] = []
        self.stops = 0
        self._takes = takes

    def take(self, place: int, path: Path, block: TextBlock, cleaned: Any) -> WorkFile | None:
        assert cleaned.documents_in >= 0 and block.stored_bytes >= 0
        self.taken.append((place, path.name))
        return WorkFile(path, {}, {}) if self._takes(path.name) else None

    def pass_by(self, place: int, work: WorkFile) -> None:
        self.passed.append((place, work.path.name))

    def stop(self) -> None:
        self.stops += 1


def clean(job: CleanJob, workers: int = 1) -> tuple[list[int], list[str]]:
    """The bytes and the blocks that are told of."""
    sizes: list[int] = []
    told: list[str] = []
    with WorkerPool(workers) as pool:
        clean_corpus(
            job,
            pool,
            on_done=sizes.append,
            on_block=lambda block: told.append(block.work.path.name),
        )
    return sizes, told


def names_of(job: CleanJob) -> list[str]:
    return [path.name for path in load_block_table(job).paths]


def test_every_block_is_taken_in_its_place(inputs: list[Path], tmp_path: Path) -> None:
    notes = Notes()
    job = job_of(inputs, tmp_path / "new" / "work", consumer=notes)
    sizes, told = clean(job)
    names = names_of(job)
    counts = {name: sum(one.startswith(name) for one in names) for name in ("0000000-", "0000001-",
              "0000002-", "0000003-")}  # fmt: skip
    assert list(counts.values()) == [1, 3, counts["0000002-"], 1] and counts["0000002-"] > 2
    assert told == names == sorted(names)
    assert notes.taken == list(enumerate(names)) and not notes.passed
    assert notes.stops == 1
    assert sum(sizes) == sum(path.stat().st_size for path in inputs)
    assert sizes[0] == sum(path.stat().st_size for path in inputs[:2])
    assert len(sizes) == len(names)


@pytest.mark.parametrize("workers", [1, 2])
def test_blocks_that_are_there_are_passed_by(
    inputs: list[Path], tmp_path: Path, workers: int
) -> None:
    job = job_of(inputs, tmp_path / "work")
    first = clean(job, workers)
    names = names_of(job)
    before = {path.name: path.stat().st_mtime_ns for path in job.folder.iterdir()}
    notes = Notes()
    again = clean(job_of(inputs, tmp_path / "work", consumer=notes), workers)
    assert sorted(notes.passed) == list(enumerate(names)) and not notes.taken
    assert again[1] == first[1] == names
    assert {path.name: path.stat().st_mtime_ns for path in job.folder.iterdir()} == before
    # A compressed file's bytes are told of with its first block, a plain one's by its blocks.
    third = names.index("0000002-0000000.block")
    packed = inputs[3].stat().st_size
    assert again[0][third : third + 2] == [packed, 0]
    small = sum(path.stat().st_size for path in inputs[:2])
    assert again[0][:2] == [small, BLOCK]


def test_what_is_missing_is_cleaned_again(inputs: list[Path], tmp_path: Path) -> None:
    """A block in the middle of each kind of file, and the end of the one that is read in order."""
    job = job_of(inputs, tmp_path / "work")
    clean(job)
    names = names_of(job)
    whole = {path.name: path.read_bytes() for path in job.folder.iterdir()}
    gone = ["0000001-0000001.block", "0000002-0000001.block", "0000003-0000000.block"]
    for name in gone:
        (job.folder / name).unlink()
    notes = Notes()
    sizes, told = clean(job_of(inputs, tmp_path / "work", consumer=notes))
    assert told == names
    assert [name for _, name in notes.taken] == gone
    assert sorted(notes.taken + notes.passed) == list(enumerate(names))
    assert {path.name: path.read_bytes() for path in job.folder.iterdir()} == whole
    (job.folder / "0000002.end").unlink()
    notes = Notes()
    clean(job_of(inputs, tmp_path / "work", consumer=notes))
    assert notes.passed == list(enumerate(names)) and not notes.taken
    assert (job.folder / "0000002.end").read_bytes() == whole["0000002.end"]
    assert len(sizes) == len(names)


def test_text_that_was_taken_is_not_kept(inputs: list[Path], tmp_path: Path) -> None:
    """Such a block counts as done only where what was made of it is there."""
    taken = ["0000001-0000000.block", "0000002-0000000.block"]
    job = job_of(inputs, tmp_path / "work", consumer=Notes(lambda name: name in taken))
    clean(job)
    names = names_of(job)
    table = load_block_table(job)
    without = [names[place] for place in range(len(table)) if not table.has_text[place]]
    assert without == taken
    assert [names[place] for place in range(len(table)) if not table.text_bytes[place]] == taken
    for known in ([], taken[:1], taken):
        notes = Notes(lambda name: name in taken)
        asked: list[str] = []

        def is_encoded(path: Path, known: list[str] = known, asked: list[str] = asked) -> bool:
            asked.append(path.name)
            return path.name in known

        clean(job_of(inputs, tmp_path / "work", consumer=notes, is_encoded=is_encoded))
        assert [name for _, name in notes.taken] == [name for name in taken if name not in known]
        assert set(asked) == set(taken)
    notes = Notes(lambda name: name in taken)
    clean(job_of(inputs, tmp_path / "work", consumer=notes))
    assert [name for _, name in notes.taken] == taken


def test_files_that_are_read_in_order_are_read_side_by_side(tmp_path: Path) -> None:
    """The same blocks as one after the other; they are not told of in order."""
    paths = [tmp_path / f"{name}.txt.gz" for name in "abc"]
    for path, documents in zip(paths, (40, 30, 50), strict=True):
        path.write_bytes(gzip.compress(text_of(path.name[0], documents).encode()))
    plain = tmp_path / "d.txt"
    plain.write_text(text_of("d", 30))
    alone, beside = (job_of([*paths, plain], tmp_path / name) for name in ("alone", "beside"))
    assert has_many_streams(alone.streams)
    told = clean(alone)
    sizes, none = clean(beside, workers=2)
    assert none == [] and told[1] == names_of(alone)
    assert sum(sizes) == sum(told[0]) == sum(path.stat().st_size for path in [*paths, plain])
    kept = [
        {path.name: path.read_bytes() for path in job.folder.iterdir()} for job in (alone, beside)
    ]
    assert kept[0] == kept[1]
    times = {path: path.stat().st_mtime_ns for path in beside.folder.iterdir()}
    again, _ = clean(beside, workers=2)
    assert sorted(again) == sorted([*(path.stat().st_size for path in paths), *[BLOCK] * 3])
    (beside.folder / "0000001.end").unlink()
    (beside.folder / "0000001-0000001.block").unlink()
    clean(beside, workers=2)
    changed = {path for path in times if path.stat().st_mtime_ns != times[path]}
    assert {path.name for path in changed} == {"0000001.end", "0000001-0000001.block"}
    assert {path.name: path.read_bytes() for path in beside.folder.iterdir()} == kept[0]


def stream_of(size: int, random_access: bool) -> Stream:
    source = cast("Any", type("Source", (), {"size_bytes": size})())
    return Stream(0, [source], random_access, num_blocks=1)


@pytest.mark.parametrize(
    ("in_order", "others", "many"),
    [
        ([], [100], False),
        ([100], [], False),
        ([100, 100], [], True),
        ([90, 10], [], True),
        ([91, 9], [], False),
        ([905, 95], [], False),
        ([80, 10], [10], True),
        ([80, 9], [11], False),
        ([10, 5, 5], [80], True),
        ([10, 5, 4], [81], False),
    ],
)
def test_which_files_are_worth_a_worker_each(
    in_order: list[int], others: list[int], many: bool
) -> None:
    """A tenth of all bytes, without the largest of those that are read in order."""
    streams = [stream_of(size, False) for size in in_order]
    assert has_many_streams([*streams, *(stream_of(size, True) for size in others)]) == many


@pytest.mark.parametrize("at", ["take", "clean"])
def test_an_error_stops_whoever_waits_for_the_block(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("no more")

    notes = Notes()
    if at == "take":
        notes.take = fail
    else:
        monkeypatch.setattr(blockcleaning, "clean_block", fail)
    job = job_of(inputs[2:3], tmp_path / "work", consumer=notes)
    with pytest.raises(OSError, match="no more"):
        clean(job)
    assert notes.stops >= 2  # by the task, for others that wait, and at the end


def test_notices_come_with_the_block_or_the_end_of_their_file(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": "first"}\n{"other": 1}\n{"text": "last"}\n')
    cut_off = gzip.compress(text_of("b", 60).encode())[:-40]
    (folder / "b.txt.gz").write_bytes(cut_off)
    (folder / "c.txt").write_bytes(b"\0" * 2000)
    inputs = sorted(folder.iterdir())
    reading = ReadingSettings(block_bytes=BLOCK, skip_bad=True)
    job = job_of(inputs, tmp_path / "work", reading=reading)
    clean(job)
    table = load_block_table(job)
    said = [notice.partition(": ")[0] for notice in table.notices]
    assert sorted({Path(name).name for name in said}) == ["a.jsonl", "b.txt.gz", "c.txt"]
    end = open_work_file(job.end_path(1)).header
    assert [Path(one.partition(": ")[0]).name for one in end["notices"]] == ["b.txt.gz"]
    assert end["blocks"] == sum(path.name.startswith("0000001-") for path in table.paths)
    sources = expand_inputs(inputs)
    found = [table.contents.get(source.index) for source in sources]
    assert found == [hash_input(source, reading) for source in sources]
    assert found[0] is not None and found[2] is None


def test_what_a_block_says_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one line of it<|endoftext|>and one more\nof two lines")
    job = job_of([path], tmp_path / "work", collect_characters=True)
    job.folder.mkdir()
    (block,) = filter(None, iter_blocks(job.streams[0], job.reading))
    written = write_block(job, block, 7, keep_text=False)
    assert written.stored_bytes == path.stat().st_size and written.made is None
    work = open_work_file(job.block_path(0, 7))
    assert work.path == written.work.path and work.sections == written.work.sections
    assert work.header == json.loads(json.dumps(written.work.header))
    header = work.header
    content = header.pop("content")
    rules = header.pop("counts")
    assert header == {
        "has_text": False, "continues": False, "continued": False, "documents_in": 2,
        "lines_in": 3, "bytes_in": path.stat().st_size - len("<|endoftext|>"), "samples": [],
        "languages": {}, "notices": [],
    }  # fmt: skip
    assert [row[0] for row in content] == [0] and not any(map(any, rules))
    assert write_block(job, block, 0).stored_bytes == path.stat().st_size
    table = load_block_table(job)
    assert len(table) == 1 and table.text_bytes[0] > 0 and table.has_text[0]
    assert "".join(map(chr, table.list_characters())) == "".join(
        sorted(set("one line of it and one more\nof two lines"))
    )


def row_of(ordinal: int) -> memoryview:
    row = bytearray(DOCUMENT_ROW_BYTES)
    row[0:8], row[8:16] = (3).to_bytes(8, "little"), ordinal.to_bytes(8, "little")
    row[32:40] = (1000 + ordinal).to_bytes(8, "little")
    return memoryview(bytes(row))


def test_a_document_goes_through_blocks_under_the_identity_of_its_first_part() -> None:
    opened = OpenDocument()
    assert opened.identity is None
    rows = [  # continues, continued, documents, ordinal of the last; the document begun before
        (False, False, 2, 1, None),
        (False, True, 2, 2, None),
        (True, True, 1, 3, 2),  # all of it is a part of the same document
        (True, True, 2, 4, 2),
        (True, False, 3, 5, 4),
        (False, True, 1, 6, None),
        (True, False, 1, 7, 6),
    ]
    for continues, continued, count, ordinal, begun in rows:
        found = opened.advance(
            continues=continues, continued=continued, num_documents=count, last=row_of(ordinal)
        )
        assert found == (None if begun is None else (3, begun, 1000 + begun))
    assert opened.identity == (3, 6, 1006)


def test_documents_that_span_blocks_are_carried(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    lines = "".join(f"line {number:05d} of a long document\n" for number in range(60))
    path.write_text(f"{text_of('a', 3)}{lines}<|endoftext|>{text_of('b', 12)}")
    job = job_of([path], tmp_path / "work")
    clean(job)
    table = load_block_table(job)
    headers = [open_work_file(block).header for block in table.paths]
    inside = [place for place, header in enumerate(headers) if header["continues"]]
    assert len(inside) > 2 and list(table.carried) == inside
    begin = len(text_of("a", 3))
    assert {identity[:2] for identity in table.carried.values()} == {(0, begin)}
    later = table.after(table)
    assert len(later) == 2 * len(table) and later.paths == [*table.paths, *table.paths]
    assert list(later.carried) == [place + len(table) for place in inside]
    for name in ("num_hashes", "text_bytes", "has_text"):
        assert getattr(later, name) == getattr(table, name) + getattr(table, name)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_without_text_has_no_blocks(tmp_path: Path, workers: int) -> None:
    """Its end says so, and places of later blocks go on from there."""
    paths = [tmp_path / f"{name}.txt.gz" for name in "abc"]
    for path, documents in zip(paths, (0, 30, 40), strict=True):
        path.write_bytes(gzip.compress(text_of(path.name[0], documents).encode()))
    notes = Notes()
    for consumer in (None, notes):
        work = tmp_path / f"work{consumer is None}"
        job = job_of(paths, work, consumer=consumer)
        clean(job, workers)
        assert open_work_file(job.end_path(0)).header["blocks"] == 0
        names = names_of(job)
        assert {name[:7] for name in names} == {"0000001", "0000002"}
    assert sorted(notes.taken) == list(enumerate(names))


@pytest.mark.parametrize(
    ("suffixes", "workers", "consumer", "waiting"),
    [
        ((".txt.gz", ".txt.gz"), 3, False, 12),  # side by side
        ((".txt.gz", ".txt.gz"), 3, True, 1),
        ((".txt.gz", ".txt.gz"), 1, False, 1),
        ((".txt", ".txt"), 3, False, 3),  # nothing is held before a task runs
        ((".txt", ".txt.gz"), 3, False, 1),
    ],
)
def test_how_many_tasks_wait(
    tmp_path: Path, suffixes: tuple[str, ...], workers: int, consumer: bool, waiting: int
) -> None:
    paths = [tmp_path / f"{number}{suffix}" for number, suffix in enumerate(suffixes)]
    for path in paths:
        text = text_of("a", 30).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    asked: list[int] = []

    class Pool:
        num_workers = workers

        def run(self, tasks: Any, *, num_waiting: int) -> Any:
            asked.append(num_waiting)
            return iter(())

    pool: Any = Pool()
    job = job_of(paths, tmp_path / "work", consumer=Notes() if consumer else None)
    clean_corpus(job, pool, on_done=lambda _: None)
    assert asked == [waiting]


def test_scores_are_found_once_and_nothing_else_is_kept(inputs: list[Path], tmp_path: Path) -> None:
    words = ["some", "words", "</s>"]
    model = TinyModel(words=words, labels=["hq", "cc"], dim=6).write(tmp_path / "model.bin")
    cleaning = CleaningSettings(filter=False, dedup=False, score=model, keep_top=0.5)
    job = job_of(inputs, tmp_path / "work", cleaning=cleaning, collect_scores=True)
    clean(job)
    cut, contents = find_score_cut(job, 0.5)
    assert (cut.judged, cut.kept >= 75 // 2) == (75, True)
    sources = expand_inputs(inputs)
    assert [contents.get(one.index) for one in sources] == [
        hash_input(one, READING) for one in sources
    ]
    paths = sorted(job.folder.glob("*.block"))
    assert all(open_work_file(path).sections.keys() == {"keys"} for path in paths)
    times = [path.stat().st_mtime_ns for path in paths]
    clean(job)
    assert [path.stat().st_mtime_ns for path in paths] == times
