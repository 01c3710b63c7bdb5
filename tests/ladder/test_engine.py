"""Runs with --offload: to AdamW's losses, the same bytes on every rung, resumed on any other."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lowtide.errors import BudgetError, LowtideError, UsageError
from lowtide.ladder import backend, engine, executor, filehome, network
from lowtide.ladder.engine import LadderEngine
from lowtide.ladder.exactsums import ExactSums
from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.weights import load_model
from lowtide.training.distributed import ProcessGroup
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
        "optimizer": "adamw",
        "learning_rate": 3e-3,
        "weight_decay": 10.0,  # three hundredths a step, so that it shows in the losses
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
    _train(text_file, root, "plain-muon", optimizer="muon", momentum_warmup=4)
    for rung in ("packed", "disk"):
        _train(text_file, root, rung, offload=rung)
        _train(text_file, root, f"{rung}-muon", offload=rung, optimizer="muon", momentum_warmup=4)
    return root


def _losses(folder: Path) -> list[float]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "step" in row and "loss" in row]


@pytest.mark.parametrize("optimizer", ["", "-muon"])
def test_losses_are_those_of_the_optimizer(runs: Path, optimizer: str) -> None:
    plain, packed = _losses(runs / f"plain{optimizer}"), _losses(runs / f"packed{optimizer}")
    assert len(plain) >= 6
    assert packed == pytest.approx(plain, abs=0.01)
    assert packed[-1] < packed[0] - 0.15


@pytest.mark.parametrize(
    "form", [{"ahead_weight": 0.5}, {"early_cap": 1.0}, {"confidence": 0.5}], ids=str
)
def test_the_form_of_the_loss_is_that_of_other_runs(
    runs: Path, text_file: Path, tmp_path: Path, form: dict[str, Any]
) -> None:
    for name, offload in (("plain", "none"), ("packed", "packed")):
        _train(text_file, tmp_path, name, offload=offload, **form)
    plain, packed = _losses(tmp_path / "plain"), _losses(tmp_path / "packed")
    assert packed == pytest.approx(plain, abs=0.002)
    assert max(abs(a - b) for a, b in zip(plain, _losses(runs / "plain"), strict=True)) > 0.003


@pytest.mark.parametrize("optimizer", ["", "-muon"])
def test_weights_decay_as_the_optimizer_lets_them(runs: Path, optimizer: str) -> None:
    """Behind a norm the size of a matrix changes no loss."""
    plain, packed = (load_model(runs / f"{name}{optimizer}") for name in ("plain", "packed"))
    for (name, one), other in zip(plain.named_parameters(), packed.parameters(), strict=True):
        assert (other.norm() / one.norm()).item() == pytest.approx(1, abs=0.01), name


@pytest.mark.parametrize("optimizer", ["", "-muon"])
def test_every_rung_gives_the_same_bytes(runs: Path, optimizer: str) -> None:
    assert _bytes(runs / f"packed{optimizer}") == _bytes(runs / f"disk{optimizer}")
    assert not list((runs / f"disk{optimizer}").glob("*scratch*"))


@pytest.mark.parametrize("optimizer", [{}, {"optimizer": "muon", "momentum_warmup": 4}])
def test_a_run_goes_on_on_another_rung(
    runs: Path, text_file: Path, tmp_path: Path, optimizer: dict[str, Any]
) -> None:
    name = "packed-muon" if optimizer else "packed"
    shutil.copytree(runs / name, tmp_path / name)
    shutil.rmtree(tmp_path / name / "steps/step_00000006")
    _train(text_file, tmp_path, name, offload="disk", offload_dir=tmp_path, **optimizer)
    assert _bytes(tmp_path / name) == _bytes(runs / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


def test_bfloat16_keeps_the_rests_with_the_states(text_file: Path, tmp_path: Path) -> None:
    half = {"optimizer": "muon", "cautious_decay": True, "use_mixed_precision": True}
    half |= {"max_iters": 3, "weight_decay": 1.0, "sample_tokens": 0}
    for rung in ("packed", "disk"):
        _train(text_file, tmp_path, rung, offload=rung, **half)
    assert _bytes(tmp_path / "packed") == _bytes(tmp_path / "disk")
    _train(text_file, tmp_path, "plain", **half)
    assert _losses(tmp_path / "packed") == pytest.approx(_losses(tmp_path / "plain"), abs=0.02)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("plain", {"offload": "packed", "optimizer": "adamw"}),
        ("packed", {"offload": "none", "optimizer": "adamw"}),
        ("plain-muon", {"offload": "packed", "optimizer": "muon"}),
        ("packed-muon", {"offload": "none", "optimizer": "muon"}),
    ],
)
def test_moments_of_the_other_kind_are_refused(
    runs: Path, text_file: Path, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    shutil.copytree(runs / name, tmp_path / name)
    with pytest.raises(UsageError, match=r"moments of (AdamW|PackedAdamW)"):
        _train(text_file, tmp_path, name, **options, max_iters=8)


def test_cautious_decay_without_muon_is_refused(text_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cautious_decay is True, expected --optimizer muon"):
        _train(text_file, tmp_path, "run", offload="packed", optimizer="adamw", cautious_decay=True)


def test_the_model_loads_as_any_other(runs: Path) -> None:
    from lowtide.model.weights import load_model

    model = load_model(runs / "packed")
    ids = torch.arange(20)[None] % model.config.vocab_size
    assert torch.isfinite(model(ids)).all()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_bad_step_changes_nothing(text_file: Path, tmp_path: Path, optimizer: str) -> None:
    with pytest.raises(LowtideError, match="not finite"):
        _train(
            text_file, tmp_path, "bad", offload="packed", learning_rate=1e30, max_bad_steps=2,
            max_iters=40, eval_interval=100, save_interval=1, grad_clip=0, optimizer=optimizer,
        )  # fmt: skip
    steps = sorted((tmp_path / "bad/steps").iterdir())
    assert steps
    model_bytes = {(step / "model.safetensors").read_bytes() for step in steps[-2:]}
    assert len(model_bytes) == 1  # the last steps were skipped: not a bit moved


@pytest.mark.parametrize(
    "options",
    [
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
    with pytest.raises(
        UsageError, match=rf"offload_dir is .{tmp_path}., expected --offload disk or"
    ):
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
    monkeypatch.setattr(filehome, "free_disk_bytes", lambda path: 1000)
    with pytest.raises(LowtideError, match=r"the scratch file takes .* free") as error:
        _train(text_file, tmp_path, "run", offload="disk")
    assert "--offload-dir" in str(error.value)


def test_a_disk_that_fails_during_a_step_leaves_a_checkpoint_to_go_on_from(
    runs: Path, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_later(*given: Any) -> int:
        newest = tmp_path / "disk/steps/step_00000003"
        if newest.exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pwrite(given[0], given[1][0], given[2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", fail_later)
        with pytest.raises(LowtideError, match=r"the disk failed during a step \(Input/output"):
            _train(text_file, tmp_path, "disk", offload="disk", save_in_background=False)
    assert [step.name for step in (tmp_path / "disk/steps").iterdir()] == ["step_00000003"]
    _train(text_file, tmp_path, "disk", offload="disk")
    assert _bytes(tmp_path / "disk") == _bytes(runs / "packed")


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


@pytest.mark.parametrize("rung", ["packed", "disk"])
def test_memory_that_runs_out_halves_the_micro_batch(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rung: str
) -> None:
    """In the middle of a backward pass, with a block in use; then the step is that of two parts."""
    options = {"offload": rung, "max_iters": 2, "sample_tokens": 0}
    _train(text_file, tmp_path, "halved", **options, batch_size=2, gradient_accumulation_steps=2)
    fails = iter([True])
    backward = executor.gradients_of

    def fail_once(y: Any, inputs: Any, gradient: Any) -> Any:
        if len(inputs) > 3 and next(fails, False):
            raise torch.OutOfMemoryError("no memory left")
        return backward(y, inputs, gradient)

    monkeypatch.setattr(executor, "gradients_of", fail_once)
    _train(text_file, tmp_path, "failed", **options)
    assert _losses(tmp_path / "failed") == _losses(tmp_path / "halved")
    assert _bytes(tmp_path / "failed") == _bytes(tmp_path / "halved")


def test_sums_that_torch_cannot_order_are_added_all_the_same(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"offload": "packed", "max_iters": 2, "sample_tokens": 0}
    _train(text_file, tmp_path, "whole", **options)
    refuses = iter(["no deterministic implementation", "no deterministic implementation"])
    backward, modes = executor.gradients_of, list[bool]()

    def refuse_once(y: Any, inputs: Any, gradient: Any) -> Any:
        modes.append(torch.are_deterministic_algorithms_enabled())
        if modes[-1]:
            raise RuntimeError(next(refuses))
        return backward(y, inputs, gradient)

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # and gone with the test
    monkeypatch.setattr(executor, "gradients_of", refuse_once)
    as_on_a_gpu = functools.partial(ExactSums, torch.device("cuda"))
    monkeypatch.setattr(engine, "ExactSums", lambda device, note: as_on_a_gpu(note))
    _train(text_file, tmp_path, "refused", **options)
    assert modes[0] and not any(modes[1:])
    assert next(refuses)  # the second was never asked for
    assert _losses(tmp_path / "refused") == _losses(tmp_path / "whole")
    assert _bytes(tmp_path / "refused") == _bytes(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="another fault"):
        monkeypatch.setattr(executor, "gradients_of", _fail)
        _train(text_file, tmp_path, "failed", **options)


def _fail(*_: Any) -> Any:
    raise RuntimeError("another fault")


def test_several_processes_are_refused() -> None:
    group = ProcessGroup(1, 2, torch.device("cpu"))
    with pytest.raises(UsageError, match="in one process, and these are 2"):
        backend._require_device(group)


def test_a_device_without_kernels_is_refused() -> None:
    with pytest.raises(UsageError, match="needs an NVIDIA GPU and Triton"):
        backend._require_device(ProcessGroup(0, 1, torch.device("meta")))


def test_a_cpu_says_that_it_has_one_memory(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _train(text_file, tmp_path, "layers", offload="layers", max_iters=1, sample_tokens=0)
    assert "--offload layers is packed on a CPU, which has one memory" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_rung_of_a_gpu_gives_the_same_bytes(
    text_file: Path, tmp_path: Path, optimizer: str
) -> None:
    rungs = ("packed", "gradients", "optimizer", "layers", "disk", "disk-all")
    for rung in rungs:
        _train(
            text_file, tmp_path, rung, offload=rung, device="cuda", optimizer=optimizer,
            use_mixed_precision=True, gradient_accumulation_steps=2, width=64, seq_len=256,
        )  # fmt: skip
    first, *others = (_bytes(tmp_path / rung) for rung in rungs)
    assert all(other == first for other in others)


def test_what_the_host_cannot_hold_is_refused_before_it_is_taken(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, whose rungs put states into the host's memory."""
    settled: list[Any] = []
    monkeypatch.setattr(ProcessGroup, "on_cpu", property(lambda self: False))
    monkeypatch.setattr(network.PackedGPT, "settle", lambda *given, **_: settled.append(given))
    with pytest.raises(BudgetError, match=r"--offload layers needs .* of host memory"):
        _train(text_file, tmp_path, "large", offload="layers", memory="400MiB")
    assert not settled


@pytest.mark.parametrize("rung", ["packed", "gradients", "layers", "disk", "disk-all"])
@pytest.mark.parametrize("on_cpu", [False, True])
@pytest.mark.parametrize("locked", [False, True])
def test_what_a_device_cannot_do_is_told(rung: str, on_cpu: bool, locked: bool) -> None:
    made: Any = SimpleNamespace(
        _settings=SimpleNamespace(machine=SimpleNamespace(offload=rung)),
        _group=SimpleNamespace(on_cpu=on_cpu),
        _placement=SimpleNamespace(is_locked=locked),
    )
    words = [note.partition(" ")[0] for note in LadderEngine.notes.fget(made)]  # type: ignore[misc]
    is_another = on_cpu and rung in ("gradients", "layers", "disk-all")
    assert words == ["--offload"] * is_another + ["the"] * (not locked)
