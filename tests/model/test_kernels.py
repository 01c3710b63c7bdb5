"""The fused loss: only where there is a GPU, and there equal to the plain one."""

import importlib.util
import textwrap

import pytest
import torch
import torch.nn.functional as F

from lowtide.model.kernels import fused_loss_and_error, has_fused_loss


def test_a_cpu_does_without():
    assert not has_fused_loss(torch.zeros(1))


# Vocabularies that fill their last block, miss it by one, and hang over by one. The logits are the
# middle of a larger tensor: what lies around a row is neither read nor written.
KERNEL = textwrap.dedent(
    """
    import torch
    import torch.nn.functional as F
    from lowtide.model.kernels import fused_loss_and_error

    def gradient_of(logits, wanted, cap, ahead):
        exact = logits.double().requires_grad_()
        bent = cap * torch.tanh(exact / cap) if cap else exact
        losses = [
            F.cross_entropy(bent, target, reduction="sum", ignore_index=-1) for target in wanted.T
        ]
        total = sum(weight * loss for weight, loss in zip((1, *ahead), losses, strict=True))
        return losses[0].detach(), torch.autograd.grad(total, exact)[0]

    torch.manual_seed(0)
    for cap, ahead in ((0.0, (0.5, 0.25)), (2.0, ()), (2.0, (0.3,))):
        logits, wanted = torch.randn(7, 33) * 3, torch.randint(33, (7, 1 + len(ahead)))
        wanted[2, 1:] = -1
        wanted[3], wanted[4] = 0, 32  # the borders
        plain, expected = gradient_of(logits, wanted, cap, ahead)
        loss, error = fused_loss_and_error(logits, wanted, cap=cap, ahead=ahead, block=16)
        torch.testing.assert_close(loss.double(), plain, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(error.double(), expected, rtol=1e-4, atol=1e-6)
    for vocab_size in (15, 16, 17, 33, 61):
        for dtype in (torch.float32, torch.bfloat16):
            around = torch.full((9, vocab_size), 50.0, dtype=dtype)
            logits = around[1:-1].copy_(torch.randn(7, vocab_size) * 3)
            wanted = torch.randint(vocab_size, (7, 1))
            wanted[0], wanted[1] = 0, vocab_size - 1
            exact = logits.double().requires_grad_()
            plain = F.cross_entropy(exact, wanted[:, 0], reduction="sum")
            (expected,) = torch.autograd.grad(plain, exact)
            loss, error = fused_loss_and_error(logits, wanted, block=16)
            torch.testing.assert_close(loss.double(), plain.detach(), rtol=1e-5, atol=1e-5)
            rtol = 1e-4 if dtype == torch.float32 else 1e-2
            torch.testing.assert_close(error.double(), expected, rtol=rtol, atol=1e-6)
            assert error.data_ptr() == logits.data_ptr()
            assert (around[0] == 50).all() and (around[-1] == 50).all()
    """
)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_kernel_computes_what_the_plain_code_does(start_forks):
    """On a CPU, by Triton's interpreter."""
    codes, printed = start_forks((KERNEL, [], {}))()
    assert codes == [0], printed


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
@pytest.mark.parametrize("vocab_size", [61, 4096, 50304])
def test_loss_and_gradient_equal_the_plain_ones(vocab_size):
    torch.manual_seed(0)
    logits = torch.randn(300, vocab_size, device="cuda") * 3
    wanted = torch.randint(vocab_size, (300, 1), device="cuda")
    exact = logits.double().requires_grad_()
    plain = F.cross_entropy(exact, wanted[:, 0], reduction="sum")
    (expected,) = torch.autograd.grad(plain, exact)
    loss, error = fused_loss_and_error(logits, wanted)
    torch.testing.assert_close(loss.double(), plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(error.double(), expected, rtol=1e-4, atol=1e-6)
