"""Workers that meet in an object store: records, leases, and a dataset of the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import obstore
import pytest

from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.staged import running
from lowtide.dataset.staged.plan import Sizes
from lowtide.dataset.staged.running import prepare_shared
from lowtide.engine.leases import Leases, count_losses, list_failures, list_leases
from lowtide.engine.outputs import OutputWriter
from lowtide.engine.plans import commit_plan, read_plan
from lowtide.engine.records import Records
from lowtide.engine.shared import run_shared
from lowtide.engine.tasks import Task, run_task
from lowtide.engine.workstate import describe_work, is_work_folder
from lowtide.errors import DataError, UsageError
from lowtide.stores.objects import Store
from lowtide.stores.paths import StorePath
from lowtide.stores.refusals import ObjectChangedError, StoreDownError
from lowtide.stores.urls import StoreURL
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.training import train_tokenizer

sys.path.insert(0, str(Path(__file__).parent.parent / "dataset"))
from corpora import make_documents, snapshot, write_corpus

ROOT = StoreURL("s3", "bucket", "")
WORK = StorePath("s3://bucket/job/work")
TASK = Task("hash", 1)
SIZES = Sizes(part_bytes=6 << 10, num_partitions=3, num_buckets=16, group_bytes=20_000)


def stored(prefix: str) -> dict[str, bytes]:
    """All objects under a prefix, by their names in it."""
    store = Store(ROOT)
    url = StoreURL("s3", "bucket", prefix)
    return {
        info.url.key.removeprefix(f"{prefix}/"): bytes(store.read(info, 0, info.size))
        for info in store.iter_objects(url)
    }


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Blocks of 2 KiB, so that there are many parts."""
    monkeypatch.chdir(tmp_path)
    Tokenizer.from_merges([(b"i", b"n"), (b"l", b"o"), (b"lo", b"w")]).save(tmp_path / "tok")
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(4):
        documents = make_documents(25, seed=number) + make_documents(5, seed=9)
        write_corpus(folder / f"{number}.txt", documents)
    return folder


def settings_of(out_dir: str | Path, corpus: Path, **options: Any) -> PrepareSettings:
    more = {"tokenization": str(corpus.parent / "tok"), "tokens_per_shard": 4000, **options}
    return PrepareSettings(
        input_files=(str(corpus),),
        out_dir=out_dir,  # pyright: ignore[reportArgumentType]
        memory="8GiB",
        num_workers=2,
        block_bytes=2048,
        **more,
    )


def by_threads(corpus: Path, **options: Any) -> dict[str, bytes]:
    prepare_dataset(settings_of(corpus.parent / "threads", corpus, **options))
    return snapshot(corpus.parent / "threads")


@pytest.mark.parametrize("what", ["both", "output", "work"])
def test_a_dataset_has_the_bytes_of_a_disk(
    corpus: Path, what: str, request: pytest.FixtureRequest
) -> None:
    """All of it in moto's S3; that is slow, and for the rest the store of our own will do."""
    request.getfixturevalue("moto" if what == "both" else "server")
    options = {"near_dedup": 0.5} if what == "both" else {"tokenization": "char"}
    expected = by_threads(corpus, **options)
    out_dir = "here" if what == "work" else "s3://bucket/data/mine"
    work_dir = "there" if what == "output" else "s3://bucket/job"
    settings = settings_of(out_dir, corpus, engine="files", work_dir=work_dir, **options)
    result = prepare_dataset(settings)
    assert result.info.num_tokens("train") and not result.was_there
    assert (snapshot(Path("here")) if what == "work" else stored("data/mine")) == expected
    assert stored("job") == {}
    assert prepare_dataset(settings).was_there
    with pytest.raises(UsageError, match="it was made with --seed 0, now it is 5"):
        prepare_dataset(settings_of(out_dir, corpus, engine="files", seed=5, **options))


def test_a_dataset_in_googles_store_has_the_bytes_of_a_disk(gcs: Any, corpus: Path) -> None:
    expected = by_threads(corpus)
    settings = settings_of(
        "gs://bucket/data/mine", corpus, engine="files", work_dir="gs://bucket/job"
    )
    prepare_shared(settings)
    assert {name: gcs.objects[f"data/mine/{name}"] for name in expected} == expected
    assert len(gcs.objects) == len(expected)
    assert prepare_dataset(settings).was_there


def test_a_lease_in_googles_store_is_renewed_and_taken_over(gcs: Any) -> None:
    place = Records(StorePath("gs://bucket/job/work")).place
    mine = place.create_lease("leases/a", b'{"nonce": 1, "beat": 0}')
    assert mine is not None
    mine.renew(b'{"nonce": 1, "beat": 1}')
    seen = place.read_lease("leases/a")
    assert seen is not None and seen.content.endswith(b'"beat": 1}')
    assert place.replace_lease("leases/a", b'{"nonce": 2}', seen) is not None
    assert place.replace_lease("leases/a", b'{"nonce": 3}', seen) is None
    mine.renew(b'{"nonce": 1, "beat": 2}')
    assert gcs.objects["job/work/leases/a"] == b'{"nonce": 2}'


def test_every_task_may_run_twice(server: Any, corpus: Path) -> None:
    expected = by_threads(corpus)
    settings = settings_of("s3://bucket/data", corpus, engine="files")
    workers: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running._SharedPreparation, "run", lambda self, seconds: workers.append(self))
        for _ in range(2):
            prepare_shared(settings, sizes=SIZES)
    for first, second in zip(*(worker.stages() for worker in workers), strict=True):
        for index in range(first.count_tasks()):
            run_task(first, index)
            run_task(second, index)
    assert stored("data") == expected
    names = [name for name in stored("data.work") if name.startswith("out/")]
    assert len(names) == len({name.rpartition("-")[0] for name in names}) > 10


WORKER = """
import json, os, sys
from pathlib import Path
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.staged.plan import Sizes
from lowtide.dataset.staged.running import prepare_shared
from lowtide.engine.records import Records
settings, sizes, limit = json.loads(sys.argv[1])
commit, count = Records.commit_record, 0
def stop(self, *given, **more):
    global count
    count += 1
    if count > limit:
        print("there", flush=True)
        sys.stdin.read()
    commit(self, *given, **more)
Records.commit_record = stop
prepare_shared(PrepareSettings(**settings), sizes=Sizes(**sizes))
"""


@pytest.mark.parametrize("limit", [2, 11])
def test_a_worker_killed_by_the_system_is_taken_over(server: Any, corpus: Path, limit: int) -> None:
    """Its result is uploaded, and its record not written yet."""
    expected = by_threads(corpus)
    settings = settings_of("s3://bucket/data", corpus, engine="files")
    given = {"input_files": [str(corpus)], "out_dir": "s3://bucket/data", "engine": "files"}
    more = {"tokenization": settings.tokenization, "tokens_per_shard": 4000, "num_workers": 1}
    more["block_bytes"] = 2048
    argument = json.dumps([{**given, **more}, asdict(SIZES), limit])
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, argument],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None and worker.stdout.readline() == "there\n"
        work = StorePath("s3://bucket/data.work")
        assert is_work_folder(work) and list_leases(work)
        assert " tasks" in describe_work(work)
        os.kill(worker.pid, signal.SIGKILL)
    prepare_shared(settings, sizes=SIZES)
    assert stored("data") == expected and stored("data.work") == {}


@pytest.mark.parametrize("work_dir", ["work", "s3://bucket/job"])
def test_records_of_another_job_are_not_believed(
    server: Any, corpus: Path, monkeypatch: pytest.MonkeyPatch, work_dir: str
) -> None:
    """Its work folder was half removed; another job of as many tasks is given the same one."""
    options = {"engine": "files", "work_dir": work_dir}
    with monkeypatch.context() as patch:
        patch.setattr(Records, "remove", lambda self, stages: None)
        prepare_dataset(settings_of("one", corpus, **options))
    for path in corpus.iterdir():
        path.write_text(path.read_text().replace("low", "wol"))
    with pytest.raises(UsageError, match="the work here is of another plan"):
        prepare_dataset(settings_of("two", corpus, **options))
    if work_dir == "work":
        Path("work/plan.json").unlink()
    else:
        Store(ROOT).delete([ROOT / "job/plan.json"])
    with pytest.raises(DataError, match="left by another job"):
        prepare_dataset(settings_of("two", corpus, **options))
    assert not Path("two").exists()


@pytest.mark.parametrize("work_dir", ["work", "s3://bucket/job"])
def test_a_removal_that_was_killed_is_finished_by_the_same_command(
    server: Any, corpus: Path, monkeypatch: pytest.MonkeyPatch, work_dir: str
) -> None:
    settings = settings_of("out", corpus, engine="files", work_dir=work_dir)

    def remove_some(self: Records, stages: list[str]) -> None:
        self.place.remove(stages[:2])
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(Records, "remove", remove_some)
        with pytest.raises(SystemExit):
            prepare_dataset(settings)
    records = Records(settings.work_dir or Path())
    assert "plan.json" in records.place.list_names()
    plan, other = records.place.read("plan.json"), Records(Path("other"))
    commit_plan({**(read_plan(records) or {}), "settings": {"seed": 5}}, other)
    records.place.remove(["plan.json"])
    records.create("plan.json", other.place.read("plan.json"))
    assert prepare_dataset(settings).was_there  # the work of another job stays
    assert "plan.json" in records.place.list_names()
    records.place.remove(["plan.json"])
    records.create("plan.json", plan)
    assert prepare_dataset(settings).was_there
    assert records.place.list_names() == [] and not Path("work").exists()


def test_a_tokenizer_is_learned_from_counts_in_a_store(server: Any, corpus: Path) -> None:
    options = {"input": [str(corpus)], "vocab_size": 300}
    train_tokenizer(out_dir="one", **options)
    train_tokenizer(out_dir="two", engine="files", work_dir="s3://bucket/counts", **options)
    assert snapshot(Path("one")) == snapshot(Path("two")) and stored("counts") == {}


def test_leases_are_taken_renewed_and_taken_over(moto: str, monkeypatch: Any) -> None:
    clock = [100.0]
    monkeypatch.setattr("lowtide.engine.leases.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("lowtide.engine.leases._find_machine", lambda: None)
    with Leases(Records(WORK)) as mine, Leases(Records(WORK)) as other:
        assert mine.take(TASK) and not other.take(TASK)
        assert list(list_leases(WORK)) == ["hash-0000001"]
        clock[0] += 29
        mine._beats += 1
        mine._held[TASK].renew(mine._content())
        assert not other.take(TASK)
        clock[0] += 29
        assert not other.take(TASK)
        clock[0] += 2
        assert other.take(TASK) and count_losses(WORK) == {"hash-0000001": 1}
        mine._held[TASK].renew(mine._content())  # back from the dead: not its lease any more
        mine.release(TASK)
        assert list(list_leases(WORK)) == ["hash-0000001"]
        other.release(TASK)
        assert list_leases(WORK) == {}


class Numbers:
    """A stage whose tasks commit their number."""

    name = "one"

    def __init__(self, before: Callable[[int], None] = lambda index: None) -> None:
        self.records = Records(WORK)
        self.before = before
        self.ran: list[int] = []

    def count_tasks(self) -> int:
        return 12

    def run(self, index: int) -> None:
        self.ran.append(index)
        self.before(index)
        self.records.commit(Task(self.name, index), lambda output: {"number": index})


def ignore(name: str, count: int) -> Callable[[int], None]:
    return lambda done: None


def test_workers_share_and_a_task_that_fails_is_tried_again(server: Any) -> None:
    failing = [ValueError("no"), ValueError("no")]

    def fail_twice(index: int) -> None:
        if index == 1 and failing:
            raise failing.pop()

    stages = [Numbers(fail_twice), Numbers(fail_twice)]
    threads = [
        threading.Thread(
            target=run_shared,
            args=([stage], stage.records),
            kwargs={"num_workers": 2, "on_stage": ignore},
        )
        for stage in stages
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ran = stages[0].ran + stages[1].ran
    assert sorted(set(ran)) == list(range(12)) and len(ran) == 14
    assert list_failures(WORK)["one-0000001"][0] == 2
    assert [stages[0].records.open(Task("one", n)).header for n in range(12)] == [
        {"number": n} for n in range(12)
    ]


def test_two_results_of_one_task_are_an_error_and_the_first_one_stays(moto: str) -> None:
    records = Records(WORK)
    records.commit(TASK, lambda output: {"of": "one"})
    with pytest.raises(DataError, match="task hash-0000001 was done twice, with two results"):
        records.commit(TASK, lambda output: {"of": "another"})
    assert Records(WORK).open(TASK).header == {"of": "one"}


def test_a_result_that_is_stored_again_under_another_tag_is_read(server: Any) -> None:
    """A slow worker uploads the same bytes, where every write has a tag of its own."""
    server.tags_by_content = False
    data = b"abc" * 5000

    def write(output: OutputWriter) -> dict[str, Any]:
        output.section("x", data)
        return {}

    Records(WORK).commit(TASK, write)
    (key,) = (name for name in server.objects if name.endswith(".out"))
    reader = Records(WORK)
    output = reader.open(TASK)
    server.objects[key] = bytes(bytearray(server.objects[key]))
    assert bytes(output.read("x")) == data
    with output.path.open("rb", buffering=0) as file:
        server.objects[key] = bytes(bytearray(server.objects[key]))
        assert bytes(output.read_from(file, "x", begin=5, end=9000)) == data[5:9000]
    server.objects[key] = server.objects[key][:-1]  # that is no repetition
    with pytest.raises(ObjectChangedError):
        output.read("x")


def test_a_path_asks_the_store_whether_it_is_there(server: Any) -> None:
    """Also where pathlib would ask the system, as from Python 3.14 on."""
    server.objects["job/work/one"] = b"1"
    assert (WORK / "one").exists() and (WORK / "one").is_file()
    assert not (WORK / "two").exists() and not (WORK / "two").is_file()
    assert {"exists", "is_file"} <= vars(StorePath).keys()


def test_a_lost_answer_about_a_lease_ends_no_worker(
    server: Any, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("lowtide.engine.leases.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("lowtide.engine.leases._find_machine", lambda: None)
    with Leases(Records(WORK)) as mine, Leases(Records(WORK)) as other:
        assert mine.take(TASK) and not other.take(TASK)
        server.faults.append("lose")  # it is renewed, and its owner does not hear of it
        for _ in range(3):
            mine._beats += 1
            mine._held[TASK].renew(mine._content())
        assert b'"00000003"' in server.objects["job/work/leases/hash-0000001.lease"]
        assert not other.take(TASK)
        clock[0] += 31
        replace = other.records.place.replace_lease

        def replace_unheard(*given: Any) -> Any:
            server.faults.append("lose")
            return replace(*given)

        with monkeypatch.context() as patch:
            patch.setattr(other.records.place, "replace_lease", replace_unheard)
            assert not other.take(TASK)
        mine._held[TASK].renew(mine._content())  # it has another owner now
        mine.release(TASK)
        assert list(list_leases(WORK)) == ["hash-0000001"]


@pytest.mark.parametrize("work_dir", [None, "work"])
def test_a_store_that_does_not_keep_what_is_there_is_refused(
    server: Any, corpus: Path, waits: list[float], work_dir: str | None
) -> None:
    settings = settings_of("s3://bucket/data", corpus, engine="files", work_dir=work_dir)
    server.obeys = False
    with pytest.raises(DataError, match="replaces an object that it was asked only to create"):
        prepare_dataset(settings)
    assert server.objects == {}


def test_a_store_that_denies_writing_is_named_before_any_work(server: Any, corpus: Path) -> None:
    server.denies = True
    for options in ({"out_dir": "s3://bucket/data"}, {"out_dir": "x", "work_dir": "s3://bucket/w"}):
        settings = settings_of(options.pop("out_dir"), corpus, engine="files", **options)
        with pytest.raises(StoreDownError, match=r"denies writing \(HTTP 403 AccessDenied") as told:
            prepare_dataset(settings)
        assert "these credentials may write and delete under this prefix" in str(told.value)
    assert server.objects == {}


def test_a_worker_whose_store_is_closed_under_way_leaves_and_blames_no_task(server: Any) -> None:
    def close(index: int) -> None:
        server.denies = True

    stage = Numbers(close)
    with pytest.raises(StoreDownError, match="denies writing"):
        run_shared([stage], stage.records, num_workers=1, on_stage=ignore)
    assert len(stage.ran) == 1 and list_failures(WORK) == {}


def test_a_lost_answer_is_our_own_success(server: Any, waits: list[float]) -> None:
    store = Store(ROOT)
    server.faults.append("lose")
    assert store.create(ROOT / "one", b"mine") is not None and len(waits) == 1
    assert store.create(ROOT / "one", b"other") is None
    assert server.objects["one"] == b"mine"


def test_a_large_file_is_uploaded_in_parts(moto: str, tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 12
    (tmp_path / "large").write_bytes(data)
    Store(ROOT).upload(ROOT / "large", tmp_path / "large")
    info = Store(ROOT).head(ROOT / "large")
    assert info.size == len(data) and info.tag.endswith("-3")  # parts of 5 MiB
    assert bytes(obstore.get(Store(ROOT)._client, "large").bytes()) == data


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out_dir": "s3://bucket/x"}, "--engine threads writes to a disk"),
        ({"out_dir": "s3://bucket", "engine": "files"}, "is a whole bucket"),
        ({"work_dir": "s3://bucket", "engine": "files"}, "is a whole bucket"),
    ],
)
def test_what_cannot_be_written_to_is_refused(
    server: Any, corpus: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        prepare_dataset(settings_of(options.pop("out_dir", "out"), corpus, **options))
    assert server.requests == []
