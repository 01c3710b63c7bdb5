"""Native attention against torch's in float64: values, gradients, windows, caches, threads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lowtide import _native
from lowtide.model.attending import attend, can_attend

BITS = [bits for bits in (128, 256, 512) if bits <= _native.vector_bits()]


def make_heads(tokens, past, head_dim, *, rows=2, heads=4, kv_heads=4) -> tuple[Tensor, ...]:
    """As the network makes them: a token's heads lie beside each other."""
    sizes = ((heads, tokens), (kv_heads, past + tokens), (kv_heads, past + tokens))
    return tuple(torch.randn(rows, length, num, head_dim).transpose(1, 2) for num, length in sizes)


def wanted_of(query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
    end = key.shape[2]
    own = torch.arange(end - query.shape[2], end)[:, None]
    mask = torch.arange(end) <= own
    if window:
        mask &= torch.arange(end) > own - window
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=grouped)


# On both sides of a tile of queries (6 or 12), of a block (24), and of tiles of keys (32).
@given(
    st.sampled_from((2, 5, 6, 7, 12, 13, 24, 25, 31, 50)),
    st.sampled_from((0, 1, 7, 33)),
    st.sampled_from((1, 2, 7, 8, 16, 17, 40)),
    st.sampled_from((1, 2, 4)),
    st.sampled_from((0, 1, 3, 12, 40)),
    st.sampled_from(BITS),
)
@settings(max_examples=120, deadline=None)
def test_outputs_and_gradients(tokens, past, head_dim, kv_heads, window, bits) -> None:
    torch.manual_seed(tokens * 100 + head_dim)
    heads = make_heads(tokens, past, head_dim, kv_heads=kv_heads)
    mine = [x.clone().requires_grad_() for x in heads]
    exact = [x.double().requires_grad_() for x in heads]
    found = attend(*mine, window=window, bits=bits)
    wanted = wanted_of(*exact, window)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    weight = torch.randn(wanted.shape)
    found.backward(weight)
    wanted.backward(weight.double())
    for x, y in zip(mine, exact, strict=True):
        assert x.grad is not None and y.grad is not None
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("bits", BITS)
def test_scores_of_any_size(bits) -> None:
    query, key, value = make_heads(20, 0, 16)
    for size in (0.0, 1e-20, 30.0, 1e4):
        found = attend(query * size, key, value, bits=bits)
        wanted = wanted_of(query.double() * size, key.double(), value.double(), 0)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_seen(which, bad, bits) -> None:
    heads = [x.abs() for x in make_heads(9, 0, 8, rows=1, heads=1, kv_heads=1)]
    heads[which][0, 0, 4, 2] = bad
    found = attend(*heads, bits=bits)
    assert not found[0, 0, 4].isfinite().all()


@pytest.mark.parametrize("bits", BITS)
def test_threads_longer_rows_and_other_rows_change_no_bit(bits) -> None:
    before = torch.get_num_threads()
    query, key, value = (x.requires_grad_() for x in make_heads(40, 0, 12, rows=5, kv_heads=2))
    results = []
    for num_threads in (1, 2, 7):
        torch.set_num_threads(num_threads)
        found = attend(query, key, value, bits=bits)
        gradients = torch.autograd.grad(found.square().sum(), (query, key, value))
        results.append((found, *gradients))
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], other, strict=True))
    short = attend(query[1:2, :, :29], key[1:2, :, :29], value[1:2, :, :29], bits=bits)
    assert torch.equal(short[0], results[0][0][1, :, :29])


def test_rows_without_numbers() -> None:
    for rows, heads, tokens in ((0, 4, 3), (2, 0, 3), (2, 4, 0)):
        tensors = make_heads(tokens, 5, 8, rows=rows, heads=heads, kv_heads=4)
        query, key, value = (x.requires_grad_() for x in tensors)
        found = attend(query, key, value)
        assert found.shape == query.shape
        found.sum().backward()
        assert key.grad is not None and not key.grad.any()
        assert value.grad is not None and not value.grad.any()


def test_what_is_left_to_torch() -> None:
    heads = make_heads(64, 0, 8)
    assert can_attend(*heads) == (_native.vector_bits() >= 256)
    assert not can_attend(*(x.bfloat16() for x in heads))
    assert not can_attend(*make_heads(1, 3_000, 8))
    assert not can_attend(*make_heads(30, 0, 8))
    assert not can_attend(*(x.expand(2, 4, 20_000, 8) for x in make_heads(1, 0, 8)))
