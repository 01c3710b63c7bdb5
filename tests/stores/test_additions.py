"""Text that is added to a dataset in an object store: the bytes that threads add on a disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.dataset import storeddatasets
from lowtide.dataset.appendable import AppendResult
from lowtide.dataset.appending import append_to_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.settings import AppendSettings
from lowtide.dataset.staged import adding, datasetplace
from lowtide.dataset.staged.adding import append_shared
from lowtide.dataset.staged.plan import Sizes
from lowtide.dataset.verification import verify_dataset
from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.loader import TokenDataset, storedtokens
from lowtide.stores import objects
from lowtide.stores.objects import Store
from lowtide.stores.urls import StoreURL

sys.path.insert(0, str(Path(__file__).parent.parent / "dataset"))
from corpora import make_documents, snapshot, write_corpus, write_old_and_new

ROOT = StoreURL("s3", "bucket", "")
URL = "s3://bucket/data/mine"
SIZES = Sizes(part_bytes=6 << 10, num_partitions=3, num_buckets=16, group_bytes=5000)


@pytest.fixture(autouse=True)
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old and new text of several kinds, with duplicates in it and between both."""
    monkeypatch.chdir(tmp_path)
    write_old_and_new(60, long_lines=400, again=slice(10, 30), num_new=(50, 20, 15))


def settings_of(dataset_dir: str = URL, **options: Any) -> AppendSettings:
    return AppendSettings(
        **{
            "dataset_dir": dataset_dir,
            "input_files": ("new",),
            "engine": "files",
            "memory": "8GiB",
            "num_workers": 2,
            "block_bytes": 2048,
            **options,
        }
    )


def upload(folder: str = "out", prefix: str = "data/mine") -> None:
    """Copy a dataset of the disk to the store, whichever it is."""
    store = Store(ROOT)
    for name in snapshot(Path(folder)):
        store.upload(ROOT / f"{prefix}/{name}", Path(folder, name))


def stored(prefix: str = "data") -> dict[str, bytes]:
    """All objects under a prefix, by their names in it."""
    store = Store(ROOT)
    return {
        info.url.key.removeprefix(f"{prefix}/"): bytes(store.read(info, 0, info.size))
        for info in store.iter_objects(ROOT / prefix)
    }


def prepare(**options: Any) -> dict[str, bytes]:
    """A dataset on the disk and in the store; what it is once threads have added the new text."""
    more = {"tokenization": "tok", "tokens_per_shard": 2500, "block_bytes": 2048, **options}
    prepare_dataset(input_files=["old.txt"], out_dir="out", **more)
    upload()
    shutil.copytree("out", "threads")
    append_to_dataset(settings_of("threads", engine="threads"))
    return {f"mine/{name}": data for name, data in snapshot(Path("threads")).items()}


def append(**options: Any) -> AppendResult:
    return append_shared(settings_of(**options), sizes=SIZES, run_tokens=3000)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"decontaminate": ["evals.jsonl"], "decontaminate_by": "cut", "near_dedup": 0.8},
        {"tokenization": "char", "shuffle": False},
        {"dedup": False, "val_fraction": 0.0},
    ],
    ids=str,
)
def test_the_same_bytes_as_by_threads_on_a_disk(server: Any, options: dict[str, Any]) -> None:
    expected = prepare(**options)
    result = append()
    assert result.added_tokens > 0 and result.added_shards > 1
    assert stored() == expected
    assert append_to_dataset(settings_of()).was_there
    assert stored() == expected


def test_the_same_bytes_in_motos_store(moto: str) -> None:
    """All of it with conditional writes and copies as another program understands them."""
    expected = prepare()
    result = append(work_dir="s3://bucket/job")
    assert result.added_tokens > 0
    assert stored() == expected and stored("job") == {}


def test_the_same_bytes_in_googles_store(gcs: Any) -> None:
    expected = prepare()
    append(dataset_dir="gs://bucket/data/mine")
    assert {key.removeprefix("data/"): gcs.objects[key] for key in gcs.objects} == expected


def test_workers_may_meet_on_a_disk(server: Any) -> None:
    expected = prepare()
    append(work_dir="work")
    assert stored() == expected and not Path("work").exists()


def test_text_that_is_there_already_leaves_shards_alone(server: Any) -> None:
    prepare()
    write_corpus(Path("known.txt"), make_documents(60)[::-1])
    server.requests.clear()
    result = append(input_files=("known.txt",))
    assert (result.added_tokens, result.added_shards) == (0, 0)
    assert not any("COPY" in row for row in server.requests)
    assert append_to_dataset(settings_of(input_files=("known.txt",))).was_there


class Stopped(BaseException):
    """What a program sees of a kill: nothing handles it."""


def stop_before(patch: pytest.MonkeyPatch, number: int, names: tuple[str, ...]) -> list[str]:
    """Stop a worker before a write of the store that one of the objects' names is part of."""
    seen: list[str] = []
    lock = threading.Lock()

    def counting(method: Any) -> Any:
        def run(self: Store, *given: Any, **more: Any) -> Any:
            rows = given[0] if isinstance(given[0], list) else [given[-1], given[0]]
            keys = [row.key for row in rows if isinstance(row, StoreURL)]
            is_ours = any(name in key for name in names for key in keys)
            with lock:
                if is_ours and not any("/probe-" in key for key in keys):
                    if len(seen) == number:
                        raise Stopped
                    seen.append(f"{method.__name__} {keys[0]}")
            return method(self, *given, **more)

        return run

    for name in ("create", "copy", "upload", "exchange", "delete"):
        patch.setattr(Store, name, counting(getattr(Store, name)))
    return seen


def read_windows(tmp_path: Path) -> bytes:
    """All tokens that a reader gets who opens the dataset now."""
    data = TokenDataset(URL, seq_len=16, cache_dir=tmp_path / "cache")
    return data.read_tokens(0, data.num_tokens).tobytes()


def test_killed_at_any_write_of_the_last_task(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost or there twice, and who reads meanwhile has all of the old or of the new."""
    expected = prepare(tokens_per_shard=20_000)
    before = dict(server.objects)
    old = read_windows(tmp_path)
    metadata = "data/mine/dataset_metadata.json"
    with monkeypatch.context() as patch:  # all but the last task
        patch.setattr(adding._FinishStage, "run", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            append(num_workers=1, work_dir="begun")
    begun = {**server.objects, "data/mine/.adding/probe-left": b"by a kill"}
    stops = 0
    while True:
        server.objects.clear()
        server.objects.update(begun)
        shutil.copytree("begun", "work")
        with monkeypatch.context() as patch:
            seen = stop_before(patch, stops, ("data/mine/",))
            try:
                append(num_workers=1, work_dir="work")
            except Stopped:
                pass
            else:
                break
        is_new = server.objects[metadata] != before[metadata]
        assert any("exchange" in row and metadata in row for row in seen) is is_new
        assert {key: server.objects[key] for key in before if key != metadata} == {
            key: before[key] for key in before if key != metadata
        }
        assert (read_windows(tmp_path) != old) is is_new
        assert verify_dataset(dataset_dir=URL).num_strangers == 0
        append(num_workers=1, work_dir="work")
        assert stored() == expected and not Path("work").exists()
        stops += 1
    assert stored() == expected
    assert len(seen) == stops == 10  # claim, files, metadata; claim, what waited, probe
    assert read_windows(tmp_path) != old


def test_a_worker_killed_by_the_system_is_taken_over(server: Any) -> None:
    """When its shards are where they belong, and the metadata is not."""
    expected = prepare()
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, URL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None and worker.stdout.readline() == "there\n"
        os.kill(worker.pid, signal.SIGKILL)
    assert set(expected) < {key.removeprefix("data/") for key in server.objects}
    assert append().added_tokens > 0
    assert stored() == expected


WORKER = """
import sys
from lowtide.dataset.settings import AppendSettings
from lowtide.dataset.staged import adding, datasetplace
from lowtide.dataset.staged.adding import append_shared
from lowtide.dataset.staged.plan import Sizes
from lowtide.dataset.verification import verify_dataset
from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.loader import TokenDataset, storedtokens
from lowtide.stores import objects
from lowtide.stores.objects import Store
exchange = Store.exchange
def wait(self, url, data, tag):
    if url.name == "dataset_metadata.json":
        print("there", flush=True)
        sys.stdin.read()
    return exchange(self, url, data, tag)
Store.exchange = wait
append_shared(
    AppendSettings(dataset_dir=sys.argv[1], input_files=("new",), engine="files", memory="8GiB",
                   num_workers=2, block_bytes=2048),
    sizes=Sizes(6 << 10, 3, num_buckets=16, group_bytes=5000), run_tokens=3000,
)
"""


@pytest.mark.parametrize("tags_by_content", [True, False])
def test_an_answer_that_was_lost_is_looked_for(
    server: Any, waits: list[float], tags_by_content: bool
) -> None:
    server.tags_by_content = tags_by_content
    expected = prepare()
    server.before_put = lambda key: (
        server.faults.append("lose") if key.endswith("metadata.json") else None
    )
    append()
    assert stored() == expected


@pytest.mark.parametrize(
    ("name", "unwritten"),
    [
        ("plan.json", "COPY bucket/data/mine/"),  # before the first task
        (".adding/00001.json", "COPY bucket/data/mine/"),
        ("/train/shard_00010-", "PUT bucket/data/mine/seen"),
        ("mine/seen/00001.hashes", "PUT bucket/data/mine/dataset_metadata.json"),
        ("mine/dataset_metadata.json", "nothing"),
    ],
)
def test_a_dataset_that_was_added_to_meanwhile_is_left_alone(
    server: Any, name: str, unwritten: str
) -> None:
    """As an object of this name is stored: what comes after it is not written at all."""
    prepare()
    write_corpus(Path("other.txt"), make_documents(30, seed=9))
    append_to_dataset(settings_of("out", input_files=("other.txt",), engine="threads"))
    other = {f"data/mine/{name}": data for name, data in snapshot(Path("out")).items()}
    noted: list[str] = []

    def add_other(key: str) -> None:
        """Somebody copies the dataset with another text in it over this one."""
        if name in key and ".adding/" not in key.replace(name, "") and not noted:
            noted.append(key)
            server.requests.clear()
            server.objects.update(other)

    server.before_put = add_other
    with pytest.raises(DataError, match="has changed since this work was begun") as caught:
        append(num_workers=1)
    assert str(caught.value.path) == URL
    assert caught.value.next_step == "remove s3://bucket/data/mine.work, and give the command again"
    assert noted and not any(unwritten in row for row in server.requests[1:])
    server.objects.pop("data/mine/seen/00001.hashes")  # whose name both have
    other.pop("data/mine/seen/00001.hashes")
    found = {key: data for key, data in server.objects.items() if key.startswith("data/mine/")}
    assert found == other


def test_two_appends_at_once_do_not_write_over_each_other(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare()
    write_corpus(Path("other.txt"), make_documents(30, seed=9))
    with monkeypatch.context() as patch:
        stop_before(patch, 0, ("data/mine/dataset_metadata.json",))
        with pytest.raises(Stopped):
            append()
    before = dict(server.objects)
    with pytest.raises(DataError, match=r"whose workers meet in s3://bucket/data/mine\.work"):
        append(input_files=("other.txt",), work_dir="s3://bucket/second")
    assert {key: server.objects[key] for key in before} == before
    append()
    with pytest.raises(UsageError, match="the dataset has changed since it was begun"):
        append(input_files=("other.txt",), work_dir="s3://bucket/second")
    assert verify_dataset(dataset_dir=URL).problems == []


def test_who_has_the_old_metadata_reads_on(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened before, batches come from the old shards; opened as the metadata is replaced, too."""
    prepare()
    data = TokenDataset(URL, seq_len=16, cache_dir=tmp_path / "cache")
    num_tokens = data.num_tokens
    expected = TokenDataset("out", seq_len=16).read_tokens(0, num_tokens)
    late: list[TokenDataset] = []
    match = storedtokens.match_objects

    def match_late(*given: Any) -> Any:
        if not late:
            late.append(data)
            append()  # between the metadata and the list of objects
        return match(*given)

    with monkeypatch.context() as patch:
        patch.setattr(storedtokens, "match_objects", match_late)
        second = TokenDataset(URL, seq_len=16, cache_dir=tmp_path / "other")
    for one in (data, second):
        assert np.array_equal(one.read_tokens(0, one.num_tokens), expected)
    assert TokenDataset(URL, seq_len=16, cache_dir=tmp_path / "cache").num_tokens > num_tokens


def test_a_store_without_conditional_replacing_is_refused_before_all_work(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare()
    before = dict(server.objects)
    ask = Store._expect
    monkeypatch.setattr(Store, "_expect", lambda self, url, tag: "overwrite")
    with pytest.raises(DataError, match="does not replace an object under its ETag alone"):
        append()
    assert server.objects == before
    monkeypatch.setattr(Store, "_expect", lambda self, url, tag: None)
    monkeypatch.setattr(objects, "_wait", lambda *_: None)
    with pytest.raises(DataError, match="could not be replaced"):
        append()
    monkeypatch.setattr(Store, "_expect", ask)
    server.obeys = False
    with pytest.raises(DataError, match="asked only to create"):
        append(work_dir="work")  # where workers meet is another matter


def test_shards_are_copied_one_at_a_time_and_read_by_ranges(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In TMPDIR there is never more than a shard for each worker, and what a task writes."""
    prepare()
    largest = max(len(data) for key, data in server.objects.items() if "/train/" in key)
    held: list[int] = []
    ranges: list[int] = []
    copy, read = storeddatasets.copy_object, Store.read

    def watch(store: Store, url: StoreURL, path: Path) -> str:
        digest = copy(store, url, path, range_bytes=1000)
        shards = Path(tempfile.gettempdir()).glob("lowtide.shard.*/*.bin")
        held.append(sum(shard.stat().st_size for shard in shards))
        return digest

    def note(self: Store, info: Any, start: int, count: int) -> Any:
        if "/train/" in info.url.key and info.url.key.endswith(".bin"):
            ranges.append(count)
        return read(self, info, start, count)

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(storeddatasets, "copy_object", watch)
    monkeypatch.setattr(Store, "read", note)
    append(num_workers=1)
    assert len(held) > 10 and 0 < max(held) <= largest
    assert max(ranges) <= 1000 < largest
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_damaged_shard_is_named(server: Any) -> None:
    prepare()
    key = min(key for key in server.objects if "/train/" in key and key.endswith(".bin"))
    data = server.objects[key]
    server.objects[key] = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(DataError, match="is damaged, or was changed by another program") as caught:
        append(num_workers=1)
    assert str(caught.value.path) == f"s3://bucket/{key}"


def test_metadata_beyond_the_budget_is_refused_and_goes_on_with_more(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = prepare()
    finish = datasetplace._StoredDataset.finish
    with monkeypatch.context() as patch:
        patch.setattr(
            datasetplace._StoredDataset,
            "finish",
            lambda self, *given, most_bytes: finish(self, *given, most_bytes=100),
        )
        with pytest.raises(BudgetError, match="100 B of the budget are for it"):
            append()
    append()
    assert stored() == expected


def test_what_is_too_large_for_a_copy_goes_through_the_disk(server: Any) -> None:
    store = Store(ROOT)
    server.objects["a"] = bytes(range(100))
    datasetplace._copy(store, ROOT / "a", ROOT / "b", most_bytes=99)
    datasetplace._copy(store, ROOT / "a", ROOT / "c", most_bytes=100)
    assert server.objects["a"] == server.objects["b"] == server.objects["c"]
    assert ("PUT bucket/b" in server.requests, "COPY bucket/c" in server.requests) == (True, True)


def test_no_dataset_is_said_to_be_none(server: Any) -> None:
    with pytest.raises(DataError, match="nothing is stored under this prefix"):
        append_to_dataset(settings_of())
