"""Native products against torch's in float64: values, gradients, borders of tiles, threads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lowtide import _native
from lowtide.model import products
from lowtide.model.config import GPTConfig
from lowtide.model.families import FamilyName
from lowtide.model.gpt import GPT
from lowtide.model.products import linear, multiply, quick_linear, quick_multiply
from lowtide.training.muon import orthogonalize

BITS = [bits for bits in (128, 256, 512) if bits <= _native.vector_bits()]
# On both sides of tiles (6 or 12 rows, 8 to 32 columns), of blocks of rows (96), of parts of the
# depth (256) and of the columns (768).
ROWS = (1, 2, 5, 6, 7, 12, 13, 95, 97, 200)
DEPTHS = (1, 3, 64, 255, 256, 257, 600)
COLUMNS = (1, 7, 8, 9, 16, 17, 31, 32, 33, 767, 769, 800)


@pytest.fixture
def as_quick(monkeypatch):
    """As on a processor that torch's library leaves partly unused."""
    monkeypatch.setattr(_native, "has_quick_products", lambda: True)


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def numbers(rows: int, columns: int, *, across: bool) -> Tensor:
    return torch.randn(columns, rows).t() if across else torch.randn(rows, columns)


def check(found: Tensor, exact: Tensor, depth: int) -> None:
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-6 * depth)


@given(
    st.sampled_from(ROWS),
    st.sampled_from(DEPTHS),
    st.sampled_from(COLUMNS),
    st.sampled_from(BITS),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
@settings(max_examples=150, deadline=None)
def test_a_product(rows, depth, columns, bits, choices) -> None:
    torch.manual_seed(rows * depth * columns)
    across_a, across_b, adds = choices
    a, b = numbers(rows, depth, across=across_a), numbers(depth, columns, across=across_b)
    # Every number is written, and none beside them.
    room = torch.full((rows + 1, columns + 3), float("nan"))
    out = room[:rows, :columns]
    before = torch.randn(rows, columns)
    if adds:
        out.copy_(before)
    assert quick_multiply(a, b, out, adds=adds, bits=bits) is out
    check(out, a.double() @ b.double() + (before.double() if adds else 0), depth)
    assert room[rows].isnan().all() and room[:, columns:].isnan().all()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("rows", "depth", "columns"), [(203, 300, 800), (7, 600, 70), (13, 5, 5)])
def test_threads_and_other_rows_change_no_bit(rows, depth, columns, bits) -> None:
    a, b = torch.randn(rows, depth), torch.randn(depth, columns)
    torch.set_num_threads(1)
    alone = quick_multiply(a, b, a.new_empty(rows, columns), bits=bits)
    for num_threads in (2, 3, 8):
        torch.set_num_threads(num_threads)
        found = quick_multiply(a, b, a.new_empty(rows, columns), bits=bits)
        assert torch.equal(found, alone)
    last = quick_multiply(a[rows - 1 :], b, a.new_empty(1, columns), bits=bits)
    assert torch.equal(last[0], alone[-1])


@pytest.mark.parametrize("bits", BITS)
def test_what_is_not_finite_stays_in_its_row_and_column(bits) -> None:
    a, b = torch.randn(20, 30), torch.randn(30, 40)
    a[3, 4], b[5, 6] = float("nan"), float("inf")
    found = quick_multiply(a, b, a.new_empty(20, 40), bits=bits)
    assert found[3].isnan().all()
    others = [row for row in range(20) if row != 3]
    assert found[others, 6].isinf().all()
    assert found[others][:, [c for c in range(40) if c != 6]].isfinite().all()


# Small ones, which are divided among threads by matrices, and larger ones.
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    "shape", [(70, 3, 5, 7), (9, 100, 40, 300), (3, 200, 300, 100), (0, 2, 3, 4)]
)
def test_stacks(shape, bits) -> None:
    count, rows, depth, columns = shape
    a, b = torch.randn(count, depth, rows).mT, torch.randn(depth, count, columns).transpose(0, 1)
    out = torch.full((count, rows, columns + 3), float("nan"))
    for num_threads in (1, 2, 8):
        torch.set_num_threads(num_threads)
        quick_multiply(a, b, out[..., :columns], bits=bits)
        for i in range(count):
            alone = quick_multiply(a[i], b[i], a.new_empty(rows, columns), bits=bits)
            assert torch.equal(out[i, :, :columns], alone)
        check(out[..., :columns], a.double() @ b.double(), depth)
        assert out[..., columns:].isnan().all()


@pytest.mark.usefixtures("as_quick")
def test_a_product_of_two_matrices_keeps_their_graph() -> None:
    a, b = torch.randn(40, 5, requires_grad=True), torch.randn(5, 6)
    found = multiply(a, b)
    found.sum().backward()
    assert a.grad is not None
    torch.testing.assert_close(a.grad, b.sum(1).expand(40, 5))
    with torch.no_grad():
        assert not multiply(a, b).requires_grad


def test_empty_sides() -> None:
    for rows, depth, columns in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        a, b = torch.randn(rows, depth), torch.randn(depth, columns)
        assert torch.equal(quick_multiply(a, b, torch.ones(rows, columns)), a @ b)
        added = quick_multiply(a, b, torch.ones(rows, columns), adds=True)
        assert torch.equal(added, torch.ones(rows, columns))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 50)])
def test_a_linear_layer_and_its_gradients(shape, has_bias) -> None:
    torch.manual_seed(1)
    inputs = [torch.randn(*shape, 20), torch.randn(33, 20)] + [torch.randn(33)] * has_bias
    kept = [x.clone() for x in inputs]
    mine = [x.requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    found, wanted = quick_linear(*mine), F.linear(*exact)
    check(found, wanted, 20)
    weight = torch.randn(wanted.shape)
    # A gradient whose last dimension is not contiguous.
    found.backward(weight.transpose(0, 2).contiguous().transpose(0, 2))
    wanted.backward(weight.double())
    for x, y, before in zip(mine, exact, kept, strict=True):
        assert x.grad is not None and y.grad is not None and torch.equal(x, before)
        check(x.grad, y.grad, 200)


def test_a_frozen_matrix_does_not_keep_the_inputs() -> None:
    x, weight = torch.randn(40, 5, requires_grad=True), torch.randn(6, 5, requires_grad=True)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        quick_linear(x, weight.detach())
        assert [tensor.shape for tensor in kept] == [weight.shape]
        quick_linear(x.detach(), weight)
    assert [tensor.shape for tensor in kept] == [weight.shape, x.shape]


def test_only_wanted_gradients_are_computed() -> None:
    x, weight = torch.randn(4, 5), torch.randn(6, 5, requires_grad=True)
    quick_linear(x, weight).sum().backward()
    assert x.grad is None and weight.grad is not None
    x, weight = torch.randn(4, 5, requires_grad=True), torch.randn(6, 5)
    quick_linear(x, weight).sum().backward()
    assert x.grad is not None and weight.grad is None
    assert not quick_linear(x.detach(), weight).requires_grad


@pytest.mark.usefixtures("as_quick")
def test_numbers_whose_sign_is_not_yet_turned() -> None:
    """torch keeps the imaginary part of a conjugate as it was, with a mark."""
    x, weight = torch.randn(40, 5, dtype=torch.complex64).conj().imag, torch.randn(6, 5)
    assert x.is_neg()
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight))
    gradients = []
    for product in (linear, F.linear):
        mine = weight.clone().requires_grad_()
        found = product(x, mine)
        torch.complex(found, found).conj().imag.sum().backward()
        gradients.append(mine.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.usefixtures("as_quick")
def test_sides_that_do_not_fit_are_an_error_of_torch_and_empty_ones_none() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        linear(torch.randn(40, 7), torch.randn(6, 5))
    assert linear(torch.randn(2, 40, 5), torch.randn(0, 5)).shape == (2, 40, 0)


@pytest.mark.usefixtures("as_quick")
def test_where_native_products_are_taken(monkeypatch) -> None:
    x, weight = torch.randn(40, 5), torch.randn(6, 5)
    assert products.has_quick_products(x, weight)
    assert torch.equal(linear(x, weight), quick_linear(x, weight))
    for few in (x[:3], x[:0], x[0]):
        assert torch.equal(linear(few, weight), F.linear(few, weight))
    with pytest.raises(RuntimeError):
        linear(x, weight, torch.randn(6).double())
    assert not products.has_quick_products(x.double(), weight)
    assert not products.has_quick_products(x, weight.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16
    stacks = torch.randn(3, 4, 5), torch.randn(3, 5, 6)
    torch.testing.assert_close(multiply(*stacks), stacks[0] @ stacks[1])
    torch.testing.assert_close(multiply(x, weight.t()), x @ weight.t())
    monkeypatch.setattr(_native, "has_quick_products", lambda: False)
    assert not products.has_quick_products(x, weight)
    assert torch.equal(linear(x, weight), F.linear(x, weight))
    assert torch.equal(multiply(*stacks), stacks[0] @ stacks[1])


# torch's LayerNorm (gpt2) sums in an order that depends on the number of threads.
@pytest.mark.usefixtures("as_quick", "one_thread")
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "olmo2"])
def test_a_step_is_the_same_on_any_number_of_threads(family: FamilyName) -> None:
    torch.manual_seed(1)
    config = GPTConfig(333, 45, 2, 36, 2, layout=family)
    if family == "mistral":
        config = config.replace(sliding_window=12)
    model = GPT(config)
    inputs, targets = torch.randint(333, (2, 3, 45))

    def step(num_threads: int) -> list[Tensor]:
        torch.set_num_threads(num_threads)
        model.zero_grad()
        loss = model(inputs, targets)
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        stack = torch.stack([block.mlp.down.weight.detach() for block in model.blocks])
        return [loss.detach(), *gradients, orthogonalize(stack)]

    alone = step(1)
    assert len(alone) > 10
    for num_threads in (2, 3, 8):
        for found, wanted in zip(step(num_threads), alone, strict=True):
            assert torch.equal(found, wanted)
