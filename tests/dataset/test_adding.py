"""Appending as stages of tasks: the same bytes as the threads of one machine add."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from lowtide.dataset import layout, rehashing
from lowtide.dataset.appendable import AppendResult
from lowtide.dataset.appending import append_to_dataset
from lowtide.dataset.inspection import inspect_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.settings import AppendSettings
from lowtide.dataset.staged import adding
from lowtide.dataset.staged.adding import append_shared
from lowtide.dataset.staged.existingtext import ShardRuns
from lowtide.dataset.staged.job import WorkerLimits
from lowtide.dataset.staged.plan import Sizes
from lowtide.dataset.verification import verify_dataset
from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.filenames import METADATA_NAME
from lowtide.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))
from corpora import make_documents, snapshot, write_corpus, write_old_and_new

SIZES = Sizes(part_bytes=6 << 10, num_partitions=3, num_buckets=16, group_bytes=5000)
LIMITS = WorkerLimits()


@pytest.fixture(autouse=True)
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old and new text of several kinds, with duplicates within and between both."""
    monkeypatch.chdir(tmp_path)
    write_old_and_new(120, long_lines=900, again=slice(30, 60), num_new=(70, 40, 30))


def prepare(**options: Any) -> None:
    more = {"tokenization": "tok", "tokens_per_shard": 2500, "block_bytes": 2048, **options}
    prepare_dataset(input_files=["old.txt"], out_dir="out", **more)


def settings_of(out_dir: str = "shared", **options: Any) -> AppendSettings:
    return AppendSettings(
        **{
            "dataset_dir": Path(out_dir),
            "input_files": ("new",),
            "engine": "files",
            "memory": "1GiB",
            "block_bytes": 2048,
            **options,
        }
    )


def append_both(
    *,
    sizes: Sizes | None = SIZES,
    limits: WorkerLimits = LIMITS,
    run_tokens: int | None = 3000,
    **options: Any,
) -> AppendResult:
    """Append by threads to one copy of the dataset, by tasks to another; both must be the same."""
    shutil.copytree("out", "shared")
    expected = append_to_dataset(settings_of("out", **{**options, "engine": "threads"}))
    options = {"num_workers": 2, **options}
    result = append_shared(
        settings_of(**options), sizes=sizes, limits=limits, run_tokens=run_tokens
    )
    assert snapshot(Path("shared")) == snapshot(Path("out"))
    assert not Path("shared.work").exists()
    assert (result.added_tokens, result.added_shards, result.notices, result.report) == (
        expected.added_tokens,
        expected.added_shards,
        expected.notices,
        expected.report,
    )
    return result


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": False},
        {"dedup": False, "seed": 3},
        {"tokenization": "char"},
        {"val_fraction": 0.0},
        {"filter": False, "normalize": False, "min_document_chars": 0},
        {"decontaminate": ["evals.jsonl"]},
        {"decontaminate": ["evals.jsonl"], "decontaminate_by": "cut", "near_dedup": 0.8},
        {"near_dedup": 0.8, "dedup": False, "tokenization": "char"},
    ],
    ids=str,
)
def test_the_same_bytes_as_by_threads(options: dict[str, Any]) -> None:
    prepare(**options)
    result = append_both()
    assert result.added_tokens > 0 and result.added_shards > 1
    assert verify_dataset(dataset_dir="shared").problems == []


@pytest.mark.parametrize(
    ("workers", "sizes", "run_tokens"),
    [
        (1, Sizes(2048, 1, num_buckets=2, group_bytes=1), 1),
        (2, Sizes(1 << 30, 256, num_buckets=4096), 1 << 30),
        (4, None, None),
    ],
    ids=["tiny", "huge", "as planned"],
)
def test_neither_workers_nor_sizes_change_a_byte(
    workers: int, sizes: Sizes | None, run_tokens: int | None
) -> None:
    prepare(near_dedup=0.8)
    append_both(sizes=sizes, run_tokens=run_tokens, num_workers=workers)


def test_unknown_characters_and_a_second_append() -> None:
    """With unknown characters in text, all hashes are kept; both engines continue from them."""
    prepare(tokenization="char")
    write_corpus(Path("new/d.txt"), ["a document with a € sign in the middle of its line"])
    result = append_both()
    assert any("'€'" in notice for notice in result.notices)
    shutil.rmtree("shared")
    write_corpus(Path("new/e.txt"), ["again: a document with a € sign", *make_documents(9, seed=8)])
    assert append_both().added_tokens > 0


@pytest.mark.parametrize("block_bytes", [1 << 20, 600])
def test_shards_of_any_origin(block_bytes: int) -> None:
    """Without kept hashes, with a shard moved in by hand, with documents longer than a block."""
    prepare(tokens_per_shard=700)
    metadata = json.loads(Path("out", METADATA_NAME).read_text())
    del metadata["seen"]
    Path("out", METADATA_NAME).write_text(json.dumps(metadata))
    write_corpus(Path("moved.txt"), make_documents(50, seed=2))
    prepare_dataset(
        input_files=["moved.txt"], out_dir="moved", tokenization="tok", tokens_per_shard=10_000
    )
    moved = next(Path("moved/train").glob("*.bin"))
    shutil.copy(moved, "out/train/shard_00900.bin")
    result = append_both(run_tokens=1500, block_bytes=block_bytes)
    assert result.info.moved_in == ["train/shard_00900.bin"]
    assert result.report["rules"]["duplicate_document"]["count"] > 20


def test_runs_of_shards_have_every_document_once() -> None:
    """Documents begin and end anywhere in shards, and some shards contain no document end."""
    prepare(tokens_per_shard=700)
    info = layout.load_dataset_info("out")
    shards, tokenizer = rehashing.in_order(chain(*info.shards.values())), Tokenizer.load("out")
    counts = [rehashing.count_documents(shard, info.dtype, tokenizer) for shard in shards]
    assert 0 in counts and max(counts) > 1
    grown = adding.GrownDataset(info, None, info.shards, 0)  # type: ignore[arg-type]
    expected: list[bytes] = []
    for run_tokens in (1 << 30, 1, 2000):
        runs = ShardRuns(grown, shards, run_tokens, block_bytes=2048)
        texts = chain(*(runs.iter_texts(run, cut_long=False) for run in range(len(runs))))
        found = [text for part, _ in texts for text in part]
        expected = expected or found
        assert found == expected and len(found) == sum(counts)
    assert len(ShardRuns(grown, shards, 1, block_bytes=2048)) == len(shards) > 20


def test_hashes_that_are_kept_are_taken_in_stretches() -> None:
    prepare()
    limits = WorkerLimits(seen_rows=20, seen_step=7)
    assert append_both(limits=limits).report["rules"]["duplicate_document"]["count"] == 40


def test_nothing_new_adds_nothing() -> None:
    prepare()
    before = snapshot(Path("out"))
    assert append_shared(settings_of("out", input_files=("old.txt",))).was_there
    assert snapshot(Path("out")) == before
    write_corpus(Path("known.txt"), make_documents(120)[::-1])
    result = append_shared(settings_of("out", input_files=("known.txt",)), sizes=SIZES)
    assert (result.added_tokens, result.added_shards) == (0, 0)
    assert append_to_dataset(settings_of("out", input_files=("known.txt",))).was_there
    assert not Path("out.work").exists()


WORKER = """
import os, signal, sys
from pathlib import Path
from lowtide.dataset.grown import GrownDataset
from lowtide.dataset.settings import AppendSettings
from lowtide.dataset.staged.adding import append_shared
from lowtide.dataset.staged.plan import Sizes
from lowtide.engine.records import Records
from lowtide.files import sync_directory

stop_at = sys.argv[1]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def dying(function, name):
    def run(self, *given, **more):
        at = given[0].name if name is None else name
        if at == stop_at:
            die()
        return function(self, *given, **more)
    return run

Records.commit_record = dying(Records.commit_record, None)
GrownDataset.write_metadata = dying(GrownDataset.write_metadata, "metadata")
rename = Path.replace

def replace(self, target):
    result = rename(self, target)
    if stop_at == "moving" and Path(target).parent.name == "val":
        die()
    return result

Path.replace = replace
os.chdir(sys.argv[2])
append_shared(
    AppendSettings(dataset_dir=Path("shared"), input_files=("new",), engine="files",
                   memory="1GiB", num_workers=1, block_bytes=2048),
    sizes=Sizes(6 << 10, 3, num_buckets=16, group_bytes=5000), run_tokens=3000,
)
"""


def test_killed_workers_cost_nothing(start_forks: Any) -> None:
    prepare(near_dedup=0.8)
    shutil.copytree("out", "shared")
    append_to_dataset(settings_of("out", engine="threads"))
    expected = snapshot(Path("out"))
    for name in (
        "existing-0000002", "near-sign-0000003", "encode-0000000", "gather-0000000", "moving",
        "metadata", "finish-0000000",
    ):  # fmt: skip
        codes, printed = start_forks((WORKER, [name, Path.cwd()], {}))()
        assert codes == [-signal.SIGKILL], (name, printed)
        if name != "finish-0000000":
            assert "not finished" in inspect_dataset(dataset_dir=Path("shared.work"))
    codes, printed = start_forks(*([(WORKER, ["none", Path.cwd()], {})] * 2))()
    assert codes == [0, 0], printed
    assert snapshot(Path("shared")) == expected
    assert not Path("shared.work").exists()


def stop_before_the_end(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Do all tasks but the last."""
    with monkeypatch.context() as patch:
        patch.setattr(adding._FinishStage, "run", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            append_shared(settings_of("out", **options), sizes=SIZES)


def test_a_dataset_that_was_added_to_meanwhile_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare()
    write_corpus(Path("other.txt"), make_documents(30, seed=9))
    other = settings_of("out", input_files=("other.txt",), engine="threads")

    list_stages = adding._SharedAppend._iter_stages

    def add_first(self: Any) -> Any:
        append_to_dataset(other)
        yield from list_stages(self)

    with monkeypatch.context() as patch:
        # After this worker has made its plan, before its first task.
        patch.setattr(adding._SharedAppend, "_iter_stages", add_first)
        with pytest.raises(DataError, match="has changed since this work was begun"):
            append_shared(settings_of("out"), sizes=SIZES)
    before = snapshot(Path("out"))
    with pytest.raises(UsageError, match="the dataset has changed since it was begun"):
        append_shared(settings_of("out"), sizes=SIZES)
    assert snapshot(Path("out")) == before
    shutil.rmtree("out.work")
    assert append_shared(settings_of("out"), sizes=SIZES).added_tokens > 0
    assert verify_dataset(dataset_dir="out").problems == []


def test_work_of_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare()
    stop_before_the_end(monkeypatch)
    before = snapshot(Path("out"))
    write_corpus(Path("other.txt"), make_documents(30, seed=9))
    with pytest.raises(UsageError, match="of another plan: input-bytes"):
        append_shared(settings_of("out", input_files=("other.txt",)), sizes=SIZES)
    with pytest.raises(LowtideError, match="bad"):
        Path("bad.jsonl").write_text("nonsense")
        append_to_dataset(settings_of("out", engine="threads", input_files=("bad.jsonl",)))
    with pytest.raises(UsageError, match="unfinished work of --engine threads"):
        append_shared(settings_of("out"), sizes=SIZES)
    shutil.rmtree("out/.work")
    assert snapshot(Path("out")) == before
    assert append_shared(settings_of("out"), sizes=SIZES).added_tokens > 0
    assert not Path("out.work").exists()


def test_a_finished_append_given_again_leaves_the_work_of_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a worker that a cluster starts late, with the same work folder."""
    prepare()
    append_shared(settings_of("out"), sizes=SIZES)
    write_corpus(Path("later.txt"), make_documents(30, seed=11))
    later = settings_of("out", input_files=("later.txt",))
    with monkeypatch.context() as patch:
        patch.setattr(adding._FinishStage, "run", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            append_shared(later, sizes=SIZES)
    before = snapshot(Path("out.work"))
    assert append_shared(settings_of("out"), sizes=SIZES).was_there
    assert snapshot(Path("out.work")) == before
    assert append_shared(later, sizes=SIZES).added_tokens > 0
    assert not Path("out.work").exists()


def test_work_that_a_kill_left_goes_with_the_next_command(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare()
    with monkeypatch.context() as patch:
        patch.setattr(adding.Records, "remove", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            append_shared(settings_of("out"), sizes=SIZES)
    assert Path("out.work/plan.json").exists()
    before = snapshot(Path("out"))
    assert append_to_dataset(settings_of("out")).was_there
    assert snapshot(Path("out")) == before
    assert not Path("out.work").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "tasks"}, "not one of threads, files, ray"),
        ({"engine": "threads", "work_dir": Path("w")}, "--work-dir is where"),
        ({"engine": "threads", "ray_address": "auto"}, "--ray-address is for"),
        ({"restart": True}, "--restart would take"),
        ({"work_dir": "s3://bucket/work"}, "the dataset shared is on a disk"),
        ({"dataset_dir": "s3://bucket", "work_dir": None}, "is a whole bucket"),
        ({"dataset_dir": "s3://bucket/a", "engine": "threads"}, "lies in an object store"),
    ],
)
def test_flags_that_do_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings_of(**options)
