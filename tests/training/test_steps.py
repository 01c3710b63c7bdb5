"""Steps, with stand-ins for what computes: what is told to whom, and what a checkpoint keeps."""

from types import SimpleNamespace

import pytest

from lowtide.training.diagnostics import Diagnostics
from lowtide.training.schedule import RunLength
from lowtide.training.settings import train_settings
from lowtide.training.state import RunState
from lowtide.training.steps import Steps


class Engine:
    learning_rate = 0.5

    def __init__(self, state):
        self.state, self.calls = state, []

    def compute(self, inputs, targets, *, share_done):
        self.calls.append(("compute", inputs, targets, share_done))
        return 2.5

    def update(self, loss, factor):
        self.calls.append(("update", loss, factor))
        return 0.25, 0.0

    def numbers(self):
        return {"loss_scale": 1}


class Feed:
    def __init__(self):
        self.at = 0

    def __next__(self):
        self.at += 1
        return f"inputs {self.at}", f"targets {self.at}"

    def state_dict(self):
        return {"at": self.at, "epoch": self.at // 4}

    def load_state_dict(self, state):
        self.at = state["at"]


class Counters:
    def __init__(self):
        self.rows = []

    def add(self, *row):
        self.rows.append(row)

    def state_dict(self):
        return {"rows": len(self.rows)}

    def load_state_dict(self, state):
        self.rows = [None] * state["rows"]


def make_steps(total=4, world_size=1, **options):
    settings = train_settings(schedule="linear-decay", warmup=0, decay_fraction=1, **options)
    state = RunState(micro_batch=8)
    group = SimpleNamespace(world_size=world_size, first_says=lambda value: 77.0)
    return Steps(
        state=state,
        engine=Engine(state),
        feed=Feed(),
        counters=Counters(),
        length=RunLength(settings.length, settings.learning, total),
        group=group,
        data=range(10),
        where=Diagnostics(watch=False),
    )


def test_a_step_computes_updates_and_counts_once():
    steps = make_steps()
    steps.train_step()
    steps.train_step()
    computed = [call for call in steps.engine.calls if call[0] == "compute"]
    assert computed == [
        ("compute", "inputs 1", "targets 1", 0.0),
        ("compute", "inputs 2", "targets 2", 0.25),
    ]
    factors = [call[2] for call in steps.engine.calls if call[0] == "update"]
    assert factors == pytest.approx([1.0, 0.775])
    assert steps.counters.rows == [(2.5, 0.25, 0.0)] * 2
    assert steps.state.step == 2 and steps.state.elapsed_seconds >= 0
    assert not steps.are_over()
    steps.train_step()
    steps.train_step()
    assert steps.are_over() and steps.epoch() == 1.0


def test_several_processes_take_the_first_ones_clock():
    steps = make_steps(world_size=2)
    steps.state.elapsed_seconds = 5.0
    steps.train_step()
    assert steps.state.elapsed_seconds == 5.0
    steps.agree_on_time()
    assert steps.state.elapsed_seconds == 77.0
    alone = make_steps()
    alone.agree_on_time()
    assert alone.state.elapsed_seconds == 0.0


def test_what_is_kept_is_taken_back_with_the_smaller_micro_batch():
    steps = make_steps()
    steps.train_step()
    numbers = steps.numbers()
    assert numbers["loss_scale"] == 1 and numbers["world_size"] == 1
    again = make_steps()
    again.state.micro_batch = 2  # as much as the budget allows now
    again.load_numbers(numbers)
    assert again.state.step == 1 and again.state.micro_batch == 2
    assert again.engine.state is again.state
    assert again.feed.at == 1 and len(again.counters.rows) == 1
    large = make_steps()
    large.state.micro_batch = 16
    large.load_numbers(numbers)
    assert large.state.micro_batch == 8


def test_where_a_step_stands_is_known_throughout(monkeypatch):
    steps = make_steps()
    seen = []
    watched = {"feed": "__next__", "engine": "compute"}
    for part, name in watched.items():
        real = getattr(type(getattr(steps, part)), name)

        def look(self, *given, real=real, name=name, **named):
            seen.append((name, steps.where._stage, steps.where._step))
            return real(self, *given, **named)

        monkeypatch.setattr(type(getattr(steps, part)), name, look)
    real_update = steps.engine.update
    steps.engine.update = lambda *given: (
        seen.append(("update", steps.where._stage, steps.where._step)) or real_update(*given)
    )
    steps.train_step()
    steps.train_step()
    assert seen == [
        row
        for step in (0, 1)
        for row in (
            ("__next__", "waiting for data", step),
            ("compute", "computing", step),
            ("update", "updating", step),
        )
    ]
