"""Everything the tests of this folder compute with JAX, in one process of eight virtual devices.

`python runs.py FOLDER` prints a JSON object. A process of its own, since a test that forks must not
have JAX's threads; one process for all, so that what is compiled once serves every case.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

import jax
import numpy as np
from cases import (
    FAMILY_SHAPES,
    MORE,
    PAIR,
    RATES,
    ROWS,
    SHAPES,
    STEPS,
    batches,
    losses_of,
    speak,
    train_settings,
    trainer_options,
)

from lowtide import ranks
from lowtide.errors import UsageError
from lowtide.jaxtraining.backend import BACKEND as JAX
from lowtide.jaxtraining.devices import pick_devices
from lowtide.jaxtraining.engine import compute_gradients
from lowtide.jaxtraining.network import Form, hidden_states, output_matrix
from lowtide.jaxtraining.processes import join
from lowtide.jaxtraining.trees import JaxGPT, iter_named, load_on
from lowtide.training.state import RunState
from lowtide.training.trainer import Trainer


def make_engine(layout="qwen3", *, devices="cpu:0", micro=ROWS, **options):
    options = {"optimizer": "adamw", "learning_rate": RATES["adamw"], **options}
    with JAX.open_group(devices) as group:
        return JAX.make_engine(
            JAX.new_model(SHAPES[layout], seed=1337),
            train_settings(backend="jax", **options),
            RunState(micro_batch=micro),
            group,
            rows=ROWS,
            given=None,
            note=print,
        )


def int32(array):
    return array.astype(np.int32)


def run(steps, layout="qwen3", **options):
    return losses_of(make_engine(layout, **options), int32, steps)


def gradients(layout, folder):
    """The gradients of the first batch, in a file."""
    engine = make_engine(layout)
    engine.compute(*map(int32, next(batches(1))))
    np.savez(folder / f"gradients-{layout}.npz", **dict(iter_named(engine._gradients)))


def temporary_bytes(**options):
    """What the compiled step needs beside its arguments and results."""
    engine = make_engine(**options)
    parts = engine._on_devices(*engine._micro_batches(*map(int32, next(batches(1)))))
    key = jax.random.key(0)
    compiled = compute_gradients.lower(engine.model.params, *parts, key, form=engine.form)
    return compiled.compile().memory_analysis().temp_size_in_bytes


def skipped():
    """A step that is not finite: (skipped, whether anything changed, steps counted)."""
    engine = make_engine()
    ((inputs, targets),) = batches(1)
    loss = engine.compute(int32(inputs), int32(targets))
    engine.update(loss, 1.0)
    before = {name: np.array(value) for name, value in engine.model.params.items()}
    engine.compute(int32(inputs), int32(targets))
    engine._gradients["final_norm.weight"] = np.full(32, np.nan, np.float32)
    _, skip = engine.update(loss, 1.0)
    same = all(np.array_equal(before[n], v) for n, v in engine.model.params.items())
    return [float(skip), same, engine.numbers()["optimizers"], float(engine._moments["steps"][""])]


def counted():
    """The arrays that a counted first embedding changes, where it comes to be what was counted."""
    config = SHAPES["qwen3"]
    model = JAX.new_model(config, seed=1)
    before = {name: np.array(value) for name, value in model.params.items()}
    rows = np.full((config.vocab_size, config.width), 0.5, np.float32)
    JAX.set_embedding(model, rows)
    assert np.array_equal(model.params["embedding.weight"], rows)
    return [name for name, value in model.params.items() if not np.array_equal(before[name], value)]


def divided():
    """The shape of a matrix, and of the part of it that one of eight devices holds."""
    engine = make_engine(devices="cpu", parallel="fsdp")
    losses = losses_of(engine, int32, 4)
    matrix = engine.model.params["blocks.*.mlp.down.weight"]
    moment = engine._moments["blocks.*.mlp.down.weight"]["exp_avg"]
    parts = [list(x.addressable_shards[0].data.shape) for x in (matrix, moment)]
    return {"losses": losses, "shape": list(matrix.shape), "parts": parts}


def half_given():
    """What is said where the settings of several processes are not whole."""
    whole = dict(zip(ranks.JAX_NAMES, ("127.0.0.1:1", "2", "1"), strict=True))
    address, count, own = whole
    cases = (
        {address: "127.0.0.1:1"},
        {count: "2", own: "0"},
        {**whole, own: "2"},
        {**whole, count: "two"},
        {**whole, address: "127.0.0.1"},
        {"RANK": "1", "WORLD_SIZE": "2"},
        {**whole, count: "1", own: "0"},
        {},
    )
    said = []
    for case in cases:
        os.environ.update(case)
        try:
            said.append(join())
        except UsageError as error:
            said.append(f"{error.message} | {error.next_step}")
        for name in case:
            del os.environ[name]
    return said


def make_trainer(folder, name, *, layout="qwen3", **options):
    return Trainer(JaxGPT(SHAPES[layout]), **trainer_options(folder, name, **options))


def families(folder):
    """Logits of a batch by a model of each family, in a file."""
    ids, _ = next(batches(1))
    found = {}
    # Operation by operation: what one family has compiled serves the next.
    with jax.disable_jit():
        for name in FAMILY_SHAPES:
            model = load_on(folder / f"family-{name}", jax.devices()[0])
            form = Form(model.config)
            found[name] = (
                hidden_states(model.params, int32(ids), form) @ output_matrix(model.params).T
            )
    np.savez(folder / "families.npz", **found)


def missing_devices():
    """What is said of devices that are not there."""
    said = []
    for name in ("tpu", "xla"):
        try:
            pick_devices(name)
        except UsageError as error:
            said.append(error.message)
    return said


def main(folder):
    answers = {
        "parity": {
            f"{layout}-{optimizer}": run(
                STEPS[f"{layout}-{optimizer}"],
                layout,
                optimizer=optimizer,
                learning_rate=rate,
                **MORE.get(f"{layout}-{optimizer}", {}),
            )
            for layout in SHAPES
            for optimizer, rate in RATES.items()
        },
        "micro": run(4, micro=3),
        "whole": run(4),
        "bf16": run(20, use_mixed_precision=True),
        "8bit": run(20, use_8bit_optimizer=True),
        "again": run(4, activation_checkpointing=True),
        "eight": run(4, devices="cpu", micro=3),
        "divided": divided(),
        "temporary": [temporary_bytes(), temporary_bytes(activation_checkpointing=True)],
        "skipped": skipped(),
        "counted": counted(),
        "half_given": half_given(),
        "missing_devices": missing_devices(),
    }  # fmt: skip
    for layout in SHAPES:
        gradients(layout, folder)
    families(folder)
    make_trainer(folder, "whole", max_iters=12).fit()
    make_trainer(folder, "parts", max_iters=6).fit()
    make_trainer(folder, "parts", max_iters=12).fit()
    boards = importlib.util.find_spec("tensorboard") is not None
    make_trainer(folder, "one", tensorboard=boards, **PAIR).fit()
    make_trainer(folder, "torch", max_iters=12).fit()
    make_trainer(folder, "torch8", max_iters=12, optimizer="auto", use_8bit_optimizer=True).fit()
    make_trainer(folder, "jax8", max_iters=6, optimizer="auto", use_8bit_optimizer=True).fit()
    answers["speak"] = speak(folder, "jax")
    answers["torch_imported"] = "torch" in sys.modules
    print(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
