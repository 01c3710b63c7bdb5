"""Text of evaluation items: found, judged by how common it is, dropped or cut, reported."""

from __future__ import annotations

import gzip
import json
import random
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide import files
from lowtide.corpus.evaluations import load_items
from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.settings import CleaningSettings
from lowtide.dataset import contamination
from lowtide.dataset.contamination import Contamination, ContaminationJob
from lowtide.dataset.existing import PrepareResult
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.resources import estimate_text_bytes, planned_disk_bytes
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.staged.plan import Sizes
from lowtide.dataset.staged.running import prepare_shared
from lowtide.dataset.summary import describe_preparation
from lowtide.dataset.verification import verify_dataset
from lowtide.engine.outputs import Output
from lowtide.engine.records import Records
from lowtide.engine.tasks import Task
from lowtide.errors import BudgetError, DataError, UsageError

sys.path.insert(0, str(Path(__file__).parent))
from corpora import SEPARATOR, read_documents, snapshot

WORDS = [f"word{number}" for number in range(2000)]
QUESTION = "Which of these tides comes twice a day at the coast where the old boat lies ashore"
SHORT = "how many boats lie at the old shore"
COMMON = "all rights reserved by the people who wrote this page for you to read today"


def make_texts() -> list[str]:
    """Documents of random words; some contain text of an item, and most the text of all pages."""
    chooser = random.Random(5)
    texts: list[str] = []
    for number in range(80):
        lines = [" ".join(chooser.choices(WORDS, k=12)) for _ in range(6)]
        if number % 20 == 3:
            lines.insert(3, f"Quiz: {QUESTION}, or not?")
        if number % 40 == 7:
            lines[2:2] = ["Somebody asked " + SHORT[:21], SHORT[22:] + " and went."]
        if number % 2:
            lines.append(f"{number} {COMMON}")
        texts.append("\n".join(lines))
    return texts


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    made = make_texts()
    Path("a.txt").write_text(SEPARATOR.join(made))
    Path("evals").mkdir()
    rows = [
        {"question": QUESTION, "choices": {"label": ["A"], "text": ["the neap tide"]}, "n": 3},
        {"question": SHORT},
        {"question": "never said anywhere " + " ".join(WORDS[:14])},
    ]
    Path("evals/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("evals/b.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": COMMON}).encode()))
    return made


def prepare(out_dir: str, **more: Any) -> PrepareResult:
    return prepare_dataset(
        input_files=["a.txt"], out_dir=out_dir, tokenization="char", block_bytes=4 << 10,
        **{"decontaminate": ["evals/*"], "val_fraction": 0, **more},
    )  # fmt: skip


def test_documents_that_say_an_item_go_and_common_phrases_stay(texts: list[str]) -> None:
    result = prepare("out")
    assert result.report["rules"]["document_contaminated"]["count"] == 6
    stays = read_documents(Path("out"), "train")
    expected = [text for text in texts if QUESTION not in text and "boats lie" not in text]
    assert sorted(stays) == sorted(expected)
    assert len(expected) == 74
    report = [json.loads(row) for row in Path("out/decontamination.jsonl").read_text().splitlines()]
    assert [(Path(row["file"]).name, row["row"], row["documents"]) for row in report] == [
        ("a.jsonl", 0, 4),
        ("a.jsonl", 1, 2),
    ]
    assert result.info is not None
    facts = result.info.metadata["decontamination"]
    assert (facts["items"], facts["items_hit"], facts["documents"]) == (4, 2, 6)
    assert "\nEvaluation items: 4 searched for, 2 found\n" in describe_preparation(result)
    assert facts["common"] >= 1
    assert verify_dataset(dataset_dir="out").problems == []


def test_only_lines_that_say_an_item_are_cut(texts: list[str]) -> None:
    rules = prepare("out", decontaminate_by="cut").report["rules"]
    assert rules["line_contaminated"]["count"] == 4 + 2 * 2
    assert rules["line_contaminated"]["examples"][0].startswith("Quiz: Which")
    assert "document_contaminated" not in rules
    stays = read_documents(Path("out"), "train")
    assert len(stays) == 80
    assert not any(QUESTION in text or "boats lie" in text for text in stays)
    kept = {line for text in stays for line in text.splitlines()}
    lost = [line for text in texts for line in text.splitlines() if line not in kept]
    assert len(lost) == 8


def test_lines_of_documents_that_go_may_be_said_by_others(texts: list[str]) -> None:
    line = "a line that two documents have, and the first of them says more"
    made = [f"{line}\n{QUESTION}", f"{line}\nand something else that nobody asked about"]
    Path("a.txt").write_text(SEPARATOR.join(made))
    prepare("out")
    assert read_documents(Path("out"), "train") == [made[1]]


def test_parts_of_a_large_document_lose_lines(texts: list[str]) -> None:
    lines = [" ".join(WORDS[at : at + 9]) for at in range(20, 1820, 9)]
    lines[150] = f"Quiz: {QUESTION}"
    Path("a.txt").write_text("\n".join(lines))
    rules = prepare("out").report["rules"]
    assert rules["line_contaminated"]["count"] == 1
    del lines[150]
    assert read_documents(Path("out"), "train") == ["\n".join(lines)]


@pytest.mark.parametrize("by", ["drop", "cut"])
def test_the_same_bytes_on_every_engine_with_near_copies(texts: list[str], by: str) -> None:
    more: dict[str, Any] = {"near_dedup": 0.8, "decontaminate_by": by, "val_fraction": 0.1}
    prepare("out", **more)
    settings = PrepareSettings(
        input_files=("a.txt",), out_dir=Path("shared"), tokenization="char",
        decontaminate=("evals/*",), engine="files", block_bytes=4 << 10, **more,
    )  # fmt: skip
    prepare_shared(settings, sizes=Sizes(part_bytes=9000, num_partitions=3, num_buckets=16))
    assert snapshot(Path("shared")) == snapshot(Path("out"))


def test_a_dry_run_counts_the_same(texts: list[str]) -> None:
    assert prepare("dry", dry_run=True).report == prepare("out").report


def test_other_items_are_another_dataset(texts: list[str]) -> None:
    prepare("out")
    assert prepare("out").was_there
    with pytest.raises(UsageError, match="--decontaminate-by drop, now it is cut"):
        prepare("out", decontaminate_by="cut")
    Path("evals/c.jsonl").write_text(json.dumps({"text": " ".join(WORDS[:20])}))
    with pytest.raises(UsageError, match="with --decontaminate"):
        prepare("out")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "no evaluation item"),
        (b"\n \n", "no evaluation item"),
        (b'{"text": "an item of eight words or even more"}\n{"text": ', "line 2 is not JSON"),
        (b'{"n": 1}\n', "line 1 has no text"),
        (b'{"text": "too short"}\n', "none of 1 evaluation items has a text of eight words"),
        (b"\x1f\x8b\x08\x00broken", "compressed with gzip, expected text"),
    ],
)
def test_files_that_hold_no_items(texts: list[str], data: bytes, what: str) -> None:
    Path("bad.jsonl").write_bytes(data)
    with pytest.raises(DataError, match=what):
        prepare("out", decontaminate=["bad.jsonl"])


def test_a_file_that_is_not_there_and_one_that_is_cut_short(texts: list[str]) -> None:
    with pytest.raises(UsageError, match="names no file"):
        prepare("out", decontaminate=["nothing/*.jsonl"])
    with pytest.raises(UsageError, match="expected drop or cut"):
        prepare("out", decontaminate_by="burn")
    Path("bad.jsonl.gz").write_bytes(Path("evals/b.jsonl.gz").read_bytes()[:-9])
    with pytest.raises(DataError, match="damaged or cut-off gzip file"):
        prepare("out", decontaminate=["bad.jsonl.gz"])


def test_a_table_that_the_budget_cannot_hold_is_refused(texts: list[str]) -> None:
    with Path("large.jsonl").open("w") as file:
        file.truncate(100 << 20)
    with pytest.raises(BudgetError, match=r"n-grams of 100\.0 MiB of evaluation items take about"):
        prepare("out", decontaminate=["large.jsonl"], memory="512MiB")


def test_counts_of_ngrams_take_what_is_planned_for_them(tmp_path: Path) -> None:
    """Read, judged and written in steps: besides the table, 8 bytes for each n-gram."""
    chooser = random.Random(3)
    words = [str(chooser.randrange(10**6)) for _ in range(60_000)]
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps({"text": " ".join(words)}) + "\n")
    items = load_items([str(path)], CleaningSettings())
    size = len(items.table)
    assert size == 60_000 - 12
    met = np.arange(1, size, dtype="<u4")  # all but the first
    (tmp_path / "counts").write_bytes(np.stack([met, met % 7 + 1], axis=1).astype("<u4").tobytes())
    checksum = files.checksum_file(tmp_path / "counts")
    table = contamination._checksum_table(items)
    known = {"counts": {"file": "counts", "xxh3_128": checksum, "table": table}}
    tracemalloc.start()
    try:
        job = contamination.ContaminationJob(
            items=items, cuts=False, records=Records(tmp_path), scan_stage="scan", num_parts=0,
            counts_before=contamination.read_counts(tmp_path, known, items), step_grams=1000,
        )  # fmt: skip
        contamination.judge_stage(job).run(0)
        row = contamination.Contamination(job).write_report(tmp_path, counts_name="again")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert row["counts"] == {"file": "again", "xxh3_128": checksum, "table": table}
    assert (tmp_path / "again").read_bytes() == (tmp_path / "counts").read_bytes()
    assert peak <= 8 * size + (5 << 18)  # and buffers of files


def test_evaluation_items_need_no_room_for_near_copies(
    texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clean text is kept on the disk, signatures and pairs are not."""
    text = estimate_text_bytes(expand_inputs(["a.txt"]))
    cut = planned_disk_bytes(text, one_pass_bytes=0, keeps_text=True)
    near = planned_disk_bytes(text, one_pass_bytes=0, near_copies=True)
    assert cut < near
    monkeypatch.setattr(files, "free_disk_bytes", lambda path: (cut + near) // 2)
    assert prepare("out").info is not None
    with pytest.raises(BudgetError, match="of disk"):
        prepare("near", near_dedup=0.8)


def test_hits_are_not_read_for_lines_that_stay() -> None:
    """Nor are all parts of a large corpus kept open."""
    reads = []

    class Records:
        def open(self, task: Task) -> Any:
            reads.append(task.index)
            return Output(Path("part"), {"a": "header"}, {"eval_ends": (0, 8)}, 8)

    job = ContaminationJob(None, True, Records(), "scan", 200)  # type: ignore[arg-type]
    found = Contamination(job)
    hashes = memoryview(b"x" * 16)
    assert found.leave_out(3, hashes) is hashes and reads == []
    for part in range(200):
        found._part(part)
    assert found._part.cache_info().currsize <= 64


def test_an_item_that_one_document_says_was_hit(texts: list[str]) -> None:
    others = [text for text in texts if QUESTION not in text and "boats lie" not in text]
    Path("a.txt").write_text(SEPARATOR.join([*others, texts[3]]))
    info = prepare("out").info
    assert info is not None
    facts = info.metadata["decontamination"]
    assert (facts["items_hit"], facts["documents"]) == (1, 1)
