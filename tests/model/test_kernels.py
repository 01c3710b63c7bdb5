"""The fused loss: only where there is a GPU, and there equal to the plain one."""

import pytest
import torch
import torch.nn.functional as F

from lowtide.model.kernels import fused_loss_and_error, has_fused_loss


def test_a_cpu_does_without():
    assert not has_fused_loss(torch.zeros(1))


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
