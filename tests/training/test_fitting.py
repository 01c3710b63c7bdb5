"""What a device holds is asked only where a limit is known."""

from __future__ import annotations

import types

import pytest
from torch import nn

from lowtide.errors import BudgetError
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.training import fitting
from lowtide.training.fitting import rows_on_device
from lowtide.training.modules import wrap_module
from lowtide.training.optimizers import build_optimizers
from lowtide.training.settings import train_settings


def test_a_device_without_a_limit_takes_any_rows(make_trainer):
    trainer = make_trainer(batch_size=8)
    settings = trainer.settings
    assert rows_on_device(trainer.model, settings, on_cpu=True, host_bytes=1) is None
    assert rows_on_device(trainer.model, settings, on_cpu=False, host_bytes=1) is None
    limited = train_settings(vram="800MiB", batch_size=8, seq_len=16)
    rows = rows_on_device(trainer.model, limited, on_cpu=False, host_bytes=1)
    assert rows is not None and rows <= 8
    module = types.SimpleNamespace(config=ModuleConfig("Net", 9, 16, 10, 10, 2))
    assert rows_on_device(module, limited, on_cpu=False, host_bytes=1) is None


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_states_of_a_module_are_counted_as_they_are(name):
    module = nn.Sequential(nn.Embedding(64, 8), nn.Linear(8, 8), nn.Linear(8, 64, bias=False))
    module[0].requires_grad_(False)
    settings = train_settings(optimizer=name, seq_len=4)
    wrapped = wrap_module(module, seq_len=4)
    counted = wrapped.training_bytes(
        settings.learning, tokens_per_step=settings.tokens_per_step, has_own_optimizer=False
    )
    weights = sum(p.numel() * 4 for p in module.parameters())
    gradients = weights - 64 * 8 * 4
    assert (
        wrapped.training_bytes(
            settings.learning, tokens_per_step=settings.tokens_per_step, has_own_optimizer=True
        )
        == weights + gradients
    )
    optimizers = build_optimizers(module, name=name, learning_rate=0.1)
    for parameter in module.parameters():
        parameter.grad = parameter.detach().clone() if parameter.requires_grad else None
    optimizers.step()
    moments = [
        value
        for one in optimizers.optimizers
        for state in one.state.values()
        for key, value in state.items()
        if key in ("exp_avg", "exp_avg_sq", "momentum")
    ]
    assert counted == weights + gradients + sum(value.numel() * 4 for value in moments)
    large = nn.Sequential(nn.Embedding(1024, 8), nn.Linear(8, 1024, bias=False))
    eight = train_settings(use_8bit_optimizer=True, seq_len=4)
    wrapped = wrap_module(large, seq_len=4)
    assert wrapped.training_bytes(
        eight.learning, tokens_per_step=eight.tokens_per_step, has_own_optimizer=False
    ) == 2 * 8192 * (4 + 4 + 2)


@pytest.mark.parametrize(("states", "program", "fits"), [(60, 40, True), (61, 40, False)])
def test_a_module_without_any_batch_must_fit(states, program, fits):
    mib = 1 << 20
    if fits:
        fitting._require_states(states * mib, program * mib, 100 * mib)
        return
    with pytest.raises(BudgetError) as refused:
        fitting._require_states(states * mib, program * mib, 100 * mib)
    assert refused.value.message == (
        "this module needs 101.0 MiB before its first batch (weights, gradients and moments "
        "61.0 MiB, program 40.0 MiB), the budget is 100.0 MiB"
    )
    assert refused.value.next_step == "give more than memory='101MiB', or a smaller module"


@pytest.mark.parametrize(
    ("dataset_id", "is_stream", "data_bytes"),
    [(None, True, 7), ("texts", True, 0), (None, False, 0)],
)
@pytest.mark.parametrize(("total", "returns"), [(100, False), (101, True)])
def test_what_is_counted_in_the_process_that_trains(
    monkeypatch, dataset_id, is_stream, data_bytes, total, returns
):
    calls = []

    def note(name, result):
        return lambda *given, **options: calls.append((name, given, options)) or result

    class Stream(fitting.StreamingDataLoader):
        memory_bytes = 7

    plan = types.SimpleNamespace(total_bytes=total)
    monkeypatch.setattr(fitting, "program_here", note("program", "program"))
    monkeypatch.setattr(fitting, "fit_micro_batch", note("fit", 3))
    monkeypatch.setattr(fitting, "planned_bytes", note("plan", plan))
    monkeypatch.setattr(fitting, "return_large_blocks", note("return", None))
    settings = train_settings(dataset_id=dataset_id, device="cpu")
    data = object.__new__(Stream) if is_stream else "rows"
    backend = types.SimpleNamespace(held_bytes=lambda model: 11)
    model = types.SimpleNamespace(config="config")
    budget = int(fitting._ROOM * 100)
    found = fitting.rows_in_budget(
        backend, model, settings, data=data, program=None, budget_bytes=budget
    )
    shared = {"program": "program", "data_bytes": data_bytes}
    assert found == 3
    assert calls[:3] == [
        ("program", (11,), {"device": "cpu", "backend": "torch"}),
        ("fit", ("config", settings, budget), {**shared, "is_running": True}),
        ("plan", ("config", settings), {**shared, "micro_batch": 3}),
    ]
    assert [call[0] for call in calls[3:]] == ["return"] * returns
    calls.clear()
    fitting.rows_in_budget(
        backend, model, settings, data=data, program="known", budget_bytes=budget
    )
    assert calls[0][0] == "fit" and calls[0][2]["program"] == "known"
