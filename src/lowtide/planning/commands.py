"""Write the commands of a plan, to be copied.

In:      the data, the chosen training, the machine
Out:     command lines
"""

from __future__ import annotations

import shlex
from typing import Any

from lowtide.flags import write_flags
from lowtide.planning.choices import Choice
from lowtide.planning.compute import ComputePlan
from lowtide.planning.machine import Machine
from lowtide.planning.plandata import DataFacts
from lowtide.planning.settings import PlanSettings
from lowtide.settings import read_config_file
from lowtide.stores.urls import show_path
from lowtide.training.settings import TrainSettings

__all__ = ["write_commands"]

_MIB = 1 << 20
_TEXT = "text.txt"  # a placeholder for the user's files if none are named


def write_commands(
    settings: PlanSettings, data: DataFacts, choice: Choice, machine: Machine, compute: ComputePlan
) -> list[str]:
    """Return all commands from the given data to the trained model."""
    budget = f"{machine.budget_bytes // _MIB}MiB"
    if machine.budget_bytes % (1 << 30) == 0:
        budget = f"{machine.budget_bytes >> 30}GiB"
    shared = {"processes": machine.cores, "memory": budget}
    files = list(settings.input_files) or [_TEXT]
    field = {} if settings.text_field == "text" else {"text_field": settings.text_field}
    commands: list[str] = []
    if data.streams:
        return [_command("train", _training_options(settings, choice, compute, machine, budget))]
    dataset_dir, tokenization = data.dataset_dir, settings.tokenization
    if dataset_dir is None:
        if data.learns_tokenizer:
            tokenization = f"tok/{settings.name}"
            options: dict[str, Any] = {
                "input": files, **field, "vocab_size": data.vocab_size, **shared
            }  # fmt: skip
            commands.append(_command("train-tokenizer", {**options, "out_dir": tokenization}))
        options = {"input_files": files, **field, "tokenization": tokenization, **shared}
        if settings.near_dedup:
            options["near_dedup"] = settings.near_dedup
        if settings.decontaminate:
            options["decontaminate"] = list(settings.decontaminate)
        dataset_dir = f"data/{settings.name}"
        commands.append(_command("prepare", {**options, "out_dir": dataset_dir}))
    # .npy and .bin files are given by another name than folders.
    is_file = data.dataset_dir is not None and data.dataset_dir.is_file()
    source = {"train_data_path" if is_file else "dataset_dir": show_path(dataset_dir)}
    options = _training_options(settings, choice, compute, machine, budget)
    commands.append(_command("train", {**source, **options}))
    return commands


def _training_options(
    settings: PlanSettings, choice: Choice, compute: ComputePlan, machine: Machine, budget: str
) -> dict[str, Any]:
    options = dict(choice.options)
    if settings.config_file is not None:  # the file says what it says; flags what differs from it
        stored = read_config_file(settings.config_file, for_settings=TrainSettings)
        options = {key: value for key, value in options.items() if stored.get(key) != value}
        options = {"config_file": str(settings.config_file), **options}
    options.pop("tokens_per_param", None)
    if options.get("gradient_accumulation_steps") == 1 and settings.config_file is None:
        del options["gradient_accumulation_steps"]  # the default
    options["max_iters"] = compute.steps
    if machine.is_tpu:  # JAX compiles everything anyway
        options.pop("compile", None)
        options |= {"backend": "jax", "device": "tpu"}
    if settings.vram is not None and options.get("offload", "none") != "none":
        options["vram"] = str(settings.vram)
    return {**options, "memory": budget, "model_name": settings.name}


def _command(verb: str, options: dict[str, Any]) -> str:
    given = {name: value for name, value in options.items() if value is not False}
    return shlex.join(["lowtide", verb, *write_flags(given)])
