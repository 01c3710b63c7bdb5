"""Optimizers: who decays and learns how, 8-bit moments take a byte, bad steps are skipped."""

import logging
import sys

import pytest
import torch

from lowtide.errors import UsageError
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.training.choosing import require_same_moments
from lowtide.training.optimizers import LossScale, OptimizerSet, build_optimizers


def model_with_gradients(**changes):
    torch.manual_seed(0)
    fields = {"vocab_size": 128, "context_length": 16, "num_layers": 2, "width": 64, "num_heads": 4}
    model = GPT(GPTConfig(**{**fields, **changes}))
    ids = torch.randint(128, (2, 16))
    model(ids, ids.roll(-1, 1)).backward()
    return model


def step(optimizers, *, divisor=1.0, skip=0.0):
    optimizers.step(divisor=torch.tensor(divisor), skip=torch.tensor(skip))


@pytest.mark.parametrize("layout", ["qwen3", "gpt2", "tide"])
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


def test_8bit_moments_are_imported_without_a_word(tmp_path, monkeypatch, caplog):
    """On processors with bfloat16, bitsandbytes asks for a package of kernels for 4 bits."""
    log = 'logging.getLogger(__name__ + ".backends").warning("pip install kernels")'
    (tmp_path / "bitsandbytes.py").write_text(
        f"import logging\nimport torch.optim as optim\n{log}\n"
        "optim.AdamW8bit = lambda groups, **options: optim.AdamW(groups, lr=1.0)\n"
    )
    monkeypatch.setattr(torch.optim, "AdamW8bit", None, raising=False)
    monkeypatch.delitem(sys.modules, "bitsandbytes", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    build_optimizers(model_with_gradients(), name="adamw", learning_rate=1e-3, use_8bit=True)
    assert str(tmp_path) in sys.modules.pop("bitsandbytes").__file__
    assert not caplog.records
    logging.getLogger("bitsandbytes.backends").warning("what it says later is shown")
    assert len(caplog.records) == 1


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


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_embeddings_can_learn_and_decay_in_their_own_way(name):
    model = model_with_gradients(tie_weights=False)
    optimizers = build_optimizers(
        model,
        name=name,
        learning_rate=1e-3,
        weight_decay=0.1,
        embedding_rate=3.0,
        embedding_decay=0.5,
    )
    groups = [group for o in optimizers.optimizers for group in o.param_groups]
    outer = {id(model.embedding.weight), id(model.head.weight)}
    for group in groups:
        for parameter in group["params"]:
            own = id(parameter) in outer
            wanted = 0.0 if parameter.ndim < 2 else 0.5 if own else 0.1
            assert group["weight_decay"] == wanted
            assert group["lr"] == pytest.approx(3e-3 if own else 1e-3)
    counted = [id(p) for group in groups for p in group["params"]]
    assert sorted(counted) == sorted(id(p) for p in model.parameters())


def test_cautious_decay_without_muon_is_refused():
    with pytest.raises(UsageError, match="--optimizer muon"):
        build_optimizers(
            model_with_gradients(),
            name="adamw",
            learning_rate=1e-3,
            weight_decay=0.1,
            cautious_decay=True,
        )


def test_a_tensor_that_states_share_is_saved_once_for_each():
    model = model_with_gradients()
    optimizers = build_optimizers(model, name="adamw", learning_rate=1e-3, weight_decay=0.1)
    step(optimizers)
    shared = torch.ones(3)
    for state in optimizers.optimizers[0].state.values():
        state["map"] = shared
    moments = optimizers.moments()
    maps = [value for name, value in moments.items() if name.endswith(".map")]
    assert len({value.data_ptr() for value in maps}) == len(maps) > 2
    assert maps[0] is shared
    names = dict(model.named_parameters())
    assert {name.split(".", 1)[1].rpartition(".")[0] for name in moments} == set(names)
    others = [value for name, value in moments.items() if name.endswith(".exp_avg")]
    states = optimizers.optimizers[0].state.values()
    assert {id(value) for value in others} == {id(state["exp_avg"]) for state in states}
    sizes = {t.data_ptr(): t.numel() * t.element_size() for s in states for t in s.values()}
    assert optimizers.state_bytes() == sum(sizes.values())


def test_rates_are_shares_of_their_peak():
    model = model_with_gradients()
    optimizers = build_optimizers(
        model, name="muon", learning_rate=1e-2, weight_decay=0.1, embedding_rate=3.0
    )
    groups = [group for o in optimizers.optimizers for group in o.param_groups]
    peaks = [group["lr"] for group in groups]
    assert sorted(set(peaks)) == pytest.approx([1e-2, 3e-2])
    for factor in (0.5, 0.1):
        optimizers.set_factor(factor)
        assert [group["lr"] for group in groups] == pytest.approx([factor * p for p in peaks])
    optimizers.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_defaults_of_optimizers_are_those_of_the_settings():
    optimizers = build_optimizers(
        model_with_gradients(), name="muon", learning_rate=1e-3, weight_decay=0.1
    )
    adamw, muon = optimizers.optimizers
    assert adamw.param_groups[0]["betas"] == (0.9, 0.95)
    assert adamw.param_groups[0]["eps"] == 1e-8 and adamw.defaults["fused"] is True
    assert (muon.param_groups[0]["momentum"], muon.param_groups[0]["cautious"]) == (0.95, False)
    assert muon.param_groups[0]["weight_decay"] == 0.1
    assert len(adamw.param_groups) == 2  # matrices, gains


def test_an_optimizer_of_ones_own_asks_on_the_host():
    model = model_with_gradients()
    plain = OptimizerSet([torch.optim.SGD(model.parameters(), lr=1.0)])
    before = [p.detach().clone() for p in model.parameters()]
    gradients = [p.grad.clone() for p in model.parameters()]
    step(plain, divisor=2.0, skip=1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    step(plain, divisor=2.0)
    for old, gradient, new in zip(before, gradients, model.parameters(), strict=True):
        torch.testing.assert_close(new, old - gradient / 2)
    momentum = OptimizerSet([torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)])
    step(momentum)
    assert set(momentum.moments()) == {
        f"moments.parameter_{n}.momentum_buffer" for n in range(len(before))
    }


def test_states_go_back_to_where_they_were_and_other_kinds_are_refused():
    one, other = model_with_gradients(), model_with_gradients()
    options = {"name": "muon", "learning_rate": 1e-3, "weight_decay": 0.1}
    saved, fresh = build_optimizers(one, **options), build_optimizers(other, **options)
    step(saved)
    saved.optimizers[0].state[next(iter(saved.optimizers[0].state))]["note"] = 5
    numbers, moments = saved.numbers(), saved.moments()
    assert [row["kind"] for row in numbers] == ["AdamW", "Muon"]
    assert [value for row in numbers for value in row["values"].values()] == [{"note": 5}]
    fresh.load(moments, numbers)
    again = fresh.moments()
    assert set(again) == set(moments)
    for name, value in moments.items():
        torch.testing.assert_close(again[name], value)
        assert again[name].data_ptr() != value.data_ptr()  # not the file it came from
    assert fresh.numbers() == numbers
    with pytest.raises(UsageError, match="the run has moments of AdamW, these settings make Ad"):
        fresh.load(moments, numbers[:1])
    odd = build_optimizers(one, **options)
    step(odd)
    odd.optimizers[0].state[next(iter(odd.optimizers[0].state))]["odd"] = [1]
    with pytest.raises(UsageError, match="AdamW keeps 'odd' as a list"):
        odd.numbers()


def test_embeddings_share_a_group_unless_something_differs():
    model = model_with_gradients(tie_weights=False)
    for options, count in (
        ({}, 2),
        ({"embedding_decay": 0.1}, 2),
        ({"embedding_decay": 0.0}, 3),
        ({"embedding_rate": 2.0}, 3),
    ):
        made = build_optimizers(
            model, name="adamw", learning_rate=1e-3, weight_decay=0.1, **options
        )
        assert len(made.optimizers[0].param_groups) == count, options


def test_the_scale_of_float16_begins_high_and_changes_on_the_device():
    scale = LossScale(torch.device("cpu"), enabled=True)
    assert scale.value.item() == 65536 and LossScale.growth_interval == 2000
    scale.good_steps.fill_(1998)
    scale.update(torch.tensor(0.0))
    assert (scale.value.item(), scale.good_steps.item()) == (65536, 1999)
    scale.update(torch.tensor(0.0))
    assert (scale.value.item(), scale.good_steps.item()) == (131072, 0)
    scale.good_steps.fill_(7)
    scale.update(torch.tensor(1.0))
    assert scale.state_dict() == {"value": 65536.0, "good_steps": 0.0}
    other = LossScale(torch.device("cpu"), enabled=False)
    assert other.value.item() == 1.0
    other.update(torch.tensor(1.0))
    assert other.value.item() == 1.0
    other.load_state_dict({"value": 8.0, "good_steps": 3.0})
    assert other.state_dict() == {"value": 8.0, "good_steps": 3.0}


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_any_module_is_trained(name):
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Embedding(9, 8), torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 9)
    )
    optimizers = build_optimizers(module, name=name, learning_rate=0.03)
    kinds = {
        id(p): type(optimizer).__name__
        for optimizer in optimizers.optimizers
        for group in optimizer.param_groups
        for p in group["params"]
    }
    inner = "Muon" if name == "muon" else "AdamW"
    assert [kinds[id(p)] for p in module.parameters()] == ["AdamW", inner, *["AdamW"] * 3]
    ids, losses = torch.arange(9), []
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(module(ids), (ids + 1) % 9)
        loss.backward()
        optimizers.step()
        optimizers.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4


def test_the_caller_may_say_which_matrices_are_inside():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizers = build_optimizers(
        module, name="muon", learning_rate=0.1, inner=[module[1].weight, module[1].bias]
    )
    assert [p is module[1].weight for p in optimizers.optimizers[1].param_groups[0]["params"]] == [
        True
    ]
    with pytest.raises(UsageError, match="'sgd' is not adamw or muon"):
        build_optimizers(module, name="sgd", learning_rate=0.1)


def test_a_run_with_packed_states_is_told_how_it_goes_on():
    with pytest.raises(UsageError) as caught:
        require_same_moments(["PackedAdamW"], ["AdamW"])
    assert caught.value.next_step.startswith("give --offload auto")
    with pytest.raises(UsageError) as caught:
        require_same_moments(["Muon", "AdamW"], ["AdamW"])
    assert caught.value.next_step.startswith("give the optimizer the run began with")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_parameters_of_other_types_take_the_same_steps(name, dtype):
    wanted, model = model_with_gradients(), model_with_gradients()
    for parameter in model.parameters():
        gradient = parameter.grad.to(dtype)
        parameter.grad = None  # torch keeps it of the parameter's type
        parameter.data = parameter.data.to(dtype)
        parameter.grad = gradient
    for one in (wanted, model):
        optimizers = build_optimizers(one, name=name, learning_rate=1e-2)
        divisor = torch.tensor(0.5, dtype=dtype if one is model else torch.float32)
        optimizers.step(divisor=divisor, skip=torch.tensor(0.0))
    for parameter, other in zip(model.parameters(), wanted.parameters(), strict=True):
        assert parameter.dtype == dtype
        torch.testing.assert_close(parameter.float(), other, rtol=2e-2, atol=2e-2)


def test_nothing_to_train_and_half_precision_are_refused():
    model = model_with_gradients()
    with pytest.raises(UsageError, match=r"float16(.|\n)*precision='fp16'"):
        build_optimizers(model.half(), name="adamw", learning_rate=1e-3)
    model.float().requires_grad_(False)
    with pytest.raises(UsageError, match="no parameter of the model is trained"):
        build_optimizers(model, name="adamw", learning_rate=1e-3)
    matrix = next(p for p in model.blocks.parameters() if p.ndim == 2).requires_grad_(True)
    optimizers = build_optimizers(model, name="muon", learning_rate=1e-3)
    trained = [p for o in optimizers.optimizers for g in o.param_groups for p in g["params"]]
    assert len(trained) == 1 and trained[0] is matrix
