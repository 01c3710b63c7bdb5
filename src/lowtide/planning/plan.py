"""Make a plan: inspect data and machine, add up what the stages need, search settings that fit.

In:      PlanSettings
Out:     Plan; describe_plan in summary.py prints it
"""

from __future__ import annotations

from typing import Any

from lowtide.corpus.evaluations import find_item_files
from lowtide.keywords import takes_keywords
from lowtide.model.companions import companions_dir, has_tokenizer
from lowtide.model.config import find_model_dir, load_config
from lowtide.model.sizing import count_parameters, flops_per_token
from lowtide.notebooks import preformatted
from lowtide.planning.choices import (
    Choice,
    asked_for,
    find_fitting,
    usual_options,
    usual_shuffle_buffer,
)
from lowtide.planning.commands import write_commands
from lowtide.planning.compute import ComputePlan, plan_compute
from lowtide.planning.machine import Machine, find_machine
from lowtide.planning.needs import LoadingWay, StageNeed, loading_ways, stage_needs
from lowtide.planning.plandata import DataFacts, find_data
from lowtide.planning.settings import PlanSettings
from lowtide.planning.speed import SpeedEstimate, estimate_speed, find_rates
from lowtide.planning.trial import Trial, run_trial
from lowtide.quickclasses import dataclass
from lowtide.training.offloading import step_traffic

__all__ = ["Plan", "make_plan"]


@dataclass(frozen=True)
class Plan:
    """What a run will need, whether it fits, and what to do."""

    machine: Machine
    data: DataFacts
    asked: Choice
    """The requested settings."""
    chosen: Choice | None
    """The settings that fit: the same, or the nearest; None if none do."""
    needs: list[StageNeed]
    compute: ComputePlan
    ways: list[LoadingWay]
    commands: list[str]
    """Command lines to copy; empty if nothing fits."""
    named_batch: bool
    """Whether a batch size was asked for."""
    trial: Trial | None
    """The time of a few steps on this machine; None if none were run."""
    speed: SpeedEstimate | None
    """Estimated time of a step, for a described GPU or one that offloads."""

    @property
    def asked_fits(self) -> bool:
        """Whether the requested settings fit; open ones may be chosen to make them fit."""
        if self.asked.fits or self.chosen is None:
            return self.asked.fits
        return not self.named_batch and self.chosen.config == self.asked.config

    @property
    def disk_bytes_per_step(self) -> int:
        """Bytes that a step writes to scratch files, which wears out an SSD."""
        shown = self.chosen or self.asked
        if shown.settings.machine.offload == "none":
            return 0
        traffic = step_traffic(shown.config, shown.settings, on_gpu=self.machine.has_gpu)
        return traffic.disk_written + traffic.disk_gradients

    def _repr_html_(self) -> str:
        from lowtide.planning.summary import describe_plan  # which describes plans

        return preformatted(describe_plan(self))

    @property
    def fits(self) -> bool:
        """Whether every stage of the chosen settings fits."""
        return self.chosen is not None and all(need.fits for need in self.needs)


@takes_keywords(PlanSettings)
def make_plan(settings: PlanSettings) -> Plan:
    """Plan a run; options are the fields of PlanSettings.

    >>> plan = make_plan(ram="8GiB", tokens="500M", size="10M")
    >>> plan.fits, plan.needs[-1].stage
    (True, 'train')
    """
    find_item_files(settings.decontaminate)  # first: report a name that is not a file
    settings = _with_tokenizer(settings)
    machine = find_machine(settings)
    data = find_data(settings, machine)
    given = settings.training_options()
    base = settings.init_from_model
    wanted = usual_options(
        given,
        machine,
        names_a_model=settings.names_a_model,
        train_tokens=data.train_tokens,
        context=None if base is None else load_config(find_model_dir(base)).context_length,
    )
    wanted = _stream_options(settings, data, machine, wanted["seq_len"]) | wanted
    asked = asked_for(wanted, data.vocab_size, machine)
    named_batch = "batch_size" in given or "gradient_accumulation_steps" in given
    chosen = asked
    if not asked.fits:
        chosen = find_fitting(wanted, data.vocab_size, machine, named_batch=named_batch)
    shown = chosen or asked
    trial = run_trial(shown) if settings.measure and machine.is_this and chosen else None
    offloads = shown.settings.machine.offload != "none"
    has_speed = machine.has_gpu and not machine.is_tpu and (offloads or not machine.is_this)
    speed = estimate_speed(shown, find_rates(settings)) if has_speed else None
    compute = _plan_compute(shown, data, given, trial)
    if data.train_tokens is None:  # plan for as much text as suits the model
        data = data.for_tokens(compute.planned_tokens)
    return Plan(
        machine=machine,
        data=data,
        asked=asked,
        chosen=chosen,
        needs=stage_needs(
            data,
            shown,
            machine,
            near_copies=settings.near_dedup > 0,
            item_files=find_item_files(settings.decontaminate),
        ),
        compute=compute,
        ways=_ways(shown, data, compute),
        commands=[] if chosen is None else write_commands(settings, data, chosen, machine, compute),
        named_batch="batch_size" in given,
        trial=trial,
        speed=speed,
    )


def _with_tokenizer(settings: PlanSettings) -> PlanSettings:
    """The same with the tokenizer of the model that training starts from, if none is named."""
    if settings.init_from_model is None or settings.dataset_dir is not None:
        return settings
    folder = companions_dir(find_model_dir(settings.init_from_model))
    if settings.tokenization is not None or not has_tokenizer(folder):
        return settings
    return settings.replace(tokenization=str(folder))


def _stream_options(
    settings: PlanSettings, data: DataFacts, machine: Machine, seq_len: int
) -> dict[str, Any]:
    """Options of `lowtide train` for a stream; empty if a dataset is prepared."""
    if not data.streams:
        return {}
    options: dict[str, Any] = {"dataset_id": settings.dataset_id}
    if settings.tokenization is not None:
        options["tokenization"] = settings.tokenization
    elif data.learns_tokenizer:
        options["vocab_size"] = data.vocab_size
    windows = usual_shuffle_buffer(machine)
    if data.train_tokens is not None:
        windows = min(windows, max(1, data.train_tokens // seq_len))
    return {**options, "shuffle_buffer_size": windows}


def _plan_compute(
    choice: Choice, data: DataFacts, given: dict[str, Any], trial: Trial | None
) -> ComputePlan:
    settings, config = choice.settings, choice.config
    return plan_compute(
        count_parameters(config),
        flops_per_token=flops_per_token(config, settings.model.seq_len),
        tokens_per_step=settings.tokens_per_step,
        train_tokens=data.train_tokens,
        tokens_per_param=given.get("tokens_per_param"),
        max_iters=settings.length.max_iters,
        epochs=settings.length.epochs,
        tokens_per_second=None if trial is None else trial.tokens_per_second,
    )


def _ways(choice: Choice, data: DataFacts, compute: ComputePlan) -> list[LoadingWay]:
    return loading_ways(
        data.train_tokens or compute.planned_tokens,
        bytes_per_token=data.bytes_per_token,
        token_bytes=data.token_bytes,
        rows=choice.settings.batch.rows_per_step,
        seq_len=choice.settings.model.seq_len,
    )
