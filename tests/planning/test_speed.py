"""Estimates of a machine that offloads: what hides behind computing, and what does not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.gpus import Gpu
from lowtide.model.sizing import count_parameters, flops_per_token
from lowtide.planning import speed
from lowtide.planning.plan import make_plan
from lowtide.planning.settings import PlanSettings
from lowtide.planning.speed import Rates, estimate_speed, find_rates
from lowtide.planning.summary import describe_plan, plan_as_json
from lowtide.training.offloading import step_traffic

MACHINE = {"vram": "8GiB", "ram": "64GiB", "disk": "500GB", "tokens": "10B", "measure": False}


def test_the_cheapest_rung_that_fits_is_planned() -> None:
    plan = make_plan(size="1B", **MACHINE)
    assert plan.fits and plan.chosen is not None and plan.speed is not None
    assert plan.chosen.settings.machine.offload == "gradients"
    assert plan.chosen.settings.model.seq_len == 1024
    assert "--offload gradients" in plan.commands[-1] and "--vram 8GiB" in plan.commands[-1]
    text = describe_plan(plan)
    assert "on the host" in text and "by usual rates (30 TFLOP/s, 20 GB/s each way)" in text
    assert plan_as_json(plan)["speed"]["tokens_per_second"] == plan.speed.tokens_per_second


def test_a_model_beyond_the_host_goes_to_the_disk() -> None:
    given = {**MACHINE, "ram": "24GiB"}
    plan = make_plan(size="3B", **given)
    assert plan.fits and plan.chosen is not None and plan.chosen.footprint.offloaded is not None
    assert plan.chosen.settings.machine.offload == "disk"
    text = describe_plan(plan)
    assert "in a file" in text and "the disk is written" in text and "it wears by that" in text
    without = make_plan(size="3B", **{**given, "disk": "1GB"})
    assert without.chosen is None or not without.chosen.settings.machine.offload.startswith("disk")


def test_a_model_whose_layers_are_beyond_the_host_goes_to_the_disk_with_them() -> None:
    given = {**MACHINE, "ram": "10GiB", "batch_size": 1, "gradient_accumulation_steps": 4}
    plan = make_plan(size="3B", **given)
    assert plan.fits and plan.chosen is not None and plan.speed is not None
    assert plan.chosen.settings.machine.offload == "disk-all"
    states = make_plan(size="3B", offload="disk", **{**given, "ram": "24GiB"})
    assert states.speed is not None
    assert plan.speed.disk_bytes_per_step > 2 * states.speed.disk_bytes_per_step
    assert plan.speed.tokens_per_second < states.speed.tokens_per_second / 2


@pytest.mark.parametrize("rung", ["packed", "layers", "disk"])
def test_a_rung_that_was_asked_for_and_does_not_fit_is_planned_smaller(rung: str) -> None:
    """Nothing is tried that does not go with it, such as other 8-bit moments."""
    plan = make_plan(size="7B", offload=rung, **{**MACHINE, "ram": "12GiB"})
    assert plan.chosen is not None and plan.chosen.settings.machine.offload == rung
    assert "does not fit as asked" in describe_plan(plan)


def test_auto_is_what_plans_do() -> None:
    plans = [make_plan(size="1B", **MACHINE, **given) for given in ({}, {"offload": "auto"})]  # type: ignore[arg-type]
    assert plan_as_json(plans[0]) == plan_as_json(plans[1])


def test_a_smaller_plan_says_what_still_lacks_room() -> None:
    text = describe_plan(make_plan(size="3B", **{**MACHINE, "ram": "24GiB", "disk": "1GB"}))
    assert "nearest that fits" in text
    lacks = r"but prepare needs .* GiB of disk, 953.7 MiB are free; train needs .* of disk, 953.7 "
    assert re.search(lacks, text)


def test_a_rung_that_was_asked_for_stays() -> None:
    plan = make_plan(size="1B", offload="layers", batch_size=2, **MACHINE)
    assert plan.chosen is not None and plan.chosen.settings.machine.offload == "layers"
    assert not any("host" in change for change in plan.chosen.changes)


def test_a_gpu_that_holds_everything_has_a_speed_too() -> None:
    plan = make_plan(size="350M", gpu_flops="90T", offload="none", **MACHINE)
    assert plan.speed is not None and plan.chosen is not None and plan.disk_bytes_per_step == 0
    assert plan.speed.copy_seconds == plan.speed.update_seconds == plan.speed.free_from_tokens == 0
    per_token = flops_per_token(plan.chosen.config, 1024)
    again = 4 / 3 if plan.chosen.settings.computing.activation_checkpointing else 1
    assert plan.speed.tokens_per_second == pytest.approx(90e12 / per_token / again)
    text = describe_plan(plan)
    assert "tokens/s by rates given or measured (90 TFLOP/s): " in text
    assert "with --offload" not in text and "nearly free" not in text
    assert "by usual rates (30 TFLOP/s)" in describe_plan(make_plan(size="350M", **MACHINE))
    again_plan = make_plan(size="350M", activation_checkpointing=True, **MACHINE)
    assert again_plan.speed is not None and again_plan.chosen is not None
    per_token = flops_per_token(again_plan.chosen.config, 1024)
    assert again_plan.speed.tokens_per_second == pytest.approx(30e12 / per_token * 3 / 4)


def test_rates_that_nobody_gave_are_named() -> None:
    given = {**MACHINE, "ram": "24GiB", "size": "3B"}
    text = describe_plan(make_plan(gpu_flops="50T", disk_speed="20MB", **given))
    assert "(50 TFLOP/s, 20 GB/s each way as usual, disk 0.0 GB/s)" in text
    text = describe_plan(make_plan(link_speed="50GB", **given))
    assert "(30 TFLOP/s as usual, 50 GB/s each way, disk 2.0 GB/s as usual)" in text


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_cpu_with_states_in_a_file_says_what_a_step_writes(optimizer: str) -> None:
    given: dict[str, Any] = {"tokens": "1B", "measure": False, "optimizer": optimizer}
    plan = make_plan(ram="2GiB", disk="100GB", size="300M", **given)
    assert plan.chosen is not None and plan.chosen.settings.machine.offload == "disk"
    # Weights of 24 bits, gradients of 16 and moments of 8 of every block; its tables' moments.
    blocks = count_parameters(plan.chosen.config, embeddings=False)
    tables = count_parameters(plan.chosen.config) - blocks
    moment = 1 + 4 / 128
    moments = (1 if optimizer == "muon" else 2) * moment * blocks + 2 * moment * tables
    assert plan.disk_bytes_per_step == pytest.approx(5 * blocks + moments, rel=1e-6)
    assert plan.speed is None and "the disk is written" in describe_plan(plan)
    assert plan_as_json(plan)["disk_bytes_per_step"] == plan.disk_bytes_per_step
    assert make_plan(ram="64GiB", size="300M", **given).disk_bytes_per_step == 0


def test_a_request_that_leaves_rung_and_batch_open_fits_by_them() -> None:
    plan = make_plan(size="3B", **{**MACHINE, "ram": "24GiB"})
    assert plan.asked_fits and not plan.asked.fits
    assert "\nfits, with states in a file, steps of 16 rows\n" in describe_plan(plan)
    named = make_plan(size="3B", batch_size=128, **{**MACHINE, "ram": "24GiB"})
    assert not named.asked_fits
    assert "of the GPU (6.8 GiB), 36.9 GiB of the host (18.0 GiB).\n" in describe_plan(named)
    smaller = make_plan(size="7B", offload="layers", **{**MACHINE, "ram": "16GiB"})
    assert not smaller.asked_fits
    assert "needs 81.7 GiB of the host (12.0 GiB) even one row at a time." in describe_plan(smaller)


def test_twenty_billion_parameters_have_a_shape() -> None:
    given = {**MACHINE, "vram": "24GiB", "ram": "192GiB"}
    for size in ("14B", "20B"):
        plan = make_plan(size=size, **given)
        count = plan.compute.parameters
        assert plan.fits and abs(count / (float(size[:-1]) * 1e9) - 1) < 0.05


def test_computing_hides_copies_but_not_the_update() -> None:
    plan = make_plan(size="1B", offload="layers", batch_size=4, **MACHINE)
    assert plan.chosen is not None
    choice = plan.chosen
    traffic = step_traffic(choice.config, choice.settings)
    slow = estimate_speed(choice, Rates(1e12, 1e12, 1e9, is_assumed=False))
    fast = estimate_speed(choice, Rates(1e18, 1e9, 1e9, is_assumed=False))
    assert slow is not None and fast is not None
    tokens = choice.settings.tokens_per_step
    assert tokens / slow.tokens_per_second == pytest.approx(
        slow.compute_seconds + slow.update_seconds
    )
    assert fast.update_seconds == pytest.approx(traffic.update_in / 1e9)
    assert tokens / fast.tokens_per_second == pytest.approx(fast.copy_seconds + fast.update_seconds)
    assert fast.free_from_tokens > 1000 * slow.free_from_tokens


def test_rates_are_given_measured_or_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    given = PlanSettings(gpu_flops="100T", link_speed="25GB", disk_speed="3GB")
    assert find_rates(given) == Rates(100e12, 25e9, 3e9, is_assumed=False)
    monkeypatch.setattr(speed, "find_gpu", lambda: None)
    assert find_rates(PlanSettings()) == Rates(30e12, 20e9, 2e9, True, True, True)
    assert find_rates(PlanSettings(gpu_flops="9T")) == Rates(9e12, 20e9, 2e9, False, True, True)
    assert find_rates(PlanSettings(link_speed="9GB")) == Rates(30e12, 9e9, 2e9, True, True)
    monkeypatch.setattr(speed, "find_gpu", lambda: Gpu("A", 1, 1))
    answer: Any = SimpleNamespace(stdout='{"flops": 500e12, "link_bytes": 50e9}')

    def run(words: list[str], **options: Any) -> Any:
        assert words == [sys.executable, "-m", "lowtide.training.rates"]
        assert options == {"capture_output": True, "text": True, "check": True, "timeout": 90}
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(speed.subprocess, "run", run)
    found = find_rates(PlanSettings())
    assert found == Rates(200e12, 50e9, 2e9, is_assumed=False, is_disk_assumed=True)
    assert find_rates(PlanSettings(link_speed="9GB")).link_bytes == 9e9
    assert find_rates(PlanSettings(measure=False)).is_assumed
    answer = subprocess.TimeoutExpired("x", 90)
    assert find_rates(PlanSettings()).is_assumed


def test_a_config_file_that_leaves_the_rung_open_is_planned(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"target_params": 1000000000, "offload": "auto"}')
    plan = make_plan(config_file=tmp_path / "run.json", **MACHINE)
    assert plan.chosen is not None and plan.chosen.settings.machine.offload == "gradients"


def test_nothing_is_measured_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe knows nothing of disks: their speed alone is no reason for one."""
    measured: list[int] = []

    def measure() -> None:
        measured.append(1)

    monkeypatch.setattr(speed, "find_gpu", lambda: Gpu("A", 1, 1))
    monkeypatch.setattr(speed, "_measure", measure)
    find_rates(PlanSettings(gpu_flops="100T", link_speed="25GB"))
    assert not measured
    find_rates(PlanSettings(gpu_flops="100T", disk_speed="3GB"))
    find_rates(PlanSettings(link_speed="25GB", disk_speed="3GB"))
    assert len(measured) == 2


TRAFFIC: dict[str, Any] = {
    "weights_in": 30, "gradients_out": 20, "inputs": 800, "update_in": 50, "update_out": 40,
    "disk_read": 6, "disk_written": 8, "disk_weights": 3, "disk_gradients": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "fixed", "update", "written"),
    [
        ({}, 3.0, 5.0, 12),  # the weights over the link, the states in
        ({"gradients_out": 70}, 7.0, 5.0, 12),
        ({"update_out": 60}, 3.0, 6.0, 12),
        ({"disk_weights": 28}, 8.0, 5.0, 12),  # the disk is the slowest
        ({"disk_gradients": 29}, 8.0, 5.0, 37),
        ({"disk_read": 50, "disk_written": 10}, 3.0, 15.0, 14),
    ],
)
def test_every_copy_counts_where_it_is_the_slowest(
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, int],
    fixed: float,
    update: float,
    written: int,
) -> None:
    traffic = SimpleNamespace(**(TRAFFIC | changes))
    monkeypatch.setattr(speed, "step_traffic", lambda config, settings: traffic)
    monkeypatch.setattr(speed, "flops_per_token", lambda config, seq_len: 300 * seq_len)
    settings = SimpleNamespace(
        tokens_per_step=16,
        model=SimpleNamespace(seq_len=4),
        machine=SimpleNamespace(offload="layers"),
    )
    choice: Any = SimpleNamespace(settings=settings, config=None)
    rates = Rates(flops=800, link_bytes=10, disk_bytes=4, is_assumed=False)
    found = estimate_speed(choice, rates)
    copies = fixed + 80  # 800 / 10 for the inputs of blocks
    assert found.compute_seconds == pytest.approx(32)  # 4 / 3 * 1200 / 800 * 16
    assert found.copy_seconds == pytest.approx(copies)
    assert found.update_seconds == update
    assert found.tokens_per_second == pytest.approx(16 / (copies + update))
    assert found.disk_bytes_per_step == written
    assert found.rates == rates


@pytest.mark.parametrize(
    ("per_token", "fixed", "by_token", "update", "tokens"),
    [
        (2.0, 10.0, 1.0, 0.0, 10),  # what is left of computing hides the copies
        (2.0, 10.0, 2.0, 0.0, 500),  # none is left: at least a hundredth counts
        (2.0, 10.0, 5.0, 0.0, 500),
        (2.0, 10.0, 1.0, 4.0, 20),  # the update is a tenth of the computing
        (2.0, 50.0, 1.0, 4.0, 50),
    ],
)
def test_from_where_on_offloading_is_nearly_free(
    per_token: float, fixed: float, by_token: float, update: float, tokens: int
) -> None:
    assert speed._free_from(per_token, fixed, by_token, update) == tokens
