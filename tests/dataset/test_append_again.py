"""Append after kills at its end, after other versions, from other folders, and to stored copies."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from lowtide.dataset import appending, layout
from lowtide.dataset.appendable import AppendResult
from lowtide.dataset.appending import append_to_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.verification import verify_dataset
from lowtide.errors import DataError, UsageError
from lowtide.filenames import METADATA_NAME

sys.path.insert(0, str(Path(__file__).parent))
from corpora import make_documents, read_documents, snapshot, write_corpus

QUESTION = "which of these tides comes twice a day at the coast where the old boat lies ashore"


class Killed(BaseException):
    pass


def die(*_: Any, **__: Any) -> None:
    raise Killed


@pytest.fixture(autouse=True)
def small_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three texts and a file of items in the test's folder."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("old.txt", "new.txt", "other.txt")):
        write_corpus(tmp_path / name, make_documents(110 - 40 * seed, seed=seed))
    Path("evals.jsonl").write_text(json.dumps({"question": QUESTION}) + "\n")


def prepare(*paths: str, **more: Any) -> None:
    options: dict[str, Any] = {"tokenization": "char", "tokens_per_shard": 4000, **more}
    options |= {"block_bytes": 4096}
    prepare_dataset(input_files=list(paths or ["old.txt"]), out_dir="out", **options)


def append(path: str, **more: Any) -> AppendResult:
    more |= {"block_bytes": 4096, "num_workers": 1}
    return append_to_dataset(dataset_dir="out", input_files=[path], **more)


def kill_before_metadata(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(layout, "write_metadata", die)
        with pytest.raises(Killed):
            append(path)


def all_documents() -> list[str]:
    return sorted(read_documents(Path("out"), "train") + read_documents(Path("out"), "val"))


def test_work_files_that_were_being_removed_go_with_the_next_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plan is removed first; a kill after it leaves files that no command would resume from."""
    prepare()
    with monkeypatch.context() as patch:
        patch.setattr("lowtide.dataset.workfolder.shutil.rmtree", die)
        with pytest.raises(Killed):
            append("new.txt")
    assert list(Path("out/.work").iterdir())
    assert append("new.txt").was_there
    assert not Path("out/.work").exists()
    Path("out/.work").mkdir()
    Path("out/.work/mine.txt").write_text("not lowtide's")
    assert append("new.txt").was_there
    assert Path("out/.work/mine.txt").exists()


def test_copies_of_documents_that_lost_lines_are_not_added() -> None:
    chooser = random.Random(1)
    words = [f"w{number}" for number in range(900)]
    line = "a long line that all of these documents begin with, and only one keeps"
    bare = ["\n".join(" ".join(chooser.choices(words, k=3)) for _ in range(40)) for _ in range(24)]
    fresh = "\n".join(" ".join(chooser.choices(words, k=3)) for _ in range(40))
    whole = [f"{line}\n{text}" for text in bare]
    write_corpus(Path("a.txt"), [*make_documents(110), line, *whole])
    write_corpus(Path("b.txt"), [*bare, fresh, fresh])
    prepare("a.txt", near_dedup=0.8, filter=False, val_fraction=0.2)
    result = append("b.txt")
    documents = all_documents()
    assert fresh in documents and set(bare) <= set(documents)
    assert len(documents) == len(set(documents)), "a document is there twice"
    assert result.report["rules"]["near_copy"]["count"] == len(bare)
    assert result.report["rules"]["duplicate_document"]["count"] == 1, "of new text: by its hash"


def test_other_files_are_added_after_a_kill_while_cleaning_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare()
    with monkeypatch.context() as patch:
        patch.setattr(appending, "remove_work", die)
        with pytest.raises(Killed):
            append("new.txt")
    assert append("other.txt").added_tokens > 0
    assert not Path("out/.work").exists()
    made = [*make_documents(110), *make_documents(70, seed=1), *make_documents(30, seed=2)]
    assert all_documents() == sorted(made)
    assert append("new.txt").was_there


def test_killed_at_every_rename_of_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare()
    shutil.copytree("out", "before")
    append("new.txt")
    expected = snapshot(Path("out"))
    rename = Path.replace
    places = [Path("out", split).absolute() for split in layout.SPLITS]
    for limit in range(1, 100):
        shutil.rmtree("out")
        shutil.copytree("before", "out")
        count = 0

        def replace(self: Path, target: Any, limit: int = limit) -> Path:
            nonlocal count
            count += Path(target).absolute().parent in places
            if count == limit:
                raise Killed
            return rename(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            try:
                append("new.txt")
            except Killed:
                pass
            else:
                break
        append("new.txt")
        assert snapshot(Path("out")) == expected, f"after rename {limit}"
    assert limit > 4, "hardly anything was renamed"


def test_work_of_another_version_is_taken_out_and_begun_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare(dedup=False)
    kill_before_metadata(monkeypatch, "new.txt")
    plan = Path("out/.work/plan.json")
    stored = json.loads(plan.read_text())
    stored["version"] -= 1
    del stored["checksum"]
    plan.write_text(json.dumps(stored))
    result = append("new.txt")
    assert not result.info.moved_in
    assert all_documents() == sorted([*make_documents(110), *make_documents(70, seed=1)])


def test_items_are_found_from_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(decontaminate=["evals.jsonl"])
    shutil.copytree("out", "elsewhere/out")
    monkeypatch.chdir("elsewhere")
    assert append("../new.txt").added_tokens > 0
    items = Path("../evals.jsonl").resolve()
    shutil.move(items, "kept.jsonl")
    with pytest.raises(UsageError, match="is not there") as raised:
        append("../other.txt")
    assert str(items) in str(raised.value.next_step)
    shutil.copy("kept.jsonl", "evals.jsonl")  # where the name as typed is found
    assert append("../other.txt").added_tokens > 0


@pytest.mark.parametrize("lost", ["counts", "row"])
def test_datasets_without_counts_are_refused_before_anything_is_written(lost: str) -> None:
    prepare(decontaminate=["evals.jsonl"])
    if lost == "counts":
        Path("out/decontamination.counts").write_bytes(b"12345678")
    else:
        metadata = json.loads(Path("out", METADATA_NAME).read_text())
        del metadata["decontamination"]["counts"]
        Path("out", METADATA_NAME).write_text(json.dumps(metadata))
    before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")}
    with pytest.raises(DataError if lost == "counts" else UsageError, match="n-grams of"):
        append("new.txt")
    after = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")}
    assert {p for p in after if before.get(p) != after[p] and p.is_file()} == set()
    assert not Path("out/.work").exists()


def test_no_file_of_an_append_given_up_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(decontaminate=["evals.jsonl"], near_dedup=0.8)
    before = snapshot(Path("out"))
    kill_before_metadata(monkeypatch, "new.txt")
    assert len(list(Path("out").glob("*_00001.*"))) == 3
    assert append("old.txt", restart=True).was_there
    assert snapshot(Path("out")) == before
    assert verify_dataset(dataset_dir="out").problems == []


@pytest.mark.parametrize("name", ["train/*.bin", "train/*.docs"])
def test_new_text_is_not_compared_with_damaged_shards(name: str) -> None:
    prepare()
    before = snapshot(Path("out"))
    path = sorted(Path("out").glob(name))[1]
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="is damaged") as caught:
        append("new.txt")
    assert Path(str(caught.value.path)).name == path.name
    path.write_bytes(before[path.relative_to("out").as_posix()])
    append("new.txt")
    assert verify_dataset(dataset_dir="out").problems == []


@pytest.mark.parametrize("name", ["seen/*.hashes", "*.counts"])
def test_new_text_is_not_compared_with_damaged_hashes(name: str) -> None:
    """With one other bit, a document that is in the dataset would be added."""
    with Path("old.txt").open("a") as file:
        file.write(f"<|endoftext|>{QUESTION}")
    prepare(decontaminate=["evals.jsonl"])
    (path,) = Path("out").glob(name)
    before, whole = snapshot(Path("out")), path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DataError, match=r"is damaged|n-grams of") as caught:
        append("new.txt")
    assert Path(str(caught.value.path)).name == path.name
    path.write_bytes(whole)
    assert snapshot(Path("out")) == before
    append("new.txt")
