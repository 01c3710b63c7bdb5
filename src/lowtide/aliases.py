"""Aliases of settings: the names that other guides and programs use.

In:      a name as it was typed: a flag, a key of a config file, a keyword
Out:     the name of the setting

All aliases are in this table. Code uses the first name of a row; a verb whose settings use another
name of the row keeps it, and accepts all others too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container
from typing import Any, ParamSpec, TypeVar

from lowtide.counts import plain_number

__all__ = [
    "COLUMN_FLAG",
    "OTHER_WAYS",
    "SAME_SETTINGS",
    "WORKER_FLAG",
    "other_way",
    "own_name",
    "takes_second_names",
]

P = ParamSpec("P")
R = TypeVar("R")

SAME_SETTINGS = (
    ("input_files", "input", "input_file", "file"),
    ("out_dir", "output_dir", "output_prefix", "out_path"),
    ("dataset_dir", "data_dir", "in_path", "target"),
    ("tokenization", "tokenizer"),
    ("text_field", "text_column"),
    ("num_workers", "processes", "cores", "num_threads"),
    ("tokens", "num_tokens"),
    ("seq_len", "sequence_length", "context_length", "max_length", "max_seq_length", "block_size"),
    ("num_layers", "n_layer", "num_hidden_layers"),
    ("width", "n_embd", "hidden_size", "d_model"),
    ("num_heads", "n_head", "num_attention_heads"),
    ("num_kv_heads", "n_kv_head", "num_key_value_heads"),
    ("mlp_width", "intermediate_size"),
    ("batch_size", "device_batch_size", "micro_batch_size", "per_device_train_batch_size"),
    ("gradient_accumulation_steps", "grad_accum_steps"),
    ("max_iters", "max_steps", "num_iterations"),
    ("epochs", "num_epochs", "num_train_epochs"),
    ("learning_rate", "lr"),
    ("warmup", "warmup_iters", "warmup_steps"),
    ("grad_clip", "max_grad_norm"),
    ("activation_checkpointing", "gradient_checkpointing"),
    ("compile", "torch_compile"),
    ("eval_dataset_dir", "eval_sets"),
    ("eval_interval", "eval_every", "eval_steps"),
    ("eval_iters", "eval_batches"),
    ("save_interval", "save_every", "save_steps"),
    ("log_interval", "log_every", "logging_steps"),
    ("max_new_tokens", "max_tokens"),
)
"""Names of one setting each, the chosen one first."""

WORKER_FLAG = {"num_workers": "processes"}
COLUMN_FLAG = {"text_field": "text_column"}
"""`flag_words` of settings: help and messages show the guides' word for the flag."""


OTHER_WAYS = {
    "min_lr": "--final-learning-rate SHARE (of the peak: 0.1 for a tenth)",
    "lr_decay_iters": "--max-iters N (the learning rate decays to the end of the run)",
    "bf16": "--use-mixed-precision",
    "fp16": "--use-mixed-precision --precision fp16",
    "load_in_8bit": "--use-8bit-optimizer (the moments of AdamW in 8 bits)",
    "init_from": "--init-from-model NAME; a run of the same --model-name goes on by itself",
    "resume_from_checkpoint": "the same command again: a run goes on where it stopped",
    "wandb_project": "--wandb (WANDB_PROJECT in the environment names the project)",
    "report_to": "--wandb or --tensorboard",
    "num_gpus": "torchrun --nproc-per-node N -m lowtide train …",
    "devices": "torchrun --nproc-per-node N -m lowtide train …",
}
"""Settings of other training programs that are given in another way here: what to give instead."""

_MANY_MACHINES = ("engine", "work_dir", "ray_address")
_ONE_MACHINE = (
    "a part of the text with --other is enough: train-classifier samples --max-examples passages "
    "and learns in one process; prepare --engine files --score applies the model on many machines"
)


def own_name(name: str, known: Container[str]) -> str:
    """The name among `known` that means the same as `name`; `name` itself if there is none.

    >>> own_name("input", {"input_files", "out_dir"}), own_name("nonsense", {"out_dir"})
    ('input_files', 'nonsense')
    """
    if name in known:
        return name
    for row in SAME_SETTINGS:
        if name in row:
            return next((other for other in row if other in known), name)
    return name


def other_way(name: str, known: Container[str]) -> str | None:
    """Return what to give instead of a setting that only other training programs or verbs have.

    >>> other_way("bf16", {"max_iters", "width"}), other_way("bf16", {"input_files"})
    ('--use-mixed-precision', None)
    """
    if name in _MANY_MACHINES and name not in known and "good" in known:
        return _ONE_MACHINE
    return OTHER_WAYS.get(name) if "max_iters" in known and name not in known else None


def takes_second_names(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of the library also accept the aliases of its keywords, and NumPy's numbers.

    Those overflow at their own width: of np.uint8(200) rows the second batch would begin with row
    144.

    >>> @takes_second_names
    ... def show(*, seq_len: int) -> int:
    ...     return seq_len
    >>> show(**{"max_length": 8})
    8
    """
    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @functools.wraps(function)
    def renamed(*args: P.args, **options: P.kwargs) -> R:
        for name in [name for name in options if name not in known]:
            own = own_name(name, known)
            if own != name and own not in options:
                options[own] = options.pop(name)
        plain = {name: plain_number(value) for name, value in options.items()}
        untyped: Any = function
        return untyped(*map(plain_number, args), **plain)

    return renamed
