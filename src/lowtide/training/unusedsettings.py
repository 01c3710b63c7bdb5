"""Settings that nothing reads beside the other ones: refused if somebody gave them.

In:      TrainSettings, and the optimizer once it is known
Out:     UsageError that names the setting and what it needs

Only settings that differ from their default count, and only if a flag, a keyword or the user's own
config file gave them: what a preset gives may be switched off by any flag. To add a setting with
such a condition: a row in a table, and one in tests/training/test_unusedsettings.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lowtide.corpus.inputs import names_files
from lowtide.errors import UsageError
from lowtide.filenames import METADATA_NAME
from lowtide.flags import write_flags
from lowtide.flatsettings import setting_fields, setting_values
from lowtide.settings import require
from lowtide.stores.urls import is_store_url
from lowtide.training.settings import TrainSettings

__all__ = [
    "own_rate",
    "refuse_both",
    "refuse_unread",
    "refuse_unused",
    "refuse_unused_by",
    "supplied_in_vain",
]

_Values = Mapping[str, Any]
_Row = tuple[Callable[[_Values], bool], str]


def _decays(values: _Values, *names: str) -> bool:
    """True if any of the weight decays is on; that of embeddings defaults to that of matrices."""
    own = values["embedding_decay"]
    decays = {
        "weight_decay": values["weight_decay"],
        "embedding_decay": values["weight_decay"] if own is None else own,
    }
    return any(decays[name] > 0 for name in names)


_BESIDE_OTHERS: dict[str, _Row] = {
    "decay_fraction": (
        lambda values: values["schedule"] == "linear-decay",
        "--schedule linear-decay beside it",
    ),
    "final_learning_rate": (
        lambda values: values["schedule"] != "constant",
        "another --schedule than constant",
    ),
    "tokens_per_param": (
        lambda values: not (values["max_iters"] or values["epochs"] or values["max_hours"]),
        "no --max-iters, --epochs or --max-hours beside it",
    ),
    "cautious_decay": (
        lambda values: _decays(values, "weight_decay"),
        "a --weight-decay above 0",
    ),
    "decay_schedule": (
        lambda values: _decays(values, "weight_decay", "embedding_decay"),
        "a --weight-decay above 0",
    ),
    "embedding_decay_to": (
        lambda values: _decays(values, "embedding_decay"),
        "an --embedding-decay above 0",
    ),
    "early_cap": (lambda values: values["layout"] != "tide", "another layout: tide has a cap"),
    "vram": (lambda values: values["device"] != "cpu", "a GPU, and --device is cpu"),
    "sample_prompt": (lambda values: values["sample_tokens"] > 0, "--sample-tokens above 0"),
}
"""By setting: whether others let it have an effect, and what it needs."""

_OF_MUON: dict[str, _Row] = {
    name: (lambda values: values["optimizer"] == "muon", "--optimizer muon, and it is adamw")
    for name in ("momentum", "momentum_warmup", "cautious_decay")
}
"""The same for those of an optimizer."""

_OF_OWN_OPTIMIZERS = (
    *("weight_decay", "cautious_decay", "beta1", "beta2", "momentum", "momentum_warmup"),
    *("embedding_rate", "embedding_decay", "embedding_decay_to", "spelling_rate"),
    *("use_8bit_optimizer", "learning_rate"),
)
"""Settings that an optimizer object has itself, if one is given to a Trainer."""

_WATCHED = "--eval-dataset-dir beside it: the data that may be forgotten"
_OF_FORGETTING: dict[str, _Row] = {
    name: (lambda values: bool(values["eval_dataset_dir"]), _WATCHED)
    for name in ("stop_on_forgetting", "forgetting_tolerance")
}

_STREAM = "--dataset-id"


def _is_split_here(values: _Values) -> bool:
    """True if the run itself divides its data: prepared datasets are divided already."""
    return values["val_data_path"] is None and values["dataset_dir"] is None


def _may_lack_types(values: _Values) -> bool:
    """True if some data may be a file without a header; prepared datasets name their type."""
    folders = [entry.partition("=")[2] or entry for entry in values["eval_dataset_dir"]]
    folders += [values["dataset_dir"], values["replay_dataset_dir"]]
    paths = [values["train_data_path"], values["val_data_path"], values["input_file"]]
    found = [path for path in folders if path is not None and not is_store_url(path)]
    bare = any(not (Path(path) / METADATA_NAME).is_file() for path in found)
    return bare or any(path is not None for path in paths)


def _is_stored(values: _Values) -> bool:
    """True if any data lies in an object store."""
    entries = [entry.partition("=")[2] or entry for entry in values["eval_dataset_dir"]]
    paths = [values[name] for name in ("dataset_dir", "replay_dataset_dir", "dataset_id")]
    return any(path is not None and is_store_url(path) for path in [*paths, *entries])


_OF_DATA: dict[str, _Row] = {
    "replay_fraction": (
        lambda values: values["replay_dataset_dir"] is not None,
        "--replay-dataset-dir beside it",
    ),
    "replay_dataset_dir": (
        lambda values: values["dataset_id"] is None,
        "data on disk: a stream is not mixed with other rows (lowtide prepare makes a dataset)",
    ),
    "order": (
        lambda values: values["dataset_id"] is None,
        "data on disk: a stream has the order of its shuffle buffer",
    ),
    "shuffle_buffer_size": (
        lambda values: values["use_streaming"] or values["dataset_id"] is None,
        "a stream: --no-use-streaming shuffles all of the text",
    ),
    "split": (
        lambda values: values["dataset_id"] is None or not names_files(values["dataset_id"]),
        "a Hugging Face dataset, and --dataset-id names files",
    ),
    "val_fraction": (
        _is_split_here,
        "data that is not divided yet: no prepared --dataset-dir and no --val-data-path",
    ),
    "dtype": (_may_lack_types, "ids in files without a header: a prepared dataset names its type"),
    "cache_dir": (_is_stored, "data in an object store"),
    "cache_size": (_is_stored, "data in an object store"),
    "vocab_size": (
        lambda values: values["init_from_model"] is None,
        "no --init-from-model beside it, whose tokenizer is used",
    ),
    "zero_init": (
        lambda values: values["init_from_model"] is None,
        "no --init-from-model beside it, whose weights are used",
    ),
}
"""The same for data that the run opens, and models that it makes."""


def supplied_in_vain(settings: TrainSettings) -> set[str]:
    """What a preset or a built-in config file gives and other settings leave without effect.

    A command that spells out all settings has to leave them out.
    """
    values = setting_values(settings)
    tables = [_BESIDE_OTHERS, _OF_FORGETTING, _OF_DATA]
    if values["optimizer"] != "auto":
        tables.append(_OF_MUON)
    return {
        name
        for table in tables
        for name, (has_effect, _) in table.items()
        if name in settings.supplied and not has_effect(values)
    }


def refuse_unread(settings: TrainSettings) -> None:
    """Refuse settings of data and models that are not there: they would do nothing."""
    _refuse_unread_text(settings)
    _refuse(settings, _OF_DATA)
    refuse_unused(settings, watches=bool(settings.evaluation.eval_dataset_dir))


def refuse_unused(settings: TrainSettings, *, watches: bool) -> None:
    """Refuse settings that the others leave without effect; `watches`: other data is evaluated."""
    _refuse(settings, _BESIDE_OTHERS)
    if not watches:
        _refuse(settings, _OF_FORGETTING, eval_dataset_dir=())
    if settings.learning.optimizer != "auto":
        refuse_unused_by(settings.learning.optimizer, settings)


def refuse_unused_by(optimizer: Any, settings: TrainSettings) -> None:
    """Refuse settings that an optimizer, by its name or a torch optimizer, does not read."""
    if isinstance(optimizer, str):
        _refuse(settings, _OF_MUON, optimizer=optimizer)
        return
    rates = {"learning_rate": own_rate(optimizer)}
    for name in _given(settings, _OF_OWN_OPTIMIZERS):
        value = setting_values(settings)[name]
        if value != rates.get(name):
            raise UsageError(
                f"{name} is {value!r}, and the optimizer that was given has its own",
                next_step=f"give it to {type(optimizer).__name__}, or let optimizer be a name",
            )


def own_rate(optimizer: Any) -> float:
    """The peak learning rate of a torch optimizer; after a run "lr" is that of the last step."""
    group = optimizer.param_groups[0]
    return float(group.get("peak_lr", group["lr"]))


def refuse_both(settings: TrainSettings | None, options: Mapping[str, Any]) -> None:
    """Refuse keywords beside settings, which would be all that is read."""
    if settings is not None and options:
        raise UsageError(
            f"Trainer takes settings or keywords, not both: {', '.join(options)}",
            next_step="leave the settings out, and give all of them as keywords",
        )


def _refuse(settings: TrainSettings, table: Mapping[str, _Row], **known: Any) -> None:
    values = setting_values(settings) | known
    for name in _given(settings, table):
        has_effect, needs = table[name]
        without = "leave it out: without that it has no effect"
        require(has_effect(values), name, values[name], needs, next_step=without)


def _given(settings: TrainSettings, names: Iterable[str]) -> list[str]:
    """Those that somebody gave another value than their default."""
    fields, values = setting_fields(type(settings)), setting_values(settings)
    not_given = settings.left_out | settings.supplied
    return [
        name for name in names if name not in not_given and values[name] != fields[name].default
    ]


def _refuse_unread_text(settings: TrainSettings) -> None:
    """Refuse settings of how text is read where there is none, or another kind."""
    data = settings.data
    if data.dataset_id is not None or not (
        data.dataset_dir or data.train_data_path or data.input_file
    ):
        return
    of_streams = ["split", "use_streaming", "shuffle_buffer_size", "max_examples"]
    unread = (
        of_streams if data.input_file is not None else [*of_streams, "text_field", "vocab_size"]
    )
    for name in _given(settings, unread):
        kind = _STREAM if name in of_streams else "text that is yet to be tokenized"
        flag = " ".join(write_flags({name: setting_values(settings)[name]}))
        raise UsageError(
            f"{flag} is for {kind}, and the data is another one",
            next_step="leave it out; lowtide prepare takes a part of the text, or another "
            "vocabulary",
        )
