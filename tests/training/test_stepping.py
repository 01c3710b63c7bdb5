"""One step: micro-batches add up, bad steps change nothing, and less memory means smaller parts."""

import contextlib
import math
from types import SimpleNamespace

import pytest
import torch

from lowtide.errors import BudgetError
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.targets import LossForm
from lowtide.settings import build_settings
from lowtide.training import stepping
from lowtide.training.distributed import ProcessGroup
from lowtide.training.learningsettings import LearningSettings
from lowtide.training.lossforms import loss_form
from lowtide.training.settings import TrainSettings
from lowtide.training.state import RunState
from lowtide.training.stepping import Stepper

from .conftest import VOCAB

ROWS = 8


@pytest.fixture
def notes():
    return []


@pytest.fixture
def make_stepper(notes):
    """Return a function that makes a stepper; options are settings, `config` changes the shape."""

    def make(*, config=None, given=None, micro_batch=ROWS, **options):
        fields = {"vocab_size": VOCAB, "context_length": 16, "num_layers": 2, "width": 32}
        torch.manual_seed(11)
        model = GPT(GPTConfig(**{**fields, "num_heads": 2, **(config or {})}))
        options = {"model_name": "x", "batch_size": ROWS, "learning_rate": 1e-2, **options}
        settings = build_settings(TrainSettings, {"seq_len": 16, **options})
        return Stepper(
            model,
            settings,
            RunState(micro_batch=micro_batch),
            ProcessGroup(0, 1, torch.device("cpu")),
            rows=ROWS,
            given=None if given is None else given(model.parameters()),
            note=notes.append,
        )

    return make


@pytest.fixture
def batch():
    ids = torch.randint(VOCAB, (ROWS, 17), generator=torch.Generator().manual_seed(3))
    return ids[:, :-1], ids[:, 1:]


def test_the_embedding_of_a_small_model_has_a_rate_of_its_own(make_stepper):
    def rates(**options):
        adamw, *muon = make_stepper(**options).optimizers.optimizers
        return [group["lr"] for optimizer in (adamw, *muon) for group in optimizer.param_groups]

    small = {"target_params": 1_000_000}
    assert rates(optimizer="muon", **small) == pytest.approx([3e-2, 1e-2, 1e-2])
    assert rates(optimizer="muon") == rates(optimizer="muon", embedding_rate=1.0, **small)
    assert rates(optimizer="adamw", **small) == pytest.approx([3e-2, 1e-2, 1e-2])
    assert rates(optimizer="adamw", target_params=1_000_001) == [1e-2, 1e-2]


@pytest.mark.parametrize(("options", "first", "last"), [
    ({}, 0.95, 0.95),
    ({"target_params": 1_000_000}, 0.9, 0.9),
    ({"target_params": 1_000_000, "momentum_warmup": 2}, 0.8, 0.9),
    ({"target_params": 1_000_000, "momentum": 0.5, "momentum_warmup": 2}, 0.4, 0.5),
])  # fmt: skip
def test_momentum_rises_to_what_is_given_or_suits_the_size(
    make_stepper, batch, options, first, last
):
    stepper = make_stepper(optimizer="muon", **options)
    for step, momentum in ((0, first), (2, last)):
        stepper.state.step = step
        stepper.update(stepper.compute(*batch), 1.0)
        groups = [g for o in stepper.optimizers.optimizers for g in o.param_groups]
        found = {group["momentum"] for group in groups if "momentum" in group}
        assert list(found) == pytest.approx([momentum])


def gradients(stepper):
    return [p.grad.clone() for p in stepper.model.parameters() if p.grad is not None]


def weights(stepper):
    return [p.detach().clone() for p in stepper.model.parameters()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("micro_batch", [1, 2, 3, 5])
def test_micro_batches_add_up_to_the_batch(make_stepper, batch, micro_batch):
    whole, parts = make_stepper(), make_stepper(micro_batch=micro_batch)
    assert parts.compute(*batch).item() == pytest.approx(whole.compute(*batch).item(), abs=1e-6)
    for one, other in zip(gradients(whole), gradients(parts), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_step_lowers_the_loss_and_leaves_no_gradient(make_stepper, batch, optimizer):
    stepper = make_stepper(optimizer=optimizer)
    losses = []
    for _ in range(5):
        loss = stepper.compute(*batch)
        norm, skip = stepper.update(loss, 1.0)
        losses.append(loss.item())
        assert norm.item() > 0 and skip.item() == 0
        assert all(p.grad is None or not p.grad.any() for p in stepper.model.parameters())
    assert losses == sorted(losses, reverse=True)
    assert losses[0] == pytest.approx(math.log(VOCAB), abs=0.5)


def test_a_factor_of_zero_changes_nothing(make_stepper, batch):
    stepper = make_stepper(weight_decay=0.0)
    before = weights(stepper)
    stepper.update(stepper.compute(*batch), 0.0)
    assert same(before, weights(stepper))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_step_that_is_not_finite_changes_nothing(make_stepper, batch, optimizer, value):
    stepper = make_stepper(optimizer=optimizer)
    stepper.update(stepper.compute(*batch), 1.0)
    before = weights(stepper)
    loss = stepper.compute(*batch)
    next(p.grad for p in stepper.model.parameters() if p.grad is not None).view(-1)[0] = value
    assert stepper.update(loss, 1.0)[1].item() == 1
    assert same(before, weights(stepper))
    good = stepper.compute(*batch)  # and the next one is as if it had not been
    assert good.item() == loss.item()
    assert stepper.update(good, 1.0)[1].item() == 0
    assert not same(before, weights(stepper))


def test_a_loss_that_is_not_finite_is_skipped_too(make_stepper, batch):
    stepper = make_stepper()
    before = weights(stepper)
    stepper.compute(*batch)
    assert stepper.update(torch.tensor(float("nan")), 1.0)[1].item() == 1
    assert same(before, weights(stepper))


def test_clipping_bounds_the_step_and_not_the_norm_that_is_told(make_stepper, batch):
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=1.0)

    moved = {}
    for clip in (0.0, 1e-3):
        stepper = make_stepper(given=sgd, grad_clip=clip, learning_rate=1.0)
        before = weights(stepper)
        norm, _ = stepper.update(stepper.compute(*batch), 1.0)
        after = weights(stepper)
        moved[clip] = math.sqrt(
            sum(float((a - b).square().sum()) for a, b in zip(before, after, strict=True))
        )
        assert norm.item() > 0.1
        if clip == 0.0:
            assert moved[clip] == pytest.approx(norm.item(), rel=1e-3)
    assert moved[1e-3] == pytest.approx(1e-3, rel=1e-2)


def limited(stepper, rows, error):
    """Let the network run out of memory with more than so many rows."""
    forward = stepper.forward

    def fail(inputs, targets):
        if inputs.shape[0] > rows:
            raise error
        return forward(inputs, targets)

    stepper.forward = fail


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_out_of_memory_halves_the_micro_batch_and_keeps_the_step(make_stepper, batch, notes, error):
    plain, short = make_stepper(), make_stepper()
    limited(short, 3, error)
    assert short.compute(*batch).item() == pytest.approx(plain.compute(*batch).item(), abs=1e-6)
    assert short.state.micro_batch == 2
    assert [note.split(",")[0] for note in notes] == [
        "out of memory: micro-batches of 4 rows now",
        "out of memory: micro-batches of 2 rows now",
    ]
    assert "4 per step; a step still sees 8 rows" in notes[-1]
    for one, other in zip(gradients(plain), gradients(short), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_out_of_memory_with_one_row_says_what_to_do(make_stepper, batch):
    stepper = make_stepper()
    limited(stepper, 0, torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(BudgetError, match="out of memory with 1 row of 16 tokens") as caught:
        stepper.compute(*batch)
    assert "--activation-checkpointing" in caught.value.next_step


def test_other_errors_are_not_taken_for_lack_of_memory(make_stepper, batch):
    stepper = make_stepper()
    limited(stepper, 0, RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        stepper.compute(*batch)
    assert stepper.state.micro_batch == ROWS


def test_dropout_is_a_function_of_the_step(make_stepper, batch):
    stepper = make_stepper(config={"dropout": 0.3})
    first = stepper.compute(*batch).item()
    torch.manual_seed(99)
    assert stepper.compute(*batch).item() == first
    stepper.state.step += 1
    assert stepper.compute(*batch).item() != first


def test_float16_overflow_lowers_the_scale(make_stepper, batch):
    stepper = make_stepper(use_mixed_precision=True, precision="fp16")
    assert stepper.scale.value.item() == 65536.0
    stepper.scale.value.fill_(2.0**40)
    before = weights(stepper)
    assert stepper.update(stepper.compute(*batch), 1.0)[1].item() == 1
    assert stepper.scale.value.item() == 2.0**39
    assert same(before, weights(stepper))


def test_the_scale_does_not_change_what_is_learned(make_stepper, batch):
    small, large = (make_stepper(use_mixed_precision=True, precision="fp16") for _ in range(2))
    large.scale.value.fill_(2.0**12)
    small.scale.value.fill_(2.0**8)
    norms = [stepper.update(stepper.compute(*batch), 1.0)[0].item() for stepper in (small, large)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_mixed_precision_is_used(make_stepper, batch, precision, dtype):
    seen = set()
    for options in ({"use_mixed_precision": True, "precision": precision}, {}):
        stepper = make_stepper(**options)
        layer = stepper.model.blocks[0].mlp.down
        layer.register_forward_hook(lambda *call: seen.add(call[2].dtype))
        stepper.compute(*batch)
    assert seen == {dtype, torch.float32}


def test_an_output_matrix_of_8_bits_only_where_the_device_has_them(make_stepper, monkeypatch):
    wanted = {"float8_head": True, "use_mixed_precision": True}
    assert not make_stepper(**wanted).model.float8_head
    monkeypatch.setattr(stepping, "has_float8", lambda device: True)
    assert make_stepper(**wanted).model.float8_head
    assert not make_stepper().model.float8_head


@pytest.mark.parametrize("again", [False, True])
def test_activation_checkpointing_computes_blocks_again(make_stepper, batch, again):
    """What plan and budget count on: nothing of a block is kept, so backward runs it once more."""
    stepper = make_stepper(activation_checkpointing=again)
    calls = []
    stepper.model.blocks[0].register_forward_pre_hook(lambda *given: calls.append(1))
    stepper.compute(*batch)
    assert len(calls) == (2 if again else 1)


@pytest.mark.parametrize("over", [0.0, 0.25])
def test_weights_are_averaged_over_a_share_of_the_run(make_stepper, batch, monkeypatch, over):
    noted = []

    class Average:
        def __init__(self, model, over):
            noted.append(over)

        def add(self, step, share_done):
            noted.append((step, share_done))

    monkeypatch.setattr(stepping, "WeightAverage", Average)
    form = {"ahead_weight": 0.5, "early_cap": 15.0, "confidence": 0.9}
    stepper = make_stepper(average_over=over, **form)
    stepper.state.step = 4
    stepper._forward_backward = lambda *given: noted.append(stepper.model.loss_form)
    stepper.compute(*batch, share_done=0.25)
    assert noted.pop() == loss_form(LearningSettings(**form), 0.25)
    stepper.compute(*batch, share_done=0.75)
    del stepper._forward_backward
    assert noted[-1] == LossForm(confidence=0.9)
    del noted[1 if over else 0 :]
    stepper.model.loss_form = LossForm()
    stepper.update(torch.tensor(1.0), 1.0)
    assert noted == ([over, (4, 0.75)] if over else [])


@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_gpu_is_waited_for_and_its_cache_emptied(make_stepper, monkeypatch, has_gpu):
    noted = []
    stepper = make_stepper()
    stepper.optimizers = SimpleNamespace(zero_grad=lambda: noted.append("zero"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: noted.append("wait"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: noted.append("empty"))
    monkeypatch.setattr(
        stepping, "halve_micro_batch", lambda *given, **options: noted.append(options)
    )
    stepper.wait()
    assert noted == ["wait"] * has_gpu
    for micro_batch, world_size, can in ((8, 1, True), (2, 1, True), (1, 1, False), (8, 2, False)):
        noted.clear()
        stepper.state.micro_batch = micro_batch
        stepper._group = ProcessGroup(0, world_size, torch.device("cpu"))
        stepper._halve_micro_batch()
        asked = {"rows": ROWS, "can_halve": can, "note": stepper._note}
        assert noted == ["zero", *["empty"] * has_gpu, asked]


@pytest.mark.parametrize("attention", ["auto", "flash", "cudnn"])
def test_attention_is_computed_as_it_was_asked_for(make_stepper, monkeypatch, attention):
    asked = []

    def kernel(backend, *, set_priority):
        asked.append((backend, set_priority))
        return contextlib.nullcontext()

    monkeypatch.setattr(stepping, "sdpa_kernel", kernel)
    with make_stepper(attention=attention).autocast():
        assert not torch.is_autocast_enabled("cpu")
    assert asked == ([] if attention == "auto" else [(stepping._ATTENTION[attention], True)])


def test_a_sample_continues_the_prompt_of_the_run(make_stepper, monkeypatch):
    def note(*given, **options):
        return (*given, options)

    monkeypatch.setattr(stepping, "generate_text", note)
    stepper = make_stepper(sample_prompt="once", sample_tokens=7, seed=5)
    wanted = {"max_new_tokens": 7, "seed": 5}
    assert stepper.sample("tokenizer") == (stepper.model, "tokenizer", "once", wanted)
    wrapped = object.__new__(stepping.WrappedModule)
    wrapped.__dict__["sample"] = note
    stepper.model = wrapped
    output = stepper._settings.output
    assert stepper.sample("tokenizer") == ("tokenizer", output, {"seed": 5})


@pytest.mark.parametrize("has_float8", [False, True])
@pytest.mark.parametrize("wanted", [{}, {"float8_head": True}, {"float8_blocks": True}])
def test_a_device_without_eight_bits_is_named(make_stepper, has_float8, wanted):
    stepper = make_stepper(use_mixed_precision=True, **wanted)
    stepper.has_float8 = has_float8
    said = "cpu has no products of 8-bit floats: bfloat16 instead"
    assert stepper.notes == ([said] if wanted and not has_float8 else [])
