"""Evaluation: the same windows, bits per byte, forgetting."""

import contextlib
import math
import sys
import types

import numpy as np
import pytest
import torch

from lowtide.errors import DataError
from lowtide.loader.windows import TokenDataset
from lowtide.tokenizer import Tokenizer
from lowtide.training import evaluation, results
from lowtide.training.evaluation import evaluate_loss, token_byte_counts
from lowtide.training.results import (
    EvalResult,
    ForgettingWatch,
    RunEvaluator,
    evaluation_windows,
    require_same_tokenizer,
)
from lowtide.training.settinggroups import ReplaySettings
from lowtide.training.settings import train_settings

from .conftest import kept_steps

CPU = torch.device("cpu")


@pytest.fixture
def dataset(tmp_path):
    np.save(tmp_path / "ids.npy", (np.arange(1001) % 7).astype(np.uint16))
    return TokenDataset(tmp_path / "ids.npy", split="all", seq_len=10)


def test_windows_are_spread_over_all_of_it():
    assert evaluation_windows(10, 5).tolist() == [0, 2, 4, 6, 8]
    assert evaluation_windows(3, 5).tolist() == [0, 1, 2]
    assert evaluation_windows(3, None).tolist() == [0, 1, 2]


@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_the_loss_is_the_mean_over_tokens_whatever_the_batches(dataset, batch_size):
    def network(ids, targets):
        return targets.double().mean().float()

    result = evaluate_loss(network, dataset, device=CPU, batch_size=batch_size)
    assert result.num_tokens == 1000
    assert result.loss == pytest.approx(((np.arange(1000) + 1) % 7).mean(), rel=1e-5)
    assert result.bits_per_byte is None


def test_bits_per_byte_count_bytes_not_tokens(dataset):
    counts = torch.tensor([2, 2, 2, 2, 2, 2, 2])
    result = evaluate_loss(
        lambda ids, targets: torch.tensor(math.log(2)),
        dataset,
        device=CPU,
        batch_size=8,
        byte_counts=counts,
    )
    assert result.bits_per_byte == pytest.approx(0.5)
    assert result.perplexity == pytest.approx(2.0)


def test_bytes_of_tokens_are_those_of_the_text():
    tokenizer = Tokenizer.from_characters("aä€")
    counts = token_byte_counts(tokenizer)
    ids = tokenizer.encode("aä€")
    assert counts[ids.astype(np.int64)].tolist() == [1, 2, 3]
    assert counts[tokenizer.end_of_text_id] == 0


def test_forgetting_is_a_rise_beyond_the_tolerance():
    watch = ForgettingWatch(0.1)
    assert watch.check({"general": 3.0}) is None
    assert watch.check({"general": 3.05}) is None
    warning = watch.check({"general": 3.2})
    assert "general 3.00 -> 3.20" in warning
    assert "--replay-dataset-dir" in warning
    watch.check({"general": 3.3})
    assert watch.times_in_a_row == 2
    again = ForgettingWatch(0.1)
    again.load_state_dict(watch.state_dict())
    assert again.check({"general": 3.05}) is None
    assert again.times_in_a_row == 0


def test_where_general_data_is_mixed_in_already_more_of_it_is_advised():
    for given, advice in ((None, "--replay-dataset-dir"), ("data", "--replay-fraction is 0.25")):
        watch = ForgettingWatch(0.1, replay=ReplaySettings(given, 0.25))
        watch.check({"general": 3.0})
        assert advice in watch.check({"general": 3.2})


def test_a_dataset_of_another_tokenizer_is_refused(dataset):
    class Other:
        tokenizer_fingerprint = "0" * 32
        source = dataset.source

    with pytest.raises(DataError, match="made with another tokenizer"):
        require_same_tokenizer(Other(), Tokenizer.from_characters("ab"), "model m")
    require_same_tokenizer(dataset, Tokenizer.from_characters("ab"), "model m")


def windows_read(trainer, monkeypatch):
    """The validation windows of every evaluation of a run, in order."""
    seen = []
    get_batch = TokenDataset.get_batch

    def watch(self, indices):
        if self is trainer.val_data:
            seen.extend(int(index) for index in indices)
        return get_batch(self, indices)

    monkeypatch.setattr(TokenDataset, "get_batch", watch)
    trainer.fit()
    return seen


def test_validation_windows_do_not_depend_on_the_micro_batch(make_trainer, monkeypatch):
    options = {"max_iters": 1, "eval_iters": 1, "eval_interval": 100}
    read = {}
    for batch, parts in ((8, 1), (4, 2), (1, 8), (3, 1)):
        name = f"b{batch}"
        trainer = make_trainer(name, batch_size=batch, gradient_accumulation_steps=parts, **options)
        read[name] = windows_read(trainer, monkeypatch)
    assert read["b8"] == read["b4"] == read["b1"] == read["b3"]
    assert len(read["b8"]) == 2 * 32
    halved = make_trainer("halved", batch_size=8, **options)
    forward = halved.model.forward

    def too_large(ids, targets=None):
        if torch.is_grad_enabled() and len(ids) > 2:
            raise MemoryError
        return forward(ids, targets)

    halved.model.forward = too_large
    ready = kept_steps(halved)
    assert windows_read(halved, monkeypatch) == read["b8"]
    assert ready[0].state.micro_batch == 2


@pytest.mark.parametrize("world_size", [2, 3])
def test_several_processes_read_the_same_windows(dataset, world_size):
    def network(ids, targets):
        return targets.double().mean().float()

    def part(rank, totals):
        def total(sums):
            totals.append(sums.clone())
            return sums

        return evaluate_loss(
            network, dataset, device=CPU, batch_size=3, num_windows=64, rank=rank,
            world_size=world_size, total=total,
        )  # fmt: skip

    totals = []
    for rank in range(world_size):
        part(rank, totals)
    alone = []
    world_size = 1
    part(0, alone)
    torch.testing.assert_close(sum(totals), alone[0])


def test_the_best_of_losses_beyond_numbers_has_a_perplexity():
    assert EvalResult(0.0, None, 1).perplexity == 1.0
    assert EvalResult(1e9, None, 1).perplexity == pytest.approx(math.exp(700.0))


@pytest.mark.parametrize(
    ("given", "places"),
    [
        ((10, None, 2, 3), [2, 3, 4]),
        ((10, 5, 0, None), [0, 2, 4, 6, 8]),
        ((10, 5, 3, 4), [6, 8]),
        ((10, 10, 8, 4), [8, 9]),
        ((3, 9, 0, 2), [0, 1]),
        ((7, 3, 0, None), [0, 2, 4]),
    ],
)
def test_parts_of_the_windows(given, places):
    num_windows, wanted, first, count = given
    found = evaluation_windows(num_windows, wanted, first=first, count=count)
    assert found.tolist() == places


def test_a_network_is_evaluated_without_dropout_and_goes_on_as_before(dataset):
    modes, told = [], []

    class Network(torch.nn.Module):
        def forward(self, ids, targets):
            modes.append((self.training, torch.is_grad_enabled(), len(ids)))
            return torch.tensor(1.0)

    network = Network().train()
    result = evaluate_loss(
        network, dataset, device=CPU, batch_size=40, num_windows=90, on_windows=told.append
    )
    assert modes == [(False, False, 40), (False, False, 40), (False, False, 10)]
    assert network.training and told == [40, 40, 10]
    assert (result.loss, result.num_tokens) == (1.0, 900)
    network.eval()
    evaluate_loss(network, dataset, device=CPU, batch_size=100)
    assert not network.training
    assert modes[-1] == (False, False, 100)
    with_none = evaluate_loss(
        network, dataset, device=CPU, batch_size=100, byte_counts=torch.zeros(7, dtype=torch.long)
    )
    assert with_none.bits_per_byte is None


def test_exactly_the_tolerance_is_no_forgetting():
    watch = ForgettingWatch(0.5)
    watch.check({"a": 1.0, "b": 2.0})
    assert watch.check({"a": 1.5, "b": 2.0}) is None and watch.times_in_a_row == 0
    warning = watch.check({"a": 1.75, "b": 2.25})
    assert "a 1.00 -> 1.75" in warning and "b 2.00" not in warning
    assert watch.times_in_a_row == 1


def test_a_sample_of_tokens_of_megabytes_is_cut():
    engine = types.SimpleNamespace(sample=lambda tokenizer: "a" * 1_000_000)
    group = types.SimpleNamespace(world_size=1, rank=0)
    settings = train_settings(sample_tokens=4)
    tokenizer = Tokenizer.from_characters("a")
    evaluator = RunEvaluator(engine, settings, group, rows=1, datasets={}, tokenizer=tokenizer)
    assert evaluator.sample() == "a" * 10_000


def test_only_where_something_is_compiled_is_it_kept_from_compiling(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.compiler, "set_stance", lambda stance: asked.append(stance))
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    assert isinstance(evaluation._uncompiled(), contextlib.nullcontext) and asked == []
    monkeypatch.setitem(sys.modules, "torch._dynamo", torch)
    assert evaluation._uncompiled() is None and asked == ["force_eager"]


@pytest.mark.parametrize(
    ("world_size", "micro_batch", "rows", "at_once", "windows", "total"),
    [(1, 4, 9, 4, 500, 64), (1, 9, 4, 4, 20, 20), (3, 4, 0, 1, 64, 22), (2, 2, 2, 2, 500, 32)],
)
def test_each_process_evaluates_its_share_and_tells_how_far_it_is(
    monkeypatch, world_size, micro_batch, rows, at_once, windows, total
):
    asked, told = [], []

    def evaluate_windows(sums, dataset, *, on_windows, **options):
        asked.append((sums, dataset, options))
        on_windows(3)
        on_windows(2)
        return "result"

    @contextlib.contextmanager
    def eval_sums(tokenizer, *, batch_size):
        yield (tokenizer, batch_size)

    monkeypatch.setattr(results, "evaluate_windows", evaluate_windows)
    engine = types.SimpleNamespace(
        state=types.SimpleNamespace(micro_batch=micro_batch), eval_sums=eval_sums
    )
    group = types.SimpleNamespace(rank=world_size - 1, world_size=world_size)
    data = range(windows)
    evaluator = RunEvaluator(
        engine, train_settings(eval_iters=2), group, rows=rows, datasets={"a": data, "b": data},
        tokenizer="tokenizer",
    )  # fmt: skip
    assert evaluator.evaluate_all(told.append) == {"a": "result", "b": "result"}
    options = {"batch_size": at_once, "num_windows": 64, "rank": world_size - 1,
               "world_size": world_size}  # fmt: skip
    assert asked == [(("tokenizer", at_once), data, options)] * 2
    assert told == [
        f"evaluating {name}: {done} of {total} windows" for name in "ab" for done in (0, 3, 5)
    ]
    assert evaluator.identities() == {"a": " 2", "b": " 2"}


@pytest.mark.parametrize(
    ("world_size", "parallel", "tokens", "tokenizer", "shown"),
    [
        (1, "ddp", 3, "t", True), (1, "fsdp", 3, "t", True), (2, "ddp", 3, "t", True),
        (2, "fsdp", 3, "t", False), (1, "ddp", 0, "t", False), (1, "ddp", 3, None, False),
    ],
)  # fmt: skip
def test_who_shows_a_sample(world_size, parallel, tokens, tokenizer, shown):
    engine = types.SimpleNamespace(sample=lambda tokenizer: "x" * 10_001)
    group = types.SimpleNamespace(rank=0, world_size=world_size)
    settings = train_settings(parallel=parallel, sample_tokens=tokens)
    evaluator = RunEvaluator(
        engine, settings, group, rows=1, datasets={}, tokenizer=tokenizer
    )  # fmt: skip
    assert evaluator.sample() == ("x" * 10_000 if shown else "")


@pytest.mark.parametrize(
    ("num_windows", "wanted", "part", "found"),
    [
        (5, None, {}, [0, 1, 2, 3, 4]), (5, 5, {}, [0, 1, 2, 3, 4]), (5, 9, {}, [0, 1, 2, 3, 4]),
        (10, 4, {}, [0, 2, 5, 7]), (10, 4, {"first": 1, "count": 2}, [2, 5]),
        (10, 4, {"first": 3, "count": 2}, [7]), (5, None, {"first": 1, "count": 3}, [1, 2, 3]),
    ],
)  # fmt: skip
def test_windows_to_evaluate_by_number(num_windows, wanted, part, found):
    assert results.evaluation_windows(num_windows, wanted, **part).tolist() == found
