"""Parts encoded right after hashing: the same bytes, whichever other workers there are."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.corpus.textblocks import TextBlock
from lowtide.dataset.appending import append_to_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.staged import ahead, encoding, running
from lowtide.dataset.staged.ahead import EncodingAhead, HeldPart
from lowtide.dataset.staged.duplicates import DuplicateStage
from lowtide.dataset.staged.encoding import ENCODE_STAGE, EncodeStage
from lowtide.dataset.staged.hashing import HashStage
from lowtide.dataset.staged.job import CleanPart
from lowtide.dataset.staged.plan import Sizes
from lowtide.engine.folders import DiskFolder
from lowtide.engine.tasks import Stage, run_task
from lowtide.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))
from corpora import make_documents, snapshot, write_corpus

SIZES = Sizes(part_bytes=6 << 10, num_partitions=3, num_buckets=16, group_bytes=5000)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text with duplicates in every part and a document of several; blocks of 2 KiB."""
    root = tmp_path_factory.mktemp("ahead")
    Tokenizer.from_merges([(b"i", b"n"), (b"l", b"o"), (b"lo", b"w")]).save(root / "tok")
    long_document = "\n".join(f"line {number} of a long document" for number in range(900))
    texts = [*make_documents(40), long_document, *make_documents(20, seed=1), *make_documents(20)]
    write_corpus(root / "texts" / "a.txt", texts)
    prepare_dataset(settings_of(root, "threads"))
    return root


def settings_of(root: Path, out_dir: str, **options: Any) -> PrepareSettings:
    return PrepareSettings(
        input_files=(str(root / "texts"),),
        out_dir=root / out_dir,
        memory="8GiB",
        tokenization=str(root / "tok"),
        tokens_per_shard=4000,
        block_bytes=2048,
        **options,
    )


def start(root: Path, out_dir: str) -> Any:
    """A worker whose tasks the test runs directly."""
    workers: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running._SharedPreparation, "run", lambda self, _: workers.append(self))
        running.prepare_shared(settings_of(root, out_dir, engine="files"), sizes=SIZES)
    return workers[0]


def plan_ahead(worker: Any, **limits: int) -> None:
    encoding = EncodeStage(worker._job, worker.encode_job)
    limits = {"table_bytes": 1 << 20, "text_bytes": 1 << 20, **limits}
    worker._ahead = EncodingAhead(worker._job, encoding, **limits)


def run_stage(stage: Stage) -> None:
    for index in range(stage.count_tasks()):
        run_task(stage, index)


def count_encoded(worker: Any) -> int:
    return len(worker._job.records.list_done(ENCODE_STAGE))


def finish(worker: Any) -> int:
    """Run every stage; returns how many parts were encoded ahead."""
    encoded = 0
    for stage in worker._iter_stages():
        run_stage(stage)
        if isinstance(stage, HashStage):
            encoded = count_encoded(worker)
    return encoded


@pytest.mark.parametrize("options", [{}, {"dedup": False}, {"shuffle": False}], ids=str)
def test_a_worker_that_is_alone_cleans_once(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    threads = settings_of(corpus, f"threads {options}", **options)
    prepare_dataset(threads)
    cleaned: list[Any] = []
    iterate = CleanPart.__iter__

    def note(self: CleanPart) -> Any:
        cleaned.append(self._part)
        return iterate(self)

    def never(*_: object) -> None:
        raise AssertionError("nobody needs to know")

    monkeypatch.setattr(CleanPart, "__iter__", note)
    monkeypatch.setattr(DuplicateStage, "run", never)
    settings = settings_of(corpus, f"alone {options}", engine="files", num_workers=1, **options)
    running.prepare_shared(settings, sizes=SIZES)
    assert snapshot(settings.out_dir) == snapshot(threads.out_dir)
    assert len(cleaned) == len(set(cleaned)) > 5


def test_several_threads_take_turns(corpus: Path) -> None:
    settings = settings_of(corpus, "several", engine="files", num_workers=3)
    running.prepare_shared(settings, sizes=SIZES)
    assert snapshot(settings.out_dir) == snapshot(corpus / "threads")


@pytest.mark.parametrize(
    "room", [{"table_bytes": 3000}, {"text_bytes": 100}], ids=["full table", "part too large"]
)
def test_where_there_is_no_room_stages_follow_each_other(
    corpus: Path, room: dict[str, int]
) -> None:
    worker = start(corpus, f"room {room}")
    plan_ahead(worker, **room)
    assert finish(worker) < len(worker._job.parts) - 1
    assert snapshot(corpus / f"room {room}") == snapshot(corpus / "threads")


def test_parts_that_others_hashed_are_read_and_those_in_work_are_not_waited_for(
    corpus: Path,
) -> None:
    other, worker = start(corpus, "others"), start(corpus, "others")
    for part in (0, 1, 3):
        run_task(HashStage(other._job), part)
    plan_ahead(worker)
    hashing = HashStage(worker._job, worker._ahead)
    run_task(hashing, 2)
    run_task(hashing, 4)
    assert worker._job.records.list_done(ENCODE_STAGE) == {2, 4}
    run_task(hashing, 6)  # part 5 is not hashed yet
    run_task(hashing, 5)
    assert worker._job.records.list_done(ENCODE_STAGE) == {2, 4}
    finish(worker)
    assert snapshot(corpus / "others") == snapshot(corpus / "threads")


@pytest.mark.parametrize("part", ["write", "publish"])
def test_a_part_that_failed_after_its_turn_is_encoded_later(corpus: Path, part: str) -> None:
    worker = start(corpus, "failed")
    plan_ahead(worker)
    hashing = HashStage(worker._job, worker._ahead)

    def fail(*_: object, **__: object) -> None:
        raise OSError("no more disk")

    with pytest.MonkeyPatch.context() as patch:
        records = worker._job.records
        patch.setattr(records if part == "write" else records.place, part, fail)
        with pytest.raises(OSError, match="no more disk"):
            run_task(hashing, 0)
    assert finish(worker) == len(worker._job.parts) - 1
    assert snapshot(corpus / "failed") == snapshot(corpus / "threads")


def test_results_of_a_long_job_are_not_read_for_it(corpus: Path) -> None:
    """A worker that joins late would have to read all hashes before its first part."""
    other, worker = start(corpus, "late"), start(corpus, "late")
    count = len(worker._job.parts)
    assert count > 4
    for part in range(count - 1):
        run_task(HashStage(other._job), part)
    plan_ahead(worker, most_read=3)
    run_task(HashStage(worker._job, worker._ahead), count - 1)
    assert count_encoded(worker) == 0
    finish(worker)
    assert snapshot(corpus / "late") == snapshot(corpus / "threads")


def held_block(size: int) -> tuple[Any, Any]:
    """A block of so many bytes, also when clean; hashes of 16, held twice, documents of 8."""
    sized = [SimpleNamespace(nbytes=nbytes) for nbytes in (size, 16, 8)]
    cleaned = SimpleNamespace(**dict(zip(("text", "hashes", "documents"), sized, strict=True)))
    return TextBlock(0, 0, "text", bytes(size), ()), cleaned


@pytest.mark.parametrize(
    ("room", "kept"), [(139, [0, 0]), (140, [1, 0]), (279, [1, 0]), (280, [1, 2])]
)
def test_a_part_is_held_whole_or_not_at_all(room: int, kept: list[int]) -> None:
    held, found = HeldPart(room), []
    for _ in range(2):
        held.add(*held_block(100))
        found.append(len(held.blocks))
    assert found == kept
    for _ in range(2):  # whatever comes after the block that did not fit
        held.add(*held_block(0))
    assert len(held.blocks) == (0 if kept[1] == 0 or room < 280 + 80 else 4)


@pytest.mark.parametrize("verb", ["prepare", "append"])
def test_places_are_tried_before_the_first_task(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """A store that would overwrite an existing object is rejected before anything is stored."""
    if verb == "append":
        prepare_dataset(input_files=[corpus], out_dir=tmp_path / "out", tokenization="char")
    (tmp_path / "more.txt").write_text("more of it\n" * 30)

    class RefusedError(Exception):
        pass

    tried: list[Path] = []

    def refuse(self: Any) -> None:
        tried.append(self.path)
        raise RefusedError

    monkeypatch.setattr(DiskFolder, "prepare", refuse)
    options: dict[str, Any] = {"engine": "files", "work_dir": tmp_path / "work"}
    with pytest.raises(RefusedError):
        if verb == "append":
            more = [tmp_path / "more.txt"]
            append_to_dataset(dataset_dir=tmp_path / "out", input_files=more, **options)
        else:
            prepare_dataset(
                input_files=[corpus], out_dir=tmp_path / "out", tokenization="char", **options
            )
    assert tried == [tmp_path / "work"] and not list((tmp_path / "work").rglob("*.done"))


def long_texts() -> list[str]:
    """Documents whose ids take less memory than the text."""
    return ["\n".join(f"the {n} of {k} is here, and there too" for n in range(300)) for k in "abc"]


@pytest.mark.parametrize("with_small", [False, True])
def test_ids_stay_in_memory_while_they_are_less_than_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_small: bool
) -> None:
    """Long documents with a token for most words fit; many small ones go to a scratch file."""
    small = (
        [
            f"number {number} is a small document that has one line of some words"
            for number in range(400)
        ]
        if with_small
        else []
    )
    write_corpus(tmp_path / "texts" / "a.txt", [*long_texts(), *small])
    Tokenizer.load("gpt2").save(tmp_path / "tok")
    prepare_dataset(settings_of(tmp_path, "threads"))
    written: list[int] = []
    write_block = encoding._EncodedPart._write_block
    monkeypatch.setattr(
        encoding._EncodedPart,
        "_write_block",
        lambda part, block: written.append(1) or write_block(part, block),
    )
    settings = settings_of(tmp_path, "files", engine="files", num_workers=1)
    running.prepare_shared(settings, sizes=SIZES)
    assert bool(written) == with_small
    assert snapshot(tmp_path / "files") == snapshot(tmp_path / "threads")


def test_a_part_that_is_held_needs_no_scratch_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path / "texts" / "a.txt", long_texts())
    Tokenizer.load("gpt2").save(tmp_path / "tok")
    worker = start(tmp_path, "scratch")
    plan_ahead(worker)

    def never(self: DiskFolder) -> None:
        raise AssertionError("all of it has room in memory")

    monkeypatch.setattr(DiskFolder, "scratch_folder", never)
    run_stage(HashStage(worker._job, worker._ahead))
    assert count_encoded(worker) == len(worker._job.parts)


class _Unreadable:
    """A clean block whose hashes raise an error."""

    @property
    def hashes(self) -> memoryview:
        raise MemoryError


def test_a_part_that_fails_in_the_table_keeps_nobody_waiting(corpus: Path) -> None:
    """Later parts follow its blocks in the table; they are encoded once duplicates are known."""
    worker = start(corpus, "failing")
    plan_ahead(worker)
    ahead: Any = worker._ahead
    facts = {"blocks": 1, "open_document": None}
    with ahead.hold(0), ahead.hold(1):
        first, second = (ahead._take_turn(part, 1, facts) for part in (0, 1))
        broken: Any = SimpleNamespace(blocks=[(None, _Unreadable())])
        with pytest.raises(MemoryError):
            ahead._find_duplicates(first, broken)
        whole: Any = SimpleNamespace(blocks=[(None, SimpleNamespace(hashes=memoryview(b"")))])
        assert ahead._find_duplicates(second, whole) is None


class Table:
    """A stand-in for the native table of hashes: full after this many."""

    def __init__(self, rows: int) -> None:
        self.rows, self.calls = rows, []

    def add(self, hashes, number, passes):
        self.calls.append((len(hashes), number, passes))
        return len(hashes) <= self.rows

    def take(self):
        self.calls.append("take")

    def add_in_turn(self, place, hashes):
        self.calls.append((place, bytes(hashes)))
        return None if bytes(hashes) == b"full" else hashes

    def stop(self):
        self.calls.append("stop")


def make_ahead(monkeypatch, *, results=(), dedup=True, table_bytes=1 << 20, most_read=2):
    """Parts that were hashed by others have results: their hashes and facts."""
    monkeypatch.setattr(ahead._native, "DuplicateFinder", Table)

    def output(task):
        size = results[task.index][0]
        return SimpleNamespace(
            size=lambda name: size, read=lambda name, *, begin, end: memoryview(bytes(end - begin))
        )

    records = SimpleNamespace(
        is_done=lambda task: task.index < len(results) and results[task.index] is not None,
        open=output, read=lambda task: {"facts": results[task.index][1]},
    )  # fmt: skip
    job = SimpleNamespace(records=records, settings=SimpleNamespace(dedup=dedup))
    encoded = []
    stage = SimpleNamespace(encode_held=lambda *given, **more: encoded.append((given, more)))
    made = ahead.EncodingAhead(
        job, stage, table_bytes=table_bytes, text_bytes=100, most_read=most_read
    )
    return made, encoded


def facts(blocks, document=None):
    return {"blocks": blocks, "open_document": document}


def held(*hashes):
    rows = [(None, SimpleNamespace(hashes=memoryview(one))) for one in hashes]
    return SimpleNamespace(room_bytes=1, blocks=rows)


def test_parts_in_order_know_what_came_before(monkeypatch):
    made, encoded = make_ahead(monkeypatch)
    with made.hold(0) as first:
        assert first is not None and first.room_bytes == 100
        assert made._begun == {0}
    assert made._begun == set()
    made.encode(0, held(b"a", b"b"), facts(2, (5, 6, "x")))
    made.encode(1, held(b"c"), facts(3))
    made.encode(2, held(), facts(0, (7, 8, "y")))
    (one, two, three) = encoded
    assert [given[0] for given, _ in encoded] == [0, 1, 2]
    assert [bytes(line) for line in one[0][2]] == [b"a", b"b"]
    assert bytes(one[0][2].load(1)) == b"b"
    assert one[1] == {"first_block": 0, "document": None}
    assert two[1] == {"first_block": 2, "document": (5, 6, "x")}
    assert three[1] == {"first_block": 5, "document": (5, 6, "x")}
    assert made._finder.calls == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert (made._document, made._num_adding, made._next_part) == ((7, 8, "y"), 0, 3)


def test_hashes_of_others_are_read_in_steps_but_not_too_many(monkeypatch):
    step = ahead._STEP_BYTES
    results = [(2 * step + 5, facts(4)), (0, facts(1)), *[(5, facts(1))] * 3]
    made, encoded = make_ahead(monkeypatch, results=results, table_bytes=1 << 40)
    made.encode(2, held(b"a"), facts(2))
    assert made._finder.calls == [
        (step, 0, 1), (step, 0, 1), (5, 0, 1), "take", "take", (0, b"a")
    ]  # fmt: skip
    assert encoded[0][1]["first_block"] == 5
    assert (made._num_read, made._num_hashed) == (2, 1)
    made.encode(5, held(b"b"), facts(1))  # two more than were hashed here: 3, and not 4
    assert made._num_read == 3 and not made._is_open and len(encoded) == 1


def test_without_room_or_result_nobody_goes_on(monkeypatch):
    for results, table in (([None], 1 << 20), ([(500, facts(1))], 100), ([], 1 << 20)):
        made, encoded = make_ahead(monkeypatch, results=results, table_bytes=table)
        made.encode(1, held(b"a"), facts(1))
        assert not made._is_open and encoded == []
        assert made._finder.rows == 0  # its memory is freed
        with made.hold(3) as none:
            assert none is None
        assert made._begun == set()
        made.encode(0, held(b"a"), facts(1))
        assert encoded == []
    made, encoded = make_ahead(monkeypatch)
    made.encode(0, SimpleNamespace(room_bytes=-1, blocks=[]), facts(1))
    assert not made._is_open and encoded == []
    made, encoded = make_ahead(monkeypatch)
    made.encode(0, held(b"a", b"full", b"c"), facts(3))
    assert made._finder.rows == 0 and encoded == []
    made, encoded = make_ahead(monkeypatch)
    made._next_part = 2
    made.encode(1, held(b"a"), facts(1))  # its turn is over
    assert made._is_open and encoded == []


def test_a_table_that_is_not_needed_is_not_asked(monkeypatch):
    made, encoded = make_ahead(monkeypatch, dedup=False, results=[(5, facts(1))])
    made.encode(1, held(b"a", b"b"), facts(1))
    assert made._finder.calls == ["take"]
    assert [bytes(line) for line in encoded[0][0][2]] == [b"", b""]


@pytest.mark.parametrize(("error", "calls"), [(RuntimeError, []), (KeyboardInterrupt, ["stop"])])
def test_a_part_that_fails_stops_those_behind_it(monkeypatch, error, calls):
    made, encoded = make_ahead(monkeypatch)

    def fail(place, hashes):
        raise error

    finder = made._finder
    finder.add_in_turn = fail
    if calls:
        with pytest.raises(error):
            made.encode(0, held(b"a"), facts(1))
    else:
        made.encode(0, held(b"a"), facts(1))
        assert not made._is_open
    assert (finder.calls, made._num_adding, encoded) == (calls, 0, [])


def test_the_first_that_waits_is_woken(monkeypatch):
    made, _ = make_ahead(monkeypatch)
    woken = []
    made._gates = {n: SimpleNamespace(notify=lambda n=n: woken.append(n)) for n in (7, 3, 5)}
    made._wake_first()
    assert woken == [3]
    with made.hold(0):
        pass
    assert woken == [3, 3]
    made._pass(facts(1))
    assert woken == [3, 3, 3]
    made.close()
    assert sorted(woken[3:]) == [3, 5, 7]
    made._gates = {}
    made._wake_first()
