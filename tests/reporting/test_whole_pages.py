"""Pages as a whole: every tile, section and number of a few runs, datasets and jobs.

Where a page is meant to change, `python tests/reporting/test_whole_pages.py` writes pages/ anew.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.files import write_json
from lowtide.reporting import datasetfacts, datasets
from lowtide.reporting.comparisons import ComparisonReader
from lowtide.reporting.datasetcomparisons import DatasetComparisonReader
from lowtide.reporting.datasets import DatasetReader
from lowtide.reporting.jobs import JobReader
from lowtide.reporting.runs import RunReader
from lowtide.reporting.tokenizers import TokenizerReader
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.training import train_tokenizer

PAGES = Path(__file__).parent / "pages"
MIB = 1 << 20
NOW = 1_000_000.0


def row(second: float, **values: Any) -> dict[str, Any]:
    memory = (300 + int(second) % 7) * MIB
    common = {"memory_bytes": memory, "peak_memory_bytes": 310 * MIB, "budget_bytes": 1024 * MIB}
    return {"time": NOW + second, "job": "train", **common, **values}


def step(number: int, **values: Any) -> dict[str, Any]:
    numbers = {
        "event": "step",
        "step": number,
        "loss": 5.0 - number / 1000,
        "learning_rate": 1e-3 / (1 + number),
        "gradient_norm": 1.0 + number / 7,
        "tokens_per_second": 5000.0 + number,
        "elapsed_seconds": number * 0.5,
        "skipped_steps": 0,
        "micro_batch": 4,
    }
    return row(number * 0.5, **{**numbers, **values})


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))


def evaluation(number: int, val: float, web: float, **more: Any) -> dict[str, Any]:
    losses = {"val_loss": val, "val_bits_per_byte": val / 3, "eval_web_loss": web}
    return row(number * 0.5 + 0.1, event="eval", step=number, **losses, **more)


def read(reader: Any, **options: Any) -> dict[str, Any]:
    assert reader.read()
    return reader.page(**options)


def finished_run(folder: Path) -> dict[str, Any]:
    rows = [
        row(0, phase="loading", done=1, total=2, unit="B", rate=3.0, phase_seconds=1.5),
        evaluation(0, 6.0, 5.0, sample="\nOnce upon a time\n"),
        *(step(number, skipped_steps=number // 50) for number in range(10, 100, 10)),
        row(45.2, phase="training", done=90, total=200, unit="steps", rate=2.0, phase_seconds=45),
        evaluation(90, 4.5, 5.4, forgetting=True, sample="x" * 801),
        row(46, event="stopped"),
        *(step(number, micro_batch=2) for number in range(100, 200, 20)),
        evaluation(180, 4.75, 5.1, forgetting=True, sample="the end"),
        row(100, event="end", phase="training", done=200, total=200, unit="steps"),
    ]
    write(folder / "metrics.jsonl", rows)
    write_json(folder / "config.json", {"num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 5})
    settings = {
        "dataset_dir": "data/mine", "batch_size": 4, "gradient_accumulation_steps": 2,
        "seq_len": 64, "forgetting_tolerance": 0.2, "history": [1], "identity": {"a": 1},
        "stride": None, "stop": [],
    }  # fmt: skip
    write_json(folder / "settings.json", settings)
    return read(RunReader(folder), now=NOW + 1e6)


def long_run_on_a_gpu(folder: Path) -> dict[str, Any]:
    device = {"device_total_bytes": 8 << 30}
    rows = [
        step(number, **device, device_bytes=(1 << 30) + number * MIB, device_peak_bytes=2 << 30)
        for number in range(1, 500)
    ]
    rows += [evaluation(number, 4.0 - number / 1e4, 3.0) for number in range(0, 500, 100)]
    rows.append(
        row(250, phase="training", done=499, total=2000, unit="steps", seconds_left=700, **device)
    )
    write(folder / "metrics.jsonl", rows)
    write_json(folder / "config.json", {"n_layer": 2, "n_embd": 64})
    write_json(folder / "settings.json", {"dataset_id": "some/texts", "batch_size": 4})
    return read(RunReader(folder), now=NOW + 264)


def run_gone_wrong(folder: Path) -> dict[str, Any]:
    rows = [step(number, loss=math.nan, skipped_steps=number) for number in (1, 2)]
    rows += [row(3, peak_memory_bytes=2048 * MIB, over_budget_bytes=5, event="end")]
    write(folder / "metrics.jsonl", rows)
    write_json(folder / "settings.json", {})
    return read(RunReader(folder), now=NOW + 264)


def job_under_way(folder: Path) -> dict[str, Any]:
    rows = [
        row(0, job="prepare", phase="reading", done=0, total=500 * MIB, unit="B"),
        row(5, job="prepare", phase="reading", done=100 * MIB, total=500 * MIB, unit="B",
            rate=20 * MIB, phase_seconds=5),
        row(6, job="prepare", phase="encoding", done=5000, total=20_000, unit="documents"),
        row(60, job="prepare", phase="encoding", done=9000, total=20_000, unit="documents"),
    ]  # fmt: skip
    write(folder / "metrics.jsonl", rows)
    return read(JobReader(folder / "metrics.jsonl", title="mine"))


def job_without_phases(folder: Path) -> dict[str, Any]:
    write(folder / "metrics.jsonl", [{"time": NOW, "event": "stopped"}])
    return read(JobReader(folder / "metrics.jsonl", title="mine"))


def shard(root: Path, name: str, ends: list[int], tokens: int, **more: Any) -> SimpleNamespace:
    facts = {"num_documents": len(ends), "min_id": 0, "max_id": tokens % 90, "checksum": "0a" * 16}
    path = root / name
    return SimpleNamespace(path=path, ends=np.array(ends), num_tokens=tokens, **{**facts, **more})


def described(metadata: dict[str, Any], shards: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(
        metadata=metadata,
        shards=shards,
        num_tokens=lambda split: sum(one.num_tokens for one in shards[split]),
        vocab_size=50257,
        dtype=np.dtype("uint16"),
    )


def dataset(folder: Path, metadata: dict[str, Any], shards: dict[str, Any]) -> dict[str, Any]:
    info = described(metadata, shards)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load_dataset_info", lambda root: info)
        patch.setattr(datasetfacts, "load_document_ends", lambda one: one.ends)
        return read(DatasetReader(folder))


def whole_dataset(folder: Path) -> dict[str, Any]:
    cleaning = {
        "documents_in": 100, "lines_in": 2000, "bytes_in": 5 * MIB,
        "rules": {
            "short_line": {"count": 7, "bytes": 900, "examples": ["a  b\nc" + "d" * 200]},
            "repeated": {"count": 1, "bytes": 100_000, "examples": []},
            "tiny": {"count": 1, "bytes": 1, "examples": ["x"]},
        },
    }  # fmt: skip
    appended = {
        "tokens": 1234, "input_files": ["a", "b"], "notices": ["said twice"],
        "cleaning": {"documents_in": 1, "rules": {"tiny": {"count": 2, "bytes": 5}}},
    }  # fmt: skip
    sources = [{"file": f"f{n}.txt", "tokens": 10 + n, "documents": n} for n in range(30)]
    metadata = {
        "tokenization": "gpt2", "input_files": ["x"] * 1500, "sources": sources,
        "cleaning": cleaning, "notices": ["something"], "appended": [appended],
    }  # fmt: skip
    train = [
        shard(folder, "train/shard_00000.bin", [10, 30, 31], 100),
        shard(folder, "train/shard_00001.bin", [], 900, checksum=None),
        shard(folder, "train/shard_00002.bin", [500, 501, 1001, 1002, 1022], 1030),
    ]
    rows = [
        row(0, job="prepare", phase="reading", done=1, unit="B"),
        row(9, job="prepare", phase="writing", done=5000, unit="tokens", rate=100.0),
    ]
    write(folder / "metrics.jsonl", rows)
    return dataset(folder, metadata, {"train": train, "val": [shard(folder, "val/v.bin", [7], 7)]})


def bare_dataset(folder: Path) -> dict[str, Any]:
    shards = [shard(folder, f"train/{n}.bin", [], 5, checksum=None) for n in range(201)]
    return dataset(folder, {}, {"train": shards, "val": []})


def learned_tokenizer(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    text = folder.parent / "text.txt"
    text.write_text("low lower lowest newer newest wider widest\n" * 40)
    (folder.parent / "more.txt").write_text("a wide \u4e2d low\n" * 30)
    train_tokenizer(input=[text], out_dir=folder, vocab_size=280, processes=1)
    write(folder / "metrics.jsonl", [row(0, job="train-tokenizer", phase="count", done=1)])
    samples = (str(text), str(folder.parent / "more.txt"))
    return read(TokenizerReader(folder, samples=samples, text_field="text"))


def characters(folder: Path) -> dict[str, Any]:
    Tokenizer.from_characters("abcdefgh \n\u4e2d").save(folder)
    return read(TokenizerReader(folder, samples=(), text_field="text"))


ENVIRONMENT = {
    "event": "environment", "command": "lowtide train --width 32", "hardware": "1 x NVIDIA H200",
    "versions": {"python": "3.11", "torch": "2.9"}, "num_parameters": 1_500_000,
    "tokens_per_step": 1000, "flops_per_token": 9e9, "peak_flops": 989.4e12,
}  # fmt: skip


def write_run(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> Path:
    write(folder / "metrics.jsonl", rows)
    sizes = {"batch_size": 4, "gradient_accumulation_steps": 2, "seq_len": 64}
    write_json(folder / "settings.json", {**sizes, "model_name": folder.name, **settings})
    (folder / "steps").mkdir()
    return folder


def run_with_questions(folder: Path) -> dict[str, Any]:
    """What it was made with, time beside the steps, and tasks that were asked."""
    asked = {"num_questions": 1200, "accuracy": 0.25, "accuracy_stderr": 0.0125}
    rows = [
        row(0, **ENVIRONMENT),
        *(step(n, evaluation_seconds=0.5, sample_seconds=0.25, saving_seconds=0) for n in (10, 20)),
        row(11, event="eval", step=20, val_loss=3.0, eval_a_loss=2.0, eval_b_loss=1.0),
        row(12, event="eval", step=25, val_loss=3.5, eval_a_loss=2.4, eval_b_loss=1.1,
            forgetting=True),
        row(13, event="task", task="arc", **asked),
        row(14, event="task", task="arc", **asked, accuracy_chars=0.5, accuracy_bytes=0.75),
        row(15, event="task", task="lambada", num_questions=5, perplexity=1234.56),
        row(16, job="prepare", event="step", step=999, loss=1.0),
        row(17, phase="training", done=25, total=40, unit="steps", seconds_left=30.0),
    ]  # fmt: skip
    return read(RunReader(write_run(folder, rows, forgetting_tolerance=0.2)), now=NOW + 20)


def compared_runs(folder: Path) -> dict[str, Any]:
    """One that says all, one that says little, one that has not begun; settings that differ."""
    rows = [row(0, **ENVIRONMENT), evaluation(0, 5.0, 5.0)]
    rows += [step(number, evaluation_seconds=0.5) for number in range(10, 60, 10)]
    rows.append(evaluation(50, 3.0, 4.0))
    slow = [step(number, loss=4.0) for number in (10, 20)] + [evaluation(20, 2.5, 4.0)]
    roots = [
        write_run(folder / "first", rows, width=32, lr=None, tags=[]),
        write_run(folder / "second", slow, width=64, lr=0.1, tags=["a"], resume=True),
        write_run(folder / "third", [], width=32, seq_len=None),
    ]
    return read(ComparisonReader(roots))


def judged_dataset(folder: Path) -> dict[str, Any]:
    """Languages and scores, characters that are unknown, as many shards as are shown."""
    rules = {"short_line": {"count": 1, "bytes": 105, "examples": []}}
    cleaning = {
        "documents_in": 10, "lines_in": 20, "bytes_in": MIB, "rules": rules,
        "languages": {"en": {"count": 3, "bytes": 9}, "de": {"count": 1, "bytes": 2048}},
        "unknown_characters": 5,
    }  # fmt: skip
    appended = {
        "tokens": 1, "input_files": ["a"],
        "cleaning": {"languages": {"de": {"count": 4, "bytes": 1}}, "unknown_characters": 2000},
    }  # fmt: skip
    metadata = {
        "cleaning": cleaning,
        "appended": [appended],
        "notices": [str(n) for n in range(60)],
    }
    shards = [shard(folder, f"train/{n}.bin", [5], 5) for n in range(200)]
    return dataset(folder, metadata, {"train": shards, "val": []})


def compared_datasets(folder: Path) -> dict[str, Any]:
    rules = {
        "short_line": {"count": 7, "bytes": 900, "examples": ["a  b", "a  b", "third"]},
        "long_line": {"count": 1, "bytes": 9000, "examples": ["x" * 200, "y"]},
    }
    first = {
        "tokenization": "gpt2", "input_files": ["x", "y"],
        "sources": [{"file": f"f{n}.txt", "tokens": 10 + n, "documents": n} for n in range(41)],
        "cleaning": {"documents_in": 9, "lines_in": 9, "bytes_in": MIB, "rules": rules,
                     "languages": {"en": {"count": 1, "bytes": 9}, "de": {"count": 3, "bytes": 2}}},
        "settings": {"seed": 1, "out_dir": "a", "dedup": True, "lowercase": None},
    }  # fmt: skip
    second = {
        "sources": [{"file": "f40.txt", "tokens": 3, "documents": 1}],
        "cleaning": {"documents_in": 1, "bytes_in": 1000,
                     "rules": {"short_line": {"count": 1, "bytes": 500}, "tiny": {"count": 0,
                               "bytes": 0}},
                     "languages": {"fr": {"count": 2, "bytes": 1}}},
        "settings": {"seed": 2, "out_dir": "b", "dedup": True},
    }  # fmt: skip
    infos = {
        "first": described(first, {"train": [shard(folder, "a", [10, 30, 31, 331], 331)],
                                   "val": [shard(folder, "v", [20], 20)]}),
        "second": described(
            second, {"train": [shard(folder, "b", [5, 2000, 5000], 5000)], "val": []}
        ),
        "third": described({}, {"train": [shard(folder, "c", [], 7)], "val": []}),
    }  # fmt: skip
    for name in infos:
        (folder / name).mkdir(parents=True)
    write(folder / "first" / "metrics.jsonl", [row(0, job="prepare", phase="reading", done=1)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load_dataset_info", lambda root: infos[root.name])
        patch.setattr(datasetfacts, "load_document_ends", lambda one: one.ends)
        return read(DatasetComparisonReader([folder / name for name in infos]))


WHOLE: dict[str, Callable[[Path], dict[str, Any]]] = {
    made.__name__: made
    for made in (
        finished_run, long_run_on_a_gpu, run_gone_wrong, job_under_way, job_without_phases,
        whole_dataset, bare_dataset, learned_tokenizer, characters, run_with_questions,
        compared_runs, judged_dataset, compared_datasets,
    )
}  # fmt: skip


def render(page: dict[str, Any]) -> list[str]:
    """A page as lines: one for each key, tile and section, so that differences are short."""
    lines = [f"{key}: {json.dumps(page[key])}" for key in page if key not in ("tiles", "sections")]
    lines += [f"tile: {json.dumps(tile)}" for tile in page["tiles"]]
    for section in page["sections"]:
        lines += [f"{section['id']}.{key}: {json.dumps(value)}" for key, value in section.items()]
    return lines


def make(name: str, folder: Path) -> list[str]:
    os.environ["TZ"] = "UTC"
    time.tzset()
    lines = render(WHOLE[name](folder / "mine"))
    return [line.replace(str(folder), "HERE") for line in lines]


@pytest.mark.parametrize("name", WHOLE)
def test_a_page_is_in_every_part_what_it_was(name: str, tmp_path: Path) -> None:
    zone = os.environ.get("TZ")
    try:
        assert make(name, tmp_path) == (PAGES / f"{name}.txt").read_text().splitlines()
    finally:
        os.environ.pop("TZ")
        if zone is not None:
            os.environ["TZ"] = zone
        time.tzset()


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or WHOLE:
        with tempfile.TemporaryDirectory() as folder:
            (PAGES / f"{name}.txt").write_text("\n".join(make(name, Path(folder))) + "\n")
