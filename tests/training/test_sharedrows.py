"""Rows that learn together: the definition written out, steps that are skipped, runs that go on."""

from types import SimpleNamespace

import pytest
import torch

from lowtide.errors import DataError, UsageError
from lowtide.tokenizer import Tokenizer
from lowtide.training import torchbackend
from lowtide.training.adamw import AdamW
from lowtide.training.footprint import planned_bytes
from lowtide.training.settings import train_settings
from lowtide.training.sharedrows import SharedRows
from lowtide.training.spelling import find_spelling, sharing_bytes

from .conftest import VOCAB
from .stopping import fit_whole_and_in_parts, run_files

WORDS = [b"nation", b" Nation", b" nations", b"notion", b" motion", b"emotion", b"the"]
WORDS += [b"", b"\x00", *(b" word%d" % number for number in range(300)), b""]
ROWS, WIDTH = len(WORDS), 6


def spelling():
    return find_spelling(WORDS, ROWS)


def make_table(rate, *, decay=0.0):
    torch.manual_seed(3)
    table = torch.nn.Parameter(torch.randn(ROWS, WIDTH))
    shared = SharedRows(spelling(), rate, torch.device("cpu"))
    groups = [{"params": [table], "weight_decay": decay}]
    return table, AdamW(groups, lr=0.01, betas=(0.9, 0.95), shared={id(table): shared})


def matrix(found):
    """[tokens, parts] as a whole, scaled."""
    whole = torch.zeros(ROWS, found.num_parts, dtype=torch.float64)
    for token in range(ROWS):
        for part in found.parts[found.part_ends[token] : found.part_ends[token + 1]]:
            whole[token, part] = float(found.scales[token])
    return whole


@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_is_that_of_rows_and_of_what_they_share(scaled):
    table, optimizer = make_table(0.7)
    parts = matrix(spelling())
    own = table.detach().double().clone().requires_grad_()
    vectors = torch.zeros(parts.shape[1], WIDTH, dtype=torch.float64, requires_grad=True)
    reference = torch.optim.Adam(
        [{"params": [own]}, {"params": [vectors], "lr": 0.7 * 0.01}], lr=0.01, betas=(0.9, 0.95)
    )
    goal = torch.randn(ROWS, WIDTH, dtype=torch.float64)
    for _ in range(12):
        reference.zero_grad()
        ((own + parts @ vectors - goal) ** 4).sum().backward()
        optimizer.zero_grad()
        ((table - goal.float()) ** 4).sum().backward()
        if scaled:
            table.grad.mul_(8.0)
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(8.0), torch.tensor(0.0)
        reference.step()
        optimizer.step()
    torch.testing.assert_close(
        table.detach().double(), (own + parts @ vectors).detach(), rtol=2e-4, atol=2e-5
    )


@pytest.mark.parametrize("before", [0, 2])
def test_a_skipped_step_changes_nothing(before):
    table, optimizer = make_table(1.0)
    other, steady = make_table(1.0)
    for step in range(before + 3):
        gradient = torch.randn(ROWS, WIDTH)
        if step == before:
            table.grad = torch.full_like(gradient, float("nan"))
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(1.0)
            kept = table.detach().clone()
            optimizer.step()
            assert torch.equal(table, kept)
            del optimizer.grad_scale, optimizer.found_inf
        table.grad, other.grad = gradient, gradient.clone()
        optimizer.step()
        steady.step()
        assert torch.equal(table, other)


def test_tokens_without_a_part_learn_alone():
    table, optimizer = make_table(1.0)
    alone, plain = make_table(0.0)
    table.grad = torch.randn(ROWS, WIDTH)
    alone.grad = table.grad.clone()
    optimizer.step()
    plain.step()
    without = torch.from_numpy(spelling().scales == 0)
    assert without.any() and torch.equal(table[without], alone[without])
    assert not torch.equal(table[~without], alone[~without])


@pytest.fixture
def tokenizer():
    return Tokenizer.from_characters("abcdefghijklmnopqABCDEFGHIJKLMNOPQ.")


@pytest.mark.parametrize("tied", [True, False])
def test_a_run_that_goes_on_is_as_one_never_stopped(make_trainer, tokenizer, tied):
    config = {"tie_weights": tied}
    options = {"max_iters": 16, "spelling_rate": 1.0, "tokenizer": tokenizer, "config": config}
    whole = fit_whole_and_in_parts(make_trainer, options)
    plain = make_trainer("plain", **{**options, "spelling_rate": 0.0})
    plain.fit()
    names = {name for name in run_files(whole)[1] if "shared" in name}
    tables = ["embedding"] if tied else ["embedding", "head"]
    assert names == {
        f"moments.{table}.weight.{key}"
        for table in tables
        for key in ("shared_avg", "shared_avg_sq", "shared_step")
    }
    assert not any("shared" in name for name in run_files(plain)[1])
    changed = [name for name in run_files(plain)[0] if "embed" in name or "head" in name]
    for name in changed:
        assert not torch.equal(run_files(plain)[0][name], run_files(whole)[0][name])


def test_parts_of_another_tokenizer_are_refused():
    table, optimizer = make_table(1.0)
    table.grad = torch.ones(ROWS, WIDTH)
    optimizer.step()
    optimizer.state[table]["shared_parts"] += 1
    with pytest.raises(DataError, match="other parts of tokens"):
        optimizer.step()


def test_a_run_keeps_its_rate(make_trainer, tokenizer):
    make_trainer(max_iters=4, spelling_rate=0.5, tokenizer=tokenizer).fit()
    with pytest.raises(UsageError, match=r"spelling_rate is 0\.0, this run has 0\.5"):
        make_trainer(max_iters=8, spelling_rate=0.0, tokenizer=tokenizer).fit()


def test_special_tokens_have_no_spelling(monkeypatch):
    asked = []
    monkeypatch.setattr(torchbackend, "find_spelling", lambda *given: asked.append(given) or "all")
    monkeypatch.setattr(torchbackend, "SharedRows", lambda *given: given)
    tokenizer = SimpleNamespace(
        special_tokens={"<|a|>": 1}, vocab_size=3, token_bytes=[b"x", b"<|a|>", b"z"].__getitem__
    )
    model = SimpleNamespace(config=SimpleNamespace(vocab_size=64))
    group = SimpleNamespace(device="cpu")
    assert torchbackend._find_shared(0, model, tokenizer, group, None) is None
    assert torchbackend._find_shared(0.5, model, tokenizer, group, None) == ("all", 0.5, "cpu")
    assert asked == [([b"x", b"", b"z"], 64)]


def test_without_a_tokenizer_it_is_refused(make_trainer):
    with pytest.raises(UsageError, match="needs a tokenizer"):
        make_trainer(spelling_rate=0.5).fit()


def test_with_an_optimizer_of_ones_own_it_is_refused(make_trainer, tokenizer):
    def mine(model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    with pytest.raises(UsageError, match="needs an optimizer of lowtide"):
        make_trainer(spelling_rate=0.5, tokenizer=tokenizer, optimizer=mine).fit()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"use_8bit_optimizer": True}, "--use-8bit-optimizer"),
        ({"parallel": "fsdp"}, "--parallel fsdp"),
        ({"offload": "packed"}, "--spelling-rate 0.5"),
        ({"backend": "jax"}, "--spelling-rate 0.5"),
        ({"spelling_rate": -1.0}, "spelling_rate"),
    ],
)
def test_what_cannot_be_together_is_refused(options, named):
    with pytest.raises(UsageError, match=named):
        train_settings(**{"spelling_rate": 0.5, **options})


@pytest.mark.parametrize(("tied", "tables"), [(True, 1), (False, 2)])
def test_a_plan_counts_it(make_trainer, tied, tables):
    config = make_trainer(config={"tie_weights": tied, "width": 64}).model.config
    plain, shared = (
        planned_bytes(config, train_settings(seq_len=16, optimizer="adamw", spelling_rate=rate))
        for rate in (0.0, 1.0)
    )
    table = 4 * VOCAB * 64
    assert shared.optimizer - plain.optimizer == 2 * table * tables
    assert shared.update - plain.update == 3 * table + sharing_bytes(config).lists
    assert shared.checkpoint_bytes - plain.checkpoint_bytes == 2 * table * tables
    assert shared.beginning > plain.beginning == 0
