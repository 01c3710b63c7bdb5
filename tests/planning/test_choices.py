"""Rungs and sizes that plans choose: no machine gets less than a smaller one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from lowtide.model.sizing import count_parameters
from lowtide.planning.plan import Plan, make_plan
from lowtide.training.offloading import RUNGS

GIVEN: dict[str, Any] = {"tokenization": "gpt2", "tokens": "10B", "measure": False}


def planned(**given: Any) -> Plan:
    plan = make_plan(**GIVEN, **given)
    assert plan.chosen is not None and plan.chosen.fits
    return plan


def num_parameters(plan: Plan) -> int:
    assert plan.chosen is not None
    return count_parameters(plan.chosen.config)


def rung(plan: Plan) -> str:
    assert plan.chosen is not None
    return plan.chosen.settings.machine.offload


def test_a_large_gpu_beside_a_small_host_keeps_a_model_on_itself() -> None:
    """The rungs that need least of the GPU hold 2.1 billion in this host and this disk."""
    plan = planned(vram="80GiB", ram="16GiB", disk="10GB", size="20B")
    assert rung(plan) == "packed" and num_parameters(plan) > 8e9
    assert plan.chosen is not None
    assert plan.chosen.changes[0].endswith("parameters, the largest that fits")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_smaller_model_is_planned_on_the_first_rung_that_holds_it(optimizer: str) -> None:
    given = {"vram": "24GiB", "ram": "64GiB", "disk": "10GB", "optimizer": optimizer}
    plan = planned(size="20B", **given)
    same = planned(size=num_parameters(plan), **given)
    assert (rung(plan), plan.compute.steps) == (rung(same), same.compute.steps)


def test_a_rung_that_was_asked_for_has_smaller_steps_where_they_make_it_fit() -> None:
    """What blocks were given waits on the host: 7 billion parameters in steps of 128 rows do not
    fit, in steps of 16 they do."""
    given = {"vram": "8GiB", "ram": "64GiB", "size": "7B", "optimizer": "muon"}
    plan = planned(offload="layers", **given)
    assert num_parameters(plan) > 6.9e9 and rung(plan) == "layers"
    assert plan.chosen is not None and plan.chosen.changes == (
        "steps of 16 rows in 2 micro-batches",
    )
    assert plan.chosen.settings.batch.rows_per_step == 16
    named = planned(offload="layers", batch_size=128, **given)
    assert named.chosen is not None and named.chosen.settings.batch.rows_per_step == 128
    assert named.chosen.settings.model.seq_len < 1024


SIZES = {"vram": ("8GiB", "24GiB", "80GiB"), "ram": ("16GiB", "64GiB", "256GiB")}
DISKS = ("10GB", "4TB")


@pytest.mark.parametrize("size", ["1B", "20B"])
def test_no_machine_holds_less_than_a_smaller_one(size: str) -> None:
    plans = {
        (vram, ram, disk): planned(vram=vram, ram=ram, disk=disk, size=size)
        for vram, ram, disk in itertools.product(*SIZES.values(), DISKS)
    }
    for machine, plan in plans.items():
        for axis, steps in enumerate((*SIZES.values(), DISKS)):
            place = steps.index(machine[axis])
            if place + 1 == len(steps):
                continue
            larger = plans[(*machine[:axis], steps[place + 1], *machine[axis + 1 :])]
            assert num_parameters(larger) >= 0.99 * num_parameters(plan), (machine, axis)
            if axis == 0 and num_parameters(larger) == num_parameters(plan):
                assert RUNGS.index(rung(larger)) <= RUNGS.index(rung(plan)), machine
