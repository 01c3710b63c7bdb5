"""The kernels that take own values out of heads, gate and join them: equal to the plain code."""

import importlib.util
import subprocess
import sys
import textwrap

import pytest
import torch

ALONE = textwrap.dedent(
    """
    import sys, torch
    from lowtide.model.headkernels import gated_without_own
    from lowtide.model.tide_blocks import _without_own

    device = sys.argv[1]
    kinds = [(torch.float32, 3e-6), (torch.bfloat16, 0.02), (torch.float16, 3e-3)]

    def make(*shape):
        return torch.randn(shape, device=device)

    def compare(heads, kv_heads, tokens, size, in_order):
        torch.manual_seed(0)
        if in_order:  # as attention gives them, and values as a view of a product
            found = make(3, tokens, heads, size).transpose(1, 2)
            joint = make(3, tokens, (heads + 2 * kv_heads) * size)
            value = joint[..., -kv_heads * size :].unflatten(-1, (kv_heads, -1)).transpose(1, 2)
            logits = make(3, tokens, heads)
        else:
            found = make(size, 3, heads, tokens).permute(1, 2, 3, 0)
            value = make(tokens, size, kv_heads, 3).permute(3, 2, 0, 1)
            logits = make(heads, tokens, 3).permute(2, 1, 0)
        value[0, 0], value[1, -1, tokens // 2] = 0.0, 0.0
        logits[2, 0, 0] = 200.0  # as far open as can be
        given = make(tokens, 3, heads * size).transpose(0, 1)
        for dtype, most in kinds if size == 128 else kinds[:1]:
            ours = [t.detach().to(dtype).requires_grad_() for t in (found, value, logits)]
            theirs = [t.detach().double().requires_grad_() for t in ours]
            rounded = given.to(dtype)
            joined, wanted = gated_without_own(*ours), plain(*theirs)
            assert joined.is_contiguous() and joined.dtype == dtype
            gradients = torch.autograd.grad(joined, ours, rounded)
            others = torch.autograd.grad(wanted, theirs, rounded.double())
            for one, other in zip((joined, *gradients), (wanted, *others), strict=True):
                spread = float(other.std())
                torch.testing.assert_close(one.double(), other, rtol=most, atol=most * spread)
            assert gradients[0].stride() == ours[0].stride()
            assert not gradients[1][0, 0].any() and not gradients[1][1, -1, tokens // 2].any()

    def plain(found, value, logits):
        heads = _without_own(found, value).transpose(1, 2)
        return (heads * 2 * torch.sigmoid(logits)[..., None]).flatten(2)

    def try_smallest(number):
        value = torch.full((1, 2, 3, 16), number, device=device, requires_grad=True)
        joined = gated_without_own(make(1, 4, 3, 16), value, make(1, 3, 4))
        joined.sum().backward()
        assert joined.isfinite().all() and value.grad.isfinite().all()

    compare(4, 4, 21, 64, True)
    compare(6, 6, 11, 128, True)  # several blocks of pairs, the last one not whole
    compare(6, 2, 150, 32, True)
    compare(4, 1, 300, 16, False)
    compare(3, 3, 1, 128, False)
    for number in (1e-13, 1e-20, 1e-38):
        try_smallest(number)
    """
)
IN_BLOCKS = textwrap.dedent(
    """
    import torch
    from lowtide.model import tide_blocks
    from lowtide.model.blocks import KVCache
    from lowtide.model.config import GPTConfig
    from lowtide.model.gpt import GPT

    calls, kernel = [], tide_blocks.gated_without_own

    def count(*given):
        calls.append(given)
        return kernel(*given)

    def run(fused, without_own, cached=False):
        tide_blocks.has_fused_rotation = lambda x, head_dim: fused and head_dim == 16
        torch.manual_seed(1)
        config = GPTConfig(50, 16, 2, 64, 4, 2, layout="tide", without_own_values=without_own)
        model = GPT(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        ids = torch.randint(50, (3, 11))
        if cached:
            return model.hidden(ids, KVCache(config, 3, "cpu", torch.float32))
        model(ids, ids).backward()
        return model.hidden(ids), [parameter.grad for parameter in model.parameters()]

    tide_blocks.gated_without_own = count
    for without_own in (True, False):
        torch.testing.assert_close(run(True, without_own), run(False, without_own))
        assert len(calls) == (4 if without_own else 0), len(calls)  # two blocks, twice
        calls.clear()
        torch.testing.assert_close(run(True, without_own, True), run(False, without_own, True))
        assert not calls
    """
)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_kernels_compute_what_the_plain_code_does(start_forks):
    if torch.cuda.is_available():
        subprocess.run([sys.executable, "-c", ALONE, "cuda"], check=True)
        return
    codes, printed = start_forks((ALONE, ["cpu"], {}))()
    assert codes == [0], printed


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_blocks_that_use_the_kernels_compute_the_same(start_forks):
    """By Triton's interpreter, on a machine with a GPU too; with a cache the plain code is used."""
    codes, printed = start_forks((IN_BLOCKS, [], {}))()
    assert codes == [0], printed
