"""Estimate the training speed of a described GPU, with the copies of --offload.

In:      a Choice; FLOP/s of the GPU, bandwidth of the link to the host and of the disk
Out:     SpeedEstimate: tokens per second; tokens a step from which offloading is nearly free

Copies of weights, inputs of blocks and gradients overlap with computation. The optimizer's states
are copied after the backward pass, so their time adds to that of the step.
"""

from __future__ import annotations

import json
import subprocess
import sys

from lowtide.gpus import find_gpu
from lowtide.memory import parse_size
from lowtide.model.sizing import flops_per_token
from lowtide.packages import has_package
from lowtide.planning.choices import Choice
from lowtide.planning.settings import PlanSettings, parse_count
from lowtide.quickclasses import dataclass
from lowtide.training.offloading import Traffic, step_traffic

__all__ = ["Rates", "SpeedEstimate", "estimate_speed", "find_rates"]

# Of a GPU in training, and of PCIe 4.0 and an SSD, roughly; where nothing is given or measured.
_USUAL_FLOPS, _USUAL_LINK, _USUAL_DISK = 30e12, 20e9, 2e9
_TRAINING_SHARE = 0.4  # training reaches this share of the measured FLOP/s of large products
_TIMEOUT_SECONDS = 90

_FREE = 0.1
"""The share of a step up to which offloading is called nearly free."""
_COMPUTED_AGAIN = 4 / 3  # the forward pass of every block is computed twice, if it is


@dataclass(frozen=True)
class Rates:
    """What a machine does in a second."""

    flops: float
    """Operations of a GPU in training."""
    link_bytes: float
    """Between host and GPU, each way, both at once."""
    disk_bytes: float
    is_assumed: bool
    """Whether the GPU's rate is a typical one, neither measured nor given."""
    is_disk_assumed: bool = False
    """The same for the disk, which is never measured."""
    is_link_assumed: bool = False


@dataclass(frozen=True)
class SpeedEstimate:
    """The time of a step, by its parts."""

    rates: Rates
    compute_seconds: float
    copy_seconds: float
    """Copies that overlap with computation."""
    update_seconds: float
    """Copies of optimizer states to the device and back."""
    tokens_per_second: float
    free_from_tokens: int
    """Tokens a step from which offloading takes less than a tenth of it."""
    disk_bytes_per_step: int
    """Written to the disk, which wears it out."""


def find_rates(settings: PlanSettings) -> Rates:
    """Rates as given; else of this machine's GPU, by a probe of two seconds; else typical ones."""
    given = (
        settings.gpu_flops and float(parse_count(settings.gpu_flops, "gpu_flops")),
        settings.link_speed and float(parse_size(settings.link_speed)),
        settings.disk_speed and float(parse_size(settings.disk_speed)),
    )
    measured = None
    if settings.measure and None in given[:2] and has_package("torch") and find_gpu() is not None:
        measured = _measure()
    found = measured or (_USUAL_FLOPS, _USUAL_LINK)
    return Rates(
        given[0] or found[0],
        given[1] or found[1],
        given[2] or _USUAL_DISK,
        is_assumed=given[0] is None and measured is None,
        is_disk_assumed=given[2] is None,
        is_link_assumed=given[1] is None and measured is None,
    )


def _measure() -> tuple[float, float] | None:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "lowtide.training.rates"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = json.loads(done.stdout)
    return _TRAINING_SHARE * found["flops"], found["link_bytes"]


def estimate_speed(choice: Choice, rates: Rates) -> SpeedEstimate:
    """Estimate a choice on a GPU."""
    settings, config = choice.settings, choice.config
    traffic = step_traffic(config, settings)
    tokens = settings.tokens_per_step
    per_token = flops_per_token(config, settings.model.seq_len) / rates.flops
    if settings.machine.offload != "none" or settings.computing.activation_checkpointing:
        per_token *= _COMPUTED_AGAIN
    compute = per_token * tokens
    fixed, by_token = _copy_seconds(traffic, rates, tokens)
    update = max(
        traffic.update_in / rates.link_bytes,
        traffic.update_out / rates.link_bytes,
        (traffic.disk_read + traffic.disk_written) / rates.disk_bytes,
    )
    copies = fixed + by_token * tokens
    return SpeedEstimate(
        rates=rates,
        compute_seconds=compute,
        copy_seconds=copies,
        update_seconds=update,
        tokens_per_second=tokens / (max(compute, copies) + update),
        free_from_tokens=_free_from(per_token, fixed, by_token, update),
        disk_bytes_per_step=traffic.disk_written + traffic.disk_gradients,
    )


def _copy_seconds(traffic: Traffic, rates: Rates, tokens: int) -> tuple[float, float]:
    """Seconds of copies that overlap with computation: per step, and per token."""
    over_link = max(traffic.weights_in, traffic.gradients_out) / rates.link_bytes
    fixed = max(over_link, (traffic.disk_weights + traffic.disk_gradients) / rates.disk_bytes)
    return fixed, traffic.inputs / tokens / rates.link_bytes


def _free_from(per_token: float, fixed: float, by_token: float, update: float) -> int:
    """Tokens a step from which copies are hidden and the update takes a tenth of the computing."""
    hidden = fixed / max(per_token - by_token, per_token / 100)
    return int(max(hidden, update / (_FREE * per_token)))
