"""Schedules and lengths: pure functions of the step."""

from itertools import pairwise
from typing import Any

import pytest

from lowtide.errors import UsageError
from lowtide.training.schedule import (
    RunLength,
    default_learning_rate,
    learning_rate_factor,
    momentum_at,
    total_steps,
)
from lowtide.training.settings import TrainSettings, train_settings


def run_length(steps: int | None, *, follows_share: bool = False, **options: Any) -> RunLength:
    settings = train_settings(**options)
    return RunLength(settings.length, settings.learning, steps, follows_share=follows_share)


def steps_of(settings: TrainSettings, num_parameters: int, data: Any) -> int | None:
    return total_steps(
        settings.length,
        num_parameters,
        data,
        rows_per_step=settings.batch.rows_per_step,
        tokens_per_step=settings.tokens_per_step,
    )


def factor(step, schedule="cosine", *, total=100, warmup=10, **more):
    return learning_rate_factor(
        step, total_steps=total, warmup=warmup, schedule=schedule, final_fraction=0.1, **more
    )


def test_warm_up_rises_to_the_peak():
    assert [factor(step) for step in (0, 4, 9, 10)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert factor(4, warmup=0.1) == pytest.approx(0.5)


def test_shapes_after_warm_up():
    assert factor(55) == pytest.approx(0.55)
    assert factor(100) == pytest.approx(0.1)
    assert factor(500) == pytest.approx(0.1)
    assert factor(60, "constant") == 1.0
    assert factor(60, "linear-decay") == 1.0
    assert factor(82, "linear-decay") == pytest.approx(0.55)
    assert factor(100, "linear-decay") == pytest.approx(0.1)


def test_linear_decay_takes_the_share_of_the_run_it_is_given():
    found = [factor(step, "linear-decay", warmup=0, decay_fraction=0.8) for step in (20, 60, 100)]
    assert found == pytest.approx([1.0, 0.55, 0.1])


def test_an_unknown_schedule_is_refused():
    wrong: Any = {"schedule": "cosin"}
    with pytest.raises(UsageError, match="schedule is 'cosin', expected one of cosine, linear"):
        learning_rate_factor(9, total_steps=10, warmup=0, final_fraction=0.1, **wrong)


def test_momentum_rises_over_its_warm_up():
    found = [momentum_at(step, momentum=0.95, warmup_steps=100) for step in (0, 50, 100, 500)]
    assert found == pytest.approx([0.85, 0.9, 0.95, 0.95])
    assert momentum_at(0, momentum=0.95, warmup_steps=0) == 0.95


@pytest.mark.parametrize(
    "wrong",
    [{"decay_fraction": 0.0}, {"momentum": 1.0}, {"momentum_warmup": -1}, {"loss_chunk_tokens": 0}],
)
def test_values_that_mean_nothing_are_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        train_settings(**wrong)


def test_the_clock_can_be_further_than_the_steps():
    assert factor(20, elapsed_fraction=1.0) == pytest.approx(0.1)
    assert factor(20, total=None, warmup=0.1, elapsed_fraction=0.05) == pytest.approx(0.5)
    assert factor(20, total=None, warmup=0, elapsed_fraction=0.5) == pytest.approx(0.55)


def test_lengths():
    data = range(1000)
    assert steps_of(train_settings(max_iters=7), 10**6, data) == 7
    assert steps_of(train_settings(epochs=2, batch_size=10), 10**6, data) == 200
    assert steps_of(train_settings(max_hours=1.0), 10**6, data) is None
    assert steps_of(train_settings(epochs=2), 10**6, iter(data)) is None
    by_tokens = train_settings(batch_size=10, seq_len=100, tokens_per_param=20)
    assert steps_of(by_tokens, 10**6, data) == 20_000


def test_larger_models_get_smaller_rates():
    small, large = (default_learning_rate(n, "adamw", adapting=False) for n in (10**6, 124 * 10**6))
    assert small == pytest.approx(3e-3)
    assert large == pytest.approx(7e-4, rel=0.05)
    assert default_learning_rate(10**6, "adamw", adapting=True) == pytest.approx(small / 5)


def never():
    raise AssertionError("asked for the epoch of something that is no stream")


def test_steps_end_a_run_or_the_clock_whichever_comes_first():
    length = run_length(10, model_name="x", max_iters=10, max_hours=1.0)
    assert [length.is_over(step, 0.0, epoch=never) for step in (0, 9, 10, 11)] == [
        *(False, False),
        *(True, True),
    ]
    assert length.is_over(1, 3600.0, epoch=never) and length.time_is_up(3600.0)
    assert not length.is_over(1, 3599.0, epoch=never)


def test_a_stream_ends_with_its_epochs():
    length = run_length(None, model_name="x", epochs=2)
    assert [length.is_over(9, 0.0, epoch=lambda epoch=epoch: epoch) for epoch in (1, 2)] == [
        False,
        True,
    ]
    early, late = (
        length.learning_rate_factor(500, 0.0, epoch=lambda epoch=epoch: epoch) for epoch in (0, 1)
    )
    assert early > late  # decay follows what was read
    assert length.learning_rate_factor(49, 0.0, epoch=lambda: 0) == pytest.approx(0.5)


def test_the_clock_lowers_the_rate_of_a_run_by_hours():
    length = run_length(None, model_name="x", max_hours=2.0, schedule="linear-decay")
    rates = [length.learning_rate_factor(7, s, epoch=never) for s in (3600.0, 6000.0, 7200.0)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 1.0
    assert rates[-1] == pytest.approx(length.learning.final_learning_rate)


@pytest.mark.parametrize("steps", [24, 400, 10_000])
def test_a_stream_by_epochs_warms_up_and_decays_with_the_share_that_was_read(steps):
    length = run_length(None, follows_share=True, epochs=2)
    rates = [
        length.learning_rate_factor(step, 0.0, epoch=lambda step=step: 2 * step / steps)
        for step in range(steps)
    ]
    peak = max(range(steps), key=rates.__getitem__)
    assert rates[peak] > 0.98
    assert peak <= min(100, max(2, 0.06 * steps))
    assert all(one >= other for one, other in pairwise(rates[peak:]))
    assert rates[steps // 2] == pytest.approx(0.55, abs=0.05)  # halfway down, in mid-epoch
    assert rates[-1] == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(
    ("count", "optimizer", "adapting", "rate"),
    [
        (1, "adamw", False, 5e-3),
        (10_000, "muon", False, 1e-2),
        (10**6, "muon", False, 6e-3),
        (10**6, "muon", True, 1.2e-3),
        (10**9, "adamw", False, 3e-3 * 1e-3**0.3),
    ],
)
def test_rates_of_sizes(count, optimizer, adapting, rate):
    assert default_learning_rate(count, optimizer, adapting=adapting) == pytest.approx(rate)


def test_a_run_has_at_least_one_step_and_parts_of_one_count():
    assert steps_of(train_settings(epochs=0.001), 10**6, range(10)) == 1
    assert steps_of(train_settings(epochs=1, batch_size=3), 10**6, range(10)) == 4
    tiny = train_settings(batch_size=10, seq_len=100, tokens_per_param=0.1)
    assert steps_of(tiny, 100, range(10)) == 1
    assert steps_of(tiny, 10_001, range(10)) == 2


def plain(step, **options):
    given = {"total_steps": 100, "warmup": 10, "schedule": "cosine", "final_fraction": 0.1}
    return learning_rate_factor(step, **{**given, **options})


@pytest.mark.parametrize(
    ("step", "options", "factor"),
    [
        (0, {}, 0.1),
        (8, {}, 0.9),
        (9, {}, 1.0),
        (10, {}, 1.0),
        (55, {}, 0.55),
        (100, {}, 0.1),
        (200, {}, 0.1),  # past the end: no lower, and not up again
        (4, {"warmup": 0.1}, 0.5),
        (50, {"warmup": 0.999}, 51 / 100),
        (0, {"warmup": 1}, 1.0),
        (0, {"warmup": 0}, 1.0),
        (50, {"schedule": "constant"}, 1.0),
        (60, {"schedule": "linear-decay", "warmup": 0}, 1.0),
        (80, {"schedule": "linear-decay", "warmup": 0}, 0.55),
        (80, {"schedule": "linear-decay", "warmup": 0, "decay_fraction": 0.8}, 0.1 + 0.9 * 0.25),
        (10, {"elapsed_fraction": 0.5}, 0.55),
        (7, {"total_steps": None, "warmup": 0.1, "elapsed_fraction": 0.0}, 0.01),
        (7, {"total_steps": None, "warmup": 0.1, "elapsed_fraction": 0.1}, 0.1 + 0.9 * 0.97552826),
        (7, {"total_steps": None, "warmup": 16, "elapsed_fraction": 0.5}, 0.5),
        (16, {"total_steps": None, "warmup": 16, "elapsed_fraction": 0.5}, 0.55),
        (4, {"total_steps": None, "warmup": 0.5, "most_warmup_steps": 10}, 0.5),
        (10, {"total_steps": None, "warmup": 0.5, "most_warmup_steps": 10}, 1.0),
        (4, {"total_steps": None, "warmup": 1, "elapsed_fraction": 0.5}, 0.55),
    ],
)
def test_factors_at_single_steps(step, options, factor):
    assert plain(step, **options) == pytest.approx(factor)


def test_momentum_without_a_warm_up_and_at_its_ends():
    assert momentum_at(0, momentum=0.95, warmup_steps=0) == 0.95
    assert momentum_at(0, momentum=0.95, warmup_steps=10) == pytest.approx(0.85)
    assert momentum_at(0, momentum=0.95, warmup_steps=1) == pytest.approx(0.85)
    assert momentum_at(10, momentum=0.95, warmup_steps=10) == pytest.approx(0.95)
    assert momentum_at(30, momentum=0.95, warmup_steps=10) == pytest.approx(0.95)


def test_the_further_of_clock_and_epochs_counts():
    length = run_length(None, epochs=2, max_hours=1.0, warmup=0)
    by_clock = length.learning_rate_factor(500, 1800.0, epoch=lambda: 0.0)
    by_epochs = length.learning_rate_factor(500, 0.0, epoch=lambda: 1.0)
    assert by_clock == by_epochs == pytest.approx(0.55)
    assert length.is_over(5, 3600.0, epoch=lambda: 0.0) is False  # a stream ends by its epochs
    by_steps = run_length(100, epochs=2)
    assert by_steps.learning_rate_factor(99, 0.0, epoch=never) < 0.2


def test_a_stream_of_unknown_length_warms_up_in_a_hundred_steps():
    length = run_length(None, epochs=2)
    steps = (0, 49, 98, 99, 100)
    rates = [length.learning_rate_factor(step, 0.0, epoch=lambda: 0.0) for step in steps]
    assert rates == pytest.approx([0.01, 0.5, 0.99, 1.0, 1.0])
    own = run_length(None, epochs=2, warmup=10)
    assert own.learning_rate_factor(4, 0.0, epoch=lambda: 0.0) == pytest.approx(0.5)
    known = run_length(None, follows_share=True, epochs=2, warmup=0.5)
    assert known.learning_rate_factor(4, 0.0, epoch=lambda: 0.5) == pytest.approx(0.5)
    hours = run_length(None, max_hours=1.0, warmup=0.5)
    assert hours.learning_rate_factor(4, 900.0, epoch=never) == pytest.approx(0.5)
    assert hours.learning_rate_factor(400, 0.0, epoch=never) == pytest.approx(0.01)


def test_borders_of_schedules():
    small, smaller = (default_learning_rate(n, "adamw", adapting=False) for n in (10_000, 9999))
    assert small == smaller == 5e-3
    rate = default_learning_rate(4 * 10**6, "adamw", adapting=False)
    assert rate == pytest.approx(3e-3 * 0.25**0.3, rel=1e-9)
    assert momentum_at(1, momentum=0.95, warmup_steps=2) == pytest.approx(0.9)
    # A warm-up of one step is a step, not the whole run.
    assert plain(0, total_steps=None, warmup=1, elapsed_fraction=0.2) == 1.0
    assert plain(1, total_steps=None, warmup=1, elapsed_fraction=0.5) == pytest.approx(0.55)
    assert plain(0, total_steps=None, warmup=2, elapsed_fraction=0.2) == 0.5
    assert plain(5, total_steps=6, warmup=5) == pytest.approx(1.0)
    assert plain(5, total_steps=5, warmup=5) == pytest.approx(1.0)
    assert run_length(5).follows_share is False
    by_steps = run_length(10, epochs=1)
    assert not by_steps.is_over(9, 0.0, epoch=never)
    one = run_length(None, epochs=2, warmup=1)
    assert one.learning_rate_factor(0, 0.0, epoch=lambda: 0.0) == 1.0
