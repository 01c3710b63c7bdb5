"""The steps of nanoGPT's openwebtext script on text, with the same libraries.

Hugging Face `datasets` loads the documents, splits off 0.05 % for validation and maps tiktoken over
them in worker processes; the ids are then written through a NumPy memory map, in 1,024 batches for
each split. Rewritten for a local file; the steps, numbers and libraries are those of nanoGPT.
A separate module, because worker processes import its functions by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

_WORKERS = 2
_BATCHES = 1024

load_encoding: Any = None
"""Returns the tiktoken encoding; set before the workers are forked."""
_encoding: Any = None


def encode_row(row: dict[str, str]) -> dict[str, Any]:
    """Encode one document, followed by end-of-text."""
    global _encoding
    if _encoding is None:
        _encoding = load_encoding()
    ids = _encoding.encode_ordinary(row["text"])
    ids.append(_encoding.eot_token)
    return {"ids": ids, "len": len(ids)}


def prepare(jsonl: list[Path], out: Path) -> int:
    """Write train.bin and val.bin; return their numbers of ids."""
    from datasets import load_dataset

    rows = load_dataset(
        "json",
        data_files=[str(path) for path in jsonl],
        split="train",
        num_proc=_WORKERS,
        cache_dir=str(out / "cache"),
    )
    splits = rows.train_test_split(test_size=0.0005, seed=2357, shuffle=True)
    encoded = splits.map(encode_row, remove_columns=["text", "id"], num_proc=_WORKERS)
    total = 0
    for split, name in (("train", "train.bin"), ("test", "val.bin")):
        size = int(np.sum(encoded[split]["len"], dtype=np.uint64))
        ids = np.memmap(out / name, dtype=np.uint16, mode="w+", shape=(size,))
        place = 0
        for number in range(min(_BATCHES, len(encoded[split]))):
            part = encoded[split].shard(
                num_shards=min(_BATCHES, len(encoded[split])), index=number, contiguous=True
            )
            batch = np.concatenate(part.with_format("numpy")["ids"])
            ids[place : place + len(batch)] = batch
            place += len(batch)
        ids.flush()
        total += size
    return total
