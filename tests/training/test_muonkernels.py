"""Muon's kernels for a GPU, by Triton's interpreter: the same step as the plain code takes."""

import importlib.util
import textwrap

import pytest
import torch

from lowtide.training import muonkernels
from lowtide.training.muonkernels import has_muon_kernels


def test_which_matrices_the_kernels_take(monkeypatch):
    class OnGPU(torch.Tensor):
        is_cuda = True

    whole = torch.zeros(3, 4)
    on_gpu = whole.as_subclass(OnGPU)
    turned = whole.T.as_subclass(OnGPU)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "triton")
    assert has_muon_kernels([on_gpu, on_gpu])
    assert not has_muon_kernels([on_gpu, whole])
    assert not has_muon_kernels([on_gpu, turned])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not has_muon_kernels([on_gpu])
    assert muonkernels._BLOCK & (muonkernels._BLOCK - 1) == 0


# Rows of less than a block, of one and of more; parameters of several matrices, heads of which go
# to one stack and the rest to another; a stack that ends inside a parameter.
STEPS = textwrap.dedent(
    """
    import torch
    from lowtide.training import muon
    from lowtide.training.muon import Muon

    SPLITS = {(40, 1024): (8, 8, 24), (24, 40): (8, 8, 8), (6, 1025): (6,), (8, 40): (8,)}

    def take_steps(by_kernels, cautious, stack_bytes):
        muon.has_muon_kernels = lambda parameters: by_kernels
        torch.manual_seed(1)
        parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in SPLITS]
        optimizer = Muon(
            parameters,
            lr=0.1,
            momentum=0.9,
            weight_decay=0.5,
            splits=list(SPLITS.values()),
            cautious=cautious,
            stack_bytes=stack_bytes,
        )
        for number in range(4):
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape[::-1]).T.contiguous()
            if number < 2:
                parameters[0].grad = torch.randn(parameters[0].shape[::-1]).T
            if number == 2:
                parameters[0].grad[3, 5] = torch.nan
            if number > 0:
                optimizer.grad_scale = torch.tensor(2.0)
                optimizer.found_inf = torch.tensor(float(number == 2))
            optimizer.step()
        states = [optimizer.state[parameter] for parameter in parameters]
        return [*parameters, *(state[key] for state in states for key in ("momentum", "rows"))]

    for cautious in (False, True):
        for stack_bytes in (1 << 28, 3 * 4 * 8 * 40):
            expected = take_steps(False, cautious, stack_bytes)
            found = take_steps(True, cautious, stack_bytes)
            for one, other in zip(found, expected, strict=True):
                assert one.isfinite().all()
                # A step of nearly 0 may round to the other sign, and decides what decays.
                near = torch.isclose(one, other, rtol=2e-4, atol=2e-5)
                assert near.numel() - near.sum() <= cautious
    """
)

# A skipped step by the kernels themselves: whatever the gradient holds, nothing changes.
SKIPPED = textwrap.dedent(
    """
    import torch
    from lowtide.training.muonkernels import subtract_updates, write_updates

    torch.manual_seed(0)
    momentum, weights = torch.randn(5, 700), torch.randn(5, 700)
    before, update = momentum.clone(), torch.empty(5, 700)
    bad = torch.full((5, 700), torch.nan)
    one, zero = torch.ones(()), torch.zeros(())
    write_updates(bad, momentum, update, beta=0.9, divisor=bad[0, 0], skip=one)
    assert torch.equal(momentum, before)
    torch.testing.assert_close(update, before)
    kept = weights.clone()
    subtract_updates(weights, update, torch.zeros(5), decay=0.5, skip=one, cautious=True)
    assert torch.equal(weights, kept)
    subtract_updates(weights, update, torch.zeros(5), decay=0.5, skip=zero, cautious=False)
    torch.testing.assert_close(weights, kept / 2)
    """
)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_a_step_by_the_kernels_is_the_plain_step(start_forks):
    codes, printed = start_forks((STEPS, [], {}), (SKIPPED, [], {}))()
    assert codes == [0, 0], printed
