"""The rung that --offload auto takes: the first that fits GPU, host and disk."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.errors import BudgetError, UsageError
from lowtide.flatsettings import replace_settings
from lowtide.gpus import CUDA_CONTEXT_BYTES, Gpu
from lowtide.model.config import GPTConfig
from lowtide.model.program import Program
from lowtide.model.sizing import shape_for_parameters
from lowtide.training import offloading, rungs
from lowtide.training.admission import refuse_hopeless
from lowtide.training.fitting import rows_on_device
from lowtide.training.footprint import fit_device_batch, fit_micro_batch, planned_bytes
from lowtide.training.offloading import RUNGS, step_traffic
from lowtide.training.rungs import Limits, choose_rung, find_limits, host_budget_bytes
from lowtide.training.settings import TrainSettings, train_settings

GIB = 1 << 30
PROGRAM = Program(300 << 20, 320 << 20)
CONFIG = shape_for_parameters(1_000_000_000, vocab_size=32000, context_length=1024)


def _settings(**options: object) -> TrainSettings:
    given = {"offload": "auto", "batch_size": 4, "gradient_accumulation_steps": 4, "seq_len": 1024}
    return train_settings(use_mixed_precision=True, optimizer="adamw", **{**given, **options})  # pyright: ignore[reportArgumentType]


def _chosen(limits: Limits, **options: object) -> str:
    chosen = choose_rung(_settings(**options), CONFIG, program=PROGRAM, limits=limits)
    return chosen.machine.offload


@pytest.mark.parametrize(
    ("device", "host", "expected"),
    [
        (40, 64, "none"),
        (11, 64, "packed"),
        (8, 64, "gradients"),
        (5, 64, "optimizer"),
        (3, 64, "layers"),
        (3, 8, "disk"),
        (3, 5, "disk-all"),
        (40, 12, "packed"),  # whose checkpoints are not copied on the host
    ],
)
def test_the_first_rung_that_fits_is_taken(device: int, host: int, expected: str) -> None:
    assert _chosen(Limits(True, device * GIB, host * GIB, None)) == expected


def test_a_cpu_has_packed_and_disk() -> None:
    sizes = {
        rung: planned_bytes(
            CONFIG, _settings(offload=rung), micro_batch=1, program=PROGRAM
        ).budget_bytes
        for rung in RUNGS
    }
    assert sizes["none"] > sizes["packed"] > sizes["disk"]
    for rung in ("none", "packed", "disk"):
        assert _chosen(Limits(False, sizes[rung], sizes[rung], None)) == rung
    with pytest.raises(BudgetError, match=r"no rung of --offload fits.*GiB of memory") as caught:
        _chosen(Limits(False, sizes["disk"] - 1, GIB, 50 * GIB))
    assert f"--memory {-(-sizes['disk'] // (1 << 20))}MiB" in str(caught.value.next_step)


def test_the_smallest_rung_is_the_last_that_goes_with_the_settings() -> None:
    smallest = rungs.smallest_rung(_settings(), CONFIG, PROGRAM).machine.offload
    assert smallest.startswith("disk")
    eight = _settings(offload="none", float8_head=True)
    assert rungs.smallest_rung(eight, CONFIG, PROGRAM).machine.offload == "none"


def test_a_small_model_with_many_rows_takes_least_without_a_rung() -> None:
    """Rungs keep the inputs of blocks for all tokens of a step; a row at a time needs none."""
    config = GPTConfig(1024, 64, 1, 32, 1)
    settings = _settings(batch_size=4096, gradient_accumulation_steps=1, seq_len=64)
    assert rungs.smallest_rung(settings, config, PROGRAM).machine.offload == "none"
    plain = replace_settings(settings, offload="none")
    need = planned_bytes(config, plain, micro_batch=1, program=PROGRAM).budget_bytes
    enough = replace_settings(settings, memory=str(need))
    refuse_hopeless(replace_settings(enough, width=32, num_layers=1, num_heads=1), program=PROGRAM)
    limits = Limits(False, need, need, None)
    chosen = choose_rung(settings, config, program=PROGRAM, limits=limits)
    assert chosen.machine.offload == "none"
    with pytest.raises(BudgetError, match="no rung of --offload fits") as caught:
        choose_rung(settings, config, program=PROGRAM, limits=Limits(False, 1, 1, None))
    assert f"--memory {-(-need // (1 << 20))}MiB" in str(caught.value.next_step)


def test_a_disk_that_is_too_small_counts() -> None:
    with pytest.raises(BudgetError, match=r"of the GPU .* of the host .* of disk \(1.0 GiB\)"):
        _chosen(Limits(True, 3 * GIB, 8 * GIB, GIB))


def test_settings_that_no_rung_has_leave_none() -> None:
    small = Limits(True, 3 * GIB, 64 * GIB, None)
    with pytest.raises(BudgetError, match="no rung"):
        _chosen(small, float8_head=True)
    assert _chosen(Limits(True, 40 * GIB, 64 * GIB, None), float8_head=True) == "none"
    with pytest.raises(UsageError, match="not with --offload auto"):
        _settings(backend="jax")


def test_the_limits_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rungs, "find_gpu", lambda number: Gpu("A", 24 * GIB, (20 + number) * GIB))
    monkeypatch.setattr(rungs, "available_bytes", lambda: 100 * GIB)
    monkeypatch.setattr(rungs, "default_budget_bytes", lambda: 50 * GIB)
    folder = tmp_path / "not there yet"
    settings = _settings(device="cuda:1", checkpoints_dir=folder)
    found = find_limits(settings, Program(1, 1, device="cuda"))
    assert (found.device_bytes, found.host_bytes) == (21 * GIB, 90 * GIB)
    assert found.disk_bytes is not None and found.disk_bytes > 0
    first = _settings(device="cuda", checkpoints_dir=folder)
    assert find_limits(first, Program(1, 1, device="cuda")).device_bytes == 20 * GIB
    given = _settings(vram="8GiB", memory="9GiB", checkpoints_dir=folder)
    found = find_limits(given, Program(1, 1, device="cuda"))
    assert (found.device_bytes, found.host_bytes) == (8 * GIB, 9 * GIB)
    found = find_limits(given, PROGRAM)
    assert (found.on_gpu, found.device_bytes) == (False, 9 * GIB)
    assert host_budget_bytes(_settings().machine, on_gpu=False) == 50 * GIB
    assert host_budget_bytes(_settings(offload="none").machine, on_gpu=True) == 50 * GIB


def test_a_gpu_s_micro_batch_is_known_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowtide.training.footprint.find_program", lambda *_, **__: PROGRAM)
    settings = _settings(offload="optimizer", batch_size=64, gradient_accumulation_steps=1)

    def need(rows: int) -> int:
        plan = planned_bytes(CONFIG, settings, micro_batch=rows, on_gpu=True)
        return plan.device_budget_bytes + CUDA_CONTEXT_BYTES

    host = 64 * GIB
    assert fit_device_batch(CONFIG, settings, device_bytes=None, host_bytes=host) == 64
    assert fit_device_batch(CONFIG, settings, device_bytes=need(16), host_bytes=host) == 16
    assert fit_device_batch(CONFIG, settings, device_bytes=need(16) - 1, host_bytes=host) == 8
    with pytest.raises(BudgetError, match="even one row") as caught:
        fit_device_batch(CONFIG, settings, device_bytes=need(1) - 1, host_bytes=host)
    assert "--vram" in str(caught.value.next_step)
    with pytest.raises(BudgetError, match=r"--offload optimizer needs .* of host memory"):
        fit_device_batch(CONFIG, settings, device_bytes=None, host_bytes=GIB)


def test_auto_keeps_what_was_free_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its micro-batches are chosen before the first step, not by running out of memory."""
    program, free = dataclasses.replace(PROGRAM, device="cuda"), 9 * GIB
    monkeypatch.setattr("lowtide.training.footprint.find_program", lambda *_, **__: program)
    monkeypatch.setattr(rungs, "find_gpu", lambda number: Gpu("A", 24 * GIB, free))
    settings = _settings(memory="64GiB", batch_size=64)
    chosen = choose_rung(settings, CONFIG, program=program)
    assert (chosen.machine.offload, chosen.machine.vram) == ("gradients", str(free))
    model: Any = SimpleNamespace(config=CONFIG)
    rows = rows_on_device(model, chosen, on_cpu=False, host_bytes=64 * GIB)
    assert rows is not None and 1 <= rows < 64
    need = planned_bytes(CONFIG, chosen, micro_batch=rows, on_gpu=True, program=program)
    assert need.device_budget_bytes + CUDA_CONTEXT_BYTES <= free
    # Where everything fits, too: auto means none there.
    small = shape_for_parameters(100_000_000, vocab_size=32000, context_length=1024)
    plain = choose_rung(settings, small, program=program)
    assert (plain.machine.offload, plain.machine.vram) == ("none", str(free))
    given = choose_rung(_settings(memory="64GiB", vram="8GiB"), CONFIG, program=program)
    assert given.machine.vram == "8GiB"


def test_a_gpu_that_nothing_is_known_of_is_described_by_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = dataclasses.replace(PROGRAM, device="cuda")
    monkeypatch.setattr(rungs, "find_gpu", lambda number: None)
    with pytest.raises(UsageError, match="how much of the GPU is free is not known") as caught:
        choose_rung(_settings(), CONFIG, program=program)
    assert "--vram" in str(caught.value.next_step)
    given = _settings(vram="40GiB", memory="64GiB")
    assert choose_rung(given, CONFIG, program=program).machine.offload == "none"


@pytest.mark.parametrize(
    ("rung", "advice"),
    [
        ("packed", "MiB, or a smaller model, or --offload disk"),
        ("layers", "MiB, or a smaller model, or --offload disk"),
        ("disk", "MiB, or a smaller model, or --offload disk-all"),
        ("disk-all", "MiB, or a smaller model"),
    ],
)
def test_advice_names_a_rung_that_takes_less(
    monkeypatch: pytest.MonkeyPatch, rung: str, advice: str
) -> None:
    monkeypatch.setattr("lowtide.training.footprint.find_program", lambda *_, **__: PROGRAM)
    with pytest.raises(BudgetError, match=f"--offload {rung} needs") as caught:
        fit_device_batch(CONFIG, _settings(offload=rung), device_bytes=None, host_bytes=1)
    assert str(caught.value.next_step).endswith(advice)
    with pytest.raises(BudgetError, match="even one row") as caught:
        fit_micro_batch(CONFIG, _settings(offload=rung), 1, program=PROGRAM)
    assert ("--offload auto" in str(caught.value.next_step)) == (not rung.startswith("disk"))


def test_each_rung_moves_more_than_the_one_before() -> None:
    found = [step_traffic(CONFIG, _settings(offload=rung)) for rung in RUNGS]
    assert found[0] == found[1] and found[0].update_in == 0
    crossing = [t.weights_in + t.gradients_out + t.update_in + t.update_out for t in found]
    assert crossing == sorted(crossing)
    assert crossing[2] < crossing[3] < crossing[4] == crossing[5] == crossing[6]
    assert [t.disk_written > 0 for t in found] == [False] * 5 + [True, True]


def test_weights_in_a_file_are_read_three_times_a_step_and_gradients_once() -> None:
    states, whole = (step_traffic(CONFIG, _settings(offload=rung)) for rung in RUNGS[-2:])
    assert (states.disk_weights, states.disk_gradients) == (0, 0)
    weights, gradients = whole.weights_in // 2, whole.gradients_out
    assert (whole.disk_weights, whole.disk_gradients) == (2 * weights, gradients)
    assert whole.disk_read == states.disk_read + weights + gradients
    assert whole.disk_written == states.disk_written + weights
    disk, both = (
        offloading.offload_bytes(CONFIG, _settings(offload=rung), rows=1, on_gpu=True)
        for rung in RUNGS[-2:]
    )
    leaving = weights + gradients
    assert both.file - disk.file == pytest.approx(leaving, rel=1e-6)
    kept = 2 * leaving / CONFIG.num_layers
    assert disk.host - both.host == pytest.approx(leaving - kept, rel=1e-6)


def test_a_gpu_that_shares_the_memory_is_counted_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apple's has none of its own, and nothing of a run lies anywhere else."""
    monkeypatch.setattr(rungs, "available_bytes", lambda: 40 * GIB)
    program = dataclasses.replace(PROGRAM, device="mps")
    limits = find_limits(_settings(), program)
    assert limits.on_gpu and limits.device_bytes == 40 * GIB
    assert choose_rung(_settings(), CONFIG, program=program).machine.offload == "none"
    monkeypatch.setattr(rungs, "available_bytes", lambda: GIB)
    with pytest.raises(BudgetError, match="no rung of --offload fits"):
        choose_rung(_settings(), CONFIG, program=program)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_one_matrix_goes_through_the_polynomials_where_a_stack_is_too_large(on_gpu: bool) -> None:
    """Three of the largest at once: two small matrices, a full stack, or one beyond a stack."""
    for width, mlp, largest in (
        (8, 24, 2 * 8 * 24),
        (4096, 12_288, offloading.STACK_NUMBERS),
        (8192, 24_576, 8192 * 24_576),
    ):
        config = GPTConfig(64, 8, 1, width, 1, mlp_width=mlp)
        numbers = 3 * largest + 3 * width * width
        assert offloading._update_bytes(config, on_gpu=on_gpu) == numbers * (2 if on_gpu else 4)


@pytest.mark.parametrize(
    ("device", "number"), [("auto", 0), ("cuda", 0), ("cuda:0", 0), ("cuda:3", 3)]
)
def test_the_gpu_that_is_meant_is_looked_at(monkeypatch, device, number):
    asked = []
    monkeypatch.setattr(rungs, "find_gpu", asked.append)
    found = find_limits(_settings(device=device), Program(1, 1, device="cuda"))
    assert asked == [number] and found.device_bytes == 0
