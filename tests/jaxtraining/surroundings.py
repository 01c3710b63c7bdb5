"""What surrounds a network of JAX, each checked by a function that units.py runs.

Processes that train together, devices, scores of texts, texts token by token, and steps of Muon and
of AdamW in 8 bits by their formulas; what would connect or take long is replaced.
"""

import contextlib
import functools
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from lowtide.errors import DataError, UsageError
from lowtide.generation.prompts import Prompt
from lowtide.generation.settings import SamplingSettings, WritingSettings
from lowtide.jaxtraining import (
    backend,
    devices,
    eightbit,
    evaluation,
    generation,
    loading,
    muon,
    optimizers,
    processes,
    trees,
)
from lowtide.jaxtraining.devices import JaxGroup
from lowtide.jaxtraining.engine import Counters
from lowtide.jaxtraining.network import Form
from lowtide.jaxtraining.optimizers import Rules
from lowtide.jaxtraining.trees import JaxGPT
from lowtide.model.config import GPTConfig
from lowtide.training.likelihood import Score

CONFIG = GPTConfig(vocab_size=11, context_length=8, num_layers=2, width=8, num_heads=2)
OPEN_FILES = Path("/proc/self/fd")
ADDRESS, COUNT, OWN = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def device(platform="cpu", stats=None, **more):
    return SimpleNamespace(platform=platform, memory_stats=lambda: stats, **more)


def check_settings_of_processes_are_whole():
    def whole(**given):
        processes._require_whole(given)

    for given, said in (
        ({ADDRESS: "a:1"}, f"{ADDRESS} is set, {COUNT} and {OWN} are not"),
        ({ADDRESS: "a:1", COUNT: "2"}, f"{ADDRESS} and {COUNT} are set, {OWN} is not"),
        ({ADDRESS: "a", COUNT: "2", OWN: "0"}, f"{ADDRESS} is 'a', expected HOST:PORT"),
        ({ADDRESS: ":1", COUNT: "2", OWN: "0"}, f"{ADDRESS} is ':1', expected HOST:PORT"),
        ({ADDRESS: "a:x", COUNT: "2", OWN: "0"}, f"{ADDRESS} is 'a:x', expected HOST:PORT"),
        ({ADDRESS: "a:1", COUNT: "2", OWN: "2"}, f"{OWN} is '2' and {COUNT} '2', expected"),
        ({ADDRESS: "a:1", COUNT: "x", OWN: "0"}, f"{OWN} is '0' and {COUNT} 'x', expected"),
        ({ADDRESS: "a:1", COUNT: "2", OWN: "-1"}, f"{OWN} is '-1' and {COUNT} '2', expected"),
    ):
        with pytest.raises(UsageError) as refused:
            whole(**given)
        assert refused.value.message.startswith(said), refused.value.message
    whole(**{ADDRESS: "a:1", COUNT: "2", OWN: "1"})
    whole(**{ADDRESS: "::1:1", COUNT: "1", OWN: "0"})


def _join(environment, *, initialized=False, fails=None):
    """What joining says, and what JAX is asked for meanwhile."""
    asked = []

    def initialize(*given, **options):
        asked.append((given, options))
        if fails:
            raise fails

    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "WORLD_SIZE", ADDRESS, COUNT, OWN):
            patch.delenv(name, raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(jax.distributed, "is_initialized", lambda: initialized)
        patch.setattr(jax.distributed, "initialize", initialize)
        patch.setattr(processes, "all_say", asked.append)
        return processes.join(), asked


def check_who_joins_whom():
    two = {ADDRESS: "a:1", COUNT: "2", OWN: "1"}
    assert _join({}) == (False, [])
    assert _join({ADDRESS: ""}) == (False, [])
    assert _join({"RANK": "0", "WORLD_SIZE": "1", **two}) == (False, [])
    assert _join({**two, COUNT: "1", OWN: "0"}) == (False, [])
    assert _join(two, initialized=True) == (True, [])
    options = {"cluster_detection_method": "deactivate", "shutdown_timeout_seconds": 20}
    assert _join(two) == (True, [(("a:1", 2, 1), options), None])
    with pytest.raises(UsageError, match="torchrun has started 2 processes"):
        _join({"RANK": "0", "WORLD_SIZE": "2"})
    with pytest.raises(UsageError, match="is set, "):
        _join({COUNT: "1"})
    with pytest.raises(UsageError, match="process 1 of 2 could not join the others at a:1: late"):
        _join(two, fails=RuntimeError("late"))


def check_answers_alone_are_printed():
    read, write = os.pipe()
    kept = os.dup(2)
    os.dup2(write, 2)
    flushed, stdout = [], sys.stdout
    sys.stdout = SimpleNamespace(flush=lambda: flushed.append("before"))
    try:
        before, opened = os.fstat(1).st_ino, len([*OPEN_FILES.iterdir()])
        with pytest.raises(KeyError), processes._stdout_kept_clean():
            assert flushed == ["before"]
            os.write(1, b"of a library")
            raise KeyError
        assert os.fstat(1).st_ino == before and len([*OPEN_FILES.iterdir()]) == opened
    finally:
        sys.stdout = stdout
        os.dup2(kept, 2)
        os.close(kept)
        os.close(write)
    assert os.read(read, 100) == b"of a library"
    os.close(read)


def check_what_processes_say():
    """Another process says a longer text: all rows are as long as the longest, in few sizes."""
    gathered, longest = [], [0]

    def gather(value):
        gathered.append(np.array(value))
        if value.ndim == 0:
            return np.array([value, longest[0]], np.int32)
        other = np.frombuffer(json.dumps("other").encode().ljust(len(value)), np.uint8)
        return np.stack([value, other])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes.multihost_utils, "process_allgather", gather)
        for size, room in ((7, 64), (64, 64), (65, 128), (128, 128), (129, 256)):
            gathered.clear()
            longest[0] = size
            assert processes.all_say({"a": 1}) == [{"a": 1}, "other"]
            assert int(gathered[0]) == len('{"a": 1}') and gathered[0].dtype == np.int32
            assert gathered[1].shape == (room,) and gathered[1].dtype == np.uint8


def check_what_the_first_process_says():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    about = {"shape": [2, 3], "type": "<i2"}
    for value, is_first, told, expected in (
        ("x", True, {"value": "x"}, "x"), (None, False, {"value": [1]}, [1]),
        (array, True, about, array), (None, False, about, array),
    ):  # fmt: skip
        asked = []

        def say(value, told=told, asked=asked):
            asked.append(value)
            return [told, None]

        def broadcast(value, asked=asked):
            asked.append(value)
            return array

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(processes, "all_say", say)
            patch.setattr(processes.multihost_utils, "broadcast_one_to_all", broadcast)
            found = processes.first_says(value, is_first=is_first)
        assert np.array_equal(found, expected)
        said = {"shape": (2, 3), "type": "<i2"} if value is array else {"value": value}
        assert asked[0] == (said if is_first else None)
        if told is about:
            assert asked[1].shape == (2, 3) and asked[1].dtype == np.int16
            assert (asked[1] is array) is is_first


def check_several_processes_agree():
    group = JaxGroup(tuple(device(id=number) for number in range(4)), 1, 2)
    asked = []

    def answer(result):
        def call(*given, **options):
            asked.append((*given, *options.values()))
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for all_said, found in (([False, True], True), ([False, False], False)):
            patch.setattr(processes, "all_say", answer(all_said))
            assert group.any(False) is found
        patch.setattr(processes, "all_say", answer([5, 3]))
        assert group.least(5) == 3 and group.all_say(5) == [5, 3]
        patch.setattr(processes, "all_say", answer([[1, 2], [10, 20]]))
        assert group.total([1, 2]) == [11, 22]
        patch.setattr(processes, "first_says", answer("of the first"))
        assert group.first_says("own") == "of the first"
        patch.setattr(processes, "all_say", answer(None))
        group.wait()
        assert asked == [(False,), (False,), (5,), (5,), ([1, 2],), ("own", False), (None,)]
        JaxGroup((device(),)).wait()
        assert len(asked) == 7


def check_arrays_of_several_processes():
    group = JaxGroup(tuple(jax.devices()[:2]), 0, 2)
    made = []
    value = np.arange(8.0).reshape(4, 2)
    places = group.weight_sharding("head.weight", (4, 2), divided=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "make_array_from_process_local_data", lambda *given: made.append(given))
        patch.setattr(jax, "make_array_from_callback", lambda *given: made.append(given))
        group.place_rows(value, axis=1)
        group.place(value, places)
    (where, rows), (shape, there, part) = made
    assert tuple(where.spec) == (None, "data") and np.array_equal(rows, value)
    assert rows is not value and (shape, there) == ((4, 2), places)
    assert np.array_equal(part((slice(1, 3),)), value[1:3])
    alone = JaxGroup(tuple(jax.devices()[:2]))
    assert np.array_equal(alone.place_rows(value, axis=0), value)
    assert np.array_equal(alone.place(value, places), value)


def check_which_devices_a_group_has():
    found = [device(process_index=n // 2, id=9 - n) for n in range(4)]
    order = [found[1], found[0], found[3], found[2]]

    def opened(name, *, joins=True, local=2, processes_there=2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(processes, "join", lambda: joins)
            patch.setattr(devices, "pick_devices", lambda name: (device(name.partition(":")[0]),))
            patch.setattr(jax, "devices", lambda kind: found if kind == "gpu" else None)
            patch.setattr(jax, "local_device_count", lambda kind: local)
            patch.setattr(jax, "process_count", lambda: processes_there)
            patch.setattr(jax, "process_index", lambda: 1)
            with devices.open_group(name) as group:
                return group

    alone = opened("gpu:1", joins=False)
    assert (alone.platform, alone.rank, alone.world_size) == ("gpu", 0, 1)
    group = opened("gpu")
    assert group == JaxGroup(tuple(order), 1, 2)
    with pytest.raises(UsageError, match="each with all its devices"):
        opened("gpu:1")
    with pytest.raises(UsageError, match="this process has 3 of 4 devices, and there are 2 pro"):
        opened("gpu", local=3)


def check_which_devices_are_meant():
    asked = []

    def local(**options):
        asked.append(options)
        return [device(id=0), device(id=1)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "local_devices", local)
        found = {name: [one.id for one in devices.pick_devices(name)]
                 for name in ("auto", "cpu", "gpu", "cuda:1")}  # fmt: skip
    assert found == {"auto": [0, 1], "cpu": [0, 1], "gpu": [0, 1], "cuda:1": [1]}
    assert asked == [{}, {"backend": "cpu"}, {"backend": "gpu"}, {"backend": "gpu"}]
    gpu = device("gpu", {"bytes_in_use": 5})
    assert devices.memory_of(JaxGroup((gpu,)))() == (5, 0)


def check_batches_that_are_filled():
    """What is computed for windows: rows up to the devices' number, without dropout."""
    asked = []

    def loss(params, ids, targets, weights, *, form):
        asked.append((params, ids.tolist(), targets.tolist(), weights.tolist(), ids.dtype, form))
        return np.float32(0.5)

    form = Form(CONFIG.replace(dropout=0.5), dropout=0.5, again=True)
    group = JaxGroup((device(), device()))
    placed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "_loss", loss)
        patch.setattr(evaluation, "token_bytes", lambda tokenizer: np.arange(11) * 10)
        patch.setattr(
            JaxGroup, "place_rows", lambda self, rows, *, axis: placed.append(axis) or rows
        )
        sums = evaluation.LossSums("params", form, group, tokenizer="t", batch_size=3, pending=9)
        ids = np.array([[1, 2], [3, 4], [5, 6]], np.uint16)
        sums.add(ids, ids + 1, counted=True)
        assert sums.totals() == (0.5 * 8, 6.0, float(10 * (ids + 1).sum()))
        none = evaluation.LossSums("params", form, group, tokenizer=None, batch_size=2)
        none.add(ids[:2], ids[:2], counted=True)
        assert none.totals() == (0.5 * 4, 4.0, 0.0) and none.totals()[0] == 0.5 * 4
        pair = JaxGroup((device(), device()), 0, 2)
        patch.setattr(processes, "all_say", lambda value: [value, value])
        other = evaluation.LossSums("params", form, pair, tokenizer=None, batch_size=1)
        other.add(ids[:1], ids[:1], counted=False)
        assert other.totals() == (0.5 * 2, 0.0, 0.0)  # the loss is that of all
    first, *_ = asked
    assert first[:3] == (
        "params", [[1, 2], [3, 4], [5, 6], [0, 0]], [[2, 3], [4, 5], [6, 7], [0, 0]]
    )  # fmt: skip
    assert first[3] == [0.125] * 3 + [0.0] and first[4] == np.int32
    assert (first[5].dropout, first[5].again, first[5].config) == (0.0, False, form.config)
    assert set(placed) == {0} and len(placed) == 9


def check_networks_that_are_loaded_and_evaluated():
    group = JaxGroup((device("gpu"), device("gpu")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "pick_devices", lambda name: (f"first {name}", "second"))
        patch.setattr(loading, "memory_of", lambda place: ("memory", place))
        patch.setattr(loading, "load_on", lambda folder, device: (folder, device))
        assert loading.NETWORKS.open("gpu").devices == ("first gpu",)
        assert loading.NETWORKS.device_memory(group) == ("memory", group)
        assert loading.NETWORKS.load("folder", group) == ("folder", group.devices[0])
        assert not loading.NETWORKS.is_cpu(group) and loading.NETWORKS.is_cpu(JaxGroup((device(),)))
        patch.setattr(evaluation, "loss_chunk_tokens", lambda size, on_gpu: (size, on_gpu))
        patch.setattr(evaluation, "LossSums", lambda *given, **options: (given, options))
        model = SimpleNamespace(config=CONFIG.replace(dropout=0.5), params="params")
        given, options = evaluation.EVALUATOR.sums(model, group, "tokenizer", batch_size=3)
        assert given[0] == "params" and given[2] is group
        assert given[1].config.dropout == 0.0 and given[1].chunk_tokens == (11, True)
        assert options == {"tokenizer": "tokenizer", "batch_size": 3}
        patch.setattr(evaluation, "score_rows", lambda *given, **options: (given, options))
        # Made by `partial`, of the function as it is now.
        score = evaluation.EVALUATOR.scorer(model, group, batch_size=4)
        assert score(["texts"]) == ((model, ["texts"]), {"batch_size": 4})


def check_scores_of_texts():
    """The last ids of each, in chunks of three, against a softmax by hand."""
    dice = np.random.default_rng(4)
    hidden = dice.normal(size=(3, 64, 8)).astype(np.float32)
    matrix = dice.normal(size=(11, 8)).astype(np.float32)
    asked = []

    def states(params, ids, *, form):
        asked.append((params, np.asarray(ids), form.config.dropout))
        return hidden

    texts = [([1, 2, 3, 4, 5, 6, 7, 8], 5), ([7, 8], 1)]
    model = SimpleNamespace(config=CONFIG.replace(context_length=64, dropout=0.5), params="params")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "_hidden", states)
        patch.setattr(evaluation, "output_matrix", lambda params: matrix)
        chunks, lengths = [3], []

        def chunk(size, on_gpu):
            assert (size, on_gpu) == (11, False)
            return chunks[0]

        def fill(tokens, context):
            lengths.append((tokens, context))
            return 64

        def score(states, matrix, targets):
            assert states.shape == (min(chunks[0], 64), 8) and targets.shape == states.shape[:1]
            return plain(states, matrix, targets)

        plain = evaluation._score
        patch.setattr(evaluation, "_score", score)
        patch.setattr(evaluation, "loss_chunk_tokens", chunk)
        patch.setattr(evaluation, "filled_tokens", fill)
        found = evaluation.score_rows(model, texts, batch_size=3)
        assert lengths == [(7, 64)]
        chunks[0] = 1000
        at_once = evaluation.score_rows(model, texts, batch_size=3)
        chunks[0] = 3
        logs = np.log(np.exp(hidden @ matrix.T) / np.exp(hidden @ matrix.T).sum(-1, keepdims=True))
        best = logs.argmax(-1)
        greedy = [[9, 9, 9, *best[0, 2:7].tolist()], [9, int(best[1, 0])]]
        likeliest = evaluation.score_rows(
            model, list(zip(greedy, (5, 1), strict=True)), batch_size=3
        )
        almost = [9, 9, 9, *best[0, 2:6].tolist(), int(best[0, 6] + 1) % 11]
        last = evaluation.score_rows(model, [(almost, 5)], batch_size=3)
    params, ids, dropout = asked[0]
    assert params == "params" and dropout == 0.0 and ids.shape == (3, 64)
    assert ids[0, :8].tolist() == [1, 2, 3, 4, 5, 6, 7, 0] and ids[1, :2].tolist() == [7, 0]
    wanted = [sum(logs[0, place, place + 2] for place in range(2, 7)), logs[1, 0, 8]]
    assert [score.log_likelihood for score in found] == pytest.approx(wanted, rel=1e-5)
    assert [score.log_likelihood for score in at_once] == pytest.approx(wanted, rel=1e-5)
    assert [type(score) for score in found] == [Score, Score]
    assert [score.is_greedy for score in likeliest] == [True, True]
    assert not last[0].is_greedy


def check_tokens_one_by_one():
    """A prompt in parts, filled to powers of two; a full cache goes on from the newer half."""
    steps, chosen = [], []

    def step(params, cache, ids, length, last, *, form):
        steps.append((np.asarray(ids)[0].tolist(), length, last))
        assert ids.shape[0] == 1
        assert params == "params" and cache == f"cache {len(steps) - 1}"
        assert form.config.dropout == 0.0
        return np.arange(11.0)[None], f"cache {len(steps)}"

    def choose(logits, seen, sampling, *, banned, dice):
        chosen.append((len(logits), list(seen), sampling, tuple(banned)))
        return 10 - len(chosen)

    model = SimpleNamespace(config=CONFIG.replace(dropout=0.5), params="params")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "_step", step)
        patch.setattr(generation, "choose_token", choose)
        patch.setattr(generation, "new_cache", lambda form, rows: f"cache {rows - 1}")
        options = {"banned": [1], "banned_first": [2], "vocab_size": 9}
        found = generation.iter_tokens(model, range(1, 7), max_new_tokens=4, **options)
        assert [token.tolist() for token in found] == [[9], [8], [7], [6]]
        assert steps == [
            ([1, 2, 3, 4, 5, 6, 0, 0], 0, 5), ([9], 6, 0), ([8], 7, 0), ([6, 9, 8, 7], 0, 3),
        ]  # fmt: skip
        assert [call[3] for call in chosen] == [(1, 2), (1,), (1,), (1,)]
        assert chosen[0][:3] == (9, [1, 2, 3, 4, 5, 6], SamplingSettings())
        assert chosen[3][1] == [2, 3, 4, 5, 6, 9, 8, 7]
        steps.clear()
        list(generation.iter_tokens(model, range(20), max_new_tokens=2, context=3))
        assert steps == [([17, 18, 19], 0, 2), ([5], 0, 0)]
        assert chosen[-1][0] == 11 and chosen[-2][1] == [17, 18, 19]
        steps.clear()
        list(generation.iter_tokens(model, [3, 4], max_new_tokens=2, context=1))
        assert steps == [([4], 0, 0), ([3], 0, 0)]
        steps.clear()
        list(generation.iter_tokens(model, range(1030), max_new_tokens=1, context=1031))
        assert [(len(ids), length, last) for ids, length, last in steps] == [
            (1024, 0, 1023), (7, 1024, 5)
        ]  # fmt: skip
        assert steps[0][0] == [*range(1024)] and steps[1][0] == [*range(1024, 1030), 0]


def check_the_same_dice_for_a_seed():
    drawn = []

    def choose(logits, seen, sampling, *, banned, dice):
        drawn.append(dice.random())
        return 1

    model = SimpleNamespace(config=CONFIG, params="params")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "_step", lambda *given, **more: (np.zeros((1, 11)), None))
        patch.setattr(generation, "choose_token", choose)
        patch.setattr(generation, "new_cache", lambda form, rows: None)
        for seed in (3, 3, 4):
            list(generation.iter_tokens(model, [1], max_new_tokens=1, seed=seed))
        given = list(generation.iter_tokens(model, [1]))
    assert drawn[0] == drawn[1] != drawn[2] and len(given) == 100


def check_pieces_of_texts():
    asked = []

    def tokens(model, ids, **options):
        asked.append((ids, options))
        return iter(["tokens"])

    def texts(found, tokenizer, *, num_samples, stop):
        assert list(found) == ["tokens"] and (num_samples, stop) == (1, ("x",))
        return iter([(0, "a"), (0, "b")])

    tokenizer = SimpleNamespace(vocab_size=9)
    model = SimpleNamespace(config=CONFIG)
    starts = [
        SimpleNamespace(ids=[1], seed=5, is_empty=False),
        SimpleNamespace(ids=[2], seed=6, is_empty=True),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "iter_tokens", tokens)
        patch.setattr(generation, "iter_texts", texts)
        patch.setattr(generation, "not_text", lambda tokenizer: [7])
        patch.setattr(generation, "ends", lambda tokenizer: [8])
        begun = []

        def iter_starts(*given):
            begun.append(given)
            return iter(starts)

        patch.setattr(generation, "iter_starts", iter_starts)
        options = WritingSettings(
            8, num_samples=2, max_new_tokens=4, stop=("x",), seed=5, begin=3, batch_size=1
        )
        found = list(generation.WRITER.stream(model, tokenizer, ["p"], options))
        assert found == [(n, text) for n in range(2) for text in ("a", "b", "")]
        assert begun == [(tokenizer, ["p"], options)]
        shared = {
            "max_new_tokens": 4,
            "sampling": SamplingSettings(),
            "vocab_size": 9,
            "banned": [7],
        }
        assert asked == [
            ([1], {**shared, "banned_first": (), "seed": 5, "context": 8}),
            ([2], {**shared, "banned_first": [8], "seed": 6, "context": 8}),
        ]
        patch.setattr(
            generation, "iter_texts", lambda *given, **options: iter([(0, "a"), (0, "b")])
        )
        written = generation.generate_text(model, tokenizer, "q", max_new_tokens=4, seed=9)
        assert written == "abab" and generation.WRITER.most_rows == 1
        begun_with = WritingSettings(8, max_new_tokens=4, seed=9)
        assert begun[-1] == (tokenizer, [Prompt("q")], begun_with)


def check_trees_of_weights():
    model = JaxGPT(CONFIG, seed=3)
    named = dict(trees.iter_named(model.params))
    assert list(named)[:1] == list(model.state_dict())[:1]
    stack = model.params["blocks.*.mlp.down.weight"]
    for layer in range(2):
        assert np.array_equal(named[f"blocks.{layer}.mlp.down.weight"], stack[layer])
    assert not any("*" in name for name in named)
    shapes = trees.stacked_shapes(CONFIG)
    assert {name: value.shape for name, value in model.params.items()} == shapes
    assert shapes["embedding.weight"] == (11, 8)
    assert shapes["blocks.*.attention.query_key_value.weight"] == (2, 24, 8)
    model.set_embedding(np.full((11, 8), 3.0, np.float32))
    assert (model.params["embedding.weight"] == 3).all()
    with pytest.raises(DataError, match=r"embedding.weight is \(2, 8\), config.json says \(11, 8"):
        model.set_embedding(np.zeros((2, 8), np.float32))
    placed = JaxGPT.__new__(JaxGPT)
    placed.config = CONFIG
    placed.params = {"a": SimpleNamespace(addressable_data=lambda number: ("data", number))}
    assert placed.here().params == {"a": ("data", 0)} and placed.here().config is CONFIG
    gathered = []

    def gathering(mesh):
        return lambda value: gathered.append(mesh) or np.ones(2)

    sharding = SimpleNamespace(mesh="mesh")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "_gathering", gathering)
        for addressable, replicated in ((True, False), (False, True), (True, True)):
            value = np.zeros(3).view(_Placed)
            value.sharding = sharding
            value.is_fully_addressable, value.is_fully_replicated = addressable, replicated
            assert np.asarray(trees._on_host(value)).shape == (3,) and not gathered
        value.is_fully_addressable = value.is_fully_replicated = False
        assert trees._on_host(value).tolist() == [1, 1] and gathered == ["mesh"]
        assert trees._on_host([1, 2]).tolist() == [1, 2]


class _Placed(np.ndarray):
    """An array with what arrays of JAX say of their places."""


def check_folders_of_weights():
    noted = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "verify_folder", lambda folder: noted.append(("verify", folder)))
        patch.setattr(trees, "iter_weights", lambda folder, config: iter(()))
        model = JaxGPT(CONFIG)
        model.load_weights("a")
        model.load_weights("b", verify=False)
        assert noted == [("verify", "a")] and model.params == {}
        part = np.full((3, 8), 2.0, np.float32)
        found = [("embedding.weight", slice(0, 3), part), ("embedding.weight", slice(8, 11), part)]
        patch.setattr(trees, "iter_weights", lambda folder, config: iter(found))
        loaded = JaxGPT.load("c", CONFIG)
        assert loaded.config is CONFIG and noted == [("verify", "a")]
        rows = loaded.params["embedding.weight"]
        assert (rows[:3] == 2).all() and (rows[8:] == 2).all() and rows.shape == (11, 8)
        with pytest.raises(UsageError, match="tide"):
            JaxGPT.load("c", CONFIG.replace(layout="tide"))
        patch.setattr(trees, "find_intact", lambda folder: f"whole {folder}")
        patch.setattr(trees, "load_config", lambda folder: CONFIG)
        patch.setattr(trees, "require_weights", lambda *given: noted.append(given))
        loaded = SimpleNamespace(params={"a": 1, "b": 2})
        patch.setattr(
            JaxGPT, "load", classmethod(lambda cls, *given: noted.append(given) or loaded)
        )
        patch.setattr(jax, "device_put", lambda value, device: (value, device))
        found = trees.load_on("folder", "device")
        assert found is loaded and found.params == {"a": (1, "device"), "b": (2, "device")}
        assert noted[1:] == [("whole folder", CONFIG)] * 2


def check_what_the_backend_hands_on():
    own, group = backend.BACKEND, JaxGroup((device("gpu"),))
    value = {"a": np.zeros(2)}
    copies = own.make_snapshot()
    copy, wait = copies.take(value)
    wait()
    copies.close()
    assert copy["a"] is not value["a"] and copy["a"].tolist() == [0, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "pick_devices", lambda name: (device(f"kind of {name}"), None))
        patch.setattr(backend, "open_group", contextlib.nullcontext)
        patch.setattr(backend, "memory_of", lambda group: ("memory", group))
        patch.setattr(backend, "JaxGPT", lambda *given, **options: (given, options))
        patch.setattr(backend, "JaxEngine", lambda *given, **options: (given, options))
        patch.setattr(backend, "JaxFeed", lambda *given: given)
        patch.setattr(backend, "iter_portable", lambda weights, config: [(weights, config)])
        assert own.device_kind("x") == "kind of x" and own.device_memory(group)[0] == "memory"
        assert own.new_model(CONFIG, seed=2) == ((CONFIG,), {"seed": 2, "zero_init": False})
        given = ("model", "settings", "state", group)
        made = own.make_engine(*given, rows=3, given=None, note=print)
        assert made == (given, {"rows": 3, "note": print})
        assert own.make_feed("source", group, CONFIG) == ("source", 11)
        assert isinstance(own.make_counters(group), Counters)
        assert own.portable("weights", "config") == {"weights": "config"}
        with own.open_group("x") as opened:
            assert opened == "x"
    noted = []
    noting = SimpleNamespace(
        num_bytes=7, set_embedding=noted.append,
        load_weights=lambda *given, **options: noted.append((given, options)),
    )  # fmt: skip
    own.set_embedding(noting, "rows")
    own.load_weights(noting, "a")
    own.load_weights(noting, "b", verify=False)
    assert own.held_bytes(noting) == 7
    assert noted == ["rows", (("a",), {"verify": True}), (("b",), {"verify": False})]


def check_which_matrices_are_one():
    config = CONFIG.replace(width=16, num_heads=4, num_kv_heads=2, head_dim=4)
    names = ("attention.query_key_value.weight", "mlp.gate_up.weight", "mlp.down.weight")
    found = [muon.matrix_splits(f"blocks.*.{name}", 32, config) for name in names]
    assert found == [[(6, 4), (1, 8)], [(2, 16)], [(1, 32)]]


def _even_rows(parts, rows, size):
    """Steps [S, R, C] with even rows, in float64: `parts` are what orthogonal updates are."""
    squares = np.square(parts).mean(axis=-1, keepdims=True)
    rows = rows + 0.05 * (squares - rows)
    factors = 1 / np.sqrt(np.maximum(rows, 1e-20))
    after = (squares * factors**2).sum(axis=-2, keepdims=True)
    norm = np.sqrt(squares.sum(axis=-2, keepdims=True) / np.maximum(after, 1e-20))
    return parts * factors * norm * size, rows


def check_a_step_of_muon_is_the_formula():
    """Two layers of matrices [6, 4], of which two of [2, 4] are above one of [2, 4]."""
    dice = np.random.default_rng(7)
    weights, gradients, momentum = dice.normal(size=(3, 2, 6, 4)).astype(np.float32)
    rows = dice.random((2, 6, 1)).astype(np.float32)
    splits = [(2, 2), (1, 2)]
    options = {
        "learning_rate": 0.1,
        "momentum": 0.75,
        "weight_decay": 0.5,
        "half": True,
        "divisor": 2.0,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(muon, "orthogonalize", lambda parts, *, half: parts if half else None)
        for cautious, is_good in ((False, True), (True, True), (True, False)):
            step = functools.partial(
                muon.step_stack, splits=splits, options={**options, "cautious": cautious}
            )
            given = {"momentum": momentum, "rows": rows}
            new, state = jax.jit(step)(weights, gradients, given, is_good=np.bool_(is_good))
            if not is_good:
                for found, before in zip(
                    (new, state["momentum"], state["rows"]), (weights, momentum, rows), strict=True
                ):
                    np.testing.assert_allclose(found, before, rtol=1e-6)
                continue
            own = gradients / 2
            buffer = momentum + 0.25 * (own - momentum)
            nesterov = own + 0.75 * (buffer - own)
            size = 0.2 * 4**0.5
            for layer in range(2):
                first, one = _even_rows(
                    nesterov[layer, :4].reshape(2, 2, 4), rows[layer, :4].reshape(2, 2, 1), size
                )
                second, two = _even_rows(nesterov[layer, None, 4:], rows[layer, None, 4:], size)
                change = 0.1 * np.concatenate([first.reshape(4, 4), second[0]])
                decay = 0.05 * ((weights[layer] * change >= 0) if cautious else 1)
                wanted = weights[layer] * (1 - decay) - change
                np.testing.assert_allclose(new[layer], wanted, rtol=1e-4, atol=1e-5)
                means = np.concatenate([one.reshape(4, 1), two[0]])
                np.testing.assert_allclose(state["rows"][layer], means, rtol=1e-4)
            np.testing.assert_allclose(state["momentum"], buffer, rtol=1e-5)


def check_rows_that_are_nothing_stay_finite():
    even = jax.jit(functools.partial(muon._even_step, half=False))
    step, rows = even(np.zeros((1, 2, 3), np.float32), np.zeros((1, 2, 1), np.float32))
    assert not np.asarray(step).any() and not np.asarray(rows).any()


def check_a_step_in_8_bits_is_the_formula():
    """By the moments that codes stand for, of a tensor and of a stack of two layers."""
    dice = np.random.default_rng(8)
    signed, unsigned = eightbit.code_table(signed=True), eightbit.code_table(signed=False)
    codes = dice.integers(0, 256, (2, 2, 300)).astype(np.uint8)
    sizes = 1 + dice.random((2, 2, 2)).astype(np.float32)
    weights, gradients = dice.normal(size=(2, 2, 300)).astype(np.float32)
    options = {
        "learning_rate": 0.1, "weight_decay": 0.5, "betas": (0.75, 0.5), "eps": 0.01,
        "corrections": (0.5, 0.25), "divisor": 2.0,
    }  # fmt: skip
    state = {"state1": codes[0], "absmax1": sizes[0], "state2": codes[1], "absmax2": sizes[1]}
    wanted, moments = [], []
    for layer in range(2):
        large = [np.repeat(sizes[n, layer], [256, 44]) for n in range(2)]
        own = gradients[layer] / 2
        first = 0.75 * signed[codes[0, layer]] * large[0] + 0.25 * own
        second = 0.5 * unsigned[codes[1, layer]] * large[1] + 0.5 * own**2
        change = 0.1 / 0.5 * first / (np.sqrt(second) / 0.25 + 0.01)
        wanted.append(weights[layer] * (1 - 0.05) - change)
        moments.append((first, second))
    for stacked in (False, True):
        step = jax.jit(functools.partial(eightbit.step_stack, stacked=stacked, **options))
        for is_good in (True, False):
            given = [weights, gradients] if stacked else [weights[0], gradients[0]]
            held = state if stacked else {key: value[0] for key, value in state.items()}
            new, kept = step(*given, held, is_good=np.bool_(is_good))
            if not is_good:
                assert np.array_equal(new, given[0])
                assert all(np.array_equal(kept[key], held[key]) for key in held)
                continue
            expected = np.stack(wanted) if stacked else wanted[0]
            np.testing.assert_allclose(new, expected, rtol=1e-4, atol=1e-5)
            for layer in range(2 if stacked else 1):
                for number, (key, table) in enumerate((("1", signed), ("2", unsigned))):
                    own = {name: np.asarray(kept[f"{name}{key}"]) for name in ("state", "absmax")}
                    if stacked:
                        own = {name: value[layer] for name, value in own.items()}
                    exact = moments[layer][number]
                    blocks = np.abs(exact[:256]).max(), np.abs(exact[256:]).max()
                    np.testing.assert_allclose(own["absmax"], blocks, rtol=1e-5)
                    found = table[own["state"]] * np.repeat(own["absmax"], [256, 44])
                    assert np.abs(found - exact).max() < 0.02 * max(blocks)


def check_moments_by_their_names():
    rules = Rules(CONFIG, "muon")
    matrix = "blocks.*.mlp.down.weight"
    shape = trees.stacked_shapes(CONFIG)[matrix]
    moments = {
        "steps": {"": np.float32(5)}, "embedding.weight": {"exp_avg": np.ones((11, 8))},
        matrix: {"momentum": np.stack([np.zeros(shape[1:]), np.ones(shape[1:])])},
    }  # fmt: skip
    found = optimizers.name_moments(moments, rules)
    assert sorted(found) == [
        "moments.blocks.0.mlp.down.weight.momentum", "moments.blocks.1.mlp.down.weight.momentum",
        "moments.embedding.weight.exp_avg", "moments.embedding.weight.step",
    ]  # fmt: skip
    assert found["moments.embedding.weight.step"] == 5
    assert found["moments.blocks.1.mlp.down.weight.momentum"].all()
    eight = Rules(CONFIG.replace(vocab_size=512), "adamw", use_8bit=True)
    given = {"steps": {"": np.float32(5)}, "embedding.weight": {"state1": np.zeros(3)},
             "final_norm.weight": {"exp_avg": np.zeros(8)}}  # fmt: skip
    found = optimizers.name_moments(given, eight)
    assert sorted(name.removeprefix("moments.") for name in found) == [
        "embedding.weight.qmap1", "embedding.weight.qmap2", "embedding.weight.state1",
        "final_norm.weight.exp_avg",
    ]  # fmt: skip
    assert found["moments.embedding.weight.qmap1"][0] < 0
    assert found["moments.embedding.weight.qmap2"][0] == 0
    (row,) = optimizers.optimizer_rows(eight, 5)
    assert row["kind"] == "AdamW8bit" and set(row["values"]) >= {
        "embedding.weight", "blocks.0.mlp.down.weight", "blocks.1.mlp.down.weight"
    }  # fmt: skip
    assert set(map(str, row["values"].values())) == {"{'step': 5}"}
    assert optimizers.optimizer_rows(eight, 0) == [{"kind": "AdamW8bit", "values": {}}]
    assert [r["values"] for r in optimizers.optimizer_rows(rules, 5)] == [{}, {}]


def check_singular_values_go_through_the_polynomials():
    dice = np.random.default_rng(9)
    compiled = jax.jit(muon.orthogonalize, static_argnames=("half",))
    for shape in ((2, 6, 6), (1, 5, 6), (2, 4, 6), (2, 6, 4)):
        left, sizes, right = np.linalg.svd(dice.normal(size=shape), full_matrices=False)
        sizes[:, -1] = 2e-3 * sizes[:, 0]  # not there before the last of them
        matrices = (left * sizes[:, None]) @ right
        sizes = sizes / (np.linalg.norm(sizes, axis=-1, keepdims=True) * 1.02)
        for a, b, c in muon.POLAR_EXPRESS:
            sizes = a * sizes + b * sizes**3 + c * sizes**5
        wanted = (left * sizes[:, None]) @ right
        found = compiled(matrices.astype(np.float32), half=False)
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
        assert not np.asarray(compiled(np.zeros(shape, np.float32), half=False)).any()
