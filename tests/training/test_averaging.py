"""Averages of weights: what they are, who sees them, and that a run goes on with both."""

import math

import pytest
import torch
from torch import nn

from lowtide.errors import UsageError
from lowtide.model.gpt import GPT
from lowtide.training.averaging import WeightAverage, average_weight
from lowtide.training.footprint import planned_bytes
from lowtide.training.modules import wrap_module
from lowtide.training.settings import train_settings

from .conftest import VOCAB
from .stopping import fit_whole_and_in_parts, run_files


def test_the_weight_of_a_step():
    # Over a tenth of a thousand steps each counts 1 - exp(-1/100), but early on 5 of those so far.
    assert average_weight(900, 0.9, 0.1) == pytest.approx(1 - math.exp(-0.01))
    assert average_weight(300, 0.3, 0.1) == pytest.approx(5 / 300)
    assert average_weight(5, 0.005, 0.1) == 1.0
    assert average_weight(6, 0.006, 0.1) == pytest.approx(5 / 6)
    assert average_weight(50, 0.0, 0.1) == 1.0  # nothing is known of the run's length


def test_an_average_is_what_its_definition_says():
    model = nn.Linear(3, 2)
    average = WeightAverage(model, 0.2)
    wanted = {name: value.detach().double() for name, value in model.named_parameters()}
    for step in range(40):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
        average.add(step, step / 40)
        weight = average_weight(step, step / 40, 0.2)
        for name, value in model.named_parameters():
            wanted[name] += weight * (value.detach().double() - wanted[name])
    for name, value in average.averaged().items():
        torch.testing.assert_close(value.double(), wanted[name], rtol=1e-5, atol=1e-6)


def test_the_average_takes_the_parameters_place_and_gives_it_back():
    model = nn.Linear(3, 2)
    average = WeightAverage(model, 0.5)
    first = {name: value.detach().clone() for name, value in model.named_parameters()}
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    with average.in_place():
        assert all(torch.equal(v, first[n]) for n, v in model.named_parameters())
    assert not model.weight.any() and not model.bias.any()
    assert all(torch.equal(v, first[n]) for n, v in average.averaged().items())
    assert set(average.stepped()) == {"stepped.weight", "stepped.bias"}
    assert not average.stepped()["stepped.weight"].any()


def test_a_shared_parameter_is_averaged_under_both_names():
    one = nn.Linear(2, 2, bias=False)
    other = nn.Linear(2, 2, bias=False)
    other.weight = one.weight
    average = WeightAverage(nn.Sequential(one, other), 0.5)
    first = one.weight.detach().clone()
    with torch.no_grad():
        one.weight.zero_()
    found = average.averaged()
    assert torch.equal(found["0.weight"], first) and torch.equal(found["1.weight"], first)


def test_parameters_in_half_precision_are_refused():
    with pytest.raises(UsageError, match="not in float32"):
        WeightAverage(nn.Linear(2, 2).bfloat16(), 0.1)


def test_the_average_is_saved_evaluated_and_left_in_the_network(make_trainer):
    options = {"max_iters": 30, "eval_interval": 100, "learning_rate": 3e-2, "average_over": 0.3}
    trainer = make_trainer(**options)
    result = trainer.fit()
    plain = make_trainer("plain", **{**options, "average_over": 0.0})
    plain.fit()
    weights, state = run_files(trainer)
    plain_weights, _ = run_files(plain)
    embedding = "model.embed_tokens.weight"
    # The steps are the same; what is saved is not.
    assert torch.equal(state["stepped.embedding.weight"], plain_weights[embedding])
    assert not torch.equal(weights[embedding], plain_weights[embedding])
    own = dict(trainer.model.state_dict())
    assert torch.equal(own["embedding.weight"], weights[embedding])
    # What was evaluated are the weights in the folder.
    assert trainer.evaluate()["val"].loss == pytest.approx(result.val_loss, abs=1e-6)


def test_a_run_that_goes_on_has_the_average_of_one_never_stopped(make_trainer):
    options = {"eval_interval": 100, "learning_rate": 3e-2, "average_over": 0.3, "max_iters": 24}
    fit_whole_and_in_parts(make_trainer, options)


def test_a_run_keeps_its_averages(make_trainer):
    make_trainer(max_iters=4, average_over=0.5).fit()
    with pytest.raises(UsageError, match=r"average_over is 0\.0, this run has 0\.5"):
        make_trainer(max_iters=8, average_over=0.0).fit()
    again = make_trainer(max_iters=8)
    assert again.fit().steps == 8
    assert again.settings.learning.average_over == 0.5


def test_a_plan_counts_the_average(make_trainer):
    config = make_trainer().model.config
    count = sum(p.numel() for p in GPT(config).parameters())
    plain = planned_bytes(config, train_settings(seq_len=16))
    averaged = planned_bytes(config, train_settings(seq_len=16, average_over=0.1))
    assert averaged.total_bytes - plain.total_bytes == 4 * count
    assert averaged.checkpoint_bytes - plain.checkpoint_bytes == 4 * count


@pytest.mark.parametrize("own", [False, True])
def test_the_needs_of_a_module_count_it(own):
    module = nn.Sequential(nn.Embedding(VOCAB, 8), nn.Linear(8, VOCAB))
    wrapped = wrap_module(module, seq_len=16, vocab_size=VOCAB)
    needs = [
        wrapped.training_bytes(
            train_settings(average_over=over).learning, tokens_per_step=64, has_own_optimizer=own
        )
        for over in (0.0, 0.1)
    ]
    assert needs[1] - needs[0] == 4 * sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("over", [-0.1, 1.5])
def test_a_share_that_is_none_is_refused(over):
    with pytest.raises(UsageError, match="average_over"):
        train_settings(average_over=over)


def test_not_with_packed_states():
    with pytest.raises(UsageError, match="--average-over"):
        train_settings(offload="packed", average_over=0.1)
