"""Settings: names, checks, the optimizer that auto means, the shape that is asked for."""

from pathlib import Path

import pytest

from lowtide.errors import UsageError
from lowtide.model.config import GPTConfig
from lowtide.training.settings import (
    EvaluateSettings,
    TrainSettings,
    choose_optimizer,
    model_config,
)


def test_evaluation_datasets_have_names():
    settings = TrainSettings(eval_dataset_dir=("web=data/web", "data/general"))
    assert settings.eval_datasets() == {"web": Path("data/web"), "general": Path("data/general")}
    with pytest.raises(UsageError, match="one folder per name"):
        TrainSettings(eval_dataset_dir=("a", "b")).eval_datasets()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_iters": 5, "epochs": 1.0}, "max_iters is 5, expected no --epochs beside it"),
        ({"model_name": ""}, "model_name is '', expected a name for a folder"),
        ({"model_name": "../x"}, r"model_name is '\.\./x', expected a name"),
        ({"model_name": "/x"}, "model_name is '/x', expected a name"),
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
        ({"precision": "fp16"}, "precision is 'fp16', expected --use-mixed-precision beside it"),
        ({"compile_whole": True}, "compile_whole is True, expected --compile beside it"),
        ({"warmup": -1.0}, "warmup is -1.0, expected 0 or more"),
        ({"float8_head": True}, "float8_head is True, expected --use-mixed-precision in bf16"),
        ({"float8_blocks": True}, "float8_blocks is True, expected --use-mixed-precision in bf16"),
        ({"vocab_size": 300, "tokenization": "gpt2"}, "no --tokenization beside it"),
    ],
)
def test_values_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        TrainSettings(**options)


def test_nothing_to_evaluate_on_is_refused():
    with pytest.raises(UsageError, match="at least one dataset"):
        EvaluateSettings(model_name="m")


def test_auto_takes_muon_where_it_costs_little():
    config = GPTConfig(1000, 64, 2, 128, 4)
    narrow = TrainSettings(batch_size=4, seq_len=64)
    wide = TrainSettings(batch_size=12, seq_len=64)
    assert choose_optimizer(narrow, config) == "adamw"
    assert choose_optimizer(wide, config) == "muon"
    small = TrainSettings(batch_size=64, seq_len=64, use_8bit_optimizer=True)
    assert choose_optimizer(small, config) == "adamw"
    assert choose_optimizer(TrainSettings(optimizer="muon", batch_size=1), config) == "muon"


def test_a_shape_comes_from_fields_or_a_count():
    assert model_config(TrainSettings(), 100).width == 384
    given = model_config(TrainSettings(num_layers=2, width=64, num_heads=2, seq_len=32), 100)
    assert (given.num_layers, given.width, given.context_length) == (2, 64, 32)
    counted = model_config(TrainSettings(target_params=200_000, dropout=0.1), 100)
    assert counted.dropout == 0.1
