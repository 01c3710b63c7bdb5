"""Torch modules of all common manners are trained, saved, taken up again and evaluated."""

from __future__ import annotations

import types

import pytest
import torch
from tests.training.conftest import VOCAB
from torch import nn

from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.generation import sampling
from lowtide.loader.batches import BatchLoader
from lowtide.loader.windows import TokenDataset
from lowtide.model.sizing import count_parameters
from lowtide.model.weights import load_model
from lowtide.tokenizer import Tokenizer
from lowtide.training import modules
from lowtide.training.distributed import ProcessGroup
from lowtide.training.modules import WrappedModule, wrap_module
from lowtide.training.schedule import default_learning_rate
from lowtide.training.settings import train_settings
from lowtide.training.trainer import Trainer


class Logits(nn.Module):
    """Ids to logits, with a buffer, dropout and a shared matrix."""

    def __init__(self, width=16):
        super().__init__()
        self.table = nn.Embedding(VOCAB, width)
        self.inner = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Linear(width, VOCAB, bias=False)
        self.out.weight = self.table.weight
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))

    def forward(self, ids):
        return self.out(self.dropout(torch.relu(self.inner(self.table(ids)))))


class Pair(Logits):
    """nanoGPT's manner."""

    def forward(self, ids, targets=None):
        logits = super().forward(ids)
        if targets is None:
            return logits[:, [-1]], None
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Loss(Pair):
    """Only the loss."""

    def forward(self, ids, targets):
        return super().forward(ids, targets)[1]


class Named(Logits):
    """transformers' manner: `labels` would be shifted once more, so they are not given."""

    def forward(self, input_ids, labels=None):
        assert labels is None
        return types.SimpleNamespace(loss=None, logits=super().forward(input_ids))


def make(kind, token_file, tmp_path, name="mine", **options):
    torch.manual_seed(3)
    module = kind() if isinstance(kind, type) else kind
    fields = {
        "batch_size": 4, "max_iters": 6, "save_interval": 2, "eval_interval": 3, "eval_iters": 1,
        "log_interval": 1, "learning_rate": 3e-3, "device": "cpu", "sample_tokens": 4,
        "checkpoints_dir": tmp_path, "model_name": name, **options,
    }  # fmt: skip
    return Trainer(
        module,
        data=TokenDataset(token_file, split="train", seq_len=16),
        val_data=TokenDataset(token_file, split="val", seq_len=16),
        notify=lambda text: None,
        **fields,
    )


def test_all_manners_learn_the_same(token_file, tmp_path):
    losses = set()
    for kind in (Logits, Pair, Loss, Named):
        trainer = make(kind, token_file, tmp_path, kind.__name__, optimizer="adamw")
        before = trainer.evaluate()["val"].loss
        result = trainer.fit()
        losses.add((before, result.loss, result.val_loss))
        assert trainer.evaluate()["val"].loss == result.val_loss
    ((before, loss, val_loss),) = losses
    assert before > loss and before > val_loss


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_goes_on_as_if_it_had_not_stopped(optimizer, token_file, tmp_path):
    whole = make(Logits, token_file, tmp_path, "whole", optimizer=optimizer)
    whole.fit()
    stop = make(
        Logits, token_file, tmp_path, optimizer=optimizer, on_evaluation=lambda e: e.step == 3
    )
    assert stop.fit().stopped == "callback"
    again = make(Logits, token_file, tmp_path, optimizer=optimizer)  # the same script once more
    assert again.fit().steps == 6
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    assert set(whole.model.state_dict()) == set(Logits().state_dict())


def test_samples_come_from_logits(token_file, tmp_path):
    tokenizer = Tokenizer.load("gpt2")
    module = nn.Sequential(nn.Embedding(tokenizer.vocab_size, 2), nn.Linear(2, 50257))
    wrapped = wrap_module(module, seq_len=4)
    output = types.SimpleNamespace(sample_prompt="a b", sample_tokens=6)
    text = wrapped.sample(tokenizer, output, seed=1)
    assert text and text == wrapped.sample(tokenizer, output, seed=1)
    assert wrapped.config.vocab_size == tokenizer.vocab_size
    assert wrap_module(Loss(), seq_len=4).sample(tokenizer, output, seed=1) == ""


def test_another_loss(token_file, tmp_path):
    wrapped = wrap_module(
        Logits(), seq_len=16, loss=lambda module, ids, targets: module(ids).sum() * 0 + 7
    )
    assert isinstance(wrapped, WrappedModule)
    assert make(wrapped, token_file, tmp_path, max_iters=2).fit().loss == 7


def test_mistakes_are_named(token_file, tmp_path):
    with pytest.raises(UsageError, match=r"returned a tensor of shape \(4, 16, 2, 2\) for ids"):
        shape = nn.Sequential(nn.Embedding(VOCAB, 4), nn.Unflatten(2, (2, 2)))
        make(shape, token_file, tmp_path, "shape").fit()
    with pytest.raises(UsageError, match="ahead_weight: only lowtide's own networks"):
        make(Logits, token_file, tmp_path, "ahead", ahead_weight=0.5).fit()
    first = {"zero_init": True, "first_embedding": "cooccurrence", "dropout": 0.1}
    with pytest.raises(UsageError, match="dropout, first_embedding, zero_init: only lowtide's"):
        make(Logits, token_file, tmp_path, "first", **first).fit()
    with pytest.raises(UsageError, match="num_layers is 3, the model that was given has none"):
        make(Logits, token_file, tmp_path, "layers", num_layers=3)
    with pytest.raises(UsageError, match="target_params is for a model that is yet to be made"):
        make(Logits, token_file, tmp_path, "count", target_params=30_000)
    with pytest.raises(UsageError, match="not list"):
        make([], token_file, tmp_path)
    with pytest.raises(UsageError, match="has no nn"):
        make(nn.Linear(2, 2), token_file, tmp_path)
    with pytest.raises(UsageError, match="how many tokens"):
        wrap_module(Logits())
    with pytest.raises(UsageError, match="no parameters"):
        wrap_module(nn.ReLU(), seq_len=4, vocab_size=9)
    with pytest.raises(BudgetError, match="before its first batch"):
        make(Logits, token_file, tmp_path, "small", memory="1MiB").fit()


def test_a_run_belongs_to_its_module(token_file, tmp_path):
    make(Logits, token_file, tmp_path, max_iters=2).fit()
    with pytest.raises(UsageError, match="a model of another shape"):
        make(Logits(width=8), token_file, tmp_path, max_iters=2).fit()
    with pytest.raises(DataError, match="torch module Logits, which only its own script"):
        load_model(tmp_path / "mine")


class Cells(nn.Module):
    """A recurrent network: no nn.Linear besides its output."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCAB, 8)
        self.cells = nn.GRU(8, 8, batch_first=True)
        self.out = nn.Linear(8, VOCAB)

    def forward(self, ids):
        return self.out(self.cells(self.table(ids))[0])


def test_without_inner_matrices_the_optimizer_is_adamw(token_file, tmp_path):
    rates = []
    for steps in (2, 4):  # begun, and taken up again by the same script
        rows = []
        trainer = make(Cells, token_file, tmp_path, learning_rate=None, max_iters=steps,
                       schedule="constant", warmup=0, on_step=rows.append)  # fmt: skip
        assert trainer.fit().steps == steps
        rates += [row.learning_rate for row in rows]
    count = count_parameters(trainer.model.config)
    assert rates == [default_learning_rate(count, "adamw", adapting=False)] * 4
    with pytest.raises(UsageError, match="muon trains matrices between embedding and output"):
        make(Cells, token_file, tmp_path, "muon", optimizer="muon").fit()


class Experts(Logits):
    """Logits and a loss of something else beside them."""

    def forward(self, ids):
        logits = super().forward(ids)
        return logits, logits.sum() * 0 + 0.125


def test_a_number_beside_logits_is_no_loss_where_no_targets_are_seen():
    ids = torch.arange(8).view(2, 4)
    losses = []
    for kind in (Logits, Experts):
        torch.manual_seed(0)
        losses.append(wrap_module(kind(), seq_len=4).eval()(ids, ids))
    assert losses[0] == losses[1] > 1


def test_samples_of_compiled_modules_and_own_losses():
    tokenizer = Tokenizer.load("gpt2")
    module = nn.Sequential(nn.Embedding(tokenizer.vocab_size, 2), nn.Linear(2, 50257))
    output = types.SimpleNamespace(sample_prompt="a b", sample_tokens=2)
    wrapped = wrap_module(module, seq_len=4)
    wrapped._compiled = (None,)  # whoever calls it fails
    assert wrapped.sample(tokenizer, output, seed=1)
    wrapped = wrap_module(module, seq_len=4, loss=lambda module, ids, targets: module(ids).sum())
    assert wrapped.sample(tokenizer, output, seed=1) == ""


def test_rows_of_a_loader_and_of_settings(token_file, tmp_path):
    data = TokenDataset(token_file, seq_len=16)
    with BatchLoader(data, batch_size=4) as loader:
        trainer = Trainer(Logits(), data=loader, checkpoints_dir=tmp_path, device="cpu")
        assert trainer.model.config.context_length == 16
        assert trainer.settings.batch.batch_size == 4 and trainer.settings.model.seq_len == 16
    names = ("__next__", "state_dict", "load_state_dict", "close")
    batches = types.SimpleNamespace(**dict.fromkeys(names, None))
    by_settings = Trainer(Logits(), data=batches, settings=train_settings(seq_len=24))
    assert by_settings.model.config.context_length == 24


def test_what_a_checkpoint_cannot_hold_is_refused():
    module = Logits()
    module.register_buffer("turns", torch.zeros(2, dtype=torch.complex64), persistent=False)
    wrap_module(module, seq_len=4)
    module.register_buffer("turns", torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(UsageError, match=r"turns of the module is torch\.complex64") as caught:
        wrap_module(module, seq_len=4)
    assert "persistent=False" in caught.value.next_step


def weights(trainer):
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def test_evaluate_leaves_a_model_that_is_not_the_runs(token_file, tmp_path):
    first = make(Logits, token_file, tmp_path, max_iters=2)
    before = first.evaluate()["val"]
    trained = first.fit().val_loss
    assert first.evaluate()["val"].loss == trained != before.loss
    torch.manual_seed(9)
    other = make(Logits(), token_file, tmp_path, max_iters=2)
    kept = weights(other)
    with pytest.raises(UsageError, match="a model that began with other weights"):
        other.evaluate()
    assert all(torch.equal(kept[name], value) for name, value in weights(other).items())
    assert make(Logits, token_file, tmp_path, max_iters=2).evaluate()["val"].loss == trained
    anew = make(Logits, token_file, tmp_path, max_iters=2, overwrite=True)
    assert anew.evaluate()["val"] == before  # and fit begins from there
    assert anew.fit().val_loss == trained == anew.evaluate()["val"].loss


class Endless:
    """Batches of a user's own, which may be closed once."""

    def __init__(self, dataset):
        self.batch, self.calls = dataset.get_batch([0, 1]), []

    def __next__(self):
        assert "close" not in self.calls
        return self.batch

    def state_dict(self):
        self.calls.append("state")
        return {}

    def load_state_dict(self, state):
        raise AssertionError

    def close(self):
        self.calls.append("close")


def test_evaluate_does_not_touch_the_data_and_keeps_the_budget(token_file, tmp_path, monkeypatch):
    dataset = TokenDataset(token_file, seq_len=16)
    data, told = Endless(dataset), []
    trainer = Trainer(
        Logits(), data=data, val_data=dataset, eval_data={"a": dataset}, seq_len=16, batch_size=2,
        max_iters=1, eval_iters=1, device="cpu", checkpoints_dir=tmp_path, notify=told.append,
    )  # fmt: skip
    monkeypatch.setattr("lowtide.training.trainer.rows_in_budget", lambda *given, **options: 1)
    assert set(trainer.evaluate()) == {"val", "eval_a"}
    assert not data.calls and told[0].startswith("micro-batches of 1 row keep the budget")
    assert trainer.fit().steps == 1


def test_a_divided_model_is_not_divided_again(token_file, tmp_path, monkeypatch):
    trainer = make(Logits, token_file, tmp_path, parallel="fsdp")
    group = ProcessGroup(0, 2, torch.device("cpu"))
    monkeypatch.setattr(trainer.backend, "make_engine", lambda *given, **options: None)
    trainer._make_engine(group, None)
    with pytest.raises(UsageError, match="fsdp has divided this model"):
        trainer._make_engine(group, None)


def test_answers_are_described():
    for answer, said in (
        (torch.zeros(2, 3), "a tensor of shape (2, 3)"), (None, "a NoneType"),
        ((torch.zeros(1), [2]), "(a tensor of shape (1,), a list)"),
    ):  # fmt: skip
        assert modules._describe(answer) == said


def test_a_module_is_measured_by_its_parameters():
    module = nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 16), nn.Linear(16, 30, bias=False))
    found = modules._measure(module, [module[0]], 12, 30)
    assert (found.module, found.vocab_size, found.context_length) == ("Sequential", 30, 12)
    assert found.num_parameters == 240 + 144 + 480 and found.multiplying == 144 + 480
    assert found.width == 8  # of 8, 8 and 16
    tied = nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 30, bias=False))
    tied[1].weight = tied[0].weight
    assert modules._measure(tied, [tied[0]], 12, 30).multiplying == 240
    plain = nn.Module()
    plain.gain = nn.Parameter(torch.ones(5))
    assert modules._measure(plain, [], 12, 30).width == 1
    with pytest.raises(UsageError, match="the module has no parameters"):
        modules._measure(nn.Identity(), [], 12, 30)


@pytest.mark.parametrize(
    ("script", "text"), [([3, 4, 5], [3, 4, 5]), ([3, 9, 5], [3]), ([9], []), ([], [])]
)
def test_a_sample_of_a_module_sees_its_context_and_ends(monkeypatch, script, text):
    seen, given = [], iter(script)

    class Noting(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(1))

        def forward(self, ids):
            seen.append((ids.tolist(), self.training))
            return torch.arange(12.0).view(1, 1, 12).expand(1, ids.shape[1], 12) if script else 7

    def choose(logits, ids, settings, *, vocab_size, banned, generator):
        assert logits.shape == (1, 12) and (vocab_size, banned) == (10, [7])
        assert generator.initial_seed() == 5 and ids.shape[0] == 1
        return torch.tensor([next(given)])

    monkeypatch.setattr(sampling, "choose_tokens", choose)
    monkeypatch.setattr(sampling, "not_text", lambda tokenizer: [7])
    monkeypatch.setattr(sampling, "ends", lambda tokenizer: [9])
    wrapped = wrap_module(Noting(), seq_len=2, vocab_size=12)
    for prompt, start in (([1, 2], [1, 2]), ([], [0])):
        seen.clear()
        given = iter(script)
        tokenizer = types.SimpleNamespace(
            vocab_size=10, decode=list, encode=lambda text, ids=prompt: torch.tensor(ids)
        )
        output = types.SimpleNamespace(sample_prompt="p", sample_tokens=3)
        assert wrapped.sample(tokenizer, output, seed=5) == text
        ids = [*start, *script]
        count = script.index(9) + 1 if 9 in script else max(1, len(script))
        windows = [ids[: len(start) + n][-2:] for n in range(count)]
        assert seen == [([window], False) for window in windows]
        assert wrapped.module.training


@pytest.mark.parametrize("verify", [False, True])
def test_weights_of_a_module_are_compared_first(tmp_path, monkeypatch, verify):
    looked = []
    monkeypatch.setattr(modules, "verify_folder", looked.append)
    monkeypatch.setattr(modules, "TensorFile", lambda path: {"weight": torch.ones(2, 3)})
    wrapped = wrap_module(nn.Linear(3, 2, bias=False), seq_len=4, vocab_size=5)
    wrapped.load_weights(tmp_path, verify=verify)
    assert looked == [tmp_path] * verify and (wrapped.module.weight == 1).all()
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda module, **options: compiled.append(options))
    wrapped.compile_blocks()
    assert compiled == [{"dynamic": False}] and wrapped._compiled == (None,)
