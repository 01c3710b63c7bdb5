"""A run that reads from a store is the run that reads from a disk, and goes on as it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lowtide import train
from lowtide.errors import BudgetError, DataError
from lowtide.loader.datachecks import DataCheck
from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.model.program import Program
from lowtide.packages import MissingPackageError
from lowtide.planning.plandata import find_data
from lowtide.planning.settings import PlanSettings
from lowtide.stores.extents import buffer_bytes
from lowtide.training import admission
from lowtide.training.footprint import planned_bytes
from lowtide.training.settings import train_settings

pytestmark = pytest.mark.usefixtures("small_extents")
SHAPE: dict[str, Any] = {
    "num_layers": 1, "width": 16, "num_heads": 1, "seq_len": 32, "batch_size": 4, "num_workers": 2,
    "eval_interval": 6, "eval_iters": 1, "sample_tokens": 0, "device": "cpu",
    "log_interval": 1, "order": "blocks",
}  # fmt: skip


def losses(run: Path) -> list[float]:
    """Of every step: rows of progress, which come by the clock, have the loss too."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row.get("event") == "step"]


def test_a_run_from_a_store_is_the_run_from_disk(
    dataset: Path, stored: str, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    cached = {"cache_dir": tmp_path / "cache", "cache_size": "420KiB"}
    for steps in (3, 6):
        train(dataset_dir=dataset, max_iters=steps, checkpoints_dir=here, **SHAPE)
        train(dataset_dir=stored, max_iters=steps, checkpoints_dir=there, **cached, **SHAPE)
    assert len(losses(here / "model")) == 6
    assert losses(there / "model") == losses(here / "model")
    tokenizers = {(folder / "tokenizer.json").read_bytes() for folder in (dataset, there / "model")}
    assert len(tokenizers) == 1
    written = "".join(path.read_text() for path in (there / "model").glob("*.json*"))
    assert "test-secret-of-nobody" not in written and "test-id" not in written


def test_a_cache_too_small_is_refused_before_the_first_step(stored: str, tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="give --cache-size"):
        train(
            dataset_dir=stored,
            max_iters=2,
            checkpoints_dir=tmp_path / "runs",
            cache_dir=tmp_path / "cache",
            cache_size="50KiB",
            **SHAPE,
        )


def test_a_plan_knows_the_store(stored: str) -> None:
    settings = PlanSettings(dataset_dir=Path(stored))
    nowhere: Any = None  # tokens that are stored need no machine
    assert find_data(settings, nowhere).description.startswith("s3://bucket/data/mine, 400")
    options = settings.training_options()
    assert (options["dataset_dir"], options["order"]) == ("s3://bucket/data/mine", "blocks")
    config = GPTConfig(vocab_size=256, num_layers=1, width=64, num_heads=1)
    here, there = (
        planned_bytes(config, train_settings(dataset_dir=path), program=Program(0, 0))
        for path in ("data", stored)
    )
    assert there.batches - here.batches == buffer_bytes()


def test_a_missing_package_is_named_before_any_work(
    stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def require(module: str, what: str) -> None:
        if module == "obstore":
            raise MissingPackageError(f"{what} needs the package {module}")

    monkeypatch.setattr(admission, "require_package", require)
    with pytest.raises(MissingPackageError, match="obstore"):
        admission.admit(train_settings(dataset_dir=stored, checkpoints_dir=tmp_path))


def test_a_wrong_bucket_is_named(stored: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)no dataset here|nothing is stored|no bucket"):
        train(dataset_dir="s3://nobucket/x", checkpoints_dir=tmp_path / "runs", **SHAPE)


@pytest.mark.parametrize(("size", "is_found"), [("16GiB", True), ("420KiB", False)])
def test_a_flipped_bit_in_a_store_is_found_once_all_of_a_shard_is_here(
    dataset: Path, server: Any, tmp_path: Path, size: str, is_found: bool
) -> None:
    path = dataset / "train" / "shard_00002.bin"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1  # in no extent that is compared by itself
    path.write_bytes(data)
    server.upload(dataset, "data/mine")
    source = TokenDataset(
        "s3://bucket/data/mine", seq_len=32, cache_dir=tmp_path / "cache", cache_size=size
    )
    for batch in range(0, len(source), 512):
        source.plan_rows("sequential", seed=0, first=batch, count=512)
        source.get_batch(range(batch, min(batch + 512, len(source))))
    with DataCheck([source]) as check:
        rest = check.finish(60)
    if is_found:
        with pytest.raises(DataError, match="is damaged"):
            check.require_whole()
        assert str(check.problem and check.problem.path).endswith("train/shard_00002.bin")
    else:
        assert rest is not None
