"""Where decay draws weights, and how it follows the learning rate: definitions, runs, refusals."""

import pytest
import torch

from lowtide.errors import UsageError
from lowtide.training.adamw import TO_FIRST, AdamW
from lowtide.training.footprint import planned_bytes
from lowtide.training.optimizers import OptimizerSet, build_optimizers
from lowtide.training.settings import train_settings
from lowtide.training.sharedrows import SharedRows
from lowtide.training.spelling import find_spelling

from .conftest import VOCAB
from .stopping import fit_whole_and_in_parts, run_files

SHAPE = (6, 4)


def make_table(**group):
    torch.manual_seed(5)
    table = torch.nn.Parameter(torch.randn(SHAPE))
    groups = [{"params": [table], "weight_decay": 0.5, **group}]
    return table, AdamW(groups, lr=0.1, betas=(0.9, 0.95))


def test_rows_decay_towards_where_they_began():
    table, optimizer = make_table(**{TO_FIRST: True})
    plain = table.detach().double().clone().requires_grad_()
    first = plain.detach().clone()
    reference = torch.optim.Adam([plain], lr=0.1, betas=(0.9, 0.95))
    for _ in range(6):
        table.grad = torch.randn(SHAPE)
        plain.grad = table.grad.double()
        with torch.no_grad():
            plain.add_(0.1 * 0.5 * (first - plain))
        reference.step()
        optimizer.step()
    torch.testing.assert_close(table.detach().double(), plain.detach(), rtol=1e-4, atol=1e-5)
    assert torch.equal(optimizer.state[table]["first"], first.float())


def test_without_gradients_rows_come_back():
    table, optimizer = make_table(**{TO_FIRST: True})
    first = table.detach().clone()
    table.grad = torch.randn(SHAPE)
    optimizer.step()
    away = (table - first).abs().max()
    for _ in range(300):
        table.grad = torch.zeros(SHAPE)
        optimizer.step()
    assert (table - first).abs().max() < away / 100


def test_a_skipped_step_draws_nothing():
    table, optimizer = make_table(**{TO_FIRST: True})
    for bad in (False, True):
        table.grad = torch.full(SHAPE, float("nan") if bad else 1.0)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(float(bad))
        kept = table.detach().clone()
        optimizer.step()
        assert torch.equal(table, kept) is bad


def test_what_tokens_share_does_not_move_the_first_rows():
    torch.manual_seed(5)
    table = torch.nn.Parameter(torch.randn(SHAPE))
    words = [b" one", b"one", b"ones", b"two", b" two", b"twos"]
    shared = SharedRows(find_spelling(words, SHAPE[0]), 1.0, torch.device("cpu"))
    group = {"params": [table], "weight_decay": 0.5, TO_FIRST: True}
    optimizer = AdamW([group], lr=0.1, betas=(0.9, 0.95), shared={id(table): shared})
    first = table.detach().clone()
    table.grad = torch.randn(SHAPE)
    optimizer.step()
    assert torch.equal(optimizer.state[table]["first"], first)


@pytest.mark.parametrize(("name", "tied"), [("muon", True), ("adamw", False)])
def test_only_the_embedding_is_drawn_to_where_it_began(make_trainer, name, tied):
    model = make_trainer(config={"tie_weights": tied}).model
    made = build_optimizers(model, name=name, learning_rate=0.1, decays_to_first=True)
    drawn = [
        parameter
        for group in made.optimizers[0].param_groups
        if group.get(TO_FIRST)
        for parameter in group["params"]
    ]
    assert len(drawn) == 1 and drawn[0] is model.embedding.weight
    every = [id(p) for o in made.optimizers for group in o.param_groups for p in group["params"]]
    assert sorted(every) == sorted(id(parameter) for parameter in model.parameters())


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_decay_goes_with_a_power_of_the_rate(power):
    table, optimizer = make_table()
    both = OptimizerSet([optimizer], decay_power=power)
    group = optimizer.param_groups[0]
    for factor in (1.0, 0.25, 0.04, 1.0):
        both.set_factor(factor)
        assert group["lr"] * group["weight_decay"] == pytest.approx(0.1 * 0.5 * factor**power)
    both.set_factor(0.0)
    table.grad = torch.ones(SHAPE)
    kept = table.detach().clone()
    optimizer.step()
    assert torch.equal(table, kept)


def test_a_run_that_goes_on_is_as_one_never_stopped(make_trainer):
    options = {"max_iters": 16, "embedding_decay_to": "first", "decay_schedule": "root"}
    options |= {"embedding_decay": 2.0, "average_over": 0.2, "optimizer": "muon"}
    first = make_trainer("first", **options).model.embedding.weight.detach().clone()
    whole = fit_whole_and_in_parts(make_trainer, options)
    assert torch.equal(run_files(whole)[1]["moments.embedding.weight.first"], first)
    others = [("zero", "root"), ("first", "rate")]
    for to, schedule in others:
        changed = {**options, "embedding_decay_to": to, "decay_schedule": schedule}
        other = make_trainer(f"{to}-{schedule}", **changed)
        other.fit()
        name = "model.embed_tokens.weight"
        assert not torch.equal(run_files(other)[0][name], run_files(whole)[0][name])


def test_a_run_keeps_where_it_decays_to(make_trainer):
    make_trainer(max_iters=4, embedding_decay_to="first").fit()
    with pytest.raises(UsageError, match="embedding_decay_to is zero, this run has first"):
        make_trainer(max_iters=8, embedding_decay_to="zero").fit()


def test_with_an_optimizer_of_ones_own_it_is_refused(make_trainer):
    mine = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(UsageError, match="needs an optimizer of lowtide"):
        make_trainer(embedding_decay_to="first", optimizer=mine).fit()


def test_an_optimizer_of_ones_own_decays_by_the_root_too(make_trainer):
    groups = []

    def mine(model):
        made = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
        groups.extend(made.param_groups)
        return made

    rates = {"decay_schedule": "root", "learning_rate": 0.1}
    make_trainer(max_iters=8, optimizer=mine, **rates).fit()
    (group,) = groups
    factor = group["lr"] / 0.1
    assert factor < 0.9 and group["weight_decay"] == pytest.approx(0.5 * factor**-0.5)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"use_8bit_optimizer": True}, "--use-8bit-optimizer.*--embedding-decay-to first"),
        ({"parallel": "fsdp"}, "--parallel fsdp.*--embedding-decay-to first"),
        ({"offload": "packed"}, "--embedding-decay-to first"),
        ({"offload": "packed", "decay_schedule": "root"}, "--decay-schedule root"),
        (
            {"parallel": "fsdp", "spelling_rate": 0.5},
            "not with --spelling-rate 0.5 and --embedding-decay-to first",
        ),
    ],
)
def test_what_cannot_be_together_is_refused(options, named):
    with pytest.raises(UsageError, match=named):
        train_settings(**{"embedding_decay_to": "first", **options})


def test_a_plan_counts_the_first_rows(make_trainer):
    config = make_trainer(config={"width": 64}).model.config
    plain, drawn = (
        planned_bytes(config, train_settings(seq_len=16, optimizer="adamw", embedding_decay_to=to))
        for to in ("zero", "first")
    )
    assert drawn.optimizer - plain.optimizer == 4 * VOCAB * 64
    assert drawn.checkpoint_bytes - plain.checkpoint_bytes == 4 * VOCAB * 64
