"""What a probe trains, and what it answers."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.training import probe


@pytest.mark.parametrize("part", ["plain", "recompute", "8bit", "compile", "jax"])
def test_a_probe_does_once_all_that_a_run_does(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    made: list[Any] = []

    class Noting:
        def __init__(self, model: Any, *, data: Any, val_data: Any, **options: Any) -> None:
            made.append((model, data is val_data, data, options))

        def fit(self) -> None:
            made.append("fit")

    monkeypatch.setattr(probe, "Trainer", Noting)
    backend: Any = SimpleNamespace(new_model=lambda shape, seed: (shape, seed))
    probe.train_next_to_nothing(tmp_path, backend, part=part, device="cpu")
    (model, same, data, options), fitted = made
    layers = 2 if part == "jax" else 1  # JAX compiles more than one as a loop
    assert model == (probe._SHAPE.replace(num_layers=layers), 0) and same and fitted == "fit"
    assert (data.num_tokens, len(data[0][0])) == (1000, 16)
    ids = data.read_tokens(0, 1000)
    assert ids.min() == 2 and ids.max() == 61
    assert options.pop("tokenizer").vocab_size <= probe._SHAPE.vocab_size
    assert options == {
        "checkpoints_dir": tmp_path, "max_iters": 2, "eval_interval": 1, "eval_iters": 1,
        "batch_size": 2, "sample_tokens": 2, "optimizer": "adamw" if part == "8bit" else "muon",
        "use_8bit_optimizer": part == "8bit", "compile": part == "compile",
        "activation_checkpointing": part == "recompute", "device": "cpu", "memory": "1TiB",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("part", "opened"), [("plain", "torch"), ("8bit", "torch"), ("jax", "jax")]
)
def test_a_probe_answers_with_its_peak(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, part: str, opened: str
) -> None:
    trained: list[Any] = []
    backend = SimpleNamespace(device_kind=lambda device: f"kind of {device}")

    class EndedError(Exception):
        pass

    def end(code: int) -> None:
        trained.append(code)
        raise EndedError

    def meter(whole_process: bool) -> Any:
        assert whole_process
        return contextlib.nullcontext(SimpleNamespace(peak_bytes=99))

    def train(*given: Any, **options: Any) -> None:
        print("to be seen by nobody that reads the answer")
        trained.append((*given, options))

    monkeypatch.setattr(probe.sys, "argv", ["probe", part, "cpu"])
    monkeypatch.setattr(probe, "open_backend", lambda name: trained.append(name) or backend)
    monkeypatch.setattr(probe, "tree_resident_bytes", lambda: 33)
    monkeypatch.setattr(probe, "PeakMeter", meter)
    monkeypatch.setattr(probe, "scratch_folder", lambda name: contextlib.nullcontext(tmp_path))
    monkeypatch.setattr(probe, "train_next_to_nothing", train)
    monkeypatch.setattr(probe.os, "_exit", end)
    with pytest.raises(EndedError):
        probe.main()
    assert trained == [opened, (tmp_path, backend, {"part": part, "device": "cpu"}), 0]
    spread = 40 << 20 if part == "jax" else 0  # what JAX's compiler takes differs by chance
    answer = {"imported_bytes": 33, "trained_bytes": 99 + spread, "device": "kind of cpu"}
    assert json.loads(capsys.readouterr().out) == answer
