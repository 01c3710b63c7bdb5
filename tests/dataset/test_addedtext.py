"""Append to datasets prepared with near copies removed and without evaluation items."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.dataset.appendable import AppendResult
from lowtide.dataset.appending import append_to_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.verification import verify_dataset
from lowtide.errors import DataError, UsageError

sys.path.insert(0, str(Path(__file__).parent))
from corpora import SEPARATOR, kill_at_rename, read_documents, snapshot

WORDS = [f"word{number}" for number in range(3000)]
QUESTION = "which of these tides comes twice a day at the coast where the old boat lies ashore"


def make_texts(count: int = 180) -> list[str]:
    """Texts of random words; of each up to three copies with some words replaced."""
    chooser = random.Random(4)
    texts: list[str] = []
    for number in range(count):
        words = chooser.choices(WORDS, k=chooser.choice((20, 40, 60)))
        texts.append(" ".join(words))
        for _ in range(number % 4):
            copy = list(words)
            for _ in range(chooser.randrange(1, 2 + len(words) // 20)):
                copy[chooser.randrange(len(copy))] = chooser.choice(WORDS)
            texts.append(" ".join(copy))
    chooser.shuffle(texts)
    return texts


@cache
def gram_set(text: str) -> frozenset[tuple[str, ...]]:
    words = text.split()
    return frozenset(tuple(words[at : at + 5]) for at in range(len(words) - 4))


def similarity(a: str, b: str) -> float:
    return len(gram_set(a) & gram_set(b)) / len(gram_set(a) | gram_set(b))


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    made = make_texts()
    half = len(made) * 3 // 5
    Path("a.txt").write_text(SEPARATOR.join(made[:half]))
    Path("b.txt").write_text(SEPARATOR.join(made[half:]))
    Path("evals.jsonl").write_text(json.dumps({"question": QUESTION}) + "\n")
    return made


def prepare(*paths: str, out_dir: str = "out", **more: Any) -> None:
    prepare_dataset(
        input_files=list(paths),
        out_dir=out_dir,
        block_bytes=8 << 10,
        **{"tokenization": "char", "near_dedup": 0.8, "val_fraction": 0.2, **more},
    )


def append(*paths: str, out_dir: str = "out", **more: Any) -> AppendResult:
    more = {"block_bytes": 8 << 10, **more}
    return append_to_dataset(dataset_dir=out_dir, input_files=list(paths), **more)


def all_documents(out_dir: str = "out") -> list[str]:
    return sorted(read_documents(Path(out_dir), "train") + read_documents(Path(out_dir), "val"))


@pytest.mark.parametrize("dedup", [False, True])
def test_appending_keeps_what_one_preparation_keeps(texts: list[str], dedup: bool) -> None:
    prepare("a.txt", "b.txt", out_dir="one", dedup=dedup)
    prepare("a.txt", dedup=dedup)
    there = read_documents(Path("out"), "val")
    result = append("b.txt")
    assert result.report["rules"]["near_copy"]["count"] > 10
    assert all_documents() == all_documents("one")
    assert sorted(read_documents(Path("out"), "val")) == sorted(read_documents(Path("one"), "val"))
    assert set(there) <= set(read_documents(Path("out"), "val")), "a document changed its side"
    train, val = (read_documents(Path("out"), split) for split in ("train", "val"))
    assert not any(similarity(a, b) >= 0.8 for a in val for b in train)
    assert verify_dataset(dataset_dir="out").problems == []
    before = snapshot(Path("out"))
    assert append("b.txt").was_there
    assert snapshot(Path("out")) == before


def near_copies(chooser: random.Random, num_words: int) -> list[str]:
    """A text, and up to three copies of it with one word replaced."""
    words = chooser.choices(WORDS, k=num_words)
    copies = [list(words) for _ in range(chooser.randrange(4))]
    for copy in copies:
        copy[chooser.randrange(num_words)] = chooser.choice(WORDS)
    return [" ".join(copy) for copy in (words, *copies)]


@settings(max_examples=5)
@given(seed=st.integers(0, 1 << 30), threshold=st.sampled_from((0.5, 0.6, 0.7)))
def test_no_document_of_either_split_has_a_near_copy_in_the_other(
    seed: int, threshold: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chooser = random.Random(seed)
    texts = [text for _ in range(25) for text in near_copies(chooser, chooser.randrange(60, 120))]
    chooser.shuffle(texts)
    with contextlib.chdir(tmp_path_factory.mktemp("split")):
        for number in range(3):
            Path(f"{number}.txt").write_text(SEPARATOR.join(texts[number::3]))
        prepare("0.txt", near_dedup=threshold, val_fraction=0.5)
        before: dict[str, list[str]] = {"train": [], "val": []}
        for number in range(3):
            if number:
                append(f"{number}.txt")
            now = {split: read_documents(Path("out"), split) for split in before}
            assert all(set(before[split]) <= set(now[split]) for split in before)
            assert all(similarity(a, b) < threshold for a in now["val"] for b in now["train"])
            before = now
        assert before["train"] and before["val"]


def test_the_log_says_for_which_document_each_went(texts: list[str]) -> None:
    prepare("a.txt", dedup=False, val_fraction=0)
    there = read_documents(Path("out"), "train")
    result = append("b.txt")
    row = result.info.metadata["appended"][-1]["near_duplicates"]
    log = [json.loads(line) for line in Path("out", row["file"]).read_text().splitlines()]
    assert len(log) == row["removed"] == result.report["rules"]["near_copy"]["count"]
    starts: dict[int, str] = {}
    for text in texts[len(texts) * 3 // 5 :]:
        starts[sum(len(other) + len(SEPARATOR) for other in starts.values())] = text
    places = {None: dict(enumerate(there)), 1: starts}
    assert {line["kept"][0] for line in log} == {None, 1}
    for line in log:
        kept, removed = (places[where][place] for where, place in (line["kept"], line["removed"]))
        assert line["similarity"] == pytest.approx(similarity(kept, removed), abs=1e-6)
    Path("out", row["file"]).write_text("")
    assert any(row["file"] in problem for problem in verify_dataset(dataset_dir="out").problems)


def test_documents_that_are_too_long_are_not_compared(texts: list[str]) -> None:
    long = " ".join(WORDS[:2500])
    Path("a.txt").write_text(SEPARATOR.join([texts[0], long, texts[1]]))
    Path("b.txt").write_text(SEPARATOR.join([" ".join(WORDS[:1000]), texts[1] + " more"]))
    prepare("a.txt", dedup=False, val_fraction=0, shuffle=False)
    row = append("b.txt").info.metadata["appended"][-1]["near_duplicates"]
    (line,) = Path("out", row["file"]).read_text().splitlines()
    assert json.loads(line)["kept"] == [None, 2]


def test_the_same_bytes_for_any_workers_and_after_any_kill(
    texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare("a.txt", decontaminate=["evals.jsonl"], out_dir="before")
    Path("b.txt").write_text(SEPARATOR.join([*texts[60:110], f"so {QUESTION} then"]))
    shutil.copytree("before", "out")
    assert append("b.txt", processes=1).report["rules"]["document_contaminated"]["count"] == 1
    expected = snapshot(Path("out"))

    kills = 0
    for limit in (3, 12, 18, 24):
        shutil.rmtree("out")
        shutil.copytree("before", "out")
        kills += kill_at_rename(
            monkeypatch, limit, lambda: append("b.txt", processes=2, memory="300MiB")
        )
        if Path("out/.work").exists():
            append("b.txt", processes=2)
        assert snapshot(Path("out")) == expected, f"after rename {limit}"
    assert kills >= 2, "hardly anything was killed"


def say(number: int, count: int) -> str:
    """Documents of random words that all contain the question."""
    chooser = random.Random(number)
    return SEPARATOR.join(
        " ".join([*chooser.choices(WORDS, k=30), QUESTION, *chooser.choices(WORDS, k=9)])
        for _ in range(count)
    )


@given(
    order=st.permutations(range(24)),
    cuts=st.lists(st.integers(1, 26), min_size=1, max_size=2, unique=True).map(sorted),
)
@settings(max_examples=4, deadline=None)
def test_any_split_of_the_texts_keeps_what_one_preparation_would(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], cuts: list[int]
) -> None:
    """Near copies and evaluation items on either side of a border, in any order."""
    made = make_texts(12)
    texts = [made[number] for number in order]
    for place, text in zip((1, 9, 17), made[24:27], strict=True):
        texts.insert(place, f"{text} {QUESTION}")
    with contextlib.chdir(tmp_path_factory.mktemp("split")):
        Path("evals.jsonl").write_text(json.dumps({"question": QUESTION}) + "\n")
        paths = [f"{number}.txt" for number in range(len(cuts) + 1)]
        for path, (begin, end) in zip(paths, pairwise([0, *cuts, len(texts)]), strict=True):
            Path(path).write_text(SEPARATOR.join(texts[begin:end]))
        options = {"decontaminate": ["evals.jsonl"], "dedup": False, "val_fraction": 0}
        prepare(*paths, out_dir="one", **options)
        prepare(paths[0], **options)
        for path in paths[1:]:
            append(path)
        assert all_documents() == all_documents("one")
        assert not any(QUESTION in text for text in all_documents())


def test_items_are_judged_by_all_text_that_was_ever_looked_at(texts: list[str]) -> None:
    Path("a.txt").write_text(SEPARATOR.join([*texts[:9], say(0, 4)]))
    for number, count in enumerate((5, 3, 1), 1):
        Path(f"{number}.txt").write_text(say(number, count))
    prepare("a.txt", decontaminate=["evals.jsonl"], near_dedup=0, val_fraction=0)
    assert len(all_documents()) == 9
    append("1.txt")
    assert len(all_documents()) == 9, "9 documents say it"
    event = append("2.txt").info.metadata["appended"][-1]
    assert len(all_documents()) == 12, "12 do: it is a common phrase"
    assert event["decontamination"]["documents"] == 0
    assert event["decontamination"]["common"] > 0
    append("3.txt")
    assert len(all_documents()) == 13
    assert verify_dataset(dataset_dir="out").problems == []


def test_counts_that_are_lost_and_items_that_changed_are_named(texts: list[str]) -> None:
    prepare("a.txt", decontaminate=["evals.jsonl"], near_dedup=0)
    counts = Path("out/decontamination.counts")
    data = counts.read_bytes()
    counts.write_bytes(data + b"12345678")
    assert verify_dataset(dataset_dir="out").problems
    with pytest.raises(DataError, match="missing or damaged"):
        append("b.txt")
    counts.write_bytes(data)
    Path("evals.jsonl").write_text(json.dumps({"question": QUESTION + " now"}) + "\n")
    with pytest.raises(UsageError, match="with other content"):
        append("b.txt", restart=True)
    Path("evals.jsonl").write_text(json.dumps({"question": QUESTION}) + "\n")
    path = Path("out/dataset_metadata.json")
    metadata = json.loads(path.read_text())
    del metadata["decontamination"]["counts"]
    path.write_text(json.dumps(metadata))
    with pytest.raises(UsageError, match="by another version"):
        append("b.txt", restart=True)
