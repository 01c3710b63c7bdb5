"""Preparation as stages of tasks: the same bytes as the threads of one machine make."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lowtide.corpus.inputs import expand_inputs
from lowtide.dataset.inspection import inspect_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.staged import destination, gathering, running
from lowtide.dataset.staged.job import WorkerLimits
from lowtide.dataset.staged.keyranges import find_rows
from lowtide.dataset.staged.parts import Part, cut_parts
from lowtide.dataset.staged.plan import PreparePlan, Sizes
from lowtide.dataset.staged.running import prepare_shared
from lowtide.engine.outputs import Output, open_output
from lowtide.engine.plans import commit_plan
from lowtide.engine.records import Records
from lowtide.engine.tasks import Task, run_task
from lowtide.errors import DataError, UsageError
from lowtide.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))
from corpora import make_documents, snapshot, write_corpus

SIZES = Sizes(part_bytes=6 << 10, num_partitions=3, num_buckets=16, group_bytes=5000)
RULES = "gopher,fineweb,refinedweb"
RULE_LIMITS = (
    "gopher-quality.min-words=12",
    "gopher-quality.min-alpha-words=0",
    "gopher-quality.min-stop-words=1",
    "gopher-repetition.max-top-2-gram=0.4",
    "gopher-repetition.max-top-3-gram=0.4",
    "gopher-repetition.max-top-4-gram=0.4",
    "fineweb.min-end-lines=0",
    "refinedweb.max-removed-words=0.5",
)
"""Some documents of the corpus are kept, and some are removed, by each preset."""


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Inputs of every kind, with duplicates between them; many blocks, of 2 KiB each."""
    monkeypatch.chdir(tmp_path)
    Tokenizer.from_merges([(b"i", b"n"), (b"l", b"o"), (b"lo", b"w")]).save(tmp_path / "tok")
    folder = tmp_path / "texts"
    long_document = "\n".join(f"line {number} of a long document" for number in range(900))
    write_corpus(folder / "a.txt", [*make_documents(60), long_document, *make_documents(9, seed=1)])
    rows = [json.dumps({"text": text}) for text in make_documents(50, seed=2)]
    (folder / "b.jsonl").write_text("\n".join(rows))
    packed = "<|endoftext|>".join(make_documents(60, seed=3) + make_documents(20))
    (folder / "c.txt.gz").write_bytes(gzip.compress(packed.encode(), mtime=0))
    for number in range(12):
        write_corpus(folder / f"d{number:02}.txt", make_documents(2, seed=10 + number % 7))
    table = pa.table({"text": make_documents(40, seed=4) + make_documents(10, seed=2)})
    pq.write_table(table, folder / "e.parquet")
    return folder


def settings_of(out_dir: Path, corpus: Path, **options: Any) -> PrepareSettings:
    more = {"tokenization": str(corpus.parent / "tok"), "tokens_per_shard": 4000, **options}
    more |= {"memory": "8GiB", "block_bytes": 2048}
    return PrepareSettings(input_files=(str(corpus),), out_dir=out_dir, **more)


def by_threads(corpus: Path, **options: Any) -> dict[str, bytes]:
    out_dir = corpus.parent / "threads"
    prepare_dataset(settings_of(out_dir, corpus, **options))
    return snapshot(out_dir)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": False},
        {"dedup": False, "seed": 3},
        {"tokenization": "char"},
        {"val_fraction": 0.0},
        {"document_separator": "", "val_fraction": 0.3},
        {"filter": False, "normalize": False, "min_document_chars": 0},
        {"rules": RULES, "rule_limit": RULE_LIMITS, "mask": "email,phone"},
    ],
    ids=str,
)
def test_the_same_bytes_as_by_threads(corpus: Path, options: dict[str, Any]) -> None:
    expected = by_threads(corpus, **options)
    out_dir = corpus.parent / "staged"
    prepare_shared(settings_of(out_dir, corpus, engine="files", **options), sizes=SIZES)
    assert snapshot(out_dir) == expected
    assert not (corpus.parent / "staged.work").exists()


@pytest.mark.parametrize(
    ("workers", "sizes"),
    [
        (1, Sizes(2048, 1, num_buckets=2, group_bytes=1)),
        (2, Sizes(1 << 30, 256, num_buckets=4096)),
        (4, Sizes.of(1 << 20)),
    ],
    ids=["tiny", "huge", "as planned"],
)
def test_neither_workers_nor_sizes_change_a_byte(corpus: Path, workers: int, sizes: Sizes) -> None:
    expected = by_threads(corpus)
    out_dir = corpus.parent / "staged"
    prepare_shared(settings_of(out_dir, corpus, engine="files", num_workers=workers), sizes=sizes)
    assert snapshot(out_dir) == expected


@pytest.mark.parametrize(
    ("sizes", "limits"),
    [
        (SIZES, WorkerLimits(starts_bytes=0, places_bytes=16, places_kept=2)),
        (replace(SIZES, part_bytes=1 << 20, num_partitions=258), WorkerLimits()),
    ],
    ids=["of many parts", "in many partitions"],
)
def test_what_a_large_corpus_has_more_of_changes_no_byte(
    corpus: Path, sizes: Sizes, limits: WorkerLimits
) -> None:
    """More than a worker caches is read again; characters are known after all text: no shortcut."""
    expected = by_threads(corpus, tokenization="char")
    out_dir = corpus.parent / "staged"
    settings = settings_of(out_dir, corpus, engine="files", tokenization="char", num_workers=2)
    prepare_shared(settings, sizes=sizes, limits=limits)
    assert snapshot(out_dir) == expected


def test_ranges_of_keys_change_no_byte(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many documents are sorted range by range; here a few are enough for many ranges."""
    found: list[list[int]] = []
    count = gathering._count_ranges

    def note(*given: Any) -> Any:
        result = count(*given)
        found.append(result[0].tolist())
        return result

    monkeypatch.setattr(gathering, "_count_ranges", note)
    expected = by_threads(corpus)
    out_dir = corpus.parent / "staged"
    sizes = replace(SIZES, group_bytes=1 << 30)
    limits = WorkerLimits(cut_range_bytes=4 * gathering.ENCODED_ROW_BYTES_HELD)
    prepare_shared(settings_of(out_dir, corpus, engine="files"), sizes=sizes, limits=limits)
    assert snapshot(out_dir) == expected
    assert found[0] == [number << 60 for number in range(16)]


def test_few_long_documents_are_not_checked_anew_by_every_group(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows would be one range; their ids are many groups of shards."""
    write_corpus(corpus / "a.txt", ["\n".join(make_documents(40, seed=n)) for n in range(30, 60)])
    checked: list[int] = []
    add = gathering._PartRanges._add_outputs

    def note(self: Any, rows: Any, outputs: list[Output], chosen: Any) -> None:
        for output in outputs:
            found = find_rows(output, chosen, sizes.num_buckets)
            assert found.token_end is not None
            checked.append((found.token_end - found.token) * chosen.id_bytes)
        add(self, rows, outputs, chosen)

    monkeypatch.setattr(gathering._PartRanges, "_add_outputs", note)
    options = {"val_fraction": 0.0, "dedup": False, "tokens_per_shard": 1000}
    expected = by_threads(corpus, **options)
    out_dir = corpus.parent / "staged"
    sizes = Sizes(1 << 20, 1, num_buckets=256, group_bytes=10_000)
    prepare_shared(settings_of(out_dir, corpus, engine="files", **options), sizes=sizes)
    assert snapshot(out_dir) == expected
    written = sum(path.stat().st_size for path in (out_dir / "train").glob("shard_*.bin"))
    assert written > 20 * sizes.group_bytes
    assert written <= sum(checked) < 4 * written


def start(settings: PrepareSettings, sizes: Sizes = SIZES, **more: Any) -> Any:
    """A worker whose tasks the test runs directly."""
    preparations: list[Any] = []

    def keep(self: Any, lease_seconds: float) -> None:
        preparations.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running._SharedPreparation, "run", keep)
        prepare_shared(settings, sizes=sizes)
    (worker,) = preparations
    worker._job = replace(worker._job, **more)
    return worker


def run_all(worker: Any, run: Callable[[Any, int], None]) -> None:
    for stage in worker.stages():
        for index in range(stage.count_tasks()):
            run(stage, index)


def test_every_task_may_run_twice(corpus: Path) -> None:
    expected = by_threads(corpus)
    out_dir = corpus.parent / "staged"
    settings = settings_of(out_dir, corpus, engine="files")
    workers = [start(settings), start(settings)]

    def run_twice(name: str, index: int) -> None:
        for worker in workers:
            stage = next(row for row in worker.stages() if row.name == name)
            run_task(stage, index)

    run_all(workers[0], lambda stage, index: run_twice(stage.name, index))
    assert snapshot(out_dir) == expected


def test_little_memory_takes_several_passes_to_the_same_files(corpus: Path) -> None:
    expected = by_threads(corpus)
    out_dir = corpus.parent / "staged"
    settings = settings_of(out_dir, corpus, engine="files")
    roomy = start(settings)
    small = start(
        settings,
        table_bytes=500,
        range_bytes=2000,
        records=Records(corpus.parent / "small.work"),
    )
    for worker in (roomy, small):
        run_all(worker, run_task)
    assert snapshot(out_dir) == expected
    for folder in ("duplicates", "encode"):
        roomy_files = sorted((corpus.parent / "staged.work" / folder).glob("*.out"))
        assert roomy_files
        for path in roomy_files:
            assert (corpus.parent / "small.work" / folder / path.name).read_bytes() == (
                path.read_bytes()
            )


def test_an_input_that_changes_between_passes_is_named(corpus: Path) -> None:
    worker = start(settings_of(corpus.parent / "staged", corpus, engine="files"))
    path = corpus / "a.txt"

    def run(stage: Any, index: int) -> None:
        if stage.name == "encode" and index == 0:
            data = path.read_bytes()
            path.write_bytes(data.replace(b"corpus", b"carpus"))
        run_task(stage, index)

    with pytest.raises(DataError, match="changed while it was read") as caught:
        run_all(worker, run)
    assert caught.value.path == path


@pytest.mark.parametrize("stage", ["hash", "encode", "cut"])
@pytest.mark.parametrize("text", ["x", "x" + "\n" * 3688, None], ids=["shorter", "empty", "gone"])
def test_a_replaced_input_is_named_whatever_fails(
    tmp_path: Path, stage: str, text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n".join(f"line {number} of a text" for number in range(200)))
    assert path.stat().st_size == 3689
    run = running._SharedPreparation.stages

    def replace_first(self: Any) -> Any:
        for row in (stages := run(self)):
            if row.name == stage:
                work = row.run

                def replaced(index: int, work: Any = work) -> None:
                    path.unlink(missing_ok=True)
                    if text is not None:
                        path.write_text(text)
                    work(index)

                row.run = replaced
        return stages

    monkeypatch.setattr(running._SharedPreparation, "stages", replace_first)
    settings = PrepareSettings(
        input_files=(str(path),), out_dir=tmp_path / "out", tokenization="char", engine="files"
    )
    with pytest.raises(DataError, match="this file was changed while it was read") as caught:
        prepare_shared(settings)
    assert caught.value.path == path
    assert f"remove {tmp_path / 'out.work'}" in (caught.value.next_step or "")
    assert not (tmp_path / "out" / "dataset_metadata.json").exists()


def test_a_flipped_bit_in_any_result_is_found(corpus: Path) -> None:
    """Data that workers read of each other is verified: no shard of wrong bytes."""
    for path in corpus.glob("[bcde]*"):
        path.unlink()
    write_corpus(corpus / "b.txt", [text + " more" for text in make_documents(20)])
    items = corpus.parent / "items.jsonl"
    words = make_documents(1)[0].split()[:12]
    items.write_text(json.dumps({"question": " ".join(words)}))
    settings = settings_of(
        corpus.parent / "staged",
        corpus,
        engine="files",
        near_dedup=0.5,
        decontaminate=(str(items),),
    )
    sizes = Sizes(part_bytes=1 << 20, num_partitions=1, num_buckets=16)
    worker = start(settings, sizes)
    run_all(worker, run_task)
    names = [stage.name for stage in worker.stages()]
    unread: list[str] = []
    for path in sorted((corpus.parent / "staged.work").glob("*/*.out")):
        output = open_output(path)
        whole = path.read_bytes()
        for name, (begin, size) in output.sections.items():
            place = begin + size // 2
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            worker._job = replace(worker._job)  # empty caches
            later = [
                stage
                for stage in worker.stages()
                if names.index(stage.name) > names.index(path.parent.name)
            ]
            try:
                for stage in later[:-1]:
                    run_task(stage, 0)
                root = settings.out_dir
                later[-1]._collect(root, later[-1]._gather.list_shards(root))
            except DataError as error:
                assert "are not those that were written" in error.message, (path.name, name)
            else:
                if size:
                    unread.append(f"{path.name} {name}")
        path.write_bytes(whole)
    assert unread == []


def test_workers_with_another_plan_are_refused(corpus: Path) -> None:
    settings = settings_of(corpus.parent / "staged", corpus, engine="files")
    records = Records(corpus.parent / "staged.work")
    inputs = expand_inputs([corpus])

    def plan(**more: Any) -> dict[str, Any]:
        values: dict[str, Any] = {"tokenizer": "abc", "block_bytes": 4, "sizes": SIZES, **more}
        return PreparePlan.of(values.pop("settings", {"seed": 0}), inputs, **values).as_json()

    commit_plan(plan(), records)
    commit_plan(plan(), records)
    cases = [
        ({"settings": {"seed": 5}}, "seed was 0, now it is 5"),
        ({"tokenizer": "abd"}, "its tokenizer is another one"),
        ({"block_bytes": 5}, "block-bytes was 4, now it is 5"),
        ({"sizes": replace(SIZES, part_bytes=1)}, "part-bytes was 6144, now it is 1"),
    ]
    for more, message in cases:
        with pytest.raises(UsageError, match=message):
            commit_plan(plan(**more), records)
    os.utime(corpus / "a.txt", ns=(1, 1))
    inputs = expand_inputs([corpus])
    with pytest.raises(UsageError, match="its inputs have other names, sizes or times"):
        commit_plan(plan(), records)
    with pytest.raises(UsageError, match="the work here is of another plan"):
        prepare_dataset(settings)


def test_shards_that_no_work_made_are_not_touched(corpus: Path) -> None:
    out_dir = corpus.parent / "staged"
    (out_dir / "train").mkdir(parents=True)
    (out_dir / "train" / "shard_00000.bin").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"shard_00000.bin is here already"):
        prepare_dataset(settings_of(out_dir, corpus, engine="files"))
    assert (out_dir / "train" / "shard_00000.bin").read_bytes() == b"mine"


def test_shards_in_another_folder_make_no_dataset(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with workers that share one work folder, but each with another --out-dir."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    work = corpus.parent / "work"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(running, "write_dataset", stop)
        prepare_dataset(settings_of(corpus.parent / "a", corpus, engine="files", work_dir=work))
    other = corpus.parent / "b"
    with pytest.raises(DataError, match="is not here, but a worker on this work has written it"):
        prepare_dataset(settings_of(other, corpus, engine="files", work_dir=work))
    assert not other.exists() and work.exists()
    prepare_dataset(settings_of(corpus.parent / "a", corpus, engine="files", work_dir=work))
    assert snapshot(corpus.parent / "a") == by_threads(corpus)


@pytest.mark.parametrize("is_late", [True, False])
def test_shards_of_another_job_do_not_get_into_a_dataset(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """A worker comes back when another job, in another work folder, has finished its dataset."""
    expected = by_threads(corpus, seed=5)
    out_dir = corpus.parent / "staged"
    other = settings_of(out_dir, corpus, engine="files", seed=5, work_dir=corpus.parent / "w")
    publish, publish_files = gathering.write_shard, destination.publish_files
    others_turn = [lambda: prepare_shared(other, sizes=SIZES)]

    def finish_the_other() -> None:
        while others_turn:
            others_turn.pop()()

    def write_late(*row: Any, **more: Any) -> Any:
        finish_the_other()
        return publish(*row, **more)

    def publish_early(rows: Any) -> None:
        publish_files(rows)
        keep_only = destination.remove_other_shards
        with monkeypatch.context() as patch:  # they come after the other has looked for strangers
            patch.setattr(destination, "remove_other_shards", lambda *row: None)
            finish_the_other()
        assert keep_only is destination.remove_other_shards

    if is_late:
        monkeypatch.setattr(gathering, "write_shard", write_late)
    else:
        monkeypatch.setattr(destination, "publish_files", publish_early)
        monkeypatch.setattr(running, "_refuse_strangers", lambda job: None)
    prepare_shared(settings_of(out_dir, corpus, engine="files", num_workers=1), sizes=SIZES)
    assert snapshot(out_dir) == expected
    with pytest.raises(UsageError, match="made with --seed 5, now it is 0"):
        prepare_dataset(settings_of(out_dir, corpus, engine="files"))


def test_a_folder_of_the_users_is_no_work_folder(corpus: Path) -> None:
    (corpus.parent / "mine").mkdir()
    (corpus.parent / "mine" / "letter.txt").write_text("dear")
    settings = settings_of(
        corpus.parent / "staged", corpus, engine="files", work_dir=corpus.parent / "mine"
    )
    with pytest.raises(UsageError, match=r"letter\.txt is here, which no worker made"):
        prepare_dataset(settings)
    assert [path.name for path in (corpus.parent / "mine").iterdir()] == ["letter.txt"]


def test_work_of_other_stages_is_told_by_what_differs(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    out = corpus.parent / "staged"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(running, "write_dataset", stop)
        prepare_dataset(settings_of(out, corpus, engine="files", near_dedup=0.8))
    with pytest.raises(UsageError, match=r"another plan: near-dedup was 0\.8, now it is None"):
        prepare_dataset(settings_of(out, corpus, engine="files"))


def test_what_others_put_there_meanwhile_stays(corpus: Path) -> None:
    settings = settings_of(corpus.parent / "staged", corpus, engine="files")
    worker = start(settings)
    worker._job.records.create("hash/count", b"1")
    worker._job.records.create("letter.txt", b"dear")
    worker._job.records.remove(worker.stage_names)
    assert [path.name for path in (corpus.parent / "staged.work").iterdir()] == ["letter.txt"]


def test_nothing_left_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    settings = PrepareSettings(
        input_files=(str(tmp_path / "a.txt"),),
        out_dir=tmp_path / "out",
        tokenization="char",
        engine="files",
    )
    with pytest.raises(DataError, match="0 tokens are left after cleaning"):
        prepare_dataset(settings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"work_dir": "w"}, "--work-dir is where workers of --engine files and ray meet"),
        ({"engine": "files", "dry_run": True}, "--dry-run is for --engine threads"),
        ({"engine": "files", "restart": True}, "--restart would take the work of other workers"),
        ({"ray_address": "auto"}, "--ray-address is for --engine ray"),
        ({"engine": "spark"}, "is not one of threads, files, ray"),
    ],
)
def test_flags_that_do_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PrepareSettings(input_files=("a",), out_dir=Path("b"), **options)


def test_the_command_done_again_touches_nothing(corpus: Path) -> None:
    settings = settings_of(corpus.parent / "staged", corpus, engine="files")
    assert not prepare_dataset(settings).was_there
    before = {path: path.stat().st_mtime_ns for path in settings.out_dir.rglob("*")}
    assert prepare_dataset(settings).was_there
    assert {path: path.stat().st_mtime_ns for path in settings.out_dir.rglob("*")} == before


WORKER = """
import os, signal, sys
from pathlib import Path
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.staged.plan import Sizes
from lowtide.dataset.staged.running import _SharedPreparation, prepare_shared
from lowtide.engine.records import Records

stop_at = sys.argv[1]
if sys.argv[5] == "in stages":
    _SharedPreparation._plan_ahead = lambda self: None
commit = Records.commit_record

def commit_and_die(self, task, **more):
    if task.name == stop_at:
        os.kill(os.getpid(), signal.SIGKILL)
    commit(self, task, **more)

Records.commit_record = commit_and_die
os.chdir(sys.argv[4])
prepare_shared(
    PrepareSettings(input_files=(sys.argv[2],), out_dir=Path("staged"), tokenization=sys.argv[3],
                    tokens_per_shard=4000, engine="files", memory="1GiB", num_workers=1,
                    block_bytes=2048),
    sizes=Sizes(6 << 10, 3, num_buckets=16, group_bytes=5000),
)
"""


@pytest.mark.parametrize(
    ("how", "killed"),
    [
        ("in stages", ["hash-0000002", "tally-0000000", "duplicates-0000001", "encode-0000003",
                       "cut-0000000", "gather-0000001", "finish-0000000"]),
        ("ahead", ["encode-0000001", "hash-0000003"]),
    ],
)  # fmt: skip
def test_killed_workers_cost_nothing(
    corpus: Path, start_forks: Any, how: str, killed: list[str]
) -> None:
    expected = by_threads(corpus)
    given = [corpus, corpus.parent / "tok", Path.cwd(), how]
    for name in killed:
        codes, printed = start_forks((WORKER, [name, *given], {}))()
        assert codes == [-signal.SIGKILL], (name, printed)
        if name != "finish-0000000":
            assert "not finished" in inspect_dataset(dataset_dir=Path("staged.work"))
    # A kill between the metadata and its record comes last: other workers then end the job.
    codes, printed = start_forks(*([(WORKER, ["none", *given], {})] * 2))()
    assert codes == [0, 0], printed
    assert snapshot(corpus.parent / "staged") == expected
    assert not Path("staged.work").exists()


def test_parts_follow_the_sizes_of_streams(corpus: Path) -> None:
    worker = start(settings_of(corpus.parent / "staged", corpus, engine="files"))
    job = worker._job
    parts = job.parts
    assert parts[0] == Part(0, 1, 0, 3) and parts[1] == Part(0, 1, 3, 6)
    whole = cut_parts(job.streams, job.reading, 1 << 30)
    assert whole == [Part(0, len(job.streams))]
    covered: list[int] = []
    for part in parts:
        covered += range(part.first, part.last)
    assert sorted(set(covered)) == list(range(len(job.streams)))
    assert not Records(Path("staged.work")).is_done(Task("hash", 0))


@pytest.mark.parametrize(
    ("total", "part_mib", "partitions", "group_mib"),
    [
        (0, 16, 1, 16),
        (5 << 20, 16, 1, 16),
        (3 << 30, 16, 48, 48),
        (1 << 33, 16, 128, 128),
        (1 << 40, 35, 256, 256),
        (1 << 43, 280, 256, 256),
        (1 << 44, 560, 512, 256),
    ],
)
def test_sizes_follow_the_text(total: int, part_mib: int, partitions: int, group_mib: int) -> None:
    sizes = Sizes.of(total)
    expected = Sizes(part_mib << 20, partitions, num_buckets=4096, group_bytes=group_mib << 20)
    assert sizes == expected


@pytest.mark.parametrize(("budget", "told"), [(123, 123), (None, 0)])
def test_characters_are_checked_against_the_budget(
    monkeypatch: pytest.MonkeyPatch, budget: int | None, told: int
) -> None:
    settings = SimpleNamespace(tokenization="char")
    job = SimpleNamespace(settings=settings, characters=list(map(ord, "abc")))
    made: Any = SimpleNamespace(
        _job=job, _progress=SimpleNamespace(budget_bytes=budget), _shares="shares", _loading=None
    )
    checked: list[Any] = []
    monkeypatch.setattr(running, "check_characters", lambda *given: checked.append(given))
    tokenizer = running._SharedPreparation._make_tokenizer(made)
    assert checked == [(3, "shares", told)]
    assert tokenizer.decode(tokenizer.encode("cab")) == "cab"
