from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from lowtide.dataset.layout import write_metadata
from lowtide.dataset.tokenfiles.shards import id_chunk, shard_name, write_shard_stream

MakeDataset = Callable[..., Path]


@pytest.fixture
def make_dataset(tmp_path: Path) -> MakeDataset:
    """Write a prepared dataset: one list of documents per shard (train first, then val)."""

    def make(
        train: list[list[npt.ArrayLike]],
        val: list[list[npt.ArrayLike]] | None = None,
        *,
        name: str = "data",
        vocab_size: int = 60000,
        tokenizer: str = "tokenizer-a",
    ) -> Path:
        root = tmp_path / name
        shards: dict[str, list[object]] = {"train": [], "val": []}
        number = 0
        for split, split_shards in (("train", train), ("val", val or [])):
            for documents in split_shards:
                arrays = [np.asarray(document, dtype=np.uint32) for document in documents]
                tokens = np.concatenate(arrays) if arrays else np.empty(0, dtype=np.uint32)
                ends = np.cumsum([len(array) for array in arrays])
                path = root / split / shard_name(number)
                path.parent.mkdir(parents=True, exist_ok=True)
                chunk = id_chunk(tokens, ends, vocab_size=vocab_size, path=path)
                shards[split].append(write_shard_stream(path, [chunk], vocab_size=vocab_size))
                number += 1
        write_metadata(
            root,
            shards=shards,  # pyright: ignore[reportArgumentType]
            vocab_size=vocab_size,
            tokenizer_fingerprint=tokenizer,
            tokenization="test",
            tokens_per_shard=1000,
            input_files=["a.txt"],
        )
        return root

    return make


@pytest.fixture
def counting_dataset(make_dataset: MakeDataset) -> Path:
    """2,000 ids that count up, in train shards of uneven sizes, and 300 more in val."""
    cuts = [0, 700, 701, 1000, 1013, 2000]
    train = [[np.arange(a, b)] for a, b in itertools.pairwise(cuts)]
    return make_dataset(train, [[np.arange(5000, 5300)]])
