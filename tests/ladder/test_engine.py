"""Runs with --offload: to AdamW's losses, the same bytes on every rung, resumed on any other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lowtide.errors import LowtideError, UsageError
from lowtide.ladder import homes
from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.training.footprint import planned_bytes
from lowtide.training.settings import train_settings
from lowtide.training.start import train
from lowtide.training.trainer import Trainer

TEXT = "the tide comes in and the tide goes out; what it brings it takes away again.\n"
SHAPE = {"num_layers": 2, "width": 32, "num_heads": 2, "seq_len": 32}


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "tide.txt"
    path.write_text(TEXT * 60)
    return path


def _train(text: Path, root: Path, name: str, **options: Any) -> list[dict[str, Any]]:
    """Train a few steps; return the rows of its log that have a loss."""
    given = {
        **SHAPE,
        "tokenization": "char",
        "batch_size": 4,
        "max_iters": 6,
        "save_interval": 3,
        "eval_interval": 3,
        "eval_iters": 1,
        "log_interval": 1,
        "sample_tokens": 4,
        "learning_rate": 3e-3,
        "device": "cpu",
    }
    train(input_file=text, checkpoints_dir=root, model_name=name, **{**given, **options})
    rows = map(json.loads, (root / name / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if "step" in row and "loss" in row]


def _bytes(folder: Path) -> dict[str, bytes]:
    newest = max((folder / "steps").iterdir())
    return {
        name: (newest / name).read_bytes() for name in ("model.safetensors", "state.safetensors")
    }


@pytest.fixture(scope="module")
def runs(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each kind, for all tests to look at."""
    root = tmp_path_factory.mktemp("runs")
    _train(text_file, root, "plain", optimizer="adamw")
    for rung in ("packed", "disk"):
        _train(text_file, root, rung, offload=rung)
    return root


def _losses(folder: Path) -> list[float]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "step" in row and "loss" in row]


def test_losses_are_those_of_adamw(runs: Path) -> None:
    plain, packed = _losses(runs / "plain"), _losses(runs / "packed")
    assert len(plain) >= 6
    assert packed == pytest.approx(plain, abs=0.01)
    assert packed[-1] < packed[0] - 0.3


def test_every_rung_gives_the_same_bytes(runs: Path) -> None:
    assert _bytes(runs / "packed") == _bytes(runs / "disk")
    assert not list((runs / "disk").glob("*scratch*"))


def test_a_run_goes_on_on_another_rung(runs: Path, text_file: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "packed", tmp_path / "packed")
    shutil.rmtree(tmp_path / "packed/steps/step_00000006")
    _train(text_file, tmp_path, "packed", offload="disk", offload_dir=tmp_path)
    assert _bytes(tmp_path / "packed") == _bytes(runs / "packed")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["packed"]


@pytest.mark.parametrize(("name", "offload"), [("plain", "packed"), ("packed", "none")])
def test_moments_of_the_other_kind_are_refused(
    runs: Path, text_file: Path, tmp_path: Path, name: str, offload: str
) -> None:
    shutil.copytree(runs / name, tmp_path / name)
    with pytest.raises(UsageError, match=r"moments of (AdamW|PackedAdamW)"):
        _train(text_file, tmp_path, name, offload=offload, optimizer="adamw", max_iters=8)


def test_the_model_loads_as_any_other(runs: Path) -> None:
    from lowtide.model.weights import load_model

    model = load_model(runs / "packed")
    ids = torch.arange(20)[None] % model.config.vocab_size
    assert torch.isfinite(model(ids)).all()


def test_a_bad_step_changes_nothing(text_file: Path, tmp_path: Path) -> None:
    with pytest.raises(LowtideError, match="not finite"):
        _train(
            text_file, tmp_path, "bad", offload="packed", learning_rate=1e30, max_bad_steps=2,
            max_iters=40, eval_interval=100, save_interval=1, grad_clip=0,
        )  # fmt: skip
    steps = sorted((tmp_path / "bad/steps").iterdir())
    assert steps
    model_bytes = {(step / "model.safetensors").read_bytes() for step in steps[-2:]}
    assert len(model_bytes) == 1  # the last steps were skipped: not a bit moved


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "muon"},
        {"layout": "tide"},
        {"backend": "jax"},
        {"use_8bit_optimizer": True},
        {"parallel": "fsdp"},
        {"save_in_background": True},
        {"use_mixed_precision": True, "float8_blocks": True},
    ],
)
def test_what_cannot_be_offloaded_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="not with --offload packed"):
        train_settings(offload="packed", **options)


def test_a_folder_without_a_file_to_put_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="offload_dir"):
        train_settings(offload="packed", offload_dir=tmp_path)


def test_a_model_that_is_there_already_is_refused(tmp_path: Path) -> None:
    import numpy as np

    np.save(tmp_path / "ids.npy", np.arange(400, dtype=np.uint16) % 50)
    data = TokenDataset(tmp_path / "ids.npy", split="all", seq_len=16)
    model = GPT(GPTConfig(vocab_size=50, context_length=16, num_layers=1, width=16, num_heads=2))
    trainer = Trainer(model, data=data, offload="packed", device="cpu", checkpoints_dir=tmp_path)
    with pytest.raises(UsageError, match="a network of its own"):
        trainer.fit()


def test_a_disk_that_is_too_small_is_known_at_the_start(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "free_disk_bytes", lambda path: 1000)
    with pytest.raises(LowtideError, match=r"the scratch file takes .* free") as error:
        _train(text_file, tmp_path, "run", offload="disk")
    assert "--offload-dir" in str(error.value)


def test_packed_states_take_seven_bytes_a_parameter() -> None:
    config = GPTConfig(vocab_size=8192, context_length=64, num_layers=12, width=512, num_heads=8)
    size = {"seq_len": 64, "batch_size": 1}

    def kept(**options: Any) -> int:
        plan = planned_bytes(config, train_settings(**size, optimizer="adamw", **options))
        return plan.weights + plan.gradients + plan.optimizer

    plain = kept()
    packed = kept(offload="packed")
    assert packed / plain == pytest.approx(7.0625 / 16, rel=1e-3)
    assert kept(offload="disk") < packed / 2
