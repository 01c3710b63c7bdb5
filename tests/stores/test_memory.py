"""Memory of reading from a store, and of preparing into one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.dataset.layout import write_metadata
from lowtide.dataset.tokenfiles.shards import id_chunk, write_shard_stream
from lowtide.longjson import write_long_json
from lowtide.stores.extents import buffer_bytes

_READ = """
import sys
import numpy, psutil
from lowtide.loader import BatchLoader, TokenDataset
data = TokenDataset(sys.argv[1], seq_len=1024, cache_dir=sys.argv[2], cache_size="250MiB")
before = psutil.Process().memory_info().rss
most = 0
with BatchLoader(data, batch_size=64, order=sys.argv[3], prefetch_batches=2) as loader:
    for _ in range(len(data) // 64):
        next(loader)
        most = max(most, psutil.Process().memory_info().rss)
print(most - before)
"""


def test_memory_does_not_grow_with_what_is_read(server: Any, tmp_path: Path) -> None:
    size, root = 12 << 20, tmp_path / "data"
    path = root / "train" / "shard_00000.bin"
    path.parent.mkdir(parents=True)
    ids = np.random.default_rng(0).integers(0, 50_000, size=size, dtype=np.uint32)
    chunk = id_chunk(ids, np.array([size]), vocab_size=50_000, path=path)
    shard = write_shard_stream(path, [chunk], vocab_size=50_000)
    write_metadata(
        root, shards={"train": [shard]}, vocab_size=50_000, tokenizer_fingerprint="t",
        tokenization="test", tokens_per_shard=size, input_files=[],
    )  # fmt: skip
    server.upload(root, "data")
    batches = 3 * 64 * 1024 * 2 * 8
    for order in ("blocks", "sequential"):
        command = [sys.executable, "-c", _READ, "s3://bucket/data", str(tmp_path / order), order]
        result = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
        assert int(result.stdout) < buffer_bytes() + batches + (4 << 20), order


_PREPARE = """
import sys
from lowtide import prepare_dataset
result = prepare_dataset(
    input_files=sys.argv[1:2], out_dir="s3://bucket/data", engine="files", tokenization="char",
    memory="256MiB", num_workers=2, tokens_per_shard=4_000_000, progress=False,
)
print(result.peak_bytes)
"""


def test_preparing_into_a_store_keeps_the_budget(moto: str, tmp_path: Path) -> None:
    """Its results and its shards are larger than a part of an upload."""
    random = np.random.default_rng(0)
    letters = random.integers(97, 123, size=12 << 20, dtype=np.uint8)
    letters[random.integers(0, len(letters), size=len(letters) // 6)] = 32
    letters[random.integers(0, len(letters), size=len(letters) // 80)] = 10
    (tmp_path / "a.txt").write_bytes(letters.tobytes())
    command = [sys.executable, "-c", _PREPARE, str(tmp_path / "a.txt")]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert int(result.stdout) < 256 << 20


_VERIFY = """
import sys
from pathlib import Path
from lowtide import verify_dataset
verify_dataset(sys.argv[1], memory="128MiB", num_workers=1, progress=False)
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


def test_the_metadata_of_a_stored_dataset_is_not_held(
    dataset: Path, server: Any, tmp_path: Path
) -> None:
    """It has a row for each input, and there may be any number of them."""
    peaks: list[int] = []
    metadata = json.loads((dataset / "dataset_metadata.json").read_text())
    row = {"file": "0" * 32 + ".txt", "documents": 1, "tokens": 1}
    write_long_json(tmp_path / "one", {**metadata, "sources": [row]})
    before, _, rest = (tmp_path / "one").read_text().partition('"sources": [')
    text, end, after = rest.rpartition("]")
    for name, count in (("small", 1), ("large", 300_000)):  # of 110 bytes each
        server.upload(dataset, name)
        rows = ",".join([*[text.rstrip()] * (count - 1), text])
        whole = f'{before}"sources": [{rows}{end}{after}'
        server.objects[f"{name}/dataset_metadata.json"] = whole.encode()
        command = [sys.executable, "-c", _VERIFY, f"s3://bucket/{name}"]
        result = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
        peaks.append(int(result.stdout) << 10)
    assert peaks[1] - peaks[0] < 24 << 20, peaks  # VmHWM begins anew with the call, not later
