"""Muon: equal to its definition written out, matrix by matrix, head by head, in parts of stacks."""

import pytest
import torch

from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.training import muon
from lowtide.training.muon import Muon, matrix_splits, orthogonalize

POLYNOMIALS = (
    (8.15655, -22.48329, 15.87877),
    (4.04293, -2.80892, 0.50002),
    (3.89167, -2.77248, 0.50606),
    (3.28575, -2.36813, 0.46449),
    (2.34654, -1.70978, 0.42324),
)


def orthogonal(matrix):
    """One matrix, in float64, as the iteration is written on paper."""
    x = matrix.double() / (matrix.double().norm() * 1.02)
    for a, b, c in POLYNOMIALS:
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x


class PlainMuon:
    """The definition, for one matrix in float64."""

    def __init__(self, weights, *, lr, momentum, weight_decay, cautious=False):
        self.weights = weights.detach().double().clone()
        self.lr, self.beta, self.decay, self.cautious = lr, momentum, weight_decay, cautious
        self.momentum = torch.zeros_like(self.weights)
        self.rows = torch.zeros(len(self.weights), 1, dtype=torch.float64)

    def step(self, gradient):
        gradient = gradient.double()
        self.momentum = self.beta * self.momentum + (1 - self.beta) * gradient
        update = orthogonal(self.beta * self.momentum + (1 - self.beta) * gradient)
        self.rows = 0.95 * self.rows + 0.05 * update.square().mean(dim=1, keepdim=True)
        even = update / self.rows.sqrt()
        even *= update.norm() / even.norm()
        change = self.lr * 0.2 * max(update.shape) ** 0.5 * even
        shrinking = (self.weights * change >= 0) if self.cautious else 1.0
        self.weights = self.weights * (1 - self.lr * self.decay * shrinking) - change


@pytest.mark.parametrize("shape", [(3, 16, 48), (2, 48, 16), (1, 16, 16)])
def test_orthogonal_means_singular_values_near_one(shape):
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
    assert values.min() > 0.6
    assert values.max() < 1.3


@pytest.mark.parametrize("shape", [(2, 8, 8), (3, 16, 40), (3, 40, 16), (1, 5, 7)])
def test_long_matrices_by_their_squares_give_the_same(shape):
    torch.manual_seed(0)
    matrices = torch.randn(shape)
    wanted = torch.stack([orthogonal(matrix) for matrix in matrices])
    torch.testing.assert_close(orthogonalize(matrices).double(), wanted, rtol=2e-3, atol=5e-4)


@pytest.mark.parametrize("cautious", [False, True])
@pytest.mark.parametrize("stack_bytes", [1, 256 << 20])
def test_equals_its_definition_matrix_by_matrix(cautious, stack_bytes):
    """Also where a stack holds a single matrix, however large it is."""
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((24, 16), (16, 16), (24, 16))]
    options = {"lr": 0.01, "momentum": 0.95, "weight_decay": 0.3, "cautious": cautious}
    plain = [PlainMuon(p, **options) for p in ours]
    splits = [(p.shape[0],) for p in ours]
    optimizer = Muon(ours, **options, splits=splits, stack_bytes=stack_bytes)
    for _ in range(4):
        for one, other in zip(ours, plain, strict=True):
            one.grad = torch.randn_like(one)
            other.step(one.grad)
        optimizer.step()
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one.detach().double(), other.weights, rtol=1e-3, atol=2e-4)


def test_the_matrices_of_a_fused_one_are_treated_separately():
    torch.manual_seed(0)
    fused = torch.nn.Parameter(torch.randn(40, 16))
    fused.grad = torch.randn(40, 16)
    sizes = (8, 8, 24)
    parts = [torch.nn.Parameter(part.clone()) for part in fused.detach().split(sizes)]
    for part, gradient in zip(parts, fused.grad.split(sizes), strict=True):
        part.grad = gradient.clone()
    options = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}
    Muon([fused], **options, splits=[sizes]).step()
    Muon(parts, **options, splits=[(size,) for size in sizes]).step()
    torch.testing.assert_close(fused.detach(), torch.cat([p.detach() for p in parts]))


def test_queries_and_keys_go_head_by_head_values_as_one():
    shape = {"vocab_size": 32, "context_length": 8, "num_layers": 1, "width": 32, "num_heads": 4}
    model = GPT(GPTConfig(**shape, num_kv_heads=2, mlp_width=48))
    splits = matrix_splits(model)
    block = model.blocks[0]
    assert splits[id(block.attention.query_key_value.weight)] == (8, 8, 8, 8, 8, 8, 16)
    assert splits[id(block.mlp.gate_up.weight)] == (48, 48)


def test_a_step_to_be_skipped_on_a_device_changes_nothing(monkeypatch):
    """As on a GPU, where nobody asks the host: `skip` is a tensor that says it is not on a CPU."""

    class Elsewhere(torch.Tensor):
        is_cpu = False

    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(12, 8))
    optimizer = Muon(
        [parameter], lr=0.1, momentum=0.9, weight_decay=0.1, splits=[(12,)], cautious=True
    )
    parameter.grad = torch.randn(12, 8)
    optimizer.step()
    before = [parameter.detach().clone(), *(v.clone() for v in optimizer.state[parameter].values())]
    parameter.grad.fill_(float("nan"))
    optimizer.grad_scale = torch.tensor(1.0)
    optimizer.found_inf = torch.tensor(1.0).as_subclass(Elsewhere)
    optimizer.step()
    after = [parameter.detach(), *optimizer.state[parameter].values()]
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


def test_muon_takes_matrices_larger_than_its_stack_one_by_one():
    found = []
    for stack_bytes in (1 << 20, 100):
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(24, 16)) for _ in range(3)]
        optimizer = Muon(
            parameters, lr=0.01, momentum=0.9, weight_decay=0.0, splits=[(24,)] * len(parameters),
            stack_bytes=stack_bytes,
        )  # fmt: skip
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        found.append(torch.stack([parameter.detach() for parameter in parameters]))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("shape", [(2, 6, 6), (2, 4, 6), (2, 6, 4), (1, 4, 12), (1, 9, 3)])
def test_small_singular_values_go_through_all_polynomials(shape):
    """One that is far below 1 has not arrived before the last of them."""
    generator = torch.Generator().manual_seed(7)
    left, sizes, right = torch.linalg.svd(
        torch.randn(shape, generator=generator, dtype=torch.float64), full_matrices=False
    )
    sizes[:, -1] = 2e-3 * sizes[:, 0]
    matrices = (left * sizes[:, None]) @ right
    wanted = torch.stack([orthogonal(matrix) for matrix in matrices])
    found = muon._orthogonalize_squares(matrices.float()).double()
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(
        orthogonalize(matrices.float()).double(), wanted, rtol=1e-3, atol=1e-3
    )
    assert not orthogonalize(torch.zeros(shape)).any()
