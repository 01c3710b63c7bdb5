"""Datasets in a store: the same batches as from a disk, whatever order, cache and luck."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.errors import BudgetError, DataError
from lowtide.loader import BatchLoader, Mixture, TokenDataset, storestreams
from lowtide.loader.ordering import Order
from lowtide.stores import extentfolder, extents
from lowtide.stores.refusals import ObjectChangedError

pytestmark = pytest.mark.usefixtures("small_extents")
ORDERS = ["shuffle", "shifted", "blocks", "random", "sequential"]
KIB = 1 << 10


def open_stored(url: str, tmp_path: Path, size: str | int = "2MiB", **more: Any) -> TokenDataset:
    more = {"seq_len": 64, **more}
    return TokenDataset(url, cache_dir=tmp_path / "cache", cache_size=size, **more)


def disk_usage(folder: Path) -> int:
    """The bytes of a cache at one moment: nobody adds or removes a file under its lock."""
    with (folder / "usage").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return sum(-(-size // 4096) * 4096 for size in sizes)


def batches(data: TokenDataset, order: Order, count: int = 100, **more: Any) -> list[Any]:
    with BatchLoader(data, batch_size=32, order=order, seed=3, **more) as loader:
        return [next(loader) for _ in range(count)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", ["420KiB", "2MiB"])  # below the split, and room for all of it
def test_batches_are_those_from_disk(
    dataset: Path, stored: str, tmp_path: Path, order: Order, size: str
) -> None:
    count = 60 if order in ("blocks", "sequential") else 8
    here = batches(TokenDataset(dataset, seq_len=64), order, count)
    there = batches(open_stored(stored, tmp_path, size), order, count)
    assert all(np.array_equal(a, b) for one, two in zip(here, there, strict=True)
               for a, b in zip(one, two, strict=True))  # fmt: skip


@pytest.mark.parametrize("name", [".unfinished.bin", "aside/shard.bin"])
def test_objects_that_are_hidden_or_further_down_are_none_of_its_shards(
    server: Any, stored: str, tmp_path: Path, name: str
) -> None:
    server.objects[f"data/mine/train/{name}"] = b"1234"
    assert len(open_stored(stored, tmp_path)) > 0
    server.objects["data/mine/train/shard.bin"] = b"1234"
    with pytest.raises(DataError, match="lies beside the shards"):
        open_stored(stored, tmp_path)


def test_it_is_the_same_data_for_a_run(dataset: Path, stored: str, tmp_path: Path) -> None:
    here, there = TokenDataset(dataset, seq_len=64), open_stored(stored, tmp_path)
    assert there.fingerprint == here.fingerprint
    assert there.vocab_size == here.vocab_size
    assert there.tokenizer_fingerprint == here.tokenizer_fingerprint
    assert np.array_equal(there.read_tokens(119_990, 50), here.read_tokens(119_990, 50))
    assert "s3://bucket/data/mine" in there.describe()
    # A state taken on a disk goes on from the store.
    loader = BatchLoader(here, batch_size=8, order="blocks", seed=1)
    for _ in range(7):
        next(loader)
    state = loader.state_dict()
    other = BatchLoader(pickle.loads(pickle.dumps(there)), batch_size=8, order="blocks", seed=1)
    other.load_state_dict(json.loads(json.dumps(state)))
    assert np.array_equal(next(other)[0], next(loader)[0])


@pytest.mark.parametrize("windows", ["stream", "documents"])
def test_documents_are_those_from_disk(
    dataset: Path, stored: str, tmp_path: Path, windows: Any
) -> None:
    here = batches(TokenDataset(dataset, seq_len=64, windows=windows), "blocks", 5, segments=True)
    there = batches(open_stored(stored, tmp_path, windows=windows), "blocks", 5, segments=True)
    for one, two in zip(here, there, strict=True):
        for name in ("inputs", "targets", "segment_ids", "positions"):
            assert np.array_equal(getattr(one, name), getattr(two, name))


def test_a_mixture_of_a_disk_and_a_store(dataset: Path, stored: str, tmp_path: Path) -> None:
    here, there = TokenDataset(dataset, seq_len=64), open_stored(stored, tmp_path)
    mixed = Mixture({"a": here, "b": there}, {"a": 1, "b": 1})
    same = Mixture({"a": here, "b": here}, {"a": 1, "b": 1})
    assert np.array_equal(batches(mixed, "blocks", 3)[2][0], batches(same, "blocks", 3)[2][0])  # pyright: ignore


def test_blocks_ask_for_each_extent_little_more_than_once_and_stay_in_their_size(
    server: Any, stored: str, tmp_path: Path
) -> None:
    data = open_stored(stored, tmp_path, "420KiB")
    server.requests.clear()
    most = 0
    with BatchLoader(data, batch_size=32, order="blocks", seed=3) as loader:
        for _ in range(-(-len(data) // 32)):
            next(loader)
            most = max(most, disk_usage(tmp_path / "cache"))
    assert most <= 420 * KIB
    extents_of_split = sum(-(-2 * n // 8176) for n in (120_000, 1, 80_000, 39_999, 100_000, 60_000))
    assert extents_of_split <= server.count("GET") < 2 * extents_of_split


def test_a_second_epoch_finds_in_the_cache_what_it_can_hold(
    server: Any, stored: str, tmp_path: Path
) -> None:
    data = open_stored(stored, tmp_path)
    batches(data, "shuffle", 5)
    extents.open_cache(tmp_path / "cache", 2 << 20).wait_until_idle()
    server.requests.clear()
    batches(data, "shuffle", 100)
    batches(data, "blocks", 100)
    assert server.requests == []


def test_extents_are_kept_by_their_next_use(server: Any, stored: str, tmp_path: Path) -> None:
    """With room for three quarters of them, most of a later epoch is not asked for again."""
    data = open_stored(stored, tmp_path, "700KiB")
    size = -(-len(data) // 32)
    batches(data, "blocks", size)
    server.requests.clear()
    with BatchLoader(data, batch_size=32, order="blocks", seed=3) as loader:
        state = loader.state_dict()
        loader.load_state_dict({**state, "samples": len(data)})
        for _ in range(size):
            next(loader)
    assert server.count("GET") < 55  # of about 110


def test_a_window_each_is_asked_for_where_the_cache_cannot_hold_a_shuffled_split(
    server: Any, stored: str, tmp_path: Path
) -> None:
    data = open_stored(stored, tmp_path, "100KiB")
    assert "each of its 6,250 windows is a request of its own" in str(data.require_cache("shuffle"))
    server.requests.clear()
    batches(data, "shuffle", 2, prefetch_batches=0)
    assert 64 <= server.count("GET") <= 70
    assert disk_usage(tmp_path / "cache") < 20 * KIB
    del data
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("lowtide-request"):
            thread.join(100)
            assert not thread.is_alive(), "its stream is gone"


def test_the_error_of_a_request_holds_nothing_when_it_was_told() -> None:
    class Held:
        pass

    def fail(held: Held) -> None:
        raise DataError("no answer")

    held, gone = Held(), threading.Event()
    weakref.finalize(held, gone.set)
    requests = storestreams._Requests(1)
    with pytest.raises(DataError, match="no answer"):
        requests.run([partial(fail, held)])
    del held
    assert any(gc.collect() >= 0 and gone.wait(0.01) for _ in range(5000))
    requests.close()


def test_one_rule_says_whether_a_split_fits(server: Any, stored: str, tmp_path: Path) -> None:
    """Where a cost was named it is paid: nothing is fetched that the cache cannot keep."""
    split = open_stored(stored, tmp_path, "2MiB")._open_stream().ahead.split_bytes
    data = open_stored(stored, tmp_path, split + 30_000)
    assert "is a request of its own" in str(data.require_cache("shuffle"))
    server.requests.clear()
    batches(data, "shuffle", 1, prefetch_batches=0)
    extents.open_cache(tmp_path / "cache", split + 30_000).wait_until_idle()
    assert server.count("GET") <= 40


def test_a_cache_too_small_is_refused_with_the_size_that_does(
    dataset: Path, stored: str, tmp_path: Path
) -> None:
    data = open_stored(stored, tmp_path, "60KiB")
    with pytest.raises(BudgetError, match="too small to read s3://bucket/data/mine") as refused:
        next(BatchLoader(data, batch_size=8, order="blocks", prefetch_batches=0))
    needed = str(refused.value).partition("give --cache-size ")[2].split()[0]
    assert batches(open_stored(stored, tmp_path, needed), "blocks", 3)


def test_a_disk_without_room_for_the_cache_is_refused_before_anything_is_read(
    server: Any, stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_stored(stored, tmp_path, "420KiB")
    assert data.require_cache("blocks") is None
    monkeypatch.setattr(extentfolder, "free_disk_bytes", lambda path: 5000)
    words = r"disk of the cache has 4\.9 KiB free, reading needs \d"
    with pytest.raises(BudgetError, match=words) as refused:
        data.require_cache("blocks")
    assert refused.value.path is not None and "--cache-dir" in str(refused.value.next_step)


def test_what_is_in_the_cache_counts_as_room_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = extents.open_cache(tmp_path / "cache", 1 << 20).folder
    monkeypatch.setattr(extentfolder, "free_disk_bytes", lambda path: 5000)
    monkeypatch.setattr(cache, "used_bytes", lambda: 300)
    cache.require_disk(5300)
    with pytest.raises(BudgetError, match="reading needs"):
        cache.require_disk(5301)


def test_an_object_that_changed_under_way_is_noticed(
    server: Any, stored: str, tmp_path: Path
) -> None:
    data = open_stored(stored, tmp_path, "420KiB")
    server.objects["data/mine/train/shard_00000.bin"] = bytes(240_000)
    with pytest.raises(ObjectChangedError, match=r"shard_00000.bin"):
        batches(data, "blocks")


def test_a_shard_with_another_checksum_is_refused(server: Any, stored: str, tmp_path: Path) -> None:
    server.objects["data/mine/train/shard_00000.bin"] = bytes(240_000)
    with pytest.raises(DataError, match="checksum is another") as refused:
        open_stored(stored, tmp_path)[0]
    assert "s3://bucket/data/mine/train/shard_00000.bin" in str(refused.value)


def test_connections_that_are_lost_change_nothing(
    dataset: Path, server: Any, stored: str, tmp_path: Path, waits: list[float]
) -> None:
    data = open_stored(stored, tmp_path, "420KiB")
    server.faults.extend(["drop", "cut", "503", "", ""] * 8)
    there = batches(data, "blocks", 20)
    here = batches(TokenDataset(dataset, seq_len=64), "blocks", 20)
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(here, there, strict=True))
    assert len(waits) >= 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: o.clear(), "nothing is stored under this prefix"),
        (lambda o: o.pop("data/mine/dataset_metadata.json"), "no dataset here"),
        (lambda o: o.pop("data/mine/train/shard_00002.bin"), "shard_00002.bin is missing"),
        (lambda o: o.update({"data/mine/train/shard_00002.bin": b"1"}), "has 1 bytes"),
        (lambda o: o.update({"data/mine/train/more.bin": b"1234"}), "does not describe it"),
        (lambda o: o.pop("data/mine/train/shard_00002.docs"), "shard_00002.docs is missing"),
        (lambda o: o.update({"data/mine/dataset_metadata.json": b"{"}), "not JSON"),
    ],
)
def test_what_is_wrong_with_the_objects_is_named(
    server: Any, stored: str, tmp_path: Path, change: Any, message: str
) -> None:
    change(server.objects)
    with pytest.raises(DataError, match=message):
        open_stored(stored, tmp_path)


def test_an_id_beyond_the_vocabulary_is_named_with_its_place(
    dataset: Path, server: Any, stored: str, tmp_path: Path
) -> None:
    key = "data/mine/train/shard_00002.bin"
    data = np.frombuffer(server.objects[key], dtype="<u2").copy()
    data[7_000] = 999
    server.objects[key] = data.tobytes()  # its head is as it was, and it has many extents
    with pytest.raises(DataError, match=r"shard_00002.bin has id 999 at token 7000") as refused:
        open_stored(stored, tmp_path).read_tokens(126_990, 100)
    assert "s3://bucket/data/mine/train/shard_00002.bin" in str(refused.value)


_FILL = """
import sys
import threading
from lowtide.loader import BatchLoader, TokenDataset
from lowtide.stores import extentfolder, extentfiles
extentfiles.EXTENT_BYTES = 8176
data = TokenDataset(sys.argv[1], seq_len=64, cache_dir=sys.argv[2], cache_size="2MiB")
for number in range(1000):
    data[number]
    print(number, flush=True)
"""


def test_a_cache_whose_filler_was_killed_holds_no_wrong_bytes(
    dataset: Path, stored: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", _FILL, stored, str(tmp_path / "cache")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        for _ in range(400):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    folder = tmp_path / "cache" / "extents"
    whole = sorted(folder.iterdir())
    assert len(whole) > 5
    # What a power cut leaves: names without their bytes, and bytes of a killed write.
    whole[0].write_bytes(b"")
    whole[1].write_bytes(bytes(whole[1].stat().st_size))
    (folder / "77.0123456789abcdef.fetching").write_bytes(b"half")
    there = batches(open_stored(stored, tmp_path), "sequential")
    here = batches(TokenDataset(dataset, seq_len=64), "sequential")
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(here, there, strict=True))
    left = [path.name for path in folder.glob("*.fetching")]
    assert not [name for name in left if not name.startswith(f"{os.getpid()}.")]  # read ahead


def test_two_processes_share_a_cache_and_stay_within_it(
    dataset: Path, server: Any, stored: str, tmp_path: Path
) -> None:
    text = _FILL.replace("2MiB", "150KiB")
    command = [sys.executable, "-c", text, stored, str(tmp_path / "cache")]
    data = open_stored(stored, tmp_path, "150KiB")
    here = TokenDataset(dataset, seq_len=64)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout):
            index = len(data) - 1 - number
            assert np.array_equal(data[index][0], here[index][0])
            assert int(line) == number
            assert number % 20 or disk_usage(tmp_path / "cache") <= 150 * KIB
    assert process.returncode == 0
    assert disk_usage(tmp_path / "cache") <= 150 * KIB
