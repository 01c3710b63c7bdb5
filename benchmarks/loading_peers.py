"""Batches of tokens the way others load them: nanoGPT, torch's DataLoader, LitData, MosaicML.

In:      a file of raw uint16 ids; a folder for the converted data of a peer
Out:     iterators over (inputs, targets), int64 [BATCH, LENGTH]; as a script: tokens per second

`loading.py` measures them. A peer that cannot live beside lowtide's packages runs from a
separate environment, which needs NumPy, torch and that peer, and not lowtide:

    PEER_PYTHON benchmarks/loading_peers.py WAY TOKENS_FILE FOLDER
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH, LENGTH = 64, 1024


@dataclasses.dataclass(frozen=True)
class Way:
    """A peer's way to load batches."""

    package: str
    batches: Callable[[Path, Path], Iterator[Any]]

    @property
    def is_installed(self) -> bool:
        """True if this interpreter can run it."""
        return importlib.util.find_spec(self.package) is not None


def tokens_per_second(batches: Iterator[Any], seconds: float = 1.0) -> float:
    """Count tokens for about a second, after a few batches to warm up."""
    for _ in range(3):
        next(batches)
    started = time.perf_counter()
    count = 0
    while time.perf_counter() - started < seconds:
        for _ in range(5):
            next(batches)
        count += 5
    elapsed = time.perf_counter() - started
    close = getattr(batches, "close", None)
    if close is not None:
        close()
    return count * BATCH * LENGTH / elapsed


def nanogpt_batches(path: Path, folder: Path) -> Iterator[Any]:
    """Do what nanoGPT's training script does for each batch, up to the copy to the GPU."""
    import torch

    while True:
        tokens = np.memmap(path, dtype=np.uint16, mode="r")  # opened each time, against its leak
        starts = torch.randint(len(tokens) - LENGTH, (BATCH,))
        inputs = torch.stack(
            [torch.from_numpy(tokens[i : i + LENGTH].astype(np.int64)) for i in starts]
        )
        targets = torch.stack(
            [torch.from_numpy(tokens[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in starts]
        )
        yield inputs, targets


def data_loader_batches(path: Path, num_workers: int) -> Iterator[Any]:
    """Use torch's own loader over a mapped file, shuffled."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Mapped(Dataset):  # pyright: ignore[reportMissingTypeArgument]
        def __init__(self) -> None:
            self.tokens = np.memmap(path, dtype=np.uint16, mode="r")

        def __len__(self) -> int:
            return (len(self.tokens) - 1) // LENGTH

        def __getitem__(self, index: int) -> Any:
            begin = index * LENGTH
            window = torch.from_numpy(self.tokens[begin : begin + LENGTH + 1].astype(np.int64))
            return window[:-1], window[1:]

    yield from DataLoader(
        Mapped(), batch_size=BATCH, shuffle=True, num_workers=num_workers, drop_last=True
    )


def write_litdata(path: Path, folder: Path) -> None:
    """Write the same tokens as LitData's chunks, in windows of one token more."""
    import torch
    from litdata.streaming import Cache, TokensLoader

    cache = Cache(str(folder), chunk_bytes="64MB", item_loader=TokensLoader(block_size=LENGTH + 1))
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    step = 1000 * (LENGTH + 1)
    for number, first in enumerate(range(0, len(tokens), step)):
        cache[number] = torch.from_numpy(tokens[first : first + step].astype(np.int32))
    cache.done()
    cache.merge()


def litdata_batches(path: Path, folder: Path, num_workers: int) -> Iterator[Any]:
    """Use LitData's own loader, shuffled."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import TokensLoader

    chunks = folder / "litdata"
    if not chunks.exists():
        write_litdata(path, chunks)
    dataset = StreamingDataset(
        str(chunks), item_loader=TokensLoader(block_size=LENGTH + 1), shuffle=True, drop_last=True
    )
    for batch in StreamingDataLoader(dataset, batch_size=BATCH, num_workers=num_workers):
        tokens = batch.long()
        yield tokens[:, :-1], tokens[:, 1:]


def write_mosaic(path: Path, folder: Path) -> None:
    """Write the same tokens as MosaicML's shards, a window of one token more each sample."""
    from streaming import MDSWriter

    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    size = LENGTH + 1
    with MDSWriter(out=str(folder), columns={"tokens": f"ndarray:uint16:{size}"}) as writer:
        for first in range(0, len(tokens) - size, size):
            writer.write({"tokens": np.asarray(tokens[first : first + size])})


def mosaic_batches(path: Path, folder: Path, num_workers: int) -> Iterator[Any]:
    """Use MosaicML's dataset and loader, shuffled."""
    import torch
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    shards = folder / "mosaic"
    if not shards.exists():
        write_mosaic(path, shards)
    clean_stale_shared_memory()
    dataset = StreamingDataset(local=str(shards), shuffle=True, batch_size=BATCH)

    def collate(samples: list[Any]) -> Any:
        window = torch.from_numpy(np.stack([row["tokens"] for row in samples]).astype(np.int64))
        return window[:, :-1], window[:, 1:]

    yield from StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=num_workers, collate_fn=collate
    )


WAYS = {
    "get_batch as in nanoGPT": Way("torch", nanogpt_batches),
    "torch DataLoader over a memmap, 0 workers": Way(
        "torch", lambda path, folder: data_loader_batches(path, 0)
    ),
    "torch DataLoader over a memmap, 2 workers": Way(
        "torch", lambda path, folder: data_loader_batches(path, 2)
    ),
    "LitData TokensLoader, 0 workers": Way(
        "litdata", lambda path, folder: litdata_batches(path, folder, 0)
    ),
    "LitData TokensLoader, 2 workers": Way(
        "litdata", lambda path, folder: litdata_batches(path, folder, 2)
    ),
    "MosaicML StreamingDataset, 0 workers": Way(
        "streaming", lambda path, folder: mosaic_batches(path, folder, 0)
    ),
    "MosaicML StreamingDataset, 2 workers": Way(
        "streaming", lambda path, folder: mosaic_batches(path, folder, 2)
    ),
}


def main() -> None:
    """Measure one way once and print tokens per second."""
    way, path, folder = sys.argv[1:]
    print(tokens_per_second(WAYS[way].batches(Path(path), Path(folder))))


if __name__ == "__main__":
    main()
