"""How long a training step waits for an object store: 1,000 shards behind 50 ms of latency.

    python benchmarks/store_loading.py --seconds 60

The store is the range server of the tests, on this machine, which waits before each response.
Batches are taken at the speed of a GPU (--tokens-per-second); measured are the time of `next`,
after the first --warm-up seconds, and the largest size of the cache.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from lowtide.dataset.layout import ShardInfo, id_chunk, write_metadata, write_shard_stream
from lowtide.loader import BatchLoader, TokenDataset
from lowtide.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "stores"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--warm-up", type=float, default=10)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--shard-tokens", type=int, default=1 << 20)
    parser.add_argument("--latency-ms", type=float, default=50)
    parser.add_argument("--tokens-per-second", type=float, default=647_000)
    parser.add_argument("--order", default="blocks")
    parser.add_argument("--cache-size", default="512MiB")
    options = parser.parse_args()

    from conftest import RangeServer

    server = RangeServer()
    server.before = lambda key: time.sleep(options.latency_ms / 1000)
    with tempfile.TemporaryDirectory() as folder:
        _fill(server, Path(folder) / "data", options.shards, options.shard_tokens)
        os.environ.update(
            AWS_ACCESS_KEY_ID="-", AWS_SECRET_ACCESS_KEY="-", AWS_REGION="us-east-1",
            AWS_ENDPOINT_URL=server.url, AWS_ALLOW_HTTP="true",
        )  # fmt: skip
        began = time.monotonic()
        data = TokenDataset(
            "s3://bucket/data", cache_dir=Path(folder) / "cache", cache_size=options.cache_size
        )
        print(f"opened {options.shards} shards in {time.monotonic() - began:.2f} s")
        print(data.require_cache(options.order) or "the cache suits the order")
        server.requests.clear()
        _measure(data, server, options, Path(folder) / "cache")


def _fill(server: object, root: Path, shards: int, tokens: int) -> None:
    """Describe a dataset whose shards are all equal, and store their content once."""
    tokenizer = Tokenizer.load("gpt2")
    ids = np.random.default_rng(0).integers(0, tokenizer.vocab_size, size=tokens)
    (root / "train").mkdir(parents=True)
    path = root / "train" / "shard_00000.bin"
    chunk = id_chunk(ids, np.array([tokens]), vocab_size=tokenizer.vocab_size, path=path)
    first = write_shard_stream(path, [chunk], vocab_size=tokenizer.vocab_size)
    rows: list[ShardInfo] = []
    for number in range(shards):
        name = root / "train" / f"shard_{number:05}.bin"
        if number:
            name.symlink_to(path)
            name.with_suffix(".docs").symlink_to(path.with_suffix(".docs"))
        fields = {**first.__dict__, "path": name}
        rows.append(ShardInfo(**fields))
    tokenizer.save(root)
    write_metadata(
        root, shards={"train": rows}, vocab_size=tokenizer.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint, tokenization="gpt2",
        tokens_per_shard=tokens, input_files=[],
    )  # fmt: skip
    held: dict[Path, bytes] = {}
    for file in root.rglob("*"):
        if file.is_file():
            real = file.resolve()
            held.setdefault(real, real.read_bytes())
            server.objects[f"data/{file.relative_to(root)}"] = held[real]  # type: ignore[attr-defined]


def _measure(data: TokenDataset, server: object, options: argparse.Namespace, cache: Path) -> None:
    rows = 64
    pace = rows * data.seq_len / options.tokens_per_second
    began = time.monotonic()
    waited = late = 0.0
    steps = most = 0
    with BatchLoader(data, batch_size=rows, order=options.order, seed=1) as loader:
        while (now := time.monotonic()) - began < options.seconds:
            next(loader)
            wait = time.monotonic() - now
            if now - began > options.warm_up:
                waited, late, steps = waited + wait, max(late, wait), steps + 1
            if steps % 50 == 0:
                files = [file.stat().st_size for file in cache.rglob("*.2097152")]
                most = max(most, sum(files))
            time.sleep(max(0.0, pace - wait))
    total = time.monotonic() - began - options.warm_up
    requests = server.count("GET")  # type: ignore[attr-defined]
    print(
        f"{steps} steps after the first {options.warm_up:.0f} s: waited "
        f"{100 * waited / total:.2f} % of the time, {1000 * late:.0f} ms at most; "
        f"{requests} requests in all, cache {most / 2**20:.0f} MiB at most of {options.cache_size}"
    )


if __name__ == "__main__":
    main()
