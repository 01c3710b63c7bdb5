"""Optimizers: Muon equals torch's, 8-bit moments take a byte, bad steps are skipped."""

import pytest
import torch

from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.training.optimizers import LossScale, Muon, build_optimizers, orthogonalize


def model_with_gradients(**changes):
    torch.manual_seed(0)
    fields = {"vocab_size": 128, "context_length": 16, "num_layers": 2, "width": 64, "num_heads": 4}
    model = GPT(GPTConfig(**{**fields, **changes}))
    ids = torch.randint(128, (2, 16))
    model(ids, ids.roll(-1, 1)).backward()
    return model


def step(optimizers, *, divisor=1.0, skip=0.0):
    optimizers.step(divisor=torch.tensor(divisor), skip=torch.tensor(skip))


def test_orthogonal_means_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((3, 16, 48), (2, 48, 16)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
        assert values.min() > 0.3
        assert values.max() < 1.3


def test_muon_equals_torchs_matrix_by_matrix():
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((24, 16), (16, 16), (24, 16))]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    options = {"lr": 0.01, "momentum": 0.95, "weight_decay": 0.1}
    mine = Muon(ours, **options, splits=[(p.shape[0],) for p in ours])
    peer = torch.optim.Muon(theirs, **options, nesterov=True, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        mine.step()
        peer.step()
    for one, other in zip(ours, theirs, strict=True):  # torch works in bfloat16, we in float32 here
        torch.testing.assert_close(one, other, rtol=0.02, atol=2e-3)


def test_muon_treats_the_matrices_of_a_fused_one_separately():
    torch.manual_seed(0)
    fused = torch.nn.Parameter(torch.zeros(48, 16))
    fused.grad = torch.randn(48, 16)
    parts = [torch.nn.Parameter(torch.zeros(16, 16)) for _ in range(3)]
    for part, gradient in zip(parts, fused.grad.split(16), strict=True):
        part.grad = gradient.clone()
    options = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.0}
    Muon([fused], **options, splits=[(16, 16, 16)]).step()
    Muon(parts, **options, splits=[(16,)] * 3).step()
    torch.testing.assert_close(fused.detach(), torch.cat([p.detach() for p in parts]))


@pytest.mark.parametrize("layout", ["qwen3", "gpt2"])
def test_matrices_decay_and_gains_do_not(layout):
    model = model_with_gradients(layout=layout)
    for name, wanted in (("adamw", 1), ("muon", 2)):
        optimizers = build_optimizers(model, name=name, learning_rate=1e-3, weight_decay=0.1)
        assert len(optimizers.optimizers) == wanted
        groups = [group for o in optimizers.optimizers for group in o.param_groups]
        for group in groups:
            flat = all(p.ndim < 2 for p in group["params"])
            assert group["weight_decay"] == (0.0 if flat else 0.1)
        counted = sum(p.numel() for group in groups for p in group["params"])
        assert counted == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_skipped_step_changes_neither_weights_nor_moments(name):
    model = model_with_gradients()
    optimizers = build_optimizers(model, name=name, learning_rate=1e-2, weight_decay=0.1)
    step(optimizers)
    before = [p.detach().clone() for p in model.parameters()]
    moments = [
        t.clone() for o in optimizers.optimizers for s in o.state.values() for t in s.values()
    ]
    for parameter in model.parameters():
        parameter.grad.fill_(float("nan"))
    step(optimizers, skip=1.0)
    for one, other in zip(before, model.parameters(), strict=True):
        assert torch.equal(one, other)
    after = [t for o in optimizers.optimizers for s in o.state.values() for t in s.values()]
    for one, other in zip(moments, after, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_divisor_divides_gradients(name):
    results = []
    for factor in (1.0, 8.0):
        model = model_with_gradients()
        for parameter in model.parameters():
            parameter.grad.mul_(factor)
        optimizers = build_optimizers(model, name=name, learning_rate=1e-2, weight_decay=0.1)
        step(optimizers, divisor=factor)
        results.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(results[0], results[1])


def test_8bit_moments_take_one_byte_each():
    pytest.importorskip("bitsandbytes")
    model = model_with_gradients(width=256, num_heads=4, vocab_size=1024)
    count = sum(p.numel() for p in model.parameters())
    full = build_optimizers(model, name="adamw", learning_rate=1e-3, weight_decay=0.1)
    small = build_optimizers(
        model, name="adamw", learning_rate=1e-3, weight_decay=0.1, use_8bit=True
    )
    step(full)
    step(small)
    assert full.state_bytes() / count == pytest.approx(8, rel=0.01)
    assert small.state_bytes() / count == pytest.approx(2, rel=0.05)


def test_8bit_steps_stay_near_the_exact_ones():
    pytest.importorskip("bitsandbytes")
    results = []
    for use_8bit in (False, True):
        model = model_with_gradients()
        optimizers = build_optimizers(
            model, name="adamw", learning_rate=1e-3, weight_decay=0.1, use_8bit=use_8bit
        )
        step(optimizers, divisor=2.0)
        results.append(model.blocks[0].mlp.down.weight.detach().clone())
    assert (results[0] - results[1]).abs().max() < 2e-4


def test_the_scale_grows_after_many_good_steps_and_halves_after_a_bad_one():
    scale = LossScale(torch.device("cpu"), enabled=True, initial=1024.0)
    scale.growth_interval = 3
    for skip in (0.0, 0.0, 0.0, 1.0, 0.0):
        scale.update(torch.tensor(skip))
    assert scale.value.item() == 1024.0
    assert scale.good_steps.item() == 1
    fresh = LossScale(torch.device("cpu"), enabled=True)
    fresh.load_state_dict(scale.state_dict())
    assert fresh.state_dict() == scale.state_dict()


def test_momentum_can_change_during_training_and_is_muons_alone():
    model = model_with_gradients()
    optimizers = build_optimizers(model, name="muon", learning_rate=1e-3, weight_decay=0.1)
    adamw, muon = optimizers.optimizers
    optimizers.set_momentum(0.5)
    step(optimizers)
    assert [group["momentum"] for group in muon.param_groups] == [0.5]
    assert adamw.param_groups[0]["betas"] == (0.9, 0.95)
    parameter = muon.param_groups[0]["params"][0]
    torch.testing.assert_close(muon.state[parameter]["momentum"], parameter.grad * 0.5)


@pytest.mark.parametrize("shape", [(2, 8, 8), (3, 16, 40), (3, 40, 16), (1, 5, 7)])
def test_both_ways_to_orthogonalize_agree(shape):
    """On a CPU long matrices go by their squares: the same numbers as the iteration as written."""
    torch.manual_seed(0)
    matrices = torch.randn(shape)
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.double() / matrices.double().norm(dim=(-2, -1), keepdim=True)
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    torch.testing.assert_close(orthogonalize(matrices).double(), x, rtol=1e-3, atol=1e-4)
