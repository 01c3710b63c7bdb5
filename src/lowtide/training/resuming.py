"""What a changed setting means for a resumed run: applied, refused, or without effect.

In:      the settings a run was started with (settings.json), those given now
Out:     the settings to resume with; notices of changes; an error for settings that cannot change
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from lowtide.aliases import own_name
from lowtide.errors import DataError, UsageError
from lowtide.filenames import (
    CHECKSUMS_NAME,
    CONFIG_NAME,
    METADATA_NAME,
    SETTINGS_NAME,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    WEIGHTS_NAME,
)
from lowtide.files import atomic_file, read_json, write_json
from lowtide.flatsettings import (
    fill_left_out,
    named_settings,
    note_left_out,
    replace_settings,
    setting_fields,
    setting_values,
)
from lowtide.freenames import require_free_names
from lowtide.model.companions import COMPANIONS
from lowtide.model.config import GPTConfig
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.settings import convert_options, settings_as_json
from lowtide.tokenizer import Tokenizer
from lowtide.training.choosing import rates_in_force
from lowtide.training.settinggroups import SHAPE_FIELDS
from lowtide.training.settings import TrainSettings

__all__ = [
    "RESUME_RULES",
    "RUN_NAMES",
    "another_run",
    "change_settings",
    "continued_settings",
    "drop_rows_after",
    "is_run",
    "read_identity",
    "require_own_run",
    "require_own_tokenizer",
    "run_exists",
    "write_settings",
]


Rule = Literal["refused", "applied", "free"]

_REFUSED = """
    layout num_layers width num_heads num_kv_heads mlp_width tie_weights target_params seq_len
    init_from_model add_tokens zero_init first_embedding seed optimizer use_8bit_optimizer
    average_over spelling_rate embedding_decay_to
    tokenization vocab_size dtype val_fraction stride order
    text_field split use_streaming shuffle_buffer_size max_examples
    replay_dataset_dir replay_fraction
"""
_APPLIED = """
    max_iters epochs max_hours tokens_per_param
    batch_size gradient_accumulation_steps
    learning_rate schedule warmup final_learning_rate decay_fraction
    weight_decay cautious_decay decay_schedule embedding_rate embedding_decay ahead_weight
    early_cap confidence
    beta1 beta2 momentum momentum_warmup grad_clip dropout max_bad_steps
    use_mixed_precision precision attention float8_head float8_blocks
    val_data_path eval_dataset_dir eval_interval eval_iters forgetting_tolerance stop_on_forgetting
"""
_FREE = """
    model_name checkpoints_dir resume overwrite slurm debug
    dataset_dir cache_dir cache_size input_file train_data_path dataset_id check_data
    backend device parallel num_workers memory activation_checkpointing compile compile_whole
    loss_chunk_tokens save_interval keep_checkpoints save_in_background log_interval
    vram offload offload_dir sample_tokens sample_prompt tensorboard wandb
"""

RUN_NAMES = (
    *(WEIGHTS_NAME, CONFIG_NAME, CHECKSUMS_NAME, TOKENIZER_NAME, TOKENIZER_CONFIG_NAME),
    *(SETTINGS_NAME, *COMPANIONS),
)
"""Files that a run writes into its folder, besides its log."""

RESUME_RULES: dict[str, Rule] = {
    # Another network, other data or other moments: that would be another run.
    **dict.fromkeys(_REFUSED.split(), "refused"),
    # Applied from the next step on, with a notice.
    **dict.fromkeys(_APPLIED.split(), "applied"),
    # How and where the same numbers are computed, stored and shown. Data may be moved: its content
    # is compared by fingerprint.
    **dict.fromkeys(_FREE.split(), "free"),
}

# If not given, the run's values stay; new defaults of a later version are for new runs only.
_ANY: dict[str, str | None] = {
    "optimizer": "auto",
    "first_embedding": "auto",
    "embedding_rate": None,
    "beta2": None,
    "momentum": None,
}
_CHOSEN_ONCE = [name for name in _ANY if RESUME_RULES[name] == "refused"]
# The length of a run: those that are given replace all of them.
_LENGTH = ("max_iters", "epochs", "max_hours", "tokens_per_param")
_SOURCES = ("dataset_dir", "train_data_path", "input_file", "dataset_id")
# Settings that may change, and that decide the effective rates.
_OF_RATES = (
    *("learning_rate", "embedding_rate", "embedding_decay", "weight_decay", "beta2"),
    *("momentum", "batch_size", "gradient_accumulation_steps"),
)
# Omitting these and giving their default are the same.
_SAME = {"precision": (None, "bf16")}


def another_run(message: str, *, path: Path) -> UsageError:
    """The error if a run of this name cannot be resumed like this, with three alternatives."""
    return UsageError(
        message,
        path=path,
        next_step="leave the change out to go on with that run, choose another --model-name, or "
        "give --overwrite to remove that run and start anew",
    )


def is_run(root: Path) -> bool:
    """True if a folder is a run's: it has a checkpoint, or the settings that a run begins with."""
    if any((root / "steps").glob("step_*")):
        return True
    try:
        return "model_name" in _read_object(root / SETTINGS_NAME)
    except (DataError, OSError):
        return False


def require_own_run(root: Path) -> None:
    """Refuse a folder that is not a run's but has files of the same names: no overwriting."""
    if not is_run(root):
        names = (*RUN_NAMES, "best", f"data/{METADATA_NAME}")
        require_free_names(root, names, next_step="choose another --model-name")


def run_exists(root: Path) -> UsageError:
    """The error for an existing run if a new one was requested."""
    return UsageError(
        "this run exists, and --no-resume forbids to go on with it",
        path=root,
        next_step="choose another --model-name, or give --overwrite to remove it first",
    )


def require_own_tokenizer(given: Tokenizer, own: Tokenizer, root: Path) -> None:
    """Refuse to resume with another tokenizer than the run's: its ids would mean other text."""
    if given.fingerprint != own.fingerprint:
        raise another_run(
            f"the tokenizer is {given.name} ({given.fingerprint[:12]}), this run has {own.name} "
            f"({own.fingerprint[:12]})",
            path=root,
        )


def continued_settings(
    root: Path,
    settings: TrainSettings,
    *,
    optimizer: str | None = None,
    note: Callable[[str], None] | None = None,
) -> TrainSettings:
    """The settings to resume with: omitted ones are the run's, forbidden changes are refused.

    `optimizer` is the one whose moments the run has, if known. `note` is told what a preset or a
    built-in config file gives and the run has otherwise.
    """
    old = _read_settings(root)
    if old:  # the first versions had no choice
        old.setdefault("embedding_rate", 1.0)
    if optimizer is not None:
        old["optimizer"] = optimizer
    kept: dict[str, Any] = {}
    given = setting_values(settings)
    _require_same_kind(old, given, root)
    open_to_run = _left_to_the_run(settings)
    for name, rule in RESUME_RULES.items():
        if name not in old or rule == "free":
            continue
        now, before, anything = given[name], old[name], _ANY.get(name)
        if name in open_to_run or (now == anything and (rule == "refused" or name in _ANY)):
            kept[name] = before
        elif rule == "applied":
            continue
        elif before == anything and (name in SHAPE_FIELDS or anything is not None):
            continue  # the run chose it: its shape and its moments are compared instead
        elif now != before:
            there = "was started without it" if before is None else f"has {before}"
            raise another_run(f"{name} is {now}, this run {there}", path=root)
    instead = [
        f"{name} {_plain(value)} (not {_plain(given[name])})"
        for name, value in kept.items()
        if name in settings.supplied and given[name] != value
    ]
    if instead and note is not None:
        note(f"the run keeps its own values where the preset has others: {', '.join(instead)}")
    # What the run has already counts as left out: the command that began it goes on with it, though
    # this version may refuse a setting without effect that an earlier one took.
    same = {name for name, value in old.items() if given[name] == value}
    named = named_settings(settings) - same
    return note_left_out(fill_left_out(settings, kept), named, supplied=settings.supplied - same)


def _require_same_kind(old: Mapping[str, Any], given: Mapping[str, Any], root: Path) -> None:
    """Refuse another kind of data before any of it is made; of the same one the content counts.

    A text and its ids may be the same data, and so may a dataset and files of ids; a stream has
    another order, and a text is not divided as a prepared dataset.
    """
    before, now = (
        next((name for name in _SOURCES if values.get(name) is not None), None)
        for values in (old, given)
    )
    if before is None or now is None or before == now:
        return
    if "dataset_id" in (before, now) or (before, now) == ("dataset_dir", "input_file"):
        raise another_run(
            f"{now} is {given[now]}, this run began with {before} {old[before]}", path=root
        )


def _left_to_the_run(settings: TrainSettings) -> set[str]:
    """The settings that a resumed run has its own values for.

    What a preset or a built-in config file gives is for new runs, like defaults: a later version
    with other values neither changes nor stops a run.
    """
    names = {*settings.left_out, *settings.supplied}
    if not names.issuperset(_LENGTH):  # one of them is given, and is the whole length
        names -= {*_LENGTH} - {*settings.supplied}
    if "use_mixed_precision" not in names and not settings.computing.use_mixed_precision:
        names -= {"precision"}  # the format of half precision, which no flag takes back by itself
    return names


def change_settings(
    root: Path,
    settings: TrainSettings,
    config: GPTConfig | ModuleConfig,
    *,
    step: int,
    note: Callable[[str], None],
) -> None:
    """Report changes that apply from `step` on, and save the settings and their history."""
    old = _read_settings(root)
    now = settings_as_json(settings)
    acts, acted = (
        rates_in_force(values, config)
        for values in (settings, replace_settings(settings, **_pick(old, _OF_RATES)))
    )
    before = {name: _plain(value) for name, value in old.items()}
    changed = {
        name: {"from": before[name], "to": value}
        for name, value in now.items()
        if name in before
        and before[name] != value
        # Giving a value that the run had chosen by default is not a change.
        and not (name in _CHOSEN_ONCE and before[name] == _ANY[name])
        and not (name in acts and acts[name] == acted[name])
        and not (name in _SAME and {before[name], value} <= {*_SAME[name]})
    }
    said = [
        f"{name} {change['from']} -> {change['to']}"
        for name, change in changed.items()
        if RESUME_RULES[name] == "applied"
    ]
    if said:
        note(f"changed from step {step} on: {', '.join(said)}")
    path = root / SETTINGS_NAME
    if changed or not path.exists():
        kept = _read_object(path) if path.exists() else {}
        history = [*kept.get("history", []), {"step": step, "changed": changed}]
        _write(path, settings, kept.get("identity", {}), history)


def write_settings(root: Path, settings: TrainSettings, *, identity: Mapping[str, str]) -> None:
    """Write the settings a run starts with, and the identity of its model and data."""
    _write(root / SETTINGS_NAME, settings, identity, [])


def drop_rows_after(metrics_path: Path, step: int, evaluated_step: int) -> None:
    """Drop rows of a run's log after its last checkpoint: these steps are repeated."""
    if not metrics_path.is_file():  # a pipe would be waited for
        return
    with metrics_path.open("rb") as old:
        if all(_is_kept(line, step, evaluated_step) for line in old):
            return  # a finished run given again is left as it is
    with metrics_path.open("rb") as old, atomic_file(metrics_path) as new:
        for line in old:
            if _is_kept(line, step, evaluated_step):
                new.write(line)


def _is_kept(line: bytes, step: int, evaluated_step: int) -> bool:
    """True for a row of the log up to a step; malformed lines are dropped, and never stop a run."""
    try:
        row = json.loads(line)
        last = evaluated_step if row.get("event") == "eval" else step
        return row.get("step", -1) <= last
    except (ValueError, TypeError, AttributeError, RecursionError):
        return False


def read_identity(root: Path) -> Mapping[str, Any]:
    """The identity of the model and data a run started from; empty if unknown."""
    path = root / SETTINGS_NAME
    identity = _read_object(path).get("identity", {}) if path.exists() else {}
    return identity if isinstance(identity, dict) else {}


def _write(
    path: Path,
    settings: TrainSettings,
    identity: Mapping[str, Any],
    history: list[dict[str, Any]],
) -> None:
    extra = {"identity": dict(identity), "history": history}
    write_json(path, {**settings_as_json(settings), **extra})


def _read_settings(root: Path) -> dict[str, Any]:
    """The settings of a run, each in its type; unknown ones, of other versions, are left out."""
    path = root / SETTINGS_NAME
    if not path.exists():
        return {}
    fields = setting_fields(TrainSettings)
    saved = {own_name(name, fields): value for name, value in _read_object(path).items()}
    known = {name: value for name, value in saved.items() if name in fields}
    try:
        return convert_options(TrainSettings, known)
    except UsageError as error:
        raise _damaged(path, error.message) from None


def _read_object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise _damaged(path, f"it holds a {type(value).__name__}")
    if not isinstance(value.get("history", []), list):
        raise _damaged(path, "its history is not a list")
    return value


def _damaged(path: Path, what: str) -> DataError:
    return DataError(
        f"{path.name} is not what a run writes: {what}",
        path=path,
        next_step=f"remove {path}; the run goes on with the settings given now",
    )


def _pick(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
