"""Where datasets are written in a store: what else lies there stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowtide.dataset.staged.destination import open_destination
from lowtide.stores.paths import StorePath


def test_only_shards_of_others_are_removed(server: Any, stored: str) -> None:
    def keys() -> set[str]:
        return {key.removeprefix("data/mine/") for key in server.objects}

    server.objects["data/mine/train/notes.txt"] = b"mine"
    del server.objects["data/mine/dataset_metadata.json"]  # beside it none would be removed
    kept = [Path("train/shard_00000.bin"), Path("val/shard_00006.bin")]
    before = keys()
    assert open_destination(StorePath(stored)).keep_only(kept) is None
    ours = ("train/shard_00000.", "val/shard_00006.")
    found = {name for name in before if "/shard_" in name and not name.startswith(ours)}
    assert found and keys() == before - found
    assert open_destination(StorePath(stored)).keep_only(kept) is None
    assert keys() == before - found
