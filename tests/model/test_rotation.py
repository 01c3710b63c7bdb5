"""The kernels that norm and turn queries and keys: equal to the plain computation, both ways."""

import importlib.util
import subprocess
import sys
import textwrap
import types

import pytest
import torch

from lowtide.model.rotation import has_fused_rotation

CHECK = textwrap.dedent(
    """
    import sys, torch
    import torch.nn.functional as F
    from lowtide.model.config import GPTConfig
    from lowtide.model.blocks import Attention
    from lowtide.model.rotation import norm_and_rotate

    device, heads, kv_heads = sys.argv[1], 4, int(sys.argv[2])
    torch.manual_seed(0)
    config = GPTConfig(61, 24, 1, 64, heads, kv_heads)
    attention = Attention(config, 0).to(device)
    gains = [attention.query_norm.weight, attention.key_norm.weight]
    for gain in gains:
        torch.nn.init.normal_(gain, mean=1.0, std=0.1)
    joint = torch.randn(3, 21, sum(attention.sizes), device=device, requires_grad=True)
    angles = torch.outer(torch.arange(21.0), 10.0 ** -torch.arange(8.0)).to(device)
    cos, sin = angles.cos(), angles.sin()
    plain = [part.transpose(1, 2) for part in attention.heads(joint, cos, sin)]
    found = norm_and_rotate(joint, *gains, cos, sin, heads, kv_heads, config.norm_eps)
    # Gradients as attention gives them: not in the order of memory.
    given = [torch.randn(3, p.shape[2], 21, 16, device=device).transpose(1, 2) for p in plain]
    wanted = [joint, *gains]
    for ours, theirs in (
        (found, plain),
        (torch.autograd.grad(found, wanted, given), torch.autograd.grad(plain, wanted, given)),
    ):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    """
)


def test_a_cpu_does_without():
    assert not has_fused_rotation(torch.zeros(1), 128)


def test_heads_of_a_gpu_must_be_a_power_of_two_of_sixteen_at_least():
    on_gpu = types.SimpleNamespace(is_cuda=True)
    sizes = range(1, 300)
    fitting = [size for size in sizes if has_fused_rotation(on_gpu, size, has_triton=True)]
    assert fitting == [16, 32, 64, 128, 256]
    assert not has_fused_rotation(on_gpu, 64, has_triton=False)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_kernels_compute_what_the_plain_code_does(kv_heads, start_forks):
    if torch.cuda.is_available():
        subprocess.run([sys.executable, "-c", CHECK, "cuda", str(kv_heads)], check=True)
        return
    codes, printed = start_forks((CHECK, ["cpu", kv_heads], {}))()
    assert codes == [0], printed
