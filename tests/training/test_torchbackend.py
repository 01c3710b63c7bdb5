"""What torch's backend hands on to networks and engines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lowtide.model.config import GPTConfig
from lowtide.training import torchbackend
from lowtide.training.distributed import ProcessGroup
from lowtide.training.modules import WrappedModule
from lowtide.training.settings import train_settings
from lowtide.training.torchbackend import BACKEND

CPU = torch.device("cpu")
CONFIG = GPTConfig(32, 16, 2, 16, 2)


@pytest.mark.parametrize("zero_init", [False, True])
def test_new_models_follow_their_seed(zero_init: bool) -> None:
    one, two, other = (BACKEND.new_model(CONFIG, seed=n, zero_init=zero_init) for n in (3, 3, 4))
    assert torch.equal(one.embedding.weight, two.embedding.weight)
    assert not torch.equal(one.embedding.weight, other.embedding.weight)
    assert bool(one.blocks[0].mlp.down.weight.any()) is not zero_init
    rows = np.ones((32, 16), np.float32)
    BACKEND.set_embedding(one, rows)
    assert (one.embedding.weight == 1).all()


def test_what_weights_take() -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2, bias=False).to(torch.bfloat16))
    assert BACKEND.held_bytes(module) == 4 * 20 + 2 * 10


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_weights_are_loaded_by_what_the_model_is(
    monkeypatch: pytest.MonkeyPatch, verify: bool, wrapped: bool
) -> None:
    calls: list[Any] = []
    note = lambda *given, **options: calls.append((*given, options))  # noqa: E731
    monkeypatch.setattr(torchbackend, "load_weights", note)
    model: Any = object.__new__(WrappedModule) if wrapped else SimpleNamespace()
    model.__dict__["load_weights"] = note
    BACKEND.load_weights(model, Path("folder"), verify=verify)
    given = (Path("folder"),) if wrapped else (model, Path("folder"))
    assert calls == [(*given, {"verify": verify})]


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_engine_is_made_of_what_is_given(monkeypatch: pytest.MonkeyPatch, wrapped: bool) -> None:
    calls: list[Any] = []

    def note(name: str, result: Any = None) -> Any:
        return lambda *given, **options: calls.append((name, *given, options)) or result

    for name in ("refuse_options", "_require_own", "cap_device_memory"):
        monkeypatch.setattr(torchbackend, name, note(name))
    monkeypatch.setattr(torchbackend, "Stepper", note("Stepper", "engine"))
    model: Any = object.__new__(WrappedModule) if wrapped else SimpleNamespace(config=CONFIG)
    settings, group = train_settings(), ProcessGroup(0, 1, CPU)
    made = BACKEND.make_engine(
        model,
        settings,
        "state",
        group,
        rows=3,
        given="given",
        note=print,  # type: ignore[arg-type]
    )
    assert made == "engine"
    names = [call[0] for call in calls]
    assert names == ["refuse_options"] * wrapped + ["_require_own", "cap_device_memory", "Stepper"]
    assert calls[-2][1:3] == (CPU, settings.machine.vram)
    assert calls[-1][1:5] == (model, settings, "state", group)
    options = calls[-1][5]
    assert (options["rows"], options["given"], options["note"]) == (3, "given", print)


def test_devices_are_asked_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchbackend, "device_memory", lambda device: ("memory of", device))
    monkeypatch.setattr(torchbackend, "pick_device", torch.device)
    monkeypatch.setattr(torchbackend, "open_process_group", lambda name: f"group on {name}")
    assert BACKEND.device_memory(ProcessGroup(0, 1, CPU)) == ("memory of", CPU)
    assert BACKEND.device_kind("cpu") == "cpu" and BACKEND.open_group("cpu") == "group on cpu"
