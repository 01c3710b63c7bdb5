"""Settings: names, checks, the optimizer that auto means, the shape that is asked for."""

import dataclasses
import math
from pathlib import Path

import pytest

from lowtide.errors import UsageError
from lowtide.flatsettings import from_flat, setting_fields
from lowtide.training.settings import (
    EVAL_BATCH_ROWS,
    EvaluateSettings,
    TrainSettings,
    train_settings,
)


def test_evaluation_datasets_have_names():
    settings = train_settings(eval_dataset_dir=("web=data/web", "data/general"))
    assert settings.evaluation.datasets() == {
        "web": Path("data/web"),
        "general": Path("data/general"),
    }
    with pytest.raises(UsageError, match="one folder per name\n  next: give NAME=DIR"):
        train_settings(eval_dataset_dir=("a", "b")).evaluation.datasets()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_iters": 5, "epochs": 1.0}, "max_iters is 5, expected no --epochs beside it"),
        ({"model_name": ""}, "model_name is '', expected a name for a folder"),
        ({"model_name": "../x"}, r"model_name is '\.\./x', expected a name"),
        ({"model_name": "/x"}, "model_name is '/x', expected a name"),
        ({"model_name": "a\0b"}, "expected a name for a folder"),
        ({"model_name": "x" * 256}, "expected a name for a folder"),
        ({"max_iters": 0}, "max_iters is 0, expected more than 0"),
        ({"val_fraction": 1.0}, "val_fraction is 1.0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan, expected more than 0"),
        ({"learning_rate": float("inf")}, "learning_rate is inf, expected more than 0, and finite"),
        ({"weight_decay": float("nan")}, "weight_decay is nan, expected 0 or more"),
        ({"grad_clip": -1.0}, "grad_clip is -1.0, expected 0 or more"),
        ({"beta1": 1.5}, "beta1 is 1.5, expected from 0 to below 1"),
        ({"final_learning_rate": 2.0}, "final_learning_rate is 2.0, expected from 0 to 1"),
        ({"num_workers": -1}, "num_workers is -1, expected 0 or more"),
        ({"width": 0}, "width is 0, expected at least 1"),
        ({"seed": -1}, "seed is -1, expected 0 or more"),
        ({"precision": "fp16"}, "precision is 'fp16', expected --use-mixed-precision beside it"),
        ({"precision": "bf16"}, "precision is 'bf16', expected --use-mixed-precision beside it"),
        ({"compile_whole": True}, "compile_whole is True, expected --compile beside it"),
        ({"warmup": -1.0}, "warmup is -1.0, expected 0 or more"),
        ({"float8_head": True}, "float8_head is True, expected --use-mixed-precision in bf16"),
        ({"float8_blocks": True}, "float8_blocks is True, expected --use-mixed-precision in bf16"),
        ({"vocab_size": 300, "tokenization": "gpt2"}, "no --tokenization beside it"),
    ],
)
def test_values_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        train_settings(**options)


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({"use_mixed_precision": False}, "--no-float8-head --no-float8-blocks"),
        ({"use_mixed_precision": False, "float8_head": False}, "--no-float8-blocks"),
        ({"precision": "fp16"}, "--no-float8-head --no-float8-blocks"),
        ({"compile": False}, "--no-compile-whole"),
    ],
)
def test_what_a_preset_gives_can_be_switched_off_as_the_error_says(options, flags):
    with pytest.raises(UsageError) as caught:
        train_settings(preset="fastest", **options)
    assert f"give {flags}" in str(caught.value)
    given = {word.removeprefix("--no-").replace("-", "_"): False for word in flags.split()}
    train_settings(preset="fastest", **options, **given)


def test_nothing_to_evaluate_on_is_refused():
    with pytest.raises(UsageError, match="nothing to evaluate on is given"):
        EvaluateSettings(model_name="m")


# What `lowtide train --help` promises; what is not named here has no default.
DEFAULTS = {
    "cache_size": "16GiB",
    "text_field": "text",
    "split": "train",
    "use_streaming": True,
    "shuffle_buffer_size": 10000,
    "val_fraction": 0.1,
    "order": "shuffle",
    "check_data": True,
    "model_name": "model",
    "checkpoints_dir": Path("checkpoints"),
    "resume": True,
    "overwrite": False,
    "layout": "qwen3",
    "tie_weights": True,
    "dropout": 0.0,
    "seq_len": 256,
    "tokens_per_param": 20.0,
    "batch_size": 32,
    "gradient_accumulation_steps": 1,
    "optimizer": "auto",
    "use_8bit_optimizer": False,
    "schedule": "cosine",
    "warmup": 0.05,
    "final_learning_rate": 0.1,
    "decay_fraction": 0.4,
    "weight_decay": 0.1,
    "cautious_decay": False,
    "embedding_decay_to": "zero",
    "decay_schedule": "rate",
    "spelling_rate": 0.0,
    "beta1": 0.9,
    "ahead_weight": 0.0,
    "early_cap": 0.0,
    "confidence": 1.0,
    "average_over": 0.0,
    "momentum_warmup": 0,
    "zero_init": False,
    "first_embedding": "auto",
    "grad_clip": 1.0,
    "max_bad_steps": 20,
    "seed": 1337,
    "use_mixed_precision": False,
    "activation_checkpointing": False,
    "compile": False,
    "compile_whole": False,
    "attention": "auto",
    "backend": "torch",
    "float8_head": False,
    "float8_blocks": False,
    "device": "auto",
    "parallel": "ddp",
    "num_workers": 4,
    "offload": "none",
    "eval_dataset_dir": (),
    "eval_interval": 500,
    "eval_iters": 50,
    "forgetting_tolerance": 0.1,
    "stop_on_forgetting": False,
    "replay_fraction": 0.1,
    "save_interval": 500,
    "keep_checkpoints": 2,
    "log_interval": 10,
    "sample_tokens": 64,
    "sample_prompt": "\n",
    "tensorboard": False,
    "wandb": False,
    "slurm": False,
    "debug": False,
}
EVALUATE_DEFAULTS = {
    "dataset_dir": (),
    "tasks": (),
    "checkpoints_dir": Path("checkpoints"),
    "split": "val",
    "best": False,
    "batch_size": 16,
    "check_data": True,
    "backend": "auto",
    "device": "auto",
}


@pytest.mark.parametrize(
    ("settings", "expected"), [(TrainSettings, DEFAULTS), (EvaluateSettings, EVALUATE_DEFAULTS)]
)
def test_defaults_are_those_of_the_help(settings, expected):
    fields = setting_fields(settings).values()
    given = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    assert {name: value for name, value in given.items() if value is not None} == expected


def accepts(**options):
    try:
        from_flat(TrainSettings, options)
    except UsageError:
        return False
    return True


FROM_ONE = [
    "batch_size",
    "gradient_accumulation_steps",
    "seq_len",
    "eval_iters",
    "eval_interval",
    "save_interval",
    "log_interval",
    "keep_checkpoints",
    "shuffle_buffer_size",
    "max_bad_steps",
    "num_layers",
    "width",
    "num_heads",
    "num_kv_heads",
    "mlp_width",
]
ABOVE_ZERO = [
    "max_iters",
    "epochs",
    "max_hours",
    "target_params",
    "learning_rate",
    "stride",
    "max_examples",
    "vocab_size",
    "tokens_per_param",
    "embedding_rate",
    "loss_chunk_tokens",
]
SHARES = ["dropout", "val_fraction", "replay_fraction", "beta1", "beta2"]
FROM_ZERO = [
    "warmup",
    "momentum_warmup",
    "weight_decay",
    "grad_clip",
    "num_workers",
    "sample_tokens",
    "forgetting_tolerance",
    "embedding_decay",
]


def test_limits_are_where_they_are_said_to_be():
    least = 1e-9
    for name in FROM_ONE:
        assert accepts(**{name: 1}) and not accepts(**{name: 0}), name
    for name in ABOVE_ZERO:
        assert accepts(**{name: least}) and not accepts(**{name: 0}), name
        assert not accepts(**{name: math.inf}), name
    for name in SHARES:
        assert accepts(**{name: 0.0}) and accepts(**{name: 1 - least}), name
        assert not accepts(**{name: 1.0}) and not accepts(**{name: -least}), name
    for name in FROM_ZERO:
        assert accepts(**{name: 0}) and not accepts(**{name: -least}), name
        assert not accepts(**{name: math.inf}), name


@pytest.mark.parametrize(
    ("options", "fine"),
    [
        ({"final_learning_rate": 0.0}, True),
        ({"final_learning_rate": 1.0}, True),
        ({"final_learning_rate": -1e-9}, False),
        ({"final_learning_rate": 1 + 1e-9}, False),
        ({"momentum": 0.1}, True),
        ({"momentum": 0.09}, False),
        ({"momentum": 1.0}, False),
        ({"decay_fraction": 1e-9}, True),
        ({"decay_fraction": 1.0}, True),
        ({"decay_fraction": 0.0}, False),
        ({"decay_fraction": 1 + 1e-9}, False),
        ({"model_name": "a/b"}, True),
        ({"model_name": "a/../b"}, False),
        ({"float8_head": True, "use_mixed_precision": True}, True),
        ({"float8_blocks": True, "use_mixed_precision": True}, True),
        ({"float8_head": True, "use_mixed_precision": True, "precision": "fp16"}, False),
        ({"precision": "fp16", "use_mixed_precision": True}, True),
        ({"compile": True, "compile_whole": True}, True),
        ({"compile": True}, True),
        ({"slurm": True}, True),
        ({"overwrite": True}, True),
        ({"slurm": True, "overwrite": True}, False),
        ({"vocab_size": 300}, True),
        ({"tokenization": "gpt2"}, True),
        ({"max_iters": 5}, True),
        ({"epochs": 5.0}, True),
    ],
)
def test_what_goes_together(options, fine):
    assert accepts(**options) is fine


def test_sizes_of_a_step_and_names_of_folders():
    settings = train_settings(
        batch_size=3, gradient_accumulation_steps=5, seq_len=7, checkpoints_dir=Path("c")
    )
    assert (settings.batch.rows_per_step, settings.tokens_per_step) == (15, 105)
    assert settings.run.folder == Path("c/model")
    for entry in ("=data", "name="):
        with pytest.raises(UsageError, match="NAME=DIR or DIR"):
            train_settings(eval_dataset_dir=(entry,)).evaluation.datasets()
    assert TrainSettings.presets_dir.name == "presets" and TrainSettings.presets_dir.is_dir()
    assert EVAL_BATCH_ROWS == 32  # as --eval-iters says


def test_rows_of_an_evaluation_are_at_least_one():
    assert EvaluateSettings(model_name="m", dataset_dir=("d",), batch_size=1).batch_size == 1
    with pytest.raises(UsageError, match="batch_size is 0, expected at least 1"):
        EvaluateSettings(model_name="m", dataset_dir=("d",), batch_size=0)


@pytest.mark.parametrize("name", ["eval_iters", "seq_len", "batch_size"])
def test_an_evaluation_of_nothing_is_refused(name):
    with pytest.raises(UsageError, match=f"{name} is 0, expected at least 1"):
        EvaluateSettings(model_name="m", dataset_dir=("d",), **{name: 0})
    assert getattr(EvaluateSettings(model_name="m", dataset_dir=("d",), **{name: 1}), name) == 1


def test_a_shape_by_keyword_takes_the_place_of_the_preset_s() -> None:
    small = train_settings(preset="small-data", target_params=10**6)
    assert small.model.num_layers is None and "num_layers" not in small.supplied
    assert train_settings(preset="small-data", num_heads=2).model.num_kv_heads is None
    kept = train_settings(preset="small-data", target_params=None).model
    assert (kept.num_layers, kept.num_kv_heads) == (6, 4)
