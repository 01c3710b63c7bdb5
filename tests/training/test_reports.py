"""What a run tells: coverage, and its numbers where they were asked for."""

import sys
import types

import pytest

from lowtide.errors import UsageError
from lowtide.model.config import GPTConfig
from lowtide.progress import Progress
from lowtide.training.reports import MetricSinks, describe_coverage, describe_overfitting
from lowtide.training.settings import AGAINST_LEARNING_BY_HEART, TrainSettings

CONFIG = GPTConfig(100, 16, 1, 32, 2)


class Data:
    num_tokens = 10_000


def test_coverage_says_how_often_the_data_is_seen():
    settings = TrainSettings(batch_size=10, seq_len=100)
    model, coverage = describe_coverage(settings, CONFIG, 20, Data())
    assert "16.6k parameters, 1 layers, width 32" in model
    assert "20 steps x 1,000 tokens = 20k tokens" in coverage
    assert "2.00 times the 10k training tokens" in coverage
    assert (
        "every token will be seen 50 times" in describe_coverage(settings, CONFIG, 500, Data())[2]
    )
    hours = TrainSettings(max_hours=1.5)
    assert "1.5 hours" in describe_coverage(hours, CONFIG, None, Data())[1]


@pytest.fixture
def progress(tmp_path):
    return Progress("train", metrics_path=tmp_path / "metrics.jsonl", stream=None)


def test_rows_go_to_tensorboard(progress, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = TrainSettings(tensorboard=True, checkpoints_dir=tmp_path, model_name="m")
    with MetricSinks(settings, progress, True) as sinks:
        sinks.write({"event": "step", "step": 3, "loss": 1.5, "sample": "text"})
    events = EventAccumulator(str(tmp_path / "m" / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(3, 1.5)]


def test_rows_go_to_wandb(progress, tmp_path, monkeypatch):
    calls = []

    class Run:
        def log(self, numbers, step):
            calls.append((step, numbers))

        def finish(self, exit_code):
            calls.append(exit_code)

    def init(**options):
        calls.append((options["name"], options["resume"]))
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    settings = TrainSettings(wandb=True, checkpoints_dir=tmp_path, model_name="m")
    with MetricSinks(settings, progress, True) as sinks:
        sinks.write({"event": "step", "step": 3, "loss": 1.5})
    assert calls == [("m", "allow"), (3, {"loss": 1.5}), 0]


def test_a_missing_package_is_named(progress, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"--wandb needs the package wandb(.|\n)*lowtide\[wandb\]"):
        MetricSinks(TrainSettings(wandb=True), progress, True)


def test_other_processes_write_nothing(progress):
    with MetricSinks(TrainSettings(wandb=True), progress, False) as sinks:
        assert sinks._wandb is None


def test_learning_by_heart_is_said_with_what_helps():
    def said(epoch=1.0, train_loss=3.0, val_loss=3.31, **options):
        settings = TrainSettings(**options)
        return describe_overfitting(settings, epoch=epoch, train_loss=train_loss, val_loss=val_loss)

    assert "0.31 below validation loss" in said()
    assert AGAINST_LEARNING_BY_HEART in said()
    assert said(epoch=0.99) is None
    assert said(val_loss=3.3) is None
    assert said(train_loss=float("nan")) is None
    assert said(dropout=0.1) is None
    assert said(weight_decay=1.0) is None
    assert said(weight_decay=0.9) is not None
