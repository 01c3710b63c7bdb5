"""The one-pass kernels against torch's own operations, values and gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lowtide.model import rowkernels
from lowtide.model.blocks import rotate


def _check(
    ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *inputs: Tensor, tolerance=2e-5
) -> None:
    """Compare results and the gradients of every input, in float64 on torch's side."""
    mine = [x.clone().requires_grad_() for x in inputs]
    exact = [x.double().requires_grad_() for x in inputs]
    result, wanted = ours(*mine), theirs(*exact)
    torch.testing.assert_close(result.double(), wanted, rtol=tolerance, atol=tolerance)
    weight = torch.randn(wanted.shape)
    result.backward(weight)
    wanted.backward(weight.double())
    for x, y in zip(mine, exact, strict=True):
        assert x.grad is not None and y.grad is not None
        scale = float(y.grad.abs().max()) + 1.0
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=tolerance, atol=tolerance * scale)


@given(st.integers(0, 70), st.integers(1, 90), st.floats(1e-3, 1e3))
@settings(max_examples=30, deadline=None)
def test_rms_norm(num_rows: int, width: int, size: float) -> None:
    torch.manual_seed(num_rows * 100 + width)
    x, weight = torch.randn(num_rows, width) * size, torch.randn(width)
    if num_rows == 0:
        assert rowkernels.rms_norm(x, weight, 1e-6).shape == x.shape
        return
    _check(
        lambda a, w: rowkernels.rms_norm(a, w, 1e-6), lambda a, w: F.rms_norm(a, (width,), w, 1e-6),
        x, weight,
    )  # fmt: skip


@given(st.integers(1, 40), st.integers(1, 90), st.floats(1e-2, 30))
@settings(max_examples=30, deadline=None)
def test_swiglu(num_rows: int, width: int, size: float) -> None:
    torch.manual_seed(num_rows * 100 + width)

    def plain(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up

    _check(rowkernels.swiglu, plain, torch.randn(2, num_rows, 2 * width) * size)


@pytest.mark.parametrize("size", [1, 7, 4097])
@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])
def test_gelu(size: int, scale: float) -> None:
    torch.manual_seed(size)
    _check(rowkernels.gelu, lambda x: F.gelu(x, approximate="tanh"), torch.randn(size) * scale)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (4, 4), (6, 2)])
@pytest.mark.parametrize("head_dim", [2, 8, 36])
def test_heads_are_normed_and_turned(num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    torch.manual_seed(head_dim)
    num_rows, tokens = 3, 5
    x = torch.randn(num_rows, tokens, (num_heads + 2 * num_kv_heads) * head_dim)
    query_weight, key_weight = torch.randn(head_dim), torch.randn(head_dim)
    angles = torch.randn(tokens, head_dim // 2)

    def ours(x: Tensor, query_weight: Tensor, key_weight: Tensor) -> Tensor:
        query, key, value = rowkernels.turn_heads(
            x, query_weight, key_weight, angles.cos(), angles.sin(),
            num_heads=num_heads, num_kv_heads=num_kv_heads, eps=1e-6,
        )  # fmt: skip
        return torch.cat((query, key * 2, value * 3), dim=1)

    def plain(x: Tensor, query_weight: Tensor, key_weight: Tensor) -> Tensor:
        heads = x.unflatten(-1, (-1, head_dim))
        query, key, value = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=2)
        query = F.rms_norm(query, (head_dim,), query_weight, 1e-6).transpose(1, 2)
        key = F.rms_norm(key, (head_dim,), key_weight, 1e-6).transpose(1, 2)
        cos, sin = angles.double().cos(), angles.double().sin()
        return torch.cat(
            (rotate(query, cos, sin), rotate(key, cos, sin) * 2, value.transpose(1, 2) * 3), dim=1
        )

    _check(ours, plain, x, query_weight, key_weight)


@given(st.integers(1, 40), st.integers(1, 200), st.floats(0.1, 60))
@settings(max_examples=30, deadline=None)
def test_loss_and_error(num_rows: int, vocab_size: int, size: float) -> None:
    torch.manual_seed(num_rows * 1000 + vocab_size)
    logits = torch.randn(num_rows, vocab_size) * size
    wanted = torch.randint(vocab_size, (num_rows, 1))
    exact = logits.double().requires_grad_()
    loss = F.cross_entropy(exact, wanted[:, 0], reduction="sum")
    loss.backward()
    total, error = rowkernels.loss_and_error(logits, wanted)
    torch.testing.assert_close(total.double(), loss.detach(), rtol=1e-5, atol=1e-4)
    assert exact.grad is not None
    torch.testing.assert_close(error.double(), exact.grad, rtol=1e-5, atol=1e-6)
    assert error.data_ptr() == logits.data_ptr()


def test_a_target_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(IndexError, match="outside the vocabulary"):
        rowkernels.loss_and_error(torch.zeros(2, 5), torch.tensor([[1], [5]]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_seen(bad: float) -> None:
    """Guards against bad steps rely on it."""
    x = torch.zeros(4, 32)
    x[2, 3] = bad
    assert not rowkernels.rms_norm(x, torch.ones(32), 1e-6).isfinite().all()
    assert not rowkernels.loss_and_error(x.clone(), torch.zeros(4, 1, dtype=torch.long))[
        0
    ].isfinite()
    assert not rowkernels.gelu(x).isfinite().all()
    assert not rowkernels.swiglu(x + 1).isfinite().all()


def test_sums_do_not_depend_on_the_number_of_threads() -> None:
    torch.manual_seed(0)
    x, gradient = torch.randn(4000, 64), torch.randn(4000, 64)

    def weight_gradient(num_threads: int) -> Tensor:
        before = torch.get_num_threads()
        torch.set_num_threads(num_threads)
        try:
            weight = torch.ones(64, requires_grad=True)
            rowkernels.rms_norm(x, weight, 1e-6).backward(gradient)
        finally:
            torch.set_num_threads(before)
        assert weight.grad is not None
        return weight.grad

    alone = weight_gradient(1)
    for num_threads in (2, 3, 8):
        assert torch.equal(alone, weight_gradient(num_threads))


def test_two_callers_at_once() -> None:
    """The pool serves one; the other does its own work, with the same result."""
    torch.manual_seed(0)
    x = torch.randn(3000, 200)
    wanted = rowkernels.swiglu(x)
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(i for i in range(50) if not torch.equal(rowkernels.swiglu(x), wanted))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_left_to_torch(dtype: torch.dtype) -> None:
    assert not rowkernels.can_fuse(torch.zeros(2, dtype=dtype))
    assert rowkernels.can_fuse(torch.zeros(2))
