"""Every stage that works in threads, with eight of them: the same bytes as with one.

`make sanitize-threads` runs this file on a build that stops at the first race; progress is asked
for as often as it can be, as its thread reads what the others write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide.progress
from lowtide import _native
from lowtide.dataset.preparation import prepare_dataset
from lowtide.loader.batches import BatchLoader
from lowtide.loader.windows import TokenDataset
from lowtide.tokenizer import Tokenizer, learning
from lowtide.tokenizer.training import train_tokenizer

from .texts import write_texts

WORKERS = 8
LINES = 2500


@pytest.fixture(autouse=True)
def restless_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is drawn without a pause."""
    restless = lowtide.progress.Intervals(refresh_seconds=0.0001)
    monkeypatch.setattr(lowtide.progress, "USUAL_INTERVALS", restless)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts"), num_files=5, num_lines=LINES)


@pytest.fixture(scope="module")
def tokenizer(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(input=[texts], out_dir=folder, vocab_size=600, processes=1)
    return folder


def same_for_any_workers(run: Callable[[int], bytes]) -> None:
    assert run(WORKERS) == run(1)


@pytest.mark.parametrize("way", ["at full speed", "in rounds"])
def test_learning_a_tokenizer(
    way: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way != "at full speed":
        monkeypatch.setattr(learning, "planned_bytes", lambda *sizes: 1 << 62)

    def learn(workers: int) -> bytes:
        out_dir = tmp_path / str(workers)
        train_tokenizer(input=[texts], out_dir=out_dir, vocab_size=600, processes=workers)
        return (out_dir / "tokenizer.json").read_bytes()

    same_for_any_workers(learn)


@pytest.mark.parametrize(
    "kind", [_native.MergeLearner, _native.WideMergeLearner], ids=["short", "wide"]
)
def test_merging_one_pair_by_all_threads(kind: type[_native.MergeLearner], texts: Path) -> None:
    """As pairs of thousands of words are: these texts have fewer."""
    words = Counter(word for path in texts.iterdir() for word in path.read_bytes().split())

    def merge(workers: int) -> bytes:
        learner = kind("huggingface", num_threads=workers, many_words=1)
        learner.take_items(list(words.items()))
        learner.build()
        learner.learn(300, 1 << 40, 1)
        assert learner.merges_done == 300
        return np.asarray(learner.merges()).tobytes()

    same_for_any_workers(merge)


def test_encoding_in_batches_and_files(texts: Path, tokenizer: Path, tmp_path: Path) -> None:
    loaded = Tokenizer.load(tokenizer)
    contents = [path.read_text(encoding="utf-8") for path in sorted(texts.iterdir())]
    lines = [line for text in contents for line in text.splitlines()]
    (tmp_path / "whole.txt").write_text("".join(contents), encoding="utf-8")

    def encode(workers: int) -> bytes:
        out = tmp_path / f"{workers}.bin"
        loaded.encode_file(tmp_path / "whole.txt", out, num_threads=workers)
        batch = loaded.encode_batch(lines, num_threads=workers)
        return out.read_bytes() + np.concatenate(batch).tobytes()

    same_for_any_workers(encode)


@pytest.mark.parametrize("options", [{}, {"shuffle": False, "dedup": False}], ids=["all", "plain"])
def test_preparing(
    options: dict[str, Any],
    texts: Path,
    tokenizer: Path,
    tmp_path: Path,
) -> None:
    def prepare(workers: int) -> bytes:
        out_dir = tmp_path / str(workers)
        prepare_dataset(
            input_files=[texts],
            out_dir=out_dir,
            tokenization=str(tokenizer),
            tokens_per_shard=30_000,
            processes=workers,
            block_bytes=16 << 10,
            **options,
        )
        shards = sorted(out_dir.rglob("shard_*"))
        assert len(shards) > 2 * 3
        return b"".join(path.read_bytes() for path in shards)

    same_for_any_workers(prepare)


@pytest.mark.parametrize("order", ["shuffle", "random", "sequential"])
def test_loading(order: str, texts: Path, tokenizer: Path, tmp_path: Path) -> None:
    prepare_dataset(
        input_files=[texts],
        out_dir=tmp_path / "data",
        tokenization=str(tokenizer),
        tokens_per_shard=20_000,
        processes=1,
    )
    dataset = TokenDataset(tmp_path / "data", split="train", seq_len=33)

    def load(workers: int) -> bytes:
        with BatchLoader(
            dataset,
            batch_size=16,
            order=order,
            seed=3,
            num_threads=workers,
            num_epochs=1,
        ) as loader:
            return b"".join(part.tobytes() for batch in loader for part in batch)

    same_for_any_workers(load)
