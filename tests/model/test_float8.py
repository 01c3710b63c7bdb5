"""8-bit floats: scales, layouts, the kernels against the plain computation."""

import importlib.util
import textwrap

import pytest
import torch

from lowtide.model import float8


def test_quantized_numbers_come_back_and_the_largest_is_exact():
    torch.manual_seed(0)
    values = torch.randn(48, 32) * 1e-3
    small, turned, scale = float8.quantize(values)
    assert torch.equal(turned.float(), small.float().t())
    back = small.float() * scale
    assert float(back.abs().max()) == pytest.approx(float(values.abs().max()), rel=1e-6)
    assert float((back - values).norm() / values.norm()) < 0.04  # e4m3 has three bits


def test_a_matrix_of_zeros_stays_one():
    small, _, scale = float8.quantize(torch.zeros(16, 16))
    assert torch.equal(small.float() * scale, torch.zeros(16, 16))


def test_errors_of_a_large_vocabulary_do_not_vanish():
    logits = torch.zeros(2, 1_000_000)
    wanted = torch.tensor([[0], [5]])
    loss, error, _ = float8.loss_and_float8_error(logits, wanted)
    assert float(loss) == pytest.approx(2 * 13.8155, rel=1e-4)
    back = error.float() / 32768
    assert float(back[0, 1]) == pytest.approx(1e-6, rel=0.13)
    assert float(back[1, 5]) == pytest.approx(-1.0, rel=1e-3)


def test_a_cpu_has_none():
    assert not float8.has_float8(torch.device("cpu"))


KERNELS = textwrap.dedent(
    """
    import torch
    from lowtide.model import float8

    torch.manual_seed(0)
    # The interpreter rounds to e4m3 wrongly where the exponent changes: checked in float32.
    float8._E4M3 = torch.float32
    logits, wanted = torch.randn(72, 333).mul_(3).bfloat16(), torch.randint(333, (72, 1))
    values = torch.randn(70, 90).bfloat16()
    plain = (*float8.loss_and_float8_error(logits, wanted), *float8.quantize(values))
    float8._uses_kernels = lambda tensor: True
    found = (*float8.loss_and_float8_error(logits, wanted), *float8.quantize(values))
    for ours, theirs in zip(found, plain, strict=True):
        ours, theirs = ours.float(), theirs.float()
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-2, equal_nan=True)
    wanted = torch.randint(333, (72, 3))
    wanted[3, 1:], wanted[4, 2] = -1, -1
    wanted[5:9] = torch.tensor([[0, 1, 2], [1, 0, 2], [1, 2, 0], [332, 332, 332]])  # the borders
    broken = logits.clone()
    broken[5, 7] = torch.nan  # which makes the loss of all none
    every = ({"cap": 2.0, "ahead": (0.5, 0.25)}, {"ahead": (0.5,)}, {"cap": 15.0})
    cases = [*((options, logits) for options in every), ({}, broken)]
    for options, logits in cases:
        targets = wanted[:, : 1 + len(options.get("ahead", ()))]
        float8._uses_kernels = lambda tensor: False
        plain = float8.loss_and_float8_error(logits, targets, **options)
        float8._uses_kernels = lambda tensor: True
        found = float8.loss_and_float8_error(logits, targets, **options)
        for ours, theirs in zip(found, plain, strict=True):
            # Numbers of 8 bits: where the last bit of a float32 decides, the next one.
            ours, theirs = ours.float(), theirs.float()
            torch.testing.assert_close(ours, theirs, rtol=0.26, atol=1e-2, equal_nan=True)
            assert ((ours == theirs) | ours.isnan()).float().mean() > 0.99 or ours.ndim == 0
            assert bool(ours.isnan().any()) == (logits is broken)
        torch.testing.assert_close(found[0], plain[0], rtol=1e-4, atol=0, equal_nan=True)
    """
)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_kernels_compute_what_the_plain_code_does(start_forks):
    codes, printed = start_forks((KERNELS, [], {}))()
    assert codes == [0], printed


@pytest.mark.skipif(
    not (torch.cuda.is_available() and float8.has_float8(torch.device("cuda"))),
    reason="no GPU with 8-bit floats here",
)
def test_a_gpu_is_as_near_to_the_exact_gradients_as_the_plain_code():
    torch.manual_seed(0)
    weight, rows = 0.05 * torch.randn(50304, 768), torch.randn(256, 768)
    wanted = torch.randint(50304, (256, 1))
    error = (rows @ weight.t()).softmax(-1)
    error.scatter_add_(-1, wanted, -torch.ones(256, 1))
    exact = error @ weight, error.t() @ rows

    def distances(device):
        total = torch.zeros(50304, 768, device=device)
        head = float8.Float8Head(weight.to(device))
        loss, gradient = head.chunk(rows.to(device), wanted.to(device), total)
        near = gradient.cpu().float(), total.cpu()
        pairs = zip(near, exact, strict=True)
        return float(loss), [float((one - other).norm() / other.norm()) for one, other in pairs]

    plain_loss, plain = distances("cpu")
    loss, found = distances("cuda")
    assert loss == pytest.approx(plain_loss, rel=1e-4)
    for one, other in zip(found, plain, strict=True):
        assert one < 1.1 * other < 0.1


@pytest.mark.parametrize(
    ("device", "capability", "has_triton", "expected"),
    [
        ("cuda", (8, 9), True, True),
        ("cuda", (9, 0), True, True),
        ("cuda", (8, 6), True, False),
        ("cuda", (9, 0), False, False),
        ("cpu", (9, 0), True, False),
    ],
)
def test_which_devices_multiply_8_bit_floats(device, capability, has_triton, expected, monkeypatch):
    found = object() if has_triton else None
    monkeypatch.setattr(float8.importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    assert float8.has_float8(torch.device(device)) is expected


def test_products_of_8_bits_have_scales_and_a_bias():
    left, right = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [0.5, 1.0], [0.0, 2.0]])
    scales = torch.tensor(2.0), torch.tensor(0.25)
    plain = float8.multiply(left, right, *scales, torch.float32, fast=False)
    assert plain.tolist() == [[5.5, 1.25, 2.0]]
    bias = torch.tensor([1.0, 0.0, -2.0], dtype=torch.float64)
    found = float8.multiply(left, right, *scales, torch.bfloat16, fast=True, bias=bias)
    assert found.dtype == torch.bfloat16 and found.tolist() == [[6.5, 1.25, 0.0]]


@pytest.mark.parametrize("fast", [False, True])
def test_a_gpu_multiplies_with_its_own_scales(monkeypatch, fast):
    asked = []
    monkeypatch.setattr(
        float8._torch, "_scaled_mm", lambda *given, **options: asked.append((given, options))
    )

    class OnGPU(torch.Tensor):
        is_cuda = True

    left, right = torch.ones(1, 2).as_subclass(OnGPU), torch.arange(6.0).view(3, 2)
    one, other, bias = torch.ones(()), torch.zeros(()), torch.ones(3, dtype=torch.float64)
    float8.multiply(left, right, one, other, torch.bfloat16, fast=fast, bias=bias)
    ((given, options),) = asked
    assert given[0] is left and torch.equal(given[1], right.t())
    assert options["scale_a"] is one and options["scale_b"] is other
    assert options["bias"].dtype == options["out_dtype"] == torch.bfloat16
    assert options["use_fast_accum"] is fast
