"""Near copies: found, compared exactly, removed in favour of one, the same for every engine."""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from lowtide import _native
from lowtide.dataset import threaded
from lowtide.dataset.existing import PrepareResult
from lowtide.dataset.near import deciding, pairs, running
from lowtide.dataset.near.job import NearLimits
from lowtide.dataset.near.likeness import Likeness
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.staged.plan import Sizes
from lowtide.dataset.staged.running import prepare_shared
from lowtide.dataset.summary import describe_preparation
from lowtide.dataset.verification import verify_dataset
from lowtide.engine.onetask import OneTask
from lowtide.engine.outputs import OUTPUT_FORMAT
from lowtide.errors import DataError, UsageError

sys.path.insert(0, str(Path(__file__).parent))
from corpora import SEPARATOR, read_documents, snapshot

NUM_TEXTS = 260
WORDS = [f"word{number}" for number in range(3000)]
REAL_WORD = 2


def make_texts(seed: int = 3) -> list[str]:
    """Texts of random words; of most a few copies with some words replaced."""
    chooser = random.Random(seed)
    texts: list[str] = []
    for number in range(NUM_TEXTS):
        words = chooser.choices(WORDS, k=chooser.choice((7, 20, 60, 150, 400)))
        texts.append(as_text(words))
        for _ in range(number % 5):
            copy = list(words)
            for _ in range(chooser.randrange(0, 1 + len(words) // 20)):
                copy[chooser.randrange(len(copy))] = chooser.choice(WORDS)
            texts.append(as_text(copy))
    chooser.shuffle(texts)
    return texts


def as_text(words: list[str]) -> str:
    lines = [" ".join(words[at : at + 9]) for at in range(0, len(words), 9)]
    return ",\n".join(lines) + "."


def gram_set(text: str, n: int = 5) -> frozenset[tuple[str, ...]]:
    """The n-grams that are compared, without hashing."""
    data = text.encode()
    words = [
        data[begin : begin + chars].decode()
        for begin, chars, facts in _native.testing.split_words(data)
        if facts & REAL_WORD
    ]
    count = max(len(words) - n + 1, 1)
    return frozenset(tuple(words[at : at + n]) for at in range(count))


def similarity(a: frozenset[Any], b: frozenset[Any]) -> float:
    return len(a & b) / len(a | b)


def similar_pairs(texts: list[str], threshold: float) -> dict[tuple[int, int], float]:
    """All pairs of at least this similarity, by all n-grams of all texts."""
    sets = [gram_set(text) for text in texts]
    where: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, grams in enumerate(sets):
        for gram in grams:
            where[gram].append(number)
    met = Counter(pair for numbers in where.values() for pair in combinations(numbers, 2))
    return {
        pair: found
        for pair in met
        if (found := similarity(sets[pair[0]], sets[pair[1]])) >= threshold
    }


@pytest.fixture
def few(texts: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    Path("a.txt").write_text(SEPARATOR.join(texts[:120]))
    return texts[:120]


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    made = make_texts()
    Path("a.txt").write_text(SEPARATOR.join(made))
    return made


def options(out_dir: str, **more: Any) -> dict[str, Any]:
    common: dict[str, Any] = {"tokenization": "char", "near_dedup": 0.8, "processes": 2}
    common |= {"block_bytes": 8 << 10}
    return {"input_files": ["a.txt"], "out_dir": out_dir, **common, **more}


def prepare(out_dir: str, **more: Any) -> PrepareResult:
    return prepare_dataset(**options(out_dir, **more))


def read_log(out_dir: str, texts: list[str]) -> list[tuple[int, int, float]]:
    """Which text was removed in favour of which, by their numbers."""
    starts: dict[int, int] = {}
    at = 0
    for number, text in enumerate(texts):
        starts[at] = number
        at += len(text) + len(SEPARATOR)
    rows = map(json.loads, Path(out_dir, "near_duplicates.jsonl").read_text().splitlines())
    return [(starts[row["kept"][1]], starts[row["removed"][1]], row["similarity"]) for row in rows]


def test_what_goes_is_alike_to_what_stays_and_hardly_a_pair_is_missed(texts: list[str]) -> None:
    result = prepare("out", dedup=False)
    log = read_log("out", texts)
    gone = {removed for _, removed, _ in log}
    assert len(gone) == len(log) == result.report["rules"]["near_copy"]["count"]
    truth = similar_pairs(texts, 0.8)
    for kept, removed, found in log:
        assert kept not in gone
        assert kept < removed
        assert found == pytest.approx(truth[kept, removed], abs=1e-6)
    missed = [pair for pair in truth if not gone & set(pair)]
    assert len(truth) > 250
    assert len(missed) <= 0.03 * len(truth)
    below = set(range(len(texts))) - {number for pair in truth for number in pair}
    assert not gone & below
    stays = read_documents(Path("out"), "train") + read_documents(Path("out"), "val")
    assert sorted(stays) == sorted(text for n, text in enumerate(texts) if n not in gone)
    assert result.info is not None
    facts = result.info.metadata["near_duplicates"]
    assert facts["documents"] == len(texts)
    assert facts["removed"] == len(gone)
    assert "near copies of a kept document" in describe_preparation(result)


def test_exact_copies_go_by_deduplication_and_those_of_near_copies_with_them(
    few: list[str],
) -> None:
    words = WORDS[:100]
    near = [*words[:50], "other", *words[51:]]
    made = [as_text(words), as_text(near), as_text(near), as_text(words)]
    Path("a.txt").write_text(SEPARATOR.join(made))
    rules = prepare("out").report["rules"]
    found = pytest.approx(91 / 101, abs=1e-6)
    assert read_log("out", made) == [(0, 1, found), (0, 2, found)]
    assert rules["near_copy"]["count"] == 2
    assert rules["duplicate_document"]["count"] == 1
    assert prepare("both", dedup=False).report["rules"]["near_copy"]["count"] == 3
    assert (0, 3, 1.0) in read_log("both", made)


def test_a_chain_of_likeness_removes_nothing_unlike(few: list[str]) -> None:
    made = [as_text(WORDS[at : at + 200]) for at in range(0, 100, 10)]
    Path("a.txt").write_text(SEPARATOR.join(made))
    prepare("out", dedup=False)
    sets = [gram_set(text) for text in made]
    log = read_log("out", made)
    assert {kept for kept, _, _ in log} >= {0, 3}
    for kept, removed, found in log:
        assert similarity(sets[kept], sets[removed]) == pytest.approx(found, abs=1e-6)
        assert found >= 0.8


def test_lines_of_what_goes_may_be_said_by_others(few: list[str]) -> None:
    words = WORDS[:200]
    changed = as_text([*words[:180], *(f"other{n}" for n in range(9)), *words[189:]])
    line = changed.splitlines()[20]
    assert line.startswith("other0")
    made = [as_text(words), changed, as_text(WORDS[500:540]) + "\n" + line]
    Path("a.txt").write_text(SEPARATOR.join(made))
    prepare("out", val_fraction=0)
    assert [removed for _, removed, _ in read_log("out", made)] == [1]
    assert any(text.endswith(line) for text in read_documents(Path("out"), "train"))


SHARED = PrepareSettings(
    input_files=("a.txt",),
    out_dir=Path("shared"),
    tokenization="char",
    near_dedup=0.8,
    engine="files",
    block_bytes=8 << 10,
)
SIZES = Sizes(part_bytes=40 << 10, num_partitions=3, num_buckets=16, group_bytes=50_000)


def test_the_same_bytes_however_it_is_run(few: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    prepare("out", processes=1)
    expected = snapshot(Path("out"))
    prepare_shared(SHARED, sizes=SIZES)
    assert snapshot(Path("shared")) == expected
    # Rows and pairs that do not fit are sorted in runs on disk; parts of other sizes.
    find = running.find_near_copies
    limits = NearLimits(least_rows=100, step_rows=64, step_bytes=640, blocks_in_part=3)
    small = {"table_bytes": 0, "sizes": SIZES, "limits": limits}
    monkeypatch.setattr(
        running,
        "find_near_copies",
        lambda *args, **named: find(*args, **{**named, **small}),
    )
    prepare("small")
    assert snapshot(Path("small")) == expected


def test_a_command_that_was_stopped_goes_on(
    few: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare("out")
    for stage in (pairs.BucketStage, OneTask, deciding.SetStage, deciding.DecideStage):
        with monkeypatch.context() as patch:
            patch.setattr(stage, "run", lambda self, index: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                prepare("again")
    with monkeypatch.context() as patch:
        patch.setattr(threaded, "run_encoding", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare("again")
    plan = Path("again/.work/plan.json")
    stored = json.loads(plan.read_text())  # as an earlier version wrote it, and its results
    del stored["output_format"], stored["checksum"]
    plan.write_text(json.dumps(stored))
    results = list(Path("again/.work/near").rglob("*.out"))
    assert results
    for path in results:
        path.write_bytes(path.read_bytes().replace(OUTPUT_FORMAT.encode(), b"LTTASK01"))
    kept = list(Path("again/.work/clean").glob("*.block"))
    times = [path.stat().st_mtime_ns for path in kept]
    with monkeypatch.context() as patch:
        patch.setattr(threaded, "run_encoding", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare("again")
    assert kept and times == [path.stat().st_mtime_ns for path in kept]  # resumed
    prepare("again")
    assert snapshot(Path("again")) == snapshot(Path("out"))


def test_a_text_that_changed_between_two_passes_is_an_error(
    few: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = deciding.SetStage.run

    def change_and_run(self: deciding.SetStage, index: int) -> None:
        before = Path("a.txt").stat()
        Path("a.txt").write_text(("a line of one\n" * before.st_size)[: before.st_size])
        os.utime("a.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
        run(self, index)

    monkeypatch.setattr(deciding.SetStage, "run", change_and_run)
    with pytest.raises(DataError, match="changed while it was read"):
        prepare_shared(replace(SHARED, num_workers=1), sizes=SIZES)


def test_verify_knows_the_log(few: list[str]) -> None:
    prepare("out")
    assert verify_dataset(dataset_dir="out").problems == []
    with Path("out/near_duplicates.jsonl").open("a") as file:
        file.write("{}\n")
    problems = verify_dataset(dataset_dir="out").problems
    assert len(problems) == 1
    assert "near_duplicates.jsonl" in problems[0]


def test_a_dry_run_counts_what_would_go(few: list[str]) -> None:
    dry = prepare("dry", dry_run=True)
    assert dry.report == prepare("out").report
    assert not Path("dry").exists()


def test_a_template_is_compared_with_some_and_that_is_said(few: list[str]) -> None:
    made = [as_text([*WORDS[:60], *(f"only{n}x{i}" for i in range(12))]) for n in range(60)]
    Path("a.txt").write_text(SEPARATOR.join(made))
    result = prepare("out")
    assert any("each was compared with some of them" in notice for notice in result.notices)
    assert result.info is not None
    facts = result.info.metadata["near_duplicates"]
    assert facts["capped_buckets"] >= 1
    assert facts["removed"] == 0
    assert facts["pairs"] < 60 * 59 // 2


def test_pairs_and_buckets_are_counted(few: list[str]) -> None:
    words = WORDS[:60]
    Path("a.txt").write_text(SEPARATOR.join([as_text(words), as_text([*words[:-1], "other"])]))
    result = prepare("out")
    assert result.info is not None
    facts = result.info.metadata["near_duplicates"]
    assert (facts["pairs"], facts["capped_buckets"], facts["removed"]) == (1, 0, 1)
    Path("a.txt").write_text(as_text(words))
    result = prepare("alone")
    assert result.info is not None
    facts = result.info.metadata["near_duplicates"]
    assert (facts["pairs"], facts["capped_buckets"], facts["removed"]) == (0, 0, 0)


def test_documents_without_words_and_parts_of_large_ones_are_counted_as_not_compared(
    few: list[str],
) -> None:
    large = as_text(WORDS[:2900])
    Path("a.txt").write_text(SEPARATOR.join([*few[:20], "- - - + + + * * * = = = -", large]))
    result = prepare("out")
    assert result.info is not None
    facts = result.info.metadata["near_duplicates"]
    assert facts["documents"] == 20
    assert facts["not_compared"] >= 3


def test_short_texts_are_near_copies_only_of_the_same_words(few: list[str]) -> None:
    made = ["one two three four here", "one two three four here!", "one two three four there"]
    Path("a.txt").write_text(SEPARATOR.join(made))
    prepare("out", val_fraction=0, near_dedup=0.5)
    assert read_log("out", made) == [(0, 1, 1.0)]


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        ("near_dedup", 0.3, "must be 0, or from 0.5 to 1"),
        ("near_dedup", 1.1, "must be 0, or from 0.5 to 1"),
        ("near_dedup", -1, "must be 0, or from 0.5 to 1"),
        ("near_dedup_ngram", 0, "must be at least 1"),
        ("near_dedup_ngram", 65, "64 at most"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, option: str, value: float, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        prepare_dataset(input_files=["a.txt"], out_dir=tmp_path / "out", **{option: value})


def test_another_threshold_is_another_dataset(few: list[str]) -> None:
    prepare("out")
    with pytest.raises(UsageError, match=r"--near-dedup 0\.8, now it is 0\.9"):
        prepare("out", near_dedup=0.9)
    with pytest.raises(UsageError, match=r"--near-dedup 0\.8, now it is none"):
        prepare("out", near_dedup=0)


@pytest.mark.parametrize("threshold", [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_bands_find_pairs_at_any_threshold(threshold: float) -> None:
    options = Likeness(threshold, 5)
    assert options.recall(threshold) >= 0.97
    assert options.bands * options.rows <= 150


def test_runs_are_merged_in_a_share_of_the_table(
    few: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find, noted = running.find_near_copies, defaultdict(set)
    small = {"table_bytes": 4000, "sizes": SIZES, "limits": NearLimits(least_rows=20)}
    monkeypatch.setattr(
        running, "find_near_copies", lambda *args, **named: find(*args, **{**named, **small})
    )
    for name in ("BucketMerger", "PairMerger"):
        merger = getattr(_native, name)

        def merge(runs: Any, size: int, *, name: str = name, merger: Any = merger) -> Any:
            noted[name].add(size)
            return merger(runs, size)

        monkeypatch.setattr(pairs._native, name, merge)
    prepare("merged")
    assert noted == {"BucketMerger": {1000}, "PairMerger": {1000, 2000}}
