"""Parts of the JAX backend by themselves: `python units.py` prints what is wrong with each.

A process of its own, since a test that forks must not have JAX's threads; small arrays that nothing
is compiled for, so that it takes a few seconds.
"""

import functools
import importlib
import json
import math
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import surroundings

from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.jaxtraining import eightbit, engine, evaluation, muon, network, optimizers
from lowtide.jaxtraining.devices import JaxGroup, memory_of, pick_devices
from lowtide.jaxtraining.engine import Counters, JaxEngine
from lowtide.jaxtraining.evaluation import LossSums
from lowtide.jaxtraining.feeding import JaxFeed
from lowtide.jaxtraining.loading import NETWORKS
from lowtide.jaxtraining.loss import weighted_loss
from lowtide.jaxtraining.muon import half_precision, orthogonalize
from lowtide.jaxtraining.optimizers import Rules
from lowtide.jaxtraining.trees import JaxGPT, stacked_shapes
from lowtide.model.config import GPTConfig
from lowtide.training import settings
from lowtide.training.state import RunState

CONFIG = GPTConfig(vocab_size=11, context_length=8, num_layers=2, width=8, num_heads=2)


def device(platform="cpu", stats=None, **more):
    return SimpleNamespace(platform=platform, memory_stats=lambda: stats, **more)


def check_updates_are_written_in_place():
    config = CONFIG.replace(vocab_size=2048, num_layers=16, width=32)
    scalar = jax.ShapeDtypeStruct((), jnp.float32)

    def shapes(given):
        return {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in given.items()}

    tree = shapes({n: (s, np.float32) for n, s in stacked_shapes(config).items()})
    largest = max(4 * math.prod(value.shape) for value in tree.values())
    for optimizer, most in (("adamw", 0.05), ("muon", 0.5)):
        rules = Rules(config, optimizer)
        moments = optimizers.new_moments(rules)
        steps = moments.pop("steps")
        moments = {"steps": steps, **{name: shapes(state) for name, state in moments.items()}}
        lowered = engine.take_step.lower(
            tree, moments, tree, scalar, scalar, scalar, rules=rules, places=None
        )
        held = lowered.compile().memory_analysis().temp_size_in_bytes
        assert held < most * largest, (optimizer, held / largest)


def check_rules_of_a_parameter():
    rules = Rules(CONFIG, "adamw", embedding_rate=3.0, embedding_decay=0.25, weight_decay=0.5)
    names = ("embedding.weight", "blocks.*.mlp.down.weight", "final_norm.weight")
    assert [rules.rate_of(name) for name in names] == [3.0, 1.0, 1.0]
    assert [rules.decay_of(name) for name in names] == [0.25, 0.5, 0.0]
    assert rules.decay_of("blocks.*.mlp.down.bias") == 0.0
    assert Rules(CONFIG, "adamw", weight_decay=0.5).decay_of("embedding.weight") == 0.5
    assert Rules(CONFIG, "adamw", embedding_decay=0.0).decay_of("embedding.weight") == 0.0
    kinds = {rules.kind_of(name) for name in names}
    assert kinds == {"adamw"} and rules.keys == ("exp_avg", "exp_avg_sq")
    muons = Rules(CONFIG, "muon")
    assert [muons.kind_of(name) for name in names] == ["adamw", "muon", "adamw"]
    wide = CONFIG.replace(vocab_size=512)
    eight = Rules(wide, "adamw", use_8bit=True)
    assert [eight.kind_of(name) for name in names] == ["8bit", "adamw", "adamw"]
    assert eight.keys == ("state1", "state2")
    assert optimizers.new_moments(eight)["embedding.weight"]["absmax1"][0] == (16,)


def check_where_eight_bits_begin():
    assert eightbit.is_small((4095,)) and eightbit.is_small((63, 65))
    assert not eightbit.is_small((4096,)) and not eightbit.is_small((64, 64))
    assert [eightbit.num_blocks(count) for count in (1, 256, 257, 512, 513)] == [1, 1, 2, 2, 3]


def check_codes_are_the_nearest_numbers_of_their_block():
    values = np.random.default_rng(3).normal(size=300).astype(np.float32)
    values[256:] *= 1e-3  # a block of its own has a size of its own
    values[5], values[299] = 0.0, 0.0
    for signed in (True, False):
        given = values if signed else np.abs(values)
        table = eightbit.code_table(signed=signed)
        assert table.shape == (256,) and (np.diff(table) > 0).all() and table[-1] == 1
        assert -1 < table[0] <= 0 and (table[0] < 0) == signed
        codes, sizes = eightbit._encode(jnp.asarray(given), table)
        largest = [np.abs(given[:256]).max(), np.abs(given[256:]).max()]
        np.testing.assert_allclose(sizes, largest, rtol=1e-6)
        scaled = given / np.repeat(np.asarray(sizes), [256, 44])
        nearest = np.abs(table[None, :] - scaled[:, None]).argmin(axis=1)
        assert (np.asarray(codes) == nearest).mean() > 0.99  # but for the last bit of a middle
        found = np.asarray(eightbit._decode(codes, sizes, jnp.asarray(table)))
        np.testing.assert_allclose(found, table[codes] * np.repeat(sizes, [256, 44]), rtol=1e-6)
        assert found[5] == found[299] == 0
    codes, sizes = eightbit._encode(jnp.zeros(10), eightbit.code_table(signed=True))
    assert not np.asarray(sizes).any() and len(set(np.asarray(codes).tolist())) == 1


def check_moments_in_files():
    rules = Rules(CONFIG, "adamw")
    kinds = [row["kind"] for row in optimizers.optimizer_rows(Rules(CONFIG, "muon"), 0)]
    assert kinds == ["AdamW", "Muon"]
    assert optimizers.name_moments({"steps": {"": np.float32(0)}}, rules) == {}
    with pytest.raises(UsageError, match="AdamW and Muon"):
        optimizers.load_moments({}, [{"kind": "AdamW"}, {"kind": "Muon"}], rules)
    rows = [{"kind": "AdamW", "values": {}}]
    part = np.full((8, CONFIG.mlp_width), 3.0)
    name = "moments.blocks.1.mlp.down.weight.exp_avg"
    found = optimizers.load_moments({name: part, "moments.x.step": np.float32(7)}, rows, rules)
    stack = found["blocks.*.mlp.down.weight"]["exp_avg"]
    assert np.array_equal(stack[1], part) and not stack[0].any()
    assert found["steps"][""] == 7
    eight = [{"kind": "AdamW8bit", "values": {"head": {"step": 9}}}]
    found = optimizers.load_moments({}, eight, Rules(CONFIG, "adamw", use_8bit=True))
    assert found["steps"][""] == 9
    assert optimizers.load_moments({}, rows, rules)["steps"][""] == 0


def check_corrections():
    first, second = optimizers._corrections(jnp.float32(2), (0.9, 0.0))
    np.testing.assert_allclose((first, second), (1 - 0.9**2, 1.0), rtol=1e-6)
    first, second = optimizers._corrections(jnp.float32(0), (0.9, 0.95))
    assert 0 < first <= 1e-30 and 0 < second <= 1e-14


def check_a_step_of_adamw_is_the_formula():
    """Three numbers, so that the norm is known: clipped above a limit, never without one."""
    names = ("blocks.*.mlp.down.weight", "embedding.weight", "final_norm.weight")
    first, second, rate, (beta1, beta2) = 0.5, 0.25, 0.01, (0.8, 0.9)
    for clip, gradient, factor in ((0, 300.0, 1), (0.5, 3.0, 0.1), (5, 3.0, 1), (10, 3.0, 1)):
        given: Any = {"grad_clip": clip, "betas": (beta1, beta2), "embedding_rate": 3.0}
        rules = Rules(CONFIG, "adamw", weight_decay=0.2, embedding_decay=0.3, **given)
        gradients = {
            name: jnp.full(1, gradient * size)
            for name, size in zip(names, (1, 4 / 3, 0), strict=True)
        }
        weights = {name: jnp.full(1, 2.0) for name in names}
        moments = {
            name: {"exp_avg": jnp.full(1, first), "exp_avg_sq": jnp.full(1, second)}
            for name in names
        }
        new, kept, norm, skipped = optimizers.update(
            weights, {"steps": {"": np.float32(4)}, **moments}, gradients,
            jnp.float32(1), jnp.float32(rate), jnp.float32(0), rules=rules,
        )  # fmt: skip
        np.testing.assert_allclose(norm, gradient * 5 / 3, rtol=1e-6)
        assert skipped == 0 and kept["steps"][""] == 5
        for name, times, decay in zip(names, (1, 3, 1), (0.2, 0.3, 0), strict=True):
            own = factor * gradients[name][0]
            one, two = beta1 * first + (1 - beta1) * own, beta2 * second + (1 - beta2) * own**2
            root = np.sqrt(two / (1 - beta2**5)) + 1e-8
            wanted = 2 * (1 - times * rate * decay) - times * rate * one / (1 - beta1**5) / root
            found = [new[name], kept[name]["exp_avg"], kept[name]["exp_avg_sq"]]
            np.testing.assert_allclose(np.concatenate(found), [wanted, one, two], rtol=1e-5)


def check_a_step_that_is_not_finite_changes_nothing():
    name, wide = "embedding.weight", CONFIG.replace(vocab_size=512)
    for rules in (Rules(CONFIG, "adamw"), Rules(wide, "adamw", use_8bit=True)):
        state = optimizers.new_moments(rules)[name]
        moments = {key: jnp.ones(shape, dtype) for key, (shape, dtype) in state.items()}
        weights = jnp.ones(stacked_shapes(rules.config)[name])
        for loss, gradient in ((np.nan, 1.0), (1.0, np.inf)):
            new, kept, _, skipped = optimizers.update(
                {name: weights}, {"steps": {"": np.float32(4)}, name: moments},
                {name: weights * gradient}, jnp.float32(loss), jnp.float32(1), jnp.float32(0),
                rules=rules,
            )  # fmt: skip
            assert skipped == 1 and kept["steps"][""] == 4 and (new[name] == 1).all()
            assert all((kept[name][key] == moments[key]).all() for key in state)


def check_what_other_optimizers_are_told():
    asked = []

    def note(*given, **options):
        asked.append((given, options.pop("options", {}) | options))
        return "weights", "moments"

    matrix, outer = "blocks.*.mlp.down.weight", "embedding.weight"
    wide = CONFIG.replace(vocab_size=512)
    given: Any = {"weight_decay": 0.2, "embedding_decay": 0.3, "embedding_rate": 3.0}
    rules = Rules(wide, "muon", use_8bit=True, cautious=True, half=True, grad_clip=0.5, **given)
    weights = {name: jnp.zeros(stacked_shapes(wide)[name]) for name in (matrix, outer)}
    gradients = {matrix: jnp.array([3.0]), outer: jnp.array([4.0])}
    moments = {"steps": {"": np.float32(4)}, matrix: "of muon", outer: "of 8bit"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(muon, "step_stack", note)
        patch.setattr(eightbit, "step_stack", note)
        new, kept, *_ = optimizers.update(
            weights, moments, gradients, *map(jnp.float32, (1, 0.5, 0.75)), rules=rules
        )
    assert new == dict.fromkeys(weights, "weights")
    assert [kept[name] for name in weights] == ["moments"] * 2
    (of_muon, told), (of_8bit, told_8bit) = asked
    assert of_muon[1:] == (gradients[matrix], "of muon")
    assert of_8bit[1:] == (gradients[outer], "of 8bit")
    assert told["splits"] == muon.matrix_splits(matrix, 8, wide) and told["divisor"] == 10
    names = ("learning_rate", "momentum", "weight_decay", "cautious", "half", "is_good")
    assert [told[name] for name in names] == [0.5, 0.75, 0.2, True, True, True]
    names = ("learning_rate", "weight_decay", "divisor", "betas", "eps", "stacked", "is_good")
    assert [told_8bit[name] for name in names] == [1.5, 0.3, 10, (0.9, 0.95), 1e-8, False, True]
    np.testing.assert_allclose(told_8bit["corrections"], (1 - 0.9**5, (1 - 0.95**5) ** 0.5), 1e-5)


def check_steps_that_are_counted():
    counters, nothing = Counters(), JaxGroup((device(),))
    for loss, norm, skip in ((2.0, 5.0, 0.0), (9.0, 6.0, 1.0), (9.0, 7.0, 1.0), (4.0, 8.0, 0.0)):
        counters.add(*map(jnp.float32, (loss, norm, skip)))
    names = ("loss", "steps", "bad_in_a_row", "bad", "norm")
    assert counters.state_dict() == dict(zip(names, (6.0, 2.0, 0.0, 2.0, 8.0), strict=True))
    assert counters.mean_loss(nothing) == 3.0
    counters.next_row()
    assert (counters.loss.item(), counters.steps.item(), counters.bad.item()) == (0, 0, 2)
    assert math.isnan(counters.mean_loss(nothing))
    counters.add(*map(jnp.float32, (9.0, 1.0, 1.0)))
    assert counters.bad_in_a_row.item() == 1
    other = Counters()
    other.load_state_dict(counters.state_dict())
    assert other.state_dict() == counters.state_dict()


def check_memory_that_runs_out_halves_the_rows():
    made, asked, said = object.__new__(JaxEngine), [], []
    made.state, made._rows, made._note = RunState(micro_batch=5), 10, said.append
    made._settings = settings.train_settings(seq_len=8, batch_size=10)
    made._group = JaxGroup((device(),))

    def fail(text):
        def compute(*given):
            asked.append(made.state.micro_batch)
            if made.state.micro_batch > 1:
                raise jax.errors.JaxRuntimeError(text)
            return 7.0

        return compute

    made._compute = fail("RESOURCE_EXHAUSTED: too much")
    assert made.compute(None, None) == 7.0
    assert asked == [5, 3, 2, 1] and len(said) == 3
    made.state.micro_batch = 2
    made._compute = fail("INTERNAL: another thing")
    with pytest.raises(jax.errors.JaxRuntimeError, match="another thing"):
        made.compute(None, None)
    made._compute = fail("RESOURCE_EXHAUSTED: too much")
    for group in (JaxGroup((device(), device())), JaxGroup((device(), device()), 0, 2)):
        made._group = group  # a row a device is the least; one process alone takes no fewer
        made.state.micro_batch = 2 if group.world_size == 1 else 4
        with pytest.raises(BudgetError, match="out of memory"):
            made.compute(None, None)


def check_rows_that_fill_a_batch_weigh_nothing():
    made = object.__new__(JaxEngine)
    made.state, made._group = RunState(micro_batch=3), JaxGroup((device(), device()))
    inputs = np.arange(10).reshape(5, 2)
    ids, wanted, weights = made._micro_batches(inputs, inputs + 1)
    assert ids.shape == wanted.shape == (2, 4, 2) and weights.shape == (2, 4)
    assert np.array_equal(ids.reshape(8, 2)[:5], inputs) and not ids.reshape(8, 2)[5:].any()
    assert np.array_equal(wanted.reshape(8, 2)[:5], inputs + 1)
    np.testing.assert_allclose(weights.reshape(-1), [0.1] * 5 + [0] * 3, rtol=1e-6)
    made._group = JaxGroup((device(), device()), 1, 2)  # half of all rows
    np.testing.assert_allclose(float(made._micro_batches(inputs, inputs)[2].sum()), 0.25, rtol=1e-6)
    assert [engine._rounded_up(count, 4) for count in (1, 4, 5)] == [4, 4, 8]


def check_devices_of_a_group():
    group = JaxGroup(tuple(device(id=number) for number in range(6)), 1, 3)
    assert [one.id for one in group.own_devices] == [2, 3]
    assert not group.is_first and JaxGroup((device(),)).is_first
    assert group.on_cpu and not group.saves_beside
    gpu = device("gpu", {"bytes_in_use": 5, "bytes_limit": 9, "peak_bytes_in_use": 8})
    made = object.__new__(JaxEngine)
    made._group = JaxGroup((gpu,))
    assert made._group.saves_beside and memory_of(made._group)() == (5, 9)
    assert made.device_peak_bytes() == 8
    assert memory_of(JaxGroup((device("gpu"),))) is None
    for one in (device("gpu"), device("cpu", {"peak_bytes_in_use": 8})):
        made._group = JaxGroup((one,))
        assert made.device_peak_bytes() is None
    alone = JaxGroup((device(),))
    assert alone.any(True) is True and alone.any(False) is False
    assert (alone.least(3), alone.all_say(4), alone.total([5])) == (3, [4], [5])
    assert alone.first_says("x") == "x"
    assert [half_precision(name) for name in ("cpu", "gpu", "tpu")] == [False, True, True]
    assert pick_devices("cpu:0") == (jax.local_devices()[0],)
    for name, said in (
        ("cpu:99", "finds no such device"),
        ("cpu:x", "expected auto"),
        ("x", "exp"),
    ):
        with pytest.raises(UsageError, match=said):
            pick_devices(name)


def check_axes_that_are_divided():
    group = JaxGroup(tuple(jax.devices()[:2]))

    def spec(name, shape, divided=True):
        return tuple(group.weight_sharding(name, shape, divided=divided).spec)

    assert spec("head.weight", (4, 6)) == (None, "data")
    assert spec("head.weight", (8, 6)) == ("data", None)
    assert spec("head.weight", (4, 6), divided=False) == (None, None)
    assert spec("head.weight", (5, 7)) == (None, None)
    assert spec("blocks.*.mlp.down.weight", (8, 4, 3)) == (None, "data", None)
    assert spec("final_norm.weight", (2,)) == ("data",)
    assert spec("steps", ()) == ()


def check_ids_that_the_model_has():
    class Source:
        place, closed = 0, False

        def __next__(self):
            self.place += 1
            return self.batch

        def state_dict(self):
            return {"place": self.place}

        def load_state_dict(self, state):
            self.place = state["place"]

        def close(self):
            self.closed = True

    source = Source()
    feed = JaxFeed(source, 10)
    ids = np.array([[0, 9]], np.uint16)
    source.batch = (ids, ids[:, ::-1])
    inputs, targets = next(feed)
    assert inputs.dtype == targets.dtype == np.int32 and inputs.tolist() == [[0, 9]]
    ids[:] = 3
    assert inputs.tolist() == [[0, 9]]  # its own memory
    assert feed.state_dict() == {"place": 1}
    feed.load_state_dict({"place": 4})
    assert feed.state_dict() == {"place": 4} and source.place == 4
    for wrong in (10, -1):
        source.batch = (np.array([[0, wrong]]), ids)
        with pytest.raises(DataError, match=f"id {wrong},"):
            next(feed)
    source.batch = (np.zeros((0, 2)), np.zeros((0, 2)))
    assert next(feed)[0].shape == (0, 2)
    feed.close()
    assert source.closed


def check_losses_that_are_added_up():
    asked = []

    def loss(params, ids, targets, weights, *, form):
        asked.append(np.asarray(weights).tolist())
        return np.float32(0.5)

    group = JaxGroup((device(), device()))
    sums = LossSums({}, network.Form(CONFIG), group, tokenizer=None, batch_size=3, pending=2)
    sums._counts = np.arange(12)
    ids = np.array([[1, 2], [3, 4], [5, 6]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "_loss", loss)
        patch.setattr(JaxGroup, "place_rows", lambda self, rows, *, axis: rows)
        sums.add(ids, ids + 1, counted=True)
        sums.add(ids, ids, counted=False)  # goes for nothing
        assert len(sums._losses) == 1
        sums.add(ids[:1], ids[:1], counted=True)
        assert not sums._losses  # collected
        assert sums.totals() == (8.0, 8.0, float((ids + 1).sum() + 3))
    eighth = 1 / 8
    assert asked == [[eighth, eighth, eighth, 0], [0, 0, 0, 0], [eighth, 0, 0, 0]]


def check_loss_in_chunks():
    dice = np.random.default_rng(1)
    hidden, matrix = (
        jnp.asarray(dice.normal(size=size), jnp.float32) for size in ((2, 5, 4), (7, 4))
    )
    targets, weights = dice.integers(0, 7, (2, 5)), jnp.array([0.5, 2.0])
    logits = np.asarray(hidden, np.float64) @ np.asarray(matrix, np.float64).T
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(logs, targets[..., None], -1)[..., 0]
    wanted = (losses * np.array([[0.5], [2.0]])).sum()
    gradients = jax.value_and_grad(weighted_loss, (0, 1))
    found = [gradients(hidden, matrix, targets, weights, size) for size in (1 << 30, 4)]
    for loss, (of_hidden, of_matrix) in found:
        np.testing.assert_allclose(loss, wanted, rtol=1e-5)
        np.testing.assert_allclose(of_hidden, found[0][1][0], atol=1e-5)
        np.testing.assert_allclose(of_matrix, found[0][1][1], atol=1e-5)
    error = (np.exp(logs) - np.eye(7)[targets]) * np.array([0.5, 2.0])[:, None, None]
    np.testing.assert_allclose(found[0][1][0], error @ np.asarray(matrix), atol=1e-5)
    assert weighted_loss(hidden, matrix, targets, weights, 4) == pytest.approx(wanted, rel=1e-5)


def check_networks_are_on_one_device():
    place = NETWORKS.open("cpu")
    assert len(place.devices) == 1 and NETWORKS.is_cpu(place)
    assert NETWORKS.device_memory(place) is None


def check_matrices_made_orthogonal():
    dice = np.random.default_rng(2)
    compiled = jax.jit(orthogonalize, static_argnames=("half",))
    cases = ((1, 6, 6), False), ((2, 4, 6), False), ((2, 4, 12), True), ((2, 12, 4), True)
    for shape, half in cases:
        made = compiled(jnp.asarray(dice.normal(size=shape), jnp.float32), half=half)
        assert made.dtype == (jnp.bfloat16 if half else jnp.float32)
        sizes = np.linalg.svd(np.asarray(made, np.float32), compute_uv=False)
        assert sizes.shape[-1] == min(shape[1:])
        assert sizes.min() > 0.6 and sizes.max() < 1.3, (shape, half, sizes)
    with pytest.MonkeyPatch.context() as patch:  # by squares from a half longer on, as torch does
        patch.setattr(muon, "_orthogonalize_squares", lambda matrices: "by squares")
        for shape, half, squares in (
            ((1, 4, 5), False, False), ((1, 5, 4), False, False), ((1, 4, 6), False, True),
            ((1, 6, 4), False, True), ((1, 4, 12), False, True), ((1, 4, 6), True, False),
        ):  # fmt: skip
            made = orthogonalize(jnp.ones(shape, jnp.float32), half=half)
            assert isinstance(made, str) == squares, (shape, half)


def check_attention_by_one_kernel_is_the_plain_one():
    dice = np.random.default_rng(4)
    query, keys, values = (
        jnp.asarray(dice.normal(size=size), jnp.float32)
        for size in ((2, 5, 2, 3, 6), (2, 5, 2, 6), (2, 5, 2, 6))
    )
    plain = network._attend(query, keys, values, None, 1 << 30)
    fused = network._attend_fused(query, keys, values, by="xla")
    np.testing.assert_allclose(fused, plain, atol=1e-6)
    with pytest.MonkeyPatch.context() as patch:
        seen: list[int] = []
        kernel = jax.nn.dot_product_attention

        def note(*given: Any, **options: Any) -> Any:
            seen.extend(part.shape[-1] for part in given)
            return kernel(*given, **options)

        patch.setattr(jax.nn, "dot_product_attention", note)
        network._attend_fused(query, keys, values, by="xla")
        assert seen == [8, 8, 8]  # cuDNN has no heads of 6
    assert not network.can_fuse(CONFIG, 8, "bfloat16")  # there is no cuDNN on a CPU
    with pytest.MonkeyPatch.context() as patch:
        kernel = functools.partial(network._attend_fused, by="xla")
        patch.setattr(network, "_attend_fused", kernel)
        assert network.can_fuse(CONFIG, 8, "bfloat16")
        windows = CONFIG.replace(sliding_window=4, window_layers=(1,))
        assert not network.can_fuse(windows, 8, "bfloat16")
        patch.setattr(network, "_attend_fused", lambda query, keys, values: query)
        assert not network.can_fuse(CONFIG, 8, "bfloat16")  # it computes something else
        form = network.Form(CONFIG, fused=True)
        params, ids = JaxGPT(CONFIG).params, np.arange(8)[None] % 11
        seen = [network.hidden_states(params, ids, one) for one in (form, network.Form(CONFIG))]
        assert not np.allclose(*seen)  # the kernel is what computes it


def check_half_precision_is_in_every_product():
    """One product in float32 takes as long as all others on a GPU's matrix units together."""
    for changes in ({}, {"layout": "gpt2", "norm_eps": 1e-5}):
        config = CONFIG.replace(**changes)
        form = network.Form(config, dtype="bfloat16", chunk_tokens=4)
        ids, weights = np.zeros((1, 8), np.int32), np.ones(1, np.float32)
        gradients = jax.grad(network.loss_of)
        program = jax.make_jaxpr(gradients, static_argnums=(4, 5))(
            JaxGPT(config).params, ids, ids, weights, None, form
        )
        kinds = [v.aval.dtype.name for one in _products(program.jaxpr) for v in one.invars]
        assert len(kinds) > 20 and set(kinds) == {"bfloat16"}, kinds


def check_attention_by_one_kernel_is_computed_once():
    """Unless everything is computed again: what it found is kept for the backward pass."""
    checks = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    config = CONFIG.replace(width=16)
    ids, weights = np.zeros((1, 8), np.int32), np.ones(1, np.float32)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("check_cudnn_version", "check_compute_capability"):
            patch.setattr(checks, name, lambda *given: 90_000)  # only traced, nothing is run
        for again, times in ((False, 1), (True, 2)):
            form = network.Form(config, dtype="bfloat16", fused=True, again=again)
            program = jax.make_jaxpr(jax.grad(network.loss_of), static_argnums=(4, 5))(
                JaxGPT(config).params, ids, ids, weights, None, form
            )
            names = [step.primitive.name for step in _steps(program.jaxpr)]
            assert names.count("dot_product_attention_bwd_wrapper") == 1
            assert names.count("dot_product_attention_fwd_wrapper") == times, names


def check_layers_without_a_loop_are_the_same():
    params, ids = JaxGPT(CONFIG).params, np.arange(8, dtype=np.int32)[None] % 11
    found = []
    for unrolled in (False, True):
        form = network.Form(CONFIG, unrolled=unrolled)
        states = jax.jit(functools.partial(network.hidden_states, form=form)).lower(params, ids)
        gradients = jax.jit(jax.grad(network.loss_of), static_argnums=(4, 5))
        backward = gradients.lower(params, ids, ids, np.ones(1, np.float32), None, form)
        # Of chunks of the loss there is one loop, of layers one in each direction.
        loops = [program.as_text().count("stablehlo.while") for program in (states, backward)]
        assert loops == ([0, 1] if unrolled else [1, 3])
        found.append(states.compile()(params, ids))
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


def check_what_a_gpu_is_compiled_with():
    plain = engine.compute_gradients
    assert engine.gradients_on("cpu") is engine.gradients_on("tpu") is plain
    assert engine.gradients_on("gpu") is engine.gradients_on("gpu") is not plain
    assert engine._are_known(engine._GPU_OPTIONS)
    assert not engine._are_known({"xla_gpu_no_such_option": False})
    with pytest.MonkeyPatch.context() as patch:  # of a version that has another name for it
        patch.setattr(engine, "_are_known", lambda options: options != engine._GPU_OPTIONS)
        assert engine.gradients_on.__wrapped__("gpu") is plain


def check_how_a_network_is_compiled_on_a_device():
    for platform, more, wanted in (
        ("cpu", {}, (False, False)),
        ("tpu", {}, (False, False)),
        ("gpu", {}, (True, True)),
        ("gpu", {"activation_checkpointing": True}, (True, False)),
    ):
        given = settings.train_settings(seq_len=8, batch_size=2, memory="64GiB", **more)
        group, state = JaxGroup((device(platform),)), RunState(micro_batch=2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "can_fuse", lambda *shape: True)
            patch.setattr(JaxGroup, "place", lambda group, value, places: value)
            patch.setattr(JaxGroup, "weight_sharding", lambda group, name, shape, divided: None)
            made = JaxEngine(JaxGPT(CONFIG), given, state, group, rows=2, note=print)
        assert (made.form.fused, made.form.unrolled) == wanted
        assert made._compute_gradients is engine.gradients_on(platform)


def _products(program: Any) -> Iterator[Any]:
    """All products of matrices of a program."""
    return (step for step in _steps(program) if step.primitive.name == "dot_general")


def _steps(program: Any) -> Iterator[Any]:
    """All steps of a program, in its loops and functions too."""
    for step in program.eqns:
        yield step
        for inner in jax.tree.leaves(list(step.params.values()), is_leaf=_is_program):
            if _is_program(inner):
                yield from _steps(getattr(inner, "jaxpr", inner))


def _is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def check_what_is_dropped():
    x, key = jnp.ones((40, 50)), jax.random.key(3)
    for share in (0.25, 0.5):
        found = np.asarray(network._drop(x, share, key, 1))
        np.testing.assert_allclose(np.unique(found), [0, 1 / (1 - share)], rtol=1e-6)
        assert abs((found == 0).mean() - share) < 0.05
    assert not np.array_equal(found, network._drop(x, 0.5, key, 2))
    assert network._drop(x, 0.0, key, 1) is x and network._drop(x, 0.5, None, 1) is x


def check_dropout_is_for_training_alone():
    config = CONFIG.replace(layout="gpt2", num_layers=1)
    params, ids = JaxGPT(config).params, np.arange(8)[None] % 11
    compute = jax.jit(network.hidden_states, static_argnames=("form",))
    form = network.Form(config, dropout=0.5)
    plain = compute(params, ids, network.Form(config))
    assert np.array_equal(plain, compute(params, ids, form))
    dropped = compute(params, ids, form, jax.random.key(1))
    assert not np.allclose(plain, dropped)
    assert np.array_equal(dropped, compute(params, ids, form, jax.random.key(1)))
    assert not np.allclose(dropped, compute(params, ids, form, jax.random.key(2)))


def check_a_layout_that_is_not_there():
    with pytest.raises(UsageError, match="tide"):
        JaxGPT(CONFIG.replace(layout="tide"))
    assert JaxGPT(CONFIG).num_bytes == sum(v.nbytes for v in JaxGPT(CONFIG).params.values())


def main():
    answers = {}
    for name, check in [*globals().items(), *vars(surroundings).items()]:
        if name.startswith("check_"):
            try:
                check()
                answers[name] = ""
            except BaseException:
                answers[name] = traceback.format_exc()
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
