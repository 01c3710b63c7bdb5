"""The chunked loss: equal to the plain one, never all logits at once, float8 near it."""

import pytest
import torch
import torch.nn.functional as F

from lowtide.model import loss
from lowtide.model.loss import PlainHead, chunked_cross_entropy


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 72, 1000])
def test_chunked_loss_and_gradients_equal_the_plain_ones(chunk_tokens):
    hidden = torch.randn(72, 16, dtype=torch.float64).float().requires_grad_()
    weight = torch.randn(61, 16).requires_grad_()
    targets = torch.randint(61, (72,))
    plain = F.cross_entropy(hidden @ weight.t(), targets)
    expected = torch.autograd.grad(plain * 3, [hidden, weight])
    chunked = chunked_cross_entropy(hidden, weight, targets, chunk_tokens)
    found = torch.autograd.grad(chunked * 3, [hidden, weight])
    torch.testing.assert_close(chunked, plain)
    torch.testing.assert_close(found, expected)


def test_chunked_loss_never_holds_all_logits():
    hidden = torch.randn(4096, 8, requires_grad=True)
    weight = torch.randn(2000, 8, requires_grad=True)
    targets = torch.randint(2000, (4096,))
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(profile_memory=True, activities=cpu) as profile:
        chunked_cross_entropy(hidden, weight, targets, 64).backward()
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert 0 < largest < 4096 * 2000 * 4 / 8


def gradients(hidden, weight, targets, **options):
    found = chunked_cross_entropy(hidden, weight, targets, 64, **options)
    return found.detach(), torch.autograd.grad(found, [hidden, weight])


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


def test_float8_is_near_the_plain_loss_and_gradients():
    hidden = torch.randn(128, 64).requires_grad_()
    weight = (0.1 * torch.randn(96, 64)).requires_grad_()
    targets = torch.randint(96, (128,))
    plain_loss, expected = gradients(hidden, weight, targets)
    near_loss, near = gradients(hidden, weight, targets, float8=True)
    assert float(near_loss) == pytest.approx(float(plain_loss), rel=5e-3)
    for found, plain in zip(near, expected, strict=True):
        assert 1e-3 < relative(found, plain) < 0.06  # e5m2 has two bits after the point


@pytest.mark.parametrize(("tokens", "vocab"), [(100, 96), (128, 61)])
def test_sides_that_are_no_multiples_of_16_do_without_float8(tokens, vocab):
    hidden = torch.randn(tokens, 16).requires_grad_()
    weight = torch.randn(vocab, 16).requires_grad_()
    targets = torch.randint(vocab, (tokens,))
    _, expected = gradients(hidden, weight, targets)
    _, found = gradients(hidden, weight, targets, float8=True)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_without_gradients_the_loss_is_exact_with_float8():
    hidden, weight = torch.randn(64, 16), torch.randn(96, 16)
    targets = torch.randint(96, (64,))
    plain = chunked_cross_entropy(hidden, weight, targets, 32)
    assert torch.equal(chunked_cross_entropy(hidden, weight, targets, 32, float8=True), plain)


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_one_side_may_be_frozen(frozen):
    hidden, weight = torch.randn(72, 16), torch.randn(61, 16)
    learned = (weight if frozen == "hidden" else hidden).requires_grad_()
    targets = torch.randint(61, (72,))
    plain = F.cross_entropy(hidden @ weight.t(), targets)
    (expected,) = torch.autograd.grad(plain, learned)
    (found,) = torch.autograd.grad(chunked_cross_entropy(hidden, weight, targets, 32), learned)
    torch.testing.assert_close(found, expected)


def test_a_kernel_is_asked_where_there_is_one(monkeypatch):
    asked = []

    def kernel(logits, wanted, **options):
        asked.append((logits, wanted, options))
        return "loss", "error"

    monkeypatch.setattr(loss, "has_fused_loss", lambda logits: True)
    monkeypatch.setattr(loss, "fused_loss_and_error", kernel)
    found = loss._loss_and_error("logits", "wanted", cap=2.0, ahead=(0.5,))
    assert found == ("loss", "error")
    assert asked == [("logits", "wanted", {"cap": 2.0, "ahead": (0.5,)})]


def test_evaluating_computes_no_gradients(monkeypatch):
    monkeypatch.setattr(PlainHead, "chunk", None)
    hidden, weight = torch.randn(20, 8), torch.nn.Parameter(torch.randn(50, 8))
    targets = torch.arange(20)
    with torch.no_grad():
        found = chunked_cross_entropy(hidden, weight, targets, 8)
    torch.testing.assert_close(found, F.cross_entropy(hidden @ weight.t(), targets))
    with pytest.raises(TypeError):
        chunked_cross_entropy(hidden, weight, targets, 8)
