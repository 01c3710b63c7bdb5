"""Tokenizers learned by several workers: the files that one would write."""

from __future__ import annotations

import gzip
import json
import shutil
import signal
import subprocess
import sys
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide import files
from lowtide.corpus.contents import PART_BYTES, fold_parts, hash_parts
from lowtide.corpus.inputs import InputFile, InputList, expand_inputs
from lowtide.corpus.reading import ReadingSettings
from lowtide.engine.folders import DiskFolder
from lowtide.engine.plans import commit_plan
from lowtide.engine.records import Records
from lowtide.engine.tasks import Task
from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.tokenizer import sharedtraining, sharing
from lowtide.tokenizer.counting import CountingNeeds
from lowtide.tokenizer.limits import CountingLimits
from lowtide.tokenizer.settings import TokenizerTrainingSettings
from lowtide.tokenizer.sharing import (
    COUNT_STAGE,
    CountPart,
    SharedCounting,
    cut_inputs,
    find_part_bytes,
)
from lowtide.tokenizer.training import train_tokenizer


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is cut, small ones, a compressed one and rows."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "texts"
    folder.mkdir()
    lines = [f"line {n * n % 977} of a text about tides and number {n % 89}\n" for n in range(1500)]
    (folder / "a.txt").write_text("".join(lines) + "<|endoftext|>" + "".join(lines[:500]))
    for number in range(5):
        (folder / f"b{number}.txt").write_text(f"small file {number}, " * (number + 1))
    (folder / "c.txt.gz").write_bytes(gzip.compress("".join(lines[::3]).encode(), mtime=0))
    rows = [json.dumps({"text": line}) for line in lines[::5]]
    (folder / "d.jsonl").write_text("\n".join(rows))
    (folder / "empty.txt").write_text("")
    return folder


def settings_of(texts: Path, out_dir: Path, **more: Any) -> TokenizerTrainingSettings:
    limits = CountingLimits(hash_part_bytes=1000, small_file_bytes=1000)
    options = {"vocab_size": 700, "memory": "1GiB", "limits": limits, **more}
    return TokenizerTrainingSettings(input=(str(texts),), out_dir=out_dir, **options)


def read(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name != "metrics.jsonl"
    }


def learn_shared(settings: TokenizerTrainingSettings, part_bytes: int) -> None:
    sharedtraining.train_together(settings, expand_inputs(settings.input), part_bytes=part_bytes)


@pytest.mark.parametrize(
    ("part_bytes", "memory"), [(9000, "1GiB"), (30_000, "192MiB"), (1 << 30, "1GiB")]
)
def test_the_same_files_as_alone(texts: Path, part_bytes: int, memory: str) -> None:
    train_tokenizer(settings_of(texts, Path("alone/tok")))
    learn_shared(settings_of(texts, Path("shared/tok"), engine="files", memory=memory), part_bytes)
    assert read(Path("shared/tok")) == read(Path("alone/tok"))
    assert not Path("shared/tok.work").exists()


def test_special_tokens_are_never_cut(tmp_path: Path) -> None:
    special = "<a special token that is rather long>"
    text = f"words before {special} and words after it,\n" * 30
    (tmp_path / "a.txt").write_text(text)
    more: dict[str, Any] = {"special_tokens": ("<|endoftext|>", special), "pattern": "cl100k"}
    more["limits"] = CountingLimits(hash_part_bytes=97, small_file_bytes=97)
    train_tokenizer(settings_of(tmp_path / "a.txt", tmp_path / "alone/tok", **more))
    out_dir = tmp_path / "shared/tok"
    learn_shared(settings_of(tmp_path / "a.txt", out_dir, engine="files", **more), 97)
    assert read(out_dir) == read(tmp_path / "alone/tok")


def test_given_again_it_is_there(texts: Path) -> None:
    settings = settings_of(texts, Path("tok"), engine="files")
    assert not train_tokenizer(settings).was_there
    before = read(Path("tok"))
    assert train_tokenizer(settings).was_there
    assert train_tokenizer(settings_of(texts, Path("tok"))).was_there  # by whichever engine
    assert read(Path("tok")) == before


@pytest.mark.parametrize("out_dir", [".", "../here"])
def test_a_folder_without_a_name_of_its_own(
    texts: Path, monkeypatch: pytest.MonkeyPatch, out_dir: str
) -> None:
    Path("here").mkdir()
    monkeypatch.chdir("here")
    assert not train_tokenizer(settings_of(texts, Path(out_dir), engine="files")).was_there
    assert Path("tokenizer.json").exists()
    assert not Path("../here.work").exists()


def test_work_that_a_kill_left_goes_with_the_next_command(texts: Path) -> None:
    settings = settings_of(texts, Path("tok"), engine="files")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Records, "remove", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train_tokenizer(settings)
    work = Path("tok.work")
    plan = (work / "plan.json").read_bytes()
    (work / "plan.json").unlink()
    commit_plan({"verb": "train-tokenizer"}, Records(Path("other")))
    shutil.copy("other/plan.json", work)
    assert train_tokenizer(settings).was_there
    assert (work / "learn").is_dir()  # as another job's it stays
    (work / "plan.json").write_bytes(plan)
    assert train_tokenizer(settings).was_there
    assert not work.exists()


def test_a_slow_worker_leaves_nothing_of_work_that_has_ended(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last record may come after the plan was removed by another worker."""
    settings = settings_of(texts, Path("tok"), engine="files")
    with monkeypatch.context() as patch:
        patch.setattr(Records, "remove", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train_tokenizer(settings)
    Path("tok.work/plan.json").unlink()
    learn_shared(settings, 1 << 30)
    assert not Path("tok.work").exists()
    Path("tok.work/count").mkdir(parents=True)
    Path("tok.work/count/count-0000000.done").touch()
    Path("tok/tokenizer.json").unlink()
    with pytest.raises(DataError, match="left by another job"):
        learn_shared(settings, 1 << 30)


def test_another_plan_is_refused(texts: Path) -> None:
    records = Records(Path("tok.work"))
    settings = settings_of(texts, Path("tok"), engine="files")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharedtraining, "count_together", lambda *given, **more: None)
        with pytest.raises(AssertionError):
            train_tokenizer(settings)
    plan: dict[str, str] = {"verb": "train-tokenizer"}
    records.create("plan.json", files.json_bytes(plan))
    with pytest.raises(UsageError, match="begun by another version"):
        train_tokenizer(settings)
    (records.folder / "plan.json").unlink()
    commit_plan(plan, records)
    with pytest.raises(UsageError, match="the work here is of another plan"):
        train_tokenizer(settings)


def test_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(DataError, match="there is no text in the input files"):
        train_tokenizer(settings_of(tmp_path / "a.txt", tmp_path / "tok", engine="files"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"work_dir": Path("w")}, "--work-dir is where workers of --engine files and ray meet"),
        ({"engine": "files", "kind": "char", "out_dir": Path("o")}, "--kind char has none"),
        ({"engine": "files"}, "--engine files needs --out-dir"),
        ({"engine": "ray"}, "--engine ray needs --out-dir"),
        ({"engine": "files", "ray_address": "auto"}, "--ray-address is for --engine ray"),
        ({"engine": "spark"}, "is not one of threads, files, ray"),
    ],
)
def test_flags_that_do_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TokenizerTrainingSettings(input=("a",), **options)


WORKER = """
import os, signal, sys
from pathlib import Path
from lowtide.corpus.inputs import expand_inputs
from lowtide.engine.folders import DiskFolder
from lowtide.engine.outputs import OUTPUT_FORMAT
from lowtide.engine.records import Records
from lowtide.engine.tasks import Task
from lowtide.tokenizer import sharedtraining
from lowtide.tokenizer.limits import CountingLimits
from lowtide.tokenizer.settings import TokenizerTrainingSettings

stop_at = sys.argv[1]
commit = Records.commit_record

def commit_and_die(self, task, **more):
    if task.name == stop_at:
        os.kill(os.getpid(), signal.SIGKILL)
    commit(self, task, **more)

Records.commit_record = commit_and_die
settings = TokenizerTrainingSettings(
    input=(sys.argv[2],), out_dir=Path("shared/tok"), vocab_size=700, engine="files",
    memory="1GiB", num_workers=2, limits=CountingLimits(hash_part_bytes=1000),
)
sharedtraining.train_together(settings, expand_inputs(settings.input), part_bytes=9000)
"""


def test_killed_workers_cost_nothing(texts: Path) -> None:
    train_tokenizer(settings_of(texts, Path("alone/tok")))
    command = [sys.executable, "-c", WORKER]
    for name in ("count-0000003", "learn-0000000"):
        code = subprocess.run([*command, name, str(texts)], check=False).returncode
        assert code == -signal.SIGKILL, name
    # The last one had written the tokenizer: whoever comes next has nothing left to do.
    workers = [
        subprocess.Popen([*command, "none", str(texts)], stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert read(Path("shared/tok")) == read(Path("alone/tok"))
    assert not Path("shared/tok.work").exists()


def test_only_plain_text_is_cut_inside_a_file(texts: Path) -> None:
    inputs = expand_inputs([texts])
    size = inputs[0].size_bytes
    parts = cut_inputs(inputs, 50_000, encoding="utf-8")
    cut = [part for part in parts if part.end is not None]
    assert [(part.begin, part.end) for part in cut] == [
        (begin, min(begin + 50_000, size)) for begin in range(0, size, 50_000)
    ]
    whole = [part for part in parts if part.end is None]
    covered = [place for part in whole for place in range(part.first, part.last)]
    assert covered == list(range(1, len(inputs)))
    assert CountPart(0, len(inputs)) in cut_inputs(inputs, 1 << 30, encoding="utf-8")
    assert all(part.end is None for part in cut_inputs(inputs, 50_000, encoding="latin-1"))


@pytest.mark.parametrize("total", [0, 10**9, 10**13, 10**15])
def test_parts_are_hashed_in_whole_stretches(total: int) -> None:
    part_bytes = find_part_bytes(total)
    assert part_bytes % PART_BYTES == 0 and part_bytes >= 256 << 20
    assert total / part_bytes <= 30_000


def test_a_place_is_tried_before_the_first_task(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that would overwrite what is there is refused before anything is in it."""

    class RefusedError(Exception):
        pass

    def refuse(self: Any) -> None:
        raise RefusedError(self.path)

    monkeypatch.setattr(DiskFolder, "prepare", refuse)
    with pytest.raises(RefusedError, match=r"work$"):
        train_tokenizer(input=[texts], out_dir="t", vocab_size=300, engine="files", work_dir="work")
    assert not list(Path("work").rglob("*.done"))


class Counter:
    """A counter that cuts before blanks, and fails on what has none."""

    bytes_done, pieces_done, longest_piece = 40, 9, 6

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def find_file_cut(self, path: str, place: int, size: int) -> int:
        self.calls.append(("cut", place, size))
        return place + 3

    def count_file(self, path: str, first: int, last: int, size: int) -> None:
        self.calls.append((Path(path).name, first, last, size))
        if "none" in path:
            raise ValueError("123 bytes without a place to cut")

    def count_texts(self, texts: list[bytes]) -> None:
        self.calls.append(texts)


def counting_of(inputs: Any, parts: list[CountPart]) -> SharedCounting:
    records: Any = None
    limits = CountingLimits(hash_part_bytes=10)
    return SharedCounting(
        inputs=inputs, parts=parts, options=ReadingSettings(), needs=CountingNeeds(inputs, []),
        limits=limits, records=records, make_counter=lambda _: None,  # type: ignore[arg-type,return-value]
    )  # fmt: skip


def test_a_part_is_counted_from_cut_to_cut(tmp_path: Path) -> None:
    for name in ("a.txt", "none.txt"):
        (tmp_path / name).write_text("some words of it " * 3)
    inputs = expand_inputs([tmp_path])
    whole, begun = CountPart(0, 1, 0, None), CountPart(1, 2, 10, 30)
    counting = counting_of(inputs, [CountPart(0, 1, 10, 30), begun])
    counter: Any = Counter()
    hashes = counting._count_part(counter, counting.parts[0])
    assert counter.calls == [("cut", 10, 51), ("cut", 30, 51), ("a.txt", 13, 33, 33)]
    assert hashes == [hash_parts(inputs[0], 10, 30, part_bytes=10)] and len(hashes[0] or []) == 2
    with pytest.raises(BudgetError, match="there is no place to cut in 123 B of text"):
        counting._count_part(counter, begun)
    counter.calls.clear()
    assert counting._count_part(counter, whole) == [hash_parts(inputs[0], 0, 51, part_bytes=10)]
    assert counter.calls == [[inputs[0].path.read_bytes()]]


def test_sums_and_hashes_are_those_of_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("0123456789" * 3)
    inputs = expand_inputs([tmp_path])
    parts = [CountPart(0, 1, 0, 20), CountPart(0, 1, 20, 30), CountPart(1, 2, 0, None)]
    counting = counting_of(inputs, parts)
    contents = [[["x", "y"]], [["z"]], [None]]
    facts = [{"bytes": 10 * n, "pieces": n, "longest": n, "contents": rows}
             for n, rows in enumerate(contents, 1)]  # fmt: skip
    rows = [(Task(COUNT_STAGE, number), one) for number, one in enumerate(facts)]
    monkeypatch.setattr(SharedCounting, "_iter_facts", lambda _: iter(rows))
    assert counting.contents() == [fold_parts(["x", "y", "z"]), None]
    saved: list[Any] = []
    ends = array("Q", [5, 6])
    output = SimpleNamespace(read=lambda name: memoryview(ends).cast("B"))
    object.__setattr__(counting, "records", SimpleNamespace(open=lambda task: output))
    monkeypatch.setattr(
        sharing, "LocalCopies", lambda _: SimpleNamespace(find=lambda *_: (tmp_path / "counts", 77))
    )
    counter: Any = SimpleNamespace(add_saved=lambda *given: saved.append(given))
    assert counting.add_up(counter, tmp_path) == {"bytes": 60, "pieces": 6}
    assert saved == [(str(tmp_path / "counts"), 77, [5, 6], n) for n in (1, 2, 3)]
    for one in facts:
        one["bytes"] = 0
    with pytest.raises(DataError, match="there is no text in the input files"):
        counting.add_up(counter, tmp_path)


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ((40, 60), [(0, 2)]),  # exactly one part
        ((40, 61), [(0, 1), (1, 2)]),
        ((40, 60, 1), [(0, 2), (2, 3)]),
        ((100,), [(0, 1)]),
        ((101,), [(0, 1, 0, 100), (0, 1, 100, 101)]),
        ((200,), [(0, 1, 0, 100), (0, 1, 100, 200)]),
        ((30, 150, 30, 70), [(0, 1), (1, 2, 0, 100), (1, 2, 100, 150), (2, 4)]),
        ((0, 0), [(0, 2)]),
        ((), []),
    ],
)
def test_inputs_are_cut_into_parts(sizes: tuple[int, ...], parts: list[tuple[int, ...]]) -> None:
    rows = [InputFile(n, Path(f"{n}.txt"), "text", None, size) for n, size in enumerate(sizes)]
    found = cut_inputs(InputList(rows), 100, encoding="utf-8")
    assert found == [CountPart(*part) for part in parts]
