"""What a run tells: coverage, and its numbers where they were asked for."""

import errno
import math
import os
import sys
import types
from pathlib import Path

import pytest
import torch

from lowtide.errors import UsageError
from lowtide.model.config import GPTConfig
from lowtide.progress import Progress
from lowtide.training import runmetrics
from lowtide.training.counters import Counters
from lowtide.training.eventfiles import EventFile
from lowtide.training.results import EvalResult
from lowtide.training.runmetrics import (
    MetricSinks,
    Pace,
    describe_coverage,
    describe_evaluation,
    describe_overfitting,
    evaluation_row,
)
from lowtide.training.settings import AGAINST_LEARNING_BY_HEART, train_settings
from lowtide.training.state import RunState

CONFIG = GPTConfig(100, 16, 1, 32, 2)


class Data:
    num_tokens = 10_000


def test_coverage_says_how_often_the_data_is_seen():
    settings = train_settings(batch_size=10, seq_len=100)
    model, coverage = describe_coverage(settings, CONFIG, 20, Data())
    assert "16.6k parameters, 1 layer, width 32" in model
    assert "20 steps x 1,000 tokens = 20k tokens" in coverage
    assert "2.00 times the 10k training tokens" in coverage
    assert (
        "every token will be seen 50 times" in describe_coverage(settings, CONFIG, 500, Data())[2]
    )
    hours = train_settings(max_hours=1.5)
    assert "1.5 hours" in describe_coverage(hours, CONFIG, None, Data())[1]


@pytest.fixture
def progress(tmp_path):
    return Progress("train", metrics_path=tmp_path / "metrics.jsonl", stream=None)


def test_rows_go_to_tensorboard(progress, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = train_settings(tensorboard=True, checkpoints_dir=tmp_path, model_name="m")
    with MetricSinks(settings, progress, True) as sinks:
        sinks.write({"event": "step", "step": 3, "loss": 1.5, "sample": "text"})
    events = EventAccumulator(str(tmp_path / "m" / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(3, 1.5)]
    (text,) = events.Tensors("sample/text_summary")
    assert (text.step, text.tensor_proto.string_val[0]) == (3, b"text")
    assert events.PluginTagToContent("text").keys() == {"sample/text_summary"}


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
    settings = train_settings(wandb=True, checkpoints_dir=tmp_path, model_name="m")
    with MetricSinks(settings, progress, True) as sinks:
        sinks.write({"event": "step", "step": 3, "loss": 1.5})
    assert calls == [("m", "allow"), (3, {"loss": 1.5}), 0]


def test_a_missing_package_is_named(progress, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"--wandb needs the package wandb(.|\n)*lowtide\[wandb\]"):
        MetricSinks(train_settings(wandb=True), progress, True)


def test_other_processes_write_nothing(progress):
    with MetricSinks(train_settings(wandb=True), progress, False) as sinks:
        assert sinks._wandb is None


def test_learning_by_heart_is_said_with_what_helps():
    def said(epoch=1.0, train_loss=3.0, val_loss=3.31, **options):
        settings = train_settings(**options)
        return describe_overfitting(settings, epoch=epoch, train_loss=train_loss, val_loss=val_loss)

    assert "0.31 below validation loss" in said()
    assert AGAINST_LEARNING_BY_HEART in said()
    assert said(epoch=0.99) is None
    assert said(val_loss=3.3) is None
    assert said(train_loss=float("nan")) is None
    assert said(dropout=0.1) is None
    assert said(weight_decay=1.0) is None
    assert said(weight_decay=0.9) is not None


def test_evaluations_as_a_row_and_as_a_line():
    results = {"val": EvalResult(2.0, 0.75, 10), "eval_web": EvalResult(3.456, None, 10)}
    assert evaluation_row(7, results) == {
        "event": "eval",
        "step": 7,
        "val_loss": 2.0,
        "val_bits_per_byte": 0.75,
        "eval_web_loss": 3.456,
        "eval_web_bits_per_byte": None,
    }
    assert describe_evaluation(7, results) == "step 7: val 2.00 | eval_web 3.46 | 0.750 bits/byte"
    del results["val"]
    assert describe_evaluation(7, results) == "step 7: eval_web 3.46"


def test_twenty_times_is_not_too_often_and_more_is():
    settings = train_settings(batch_size=10, seq_len=100)
    assert len(describe_coverage(settings, CONFIG, 200, Data())) == 2
    assert len(describe_coverage(settings, CONFIG, 201, Data())) == 3
    no_data = describe_coverage(settings, CONFIG, 20, object())
    assert len(no_data) == 2 and "training tokens" not in no_data[1]
    assert no_data[1].endswith("1.2 per parameter")
    epochs = describe_coverage(train_settings(epochs=2.5), CONFIG, None, Data())
    assert epochs[1] == "coverage: as many steps as 2.5 epochs have"


def test_the_pace_of_a_run(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(runmetrics.time, "monotonic", lambda: now[0])
    pace = Pace(1000, 6.0, step=10)
    counters = Counters(*(torch.tensor(float(n)) for n in (5, 4, 3, 2, 1)))
    state = RunState(step=20, last_loss=1.5, elapsed_seconds=9.0, micro_batch=4)
    now[0] += 2
    row = pace.row(state, counters, learning_rate=0.5)
    assert row == {
        "event": "step",
        "step": 20,
        "loss": 1.5,
        "learning_rate": 0.5,
        "gradient_norm": 1.0,
        "tokens_per_second": 5000.0,
        "flops_per_second": 30_000.0,
        "skipped_steps": 2,
        "elapsed_seconds": 9.0,
        "micro_batch": 4,
    }
    now[0] += 1
    state.step = 21
    assert pace.row(state, counters, learning_rate=0.5)["tokens_per_second"] == 1000.0
    with pace.aside("saving"):
        now[0] += 0.12345678
    now[0] += 0.5
    state.step = 22
    row = pace.row(state, counters, learning_rate=0.5)
    assert row["saving_seconds"] == 0.123457  # to the microsecond, and no part of the pace
    assert row["tokens_per_second"] == pytest.approx(2000.0)


def test_a_run_that_fails_tells_so_and_boards_are_closed(progress, tmp_path, monkeypatch):
    closed = []

    class Board:
        def __init__(self, path, note):
            closed.append(path)

        def add_scalar(self, name, value, step):
            closed.append((name, value, step))

        def add_text(self, name, text, step):
            closed.append((name, text, step))

        def close(self):
            closed.append("closed")

    monkeypatch.setattr(runmetrics, "EventFile", Board)
    settings = train_settings(tensorboard=True, checkpoints_dir=tmp_path, model_name="m")
    with pytest.raises(ConnectionError), MetricSinks(settings, progress, True) as sinks:
        sinks.write({"event": "step", "step": 3, "loss": 1.5, "sample": "text"})
        raise ConnectionError
    assert closed == [
        tmp_path / "m" / "tensorboard", ("loss", 1.5, 3), ("sample", "text", 3), "closed"
    ]  # fmt: skip
    ended = []
    run = types.SimpleNamespace(finish=lambda exit_code: ended.append(exit_code))
    wandb = types.SimpleNamespace(init=lambda **options: run)
    monkeypatch.setattr(runmetrics, "import_package", lambda package, what: wandb)
    with pytest.raises(ConnectionError), MetricSinks(train_settings(wandb=True), progress, True):
        raise ConnectionError
    assert ended == [1]


def test_counters_and_states_begin_with_nothing():
    state = RunState()
    assert (state.step, state.elapsed_seconds, state.micro_batch) == (0, 0.0, 0)
    assert state.evaluated_step == -1 and state.stopped is None
    counters = Counters.zeros(torch.device("cpu"))
    one, bad = torch.tensor(0.0), torch.tensor(1.0)
    counters.add(torch.tensor(2.0), torch.tensor(3.0), one)
    counters.add(torch.tensor(9.0), torch.tensor(4.0), bad)
    counters.add(torch.tensor(9.0), torch.tensor(5.0), bad)
    found = counters.state_dict()
    assert found == {"loss": 2.0, "steps": 1.0, "bad_in_a_row": 2.0, "bad": 2.0, "norm": 5.0}
    counters.add(torch.tensor(1.0), torch.tensor(6.0), one)
    assert counters.bad_in_a_row.item() == 0 and counters.bad.item() == 2
    counters.load_state_dict(found)
    assert counters.state_dict() == found


def test_a_row_of_bad_steps_alone_has_no_loss():
    group = types.SimpleNamespace(mean=lambda loss: loss)
    counters = Counters.zeros(torch.device("cpu"))
    for loss, skip in ((2.0, 0.0), (9.0, 1.0), (4.0, 0.0)):
        counters.add(torch.tensor(loss), torch.tensor(1.0), torch.tensor(skip))
    assert counters.mean_loss(group) == 3.0
    counters.next_row()
    counters.add(torch.tensor(math.nan), torch.tensor(1.0), torch.tensor(1.0))
    assert math.isnan(counters.mean_loss(group))


def test_a_text_is_one_string_on_the_page_of_texts(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData

    board = EventFile(tmp_path, pytest.fail)
    board.add_text("sample", "low tide", 7)
    board.close()
    (path,) = tmp_path.iterdir()
    data, events = path.read_bytes(), []
    while data:  # each behind its length, between two checksums
        size = int.from_bytes(data[:8], "little")
        events.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    version, event = events
    assert version.file_version == "brain.Event:2" and event.step == 7
    (value,) = event.summary.value
    assert value.tag == "sample/text_summary"
    assert value.metadata.plugin_data.plugin_name == "text"
    assert TextPluginData.FromString(value.metadata.plugin_data.content).version == 0
    assert value.tensor.string_val == [b"low tide"]
    assert [part.size for part in value.tensor.tensor_shape.dim] == [1]


def test_a_full_disk_ends_the_events_and_not_the_run(progress, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    told = []
    board = EventFile(tmp_path / "board", told.append)
    board.add_scalar("loss", 1.5, 1)
    (path,) = (tmp_path / "board").iterdir()
    size = path.stat().st_size
    board._file.close()
    board._file = Path("/dev/full").open("wb")  # noqa: SIM115
    board.add_scalar("loss", 1.25, 2)
    board.add_text("sample", "text", 2)
    board.close()
    assert path.stat().st_size == size
    assert told == [f"no more events for TensorBoard: {path}: {os.strerror(errno.ENOSPC)}"]
    (tmp_path / "file").write_text("")
    EventFile(tmp_path / "file" / "board", told.append).add_scalar("loss", 1.5, 1)
    assert len(told) == 2 and told[1].endswith(os.strerror(errno.ENOTDIR))
