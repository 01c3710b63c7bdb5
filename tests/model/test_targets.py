"""Caps of logits and targets further ahead, against the same written with autograd."""

import pytest
import torch
import torch.nn.functional as F

from lowtide.errors import UsageError
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.loss import chunked_cross_entropy
from lowtide.model.targets import (
    LossForm,
    ahead_weights,
    cap_logits,
    opening_cap,
    plain_loss_and_error,
    targets_ahead,
)

SHAPE = {"vocab_size": 50, "context_length": 16, "num_layers": 1, "width": 32, "num_heads": 2}


def test_weights_fall_to_nothing_in_a_third_and_in_two():
    assert ahead_weights(0.4, 0.0) == (0.4, 0.2)
    assert ahead_weights(0.4, 0.5) == pytest.approx((0.1,))
    assert ahead_weights(0.4, 0.7) == ahead_weights(0.0, 0.0) == ()


def test_targets_ahead_end_with_their_row():
    found = targets_ahead(torch.tensor([[1, 2, 3], [4, 5, 6]]), 2)
    assert found.tolist() == [
        [1, 2, 3], [2, 3, -1], [3, -1, -1], [4, 5, 6], [5, 6, -1], [6, -1, -1],
    ]  # fmt: skip


def test_logits_are_bent_below_the_cap():
    bent = cap_logits(torch.tensor([-1e4, -0.01, 0.0, 0.01, 30.0]), 15.0)
    expected = torch.tensor([-15.0, -0.01, 0.0, 0.01, 14.4604])
    torch.testing.assert_close(bent, expected, atol=1e-4, rtol=1e-4)
    assert cap_logits(bent, 0.0) is bent


@pytest.mark.parametrize(
    ("cap", "ahead"), [(0.0, ()), (3.0, ()), (0.0, (0.5, 0.25)), (3.0, (0.2,))]
)
def test_loss_of_the_first_and_gradient_of_all(cap, ahead):
    torch.manual_seed(0)
    logits = torch.randn(8, 20) * 4
    wanted = targets_ahead(torch.randint(20, (2, 4)), len(ahead))
    exact = logits.double().requires_grad_()
    bent = cap_logits(exact, cap)
    losses = [F.cross_entropy(bent, one, reduction="sum", ignore_index=-1) for one in wanted.T]
    sum(w * loss for w, loss in zip((1, *ahead), losses, strict=True)).backward()  # pyright: ignore
    total, error = plain_loss_and_error(logits.clone(), wanted, cap=cap, ahead=ahead)
    torch.testing.assert_close(total.double(), losses[0].detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(error.double(), exact.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_give_what_the_whole_gives(dtype):
    torch.manual_seed(0)
    hidden, weight = torch.randn(12, 16).to(dtype), torch.randn(30, 16)
    wanted, found = targets_ahead(torch.randint(30, (3, 4)), 2), []
    for chunk_tokens in (5, 64):
        states, matrix = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        loss = chunked_cross_entropy(
            states, matrix, wanted, chunk_tokens, cap=4.0, ahead=(0.5, 0.25)
        )
        loss.backward()
        found.append((loss.detach(), states.grad, matrix.grad))
    near = 1e-5 if dtype == torch.float32 else 2e-3  # half precision rounds each chunk's sums
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=near, rtol=near)
    bent = cap_logits((hidden @ weight.to(dtype).T).float(), 4.0)
    expected = F.cross_entropy(bent, wanted[:, 0])
    torch.testing.assert_close(found[0][0], expected, rtol=1e-5, atol=1e-5)


def test_a_network_caps_what_it_generates_from_and_what_it_is_judged_by():
    torch.manual_seed(0)
    model = GPT(GPTConfig(**SHAPE, layout="tide"))
    assert model.config.logit_cap == 15
    torch.nn.init.normal_(model.embedding.weight, std=20.0)
    ids = torch.randint(50, (2, 9))
    with torch.no_grad():
        logits = model(ids)
        assert 10 < logits.abs().max() <= 15
        torch.testing.assert_close(model.next_logits(ids), logits[:, -1])
        loss = model.eval()(ids[:, :-1], ids[:, 1:])
        plain = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(loss, plain)


def test_looking_ahead_changes_what_is_learned_not_what_is_shown():
    torch.manual_seed(0)
    model = GPT(GPTConfig(**SHAPE))
    ids, targets = torch.randint(50, (2, 9)), torch.randint(50, (2, 9))
    found = []
    for weights in ((), (0.5, 0.25)):
        model.loss_form = LossForm(ahead=weights)
        model.zero_grad()
        loss = model(ids, targets)
        loss.backward()
        found.append((loss.detach(), model.embedding.weight.grad.clone()))  # pyright: ignore
    torch.testing.assert_close(found[0][0], found[1][0])
    assert (found[0][1] - found[1][1]).norm() > 0.1 * found[0][1].norm()
    model.eval()
    assert model(ids, targets).item() == pytest.approx(found[0][0].item(), abs=1e-5)


def test_an_early_cap_opens_and_ends():
    assert opening_cap(15.0, 0.0) == opening_cap(15.0, 0.1) == 15.0
    caps = [opening_cap(15.0, share) for share in (0.15, 0.2, 0.3, 0.399)]
    assert caps == sorted(caps) and caps[0] > 15 and 118 < caps[-1] < 120
    assert opening_cap(15.0, 0.4) == opening_cap(15.0, 1.0) == opening_cap(0.0, 0.0) == 0


@pytest.mark.parametrize("layout", ["qwen3", "tide"])
def test_a_form_of_the_loss_is_for_training_alone(layout):
    torch.manual_seed(0)
    model = GPT(GPTConfig(**SHAPE, layout=layout))
    torch.nn.init.normal_(model.embedding.weight, std=4.0)
    ids, targets = torch.randint(50, (2, 9)), torch.randint(50, (2, 9))
    model.loss_form = LossForm(cap=3.0, confidence=0.5)
    loss = model(ids, targets)
    loss.backward()
    gradient = model.embedding.weight.grad
    with torch.no_grad():
        cap = 15.0 if layout == "tide" else 3.0  # its own cap goes first
        hidden = model.hidden(ids) / 0.5
        expected = F.cross_entropy(
            cap_logits(F.linear(hidden, model.output_weight), cap).flatten(0, 1), targets.flatten()
        )
    torch.testing.assert_close(loss, expected)
    model.zero_grad()
    bent = cap_logits(F.linear(model.hidden(ids) / 0.5, model.output_weight), cap)
    F.cross_entropy(bent.flatten(0, 1), targets.flatten()).backward()
    torch.testing.assert_close(model.embedding.weight.grad, gradient)
    model.eval()
    plain = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(model(ids, targets), plain)


@pytest.mark.parametrize(
    ("ids", "targets"), [((2, 9), (9, 2)), ((2, 9), (18,)), ((2, 9), (2, 8)), ((9,), (9,))]
)
def test_targets_of_another_shape_are_refused(ids, targets):
    model = GPT(GPTConfig(**SHAPE))
    with pytest.raises(UsageError, match=r"shapes \(.*expected two of \(rows, tokens\)"):
        model(torch.zeros(ids, dtype=torch.long), torch.zeros(targets, dtype=torch.long))
    with pytest.raises(UsageError, match="shapes"):
        model(torch.zeros(5, dtype=torch.long))


def test_a_folder_says_its_cap_and_one_from_before_has_none():
    config = GPTConfig(**SHAPE, layout="tide", logit_cap=9.0)
    fields = config.to_huggingface()
    assert fields["final_logit_softcapping"] == 9.0
    assert GPTConfig.from_huggingface(fields) == config
    del fields["final_logit_softcapping"]
    assert GPTConfig.from_huggingface(fields).logit_cap == 0
    assert "final_logit_softcapping" not in GPTConfig(**SHAPE).to_huggingface()
    with pytest.raises(UsageError, match=r"logit_cap is 9\.0, expected 0 in the qwen3 layout"):
        GPTConfig(**SHAPE, logit_cap=9.0)
