"""`prepare --keep-top`: the documents with the highest scores, with every engine."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from lowtide import _native
from lowtide.dataset import phases, threaded
from lowtide.dataset.appending import append_to_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.staged import hashing
from lowtide.dataset.summary import describe_preparation
from lowtide.errors import DataError, UsageError
from lowtide.reporting.datasetfacts import merge_reports
from lowtide.reporting.datasets import _cleaning

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "corpus"))
from corpora import SEPARATOR, read_documents, snapshot
from fasttext_files import TinyModel

NUM_DOCUMENTS = 203
WANTED = 21  # a tenth, rounded up


def make_documents(seed: int = 0) -> list[str]:
    """Documents with many different scores, and many with the highest."""
    dice = random.Random(seed)
    documents = []
    for number in range(NUM_DOCUMENTS):
        good = 30 if number % 5 == 0 else dice.randrange(30)
        words = ["people"] * good + ["Leute"] * (30 - good) + [f"w{seed}x{number}"]
        dice.shuffle(words)
        documents.append(" ".join(words))
    return documents


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    TinyModel(
        words=["people", "Leute"],
        labels=["hq", "cc"],
        dim=4,
        rows=[[3.0, 0, 0, 0], [0, 3.0, 0, 0]],
        outputs=[[1.0, -1, 0, 0], [-1.0, 1, 0, 0]],
    ).write(Path("model.bin"))
    documents = make_documents()
    Path("a.txt").write_text(SEPARATOR.join(documents[:90]))
    Path("b.txt").write_text(SEPARATOR.join(documents[90:]))
    return documents


def options(out_dir: str, **more: Any) -> dict[str, Any]:
    common: dict[str, Any] = {"tokenization": "char", "processes": 2, "score": "model.bin"}
    common |= {
        "input_files": ["a.txt", "b.txt"],
        "keep_top": 0.1,
        "filter": False,
        "val_fraction": 0,
        "block_bytes": 4096,
    }
    return {**common, "keep_top": 0.1, "out_dir": out_dir, **more}


def texts_of(folder: str) -> list[str]:
    return read_documents(Path(folder), "train") + read_documents(Path(folder), "val")


def scores_of(texts: list[str]) -> list[float]:
    model = _native.FastTextModel("model.bin")
    return sorted((model.predict(text.encode())[0] for text in texts), reverse=True)


@pytest.mark.parametrize("share", [0.1, 0.6, 1.0])
def test_the_best_stay(corpus: list[str], share: float) -> None:
    result = prepare_dataset(**options("out", keep_top=share))
    wanted = {0.1: WANTED, 0.6: 122, 1.0: NUM_DOCUMENTS}[share]
    kept = scores_of(texts_of("out"))
    assert kept == scores_of(corpus)[:wanted]
    score = result.report["score"]
    assert (score["documents"], score["kept"]) == (NUM_DOCUMENTS, wanted)
    assert score["cut"] == pytest.approx(kept[-1])
    removed = result.report["rules"].get("document_score", {"count": 0})["count"]
    assert removed == NUM_DOCUMENTS - wanted
    told = f"kept the best {wanted} of 203 documents"
    assert told in describe_preparation(result)
    assert "of 203 documents" in _cleaning(merge_reports([result.report]))["note"]


def test_equal_scores_are_not_decided_by_their_place(corpus: list[str]) -> None:
    prepare_dataset(**options("out"))
    kept = set(texts_of("out"))
    tied = [text for text in corpus if "Leute" not in text]
    assert len(tied) == 41
    assert kept < set(tied)
    assert kept != set(tied[:WANTED])
    assert kept & set(tied[WANTED:])
    prepare_dataset(**options("turned", input_files=["b.txt", "a.txt"]))
    assert set(texts_of("turned")) == kept


def test_the_same_bytes_however_it_is_run(corpus: list[str]) -> None:
    prepare_dataset(**options("one"))
    prepare_dataset(**options("two", processes=1, memory="200MiB"))
    prepare_dataset(**options("three", engine="files"))
    assert snapshot(Path("one")) == snapshot(Path("two")) == snapshot(Path("three"))
    dry = prepare_dataset(**options("four", dry_run=True))
    assert dry.report["score"] == prepare_dataset(**options("one")).report["score"]


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("where", ["find_score_cut", "TableBuilder.finish", "plan_shards"])
def test_killed_work_goes_on(
    corpus: list[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    prepare_dataset(**options("whole"))

    def die(*_: Any, **__: Any) -> None:
        raise _Killed

    with monkeypatch.context() as patch:
        module = threaded if where == "plan_shards" else phases
        patch.setattr(f"{module.__name__}.{where}", die)
        with pytest.raises(_Killed):
            prepare_dataset(**options("out"))
    with pytest.raises(UsageError, match=r"--keep-top 0\.1, now it is 0\.2"):
        prepare_dataset(**options("out", keep_top=0.2))
    prepare_dataset(**options("out"))
    assert snapshot(Path("out")) == snapshot(Path("whole"))


def test_an_input_that_changes_after_a_kill_changes_the_cut(
    corpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(threaded, "plan_shards", die)
        with pytest.raises(_Killed):
            prepare_dataset(**options("out"))
    Path("b.txt").write_text(SEPARATOR.join(corpus[90:150]))
    prepare_dataset(**options("out"))
    prepare_dataset(**options("whole"))
    assert snapshot(Path("out")) == snapshot(Path("whole"))


def test_an_input_that_changes_between_the_passes(
    corpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = threaded.run_cleaning

    def change_first(*arguments: Any, **named: Any) -> Any:
        Path("b.txt").write_text(SEPARATOR.join(corpus[90:150]))
        return clean(*arguments, **named)

    monkeypatch.setattr(threaded, "run_cleaning", change_first)
    with pytest.raises(DataError, match="changed"):
        prepare_dataset(**options("out"))
    assert not Path("out/dataset_metadata.json").exists()


def test_workers_notice_it_too(corpus: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing._HashedPart, "contents", b"other")
    with pytest.raises(DataError, match="changed while it was read, between two passes"):
        prepare_dataset(**options("out", engine="files"))


def test_append_keeps_the_cut(corpus: list[str]) -> None:
    info = prepare_dataset(**options("out", keep_top=0.3)).info
    assert info is not None
    cut = info.metadata["cleaning"]["score"]["cut"]
    new = make_documents(seed=1)
    Path("c.txt").write_text(SEPARATOR.join(new))
    append_to_dataset(dataset_dir="out", input_files=["c.txt"])
    added = [text for text in texts_of("out") if "w1x" in text]
    above = [score for score in scores_of(new) if score > cut]
    assert above
    assert len(above) <= len(added) <= sum(score >= cut for score in scores_of(new))
    assert min(scores_of(added)) >= cut
