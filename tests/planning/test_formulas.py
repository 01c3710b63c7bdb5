"""Bytes that formulas say, over a grid of shapes and settings: the numbers that they have said.

Plans and budgets are compared with measured peaks elsewhere, within a tenth or so. Here every term
counts: a summand that is lost changes a number of the table. Where a formula is meant to change,
`python tests/planning/test_formulas.py` writes the table anew; its diff shows what changed.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lowtide.classifier import resources as classifier_resources
from lowtide.classifier.settings import ClassifierSettings
from lowtide.corpus.inputs import InputFile, InputList
from lowtide.dataset import pretokenizingplan
from lowtide.dataset import resources as dataset_resources
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.staged.plan import Sizes
from lowtide.loader import footprint as loader_footprint
from lowtide.memory import MemoryBudget
from lowtide.model import decoder, inference, rope, sizing
from lowtide.model.config import GPTConfig
from lowtide.model.program import Program
from lowtide.planning import choices
from lowtide.planning import compute as compute_plans
from lowtide.planning.machine import Machine
from lowtide.settings import build_settings
from lowtide.tokenizer import countingplan, learning
from lowtide.tokenizer import footprint as tokenizer_footprint
from lowtide.training import activations, footprint, offloading, schedule
from lowtide.training.settings import TrainSettings

TABLE = Path(__file__).with_name("formulas.json")
PROGRAM = Program(1_000_000, 3_000_000, extra_bytes={"recompute": 50, "8bit": 600, "compile": 7000})
MIB = 1 << 20
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"layout": "gpt2", "width": 96},
    "qwen3": {"layout": "qwen3", "num_kv_heads": 2},
    "untied": {"layout": "llama", "tie_weights": False, "mlp_bias": True},
    "olmo2": {"layout": "olmo2", "attention_bias": True},
    "tide": {"layout": "tide", "width": 64},
    "windows": {"layout": "mistral", "sliding_window": 16, "window_layers": (0, 1, 2)},
    "long": {"layout": "qwen3", "vocab_size": 70_000, "num_layers": 9},
}
TRAINING: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw"},
    "muon": {"optimizer": "muon", "gradient_accumulation_steps": 3},
    "half": {"optimizer": "adamw", "use_mixed_precision": True, "compile": True},
    "again": {"optimizer": "muon", "activation_checkpointing": True, "loss_chunk_tokens": 100},
    "again, half": {"activation_checkpointing": True, "use_mixed_precision": True},
    "8 bits": {"optimizer": "adamw", "use_8bit_optimizer": True, "num_workers": 0},
    "jax": {"optimizer": "muon", "backend": "jax", "batch_size": 4},
    "jax, 8 bits": {"optimizer": "adamw", "use_8bit_optimizer": True, "backend": "jax"},
    "counted": {"optimizer": "auto", "first_embedding": "cooccurrence"},
}


def shape(name: str) -> GPTConfig:
    known = {"vocab_size": 500, "context_length": 512, "num_layers": 3, "width": 128}
    return GPTConfig(**{**known, "num_heads": 4, **SHAPES[name]})


def training(name: str, **more: Any) -> TrainSettings:
    known = {"model_name": "none", "checkpoints_dir": "no folder", "seq_len": 128}
    return build_settings(TrainSettings, {**known, "batch_size": 8, **TRAINING[name], **more})


def numbers_of(value: Any) -> dict[str, Any]:
    """Fields and properties of a dataclass that are numbers."""
    names = [field.name for field in dataclasses.fields(value)]
    names += [name for name in dir(type(value)) if isinstance(getattr(type(value), name), property)]
    found = {name: getattr(value, name) for name in names}
    return {name: number for name, number in found.items() if isinstance(number, int | float)}


def train_rows() -> Iterator[tuple[str, Any]]:
    for name, kind, on_gpu in itertools.product(SHAPES, TRAINING, (False, True)):
        if kind.startswith("jax") and (on_gpu or name not in ("gpt2", "qwen3", "tide")):
            continue
        if name in ("untied", "olmo2", "windows") and kind not in ("adamw", "again, half"):
            continue  # their blocks differ, and nothing else
        settings = training(kind)
        for rows in (None, 2):
            found = footprint.planned_bytes(
                shape(name), settings, micro_batch=rows, on_gpu=on_gpu, program=PROGRAM
            )
            place = "GPU" if on_gpu else "CPU"
            yield f"training of {name}, {kind}, {place}, {rows} rows", numbers_of(found)


def jax_rows() -> Iterator[tuple[str, Any]]:
    for name, mlp_width, muon, eight in itertools.product(
        ("gpt2", "qwen3"), (16, 900), (False, True), (False, True)
    ):
        config = shape(name).replace(mlp_width=mlp_width)
        found = activations._jax_update_bytes(config, muon=muon, use_8bit=eight)
        yield (
            f"update of {name} in JAX, mlp {mlp_width}{', muon' * muon}{', 8 bits' * eight}",
            found,
        )


def offload_rows() -> Iterator[tuple[str, Any]]:
    for name, rung, half, optimizer in itertools.product(
        ("qwen3", "long"), offloading.RUNGS[1:], (False, True), ("adamw", "muon")
    ):
        settings = training("adamw", optimizer=optimizer, offload=rung, use_mixed_precision=half)
        label = f"offload of {name}, {rung}, {optimizer}{', half' if half else ''}"
        yield f"{label}: traffic", numbers_of(offloading.step_traffic(shape(name), settings))
        for on_gpu in (False, True):
            if not on_gpu and rung not in ("packed", "disk", "disk-all"):
                continue
            found = footprint.planned_bytes(
                shape(name), settings, micro_batch=2, on_gpu=on_gpu, program=PROGRAM
            )
            assert found.offloaded is not None
            row = {**numbers_of(found), **numbers_of(found.offloaded)}
            yield f"{label}, {'GPU' if on_gpu else 'CPU'}", row


def running_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    for name, generates, backend, rows, tokens in itertools.product(
        ("gpt2", "qwen3", "windows", "long"), (False, True), ("torch", "jax"), (1, 700), (30, 512)
    ):
        found = inference.planned_bytes(
            shape(name), rows=rows, tokens=tokens, program=PROGRAM, generates=generates,
            backend=backend, tokenizer_bytes=77,
        )  # fmt: skip
        verb = "generating" if generates else "evaluating"
        yield f"{verb} with {name}, {backend}, {rows} rows of {tokens}", numbers_of(found)
    monkeypatch.setattr(decoder, "usable_cores", lambda: 3)
    for name, rows, tokens in itertools.product(SHAPES, (1, 700), (1, 30, 9000)):
        found = decoder.step_bytes(shape(name), rows=rows, tokens=tokens)
        yield f"native steps with {name}, {rows} rows of {tokens}", found
    for megabytes in (90, 100, 150):
        config = shape("gpt2").replace(context_length=50_000)
        context = inference.fit_context(config, megabytes * MIB, program=PROGRAM)
        yield f"context in {megabytes} MiB", context


def sizing_rows() -> Iterator[tuple[str, Any]]:
    for name in SHAPES:
        config = shape(name)
        counts = [sizing.count_parameters(config, embeddings=each) for each in (False, True)]
        yield f"parameters of {name}", [*counts, sizing.flops_per_token(config, 100)]
    for size, text in itertools.product((10**5, 10**7, 10**9), (None, 10**4, 10**8)):
        found = sizing.suitable_vocabulary(size, text)
        yield f"vocabulary of {size:,} parameters and a text of {text}", found
    for size, layout in itertools.product((10**5, 10**6, 10**8, 3 * 10**9), ("qwen3", "gpt2")):
        made = sizing.shape_for_parameters(size, vocab_size=1000, layout=layout)
        yield f"shape of {size:,} parameters in {layout}", numbers_of(made)
    for vocabulary, on_gpu in itertools.product((300, 50_304, 10**6), (False, True)):
        tokens = sizing.loss_chunk_tokens(vocabulary, on_gpu=on_gpu)
        yield f"chunk of {vocabulary:,} ids, {'GPU' if on_gpu else 'CPU'}", tokens


def rope_rows() -> Iterator[tuple[str, Any]]:
    """Angles of rotary positions, to nine digits: the last ones are a library's."""
    long = {"original_max_position_embeddings": 2048}
    scalings = {
        "plain": None,
        "linear": rope.RopeScaling("linear", 4.0),
        "llama3": rope.RopeScaling("llama3", 8.0, **long),
        "llama3, narrow": rope.RopeScaling("llama3", 3.0, 300, 5.0, 7.0),
        "yarn": rope.RopeScaling("yarn", 4.0, **long),
        "yarn, shorter": rope.RopeScaling("yarn", 0.5, truncate=False, **long),
        "yarn, all": rope.RopeScaling("yarn", 16.0, 9, attention_factor=1.25, beta_fast=90.0),
    }
    for (name, scaling), head_dim in itertools.product(scalings.items(), (16, 6)):
        found = rope.frequencies(head_dim, 10_000.0, scaling)
        numbers = [float(f"{value:.9g}") for value in (*found, rope.table_factor(scaling))]
        yield f"rotary positions, {name}, heads of {head_dim}", numbers


def choice_rows() -> Iterator[tuple[str, Any]]:
    """What a plan may try, with what each costs: of a CPU, a GPU and a TPU."""
    given = {"seq_len": 512, "batch_size": 3, "gradient_accumulation_steps": 3, "width": 64}
    plain = Machine(8 << 30, 6 << 30, 4, None, 0, None, is_this=False)
    machines = {
        "CPU": plain,
        "GPU": dataclasses.replace(plain, vram_bytes=2 << 30),
        "TPU": dataclasses.replace(plain, vram_bytes=2 << 30, is_tpu=True),
    }
    for (place, machine), more in itertools.product(
        machines.items(), ({}, {"use_mixed_precision": True, "offload": "packed"})
    ):
        rows = choices._candidates({**given, **more}, machine, step_halvings=2)
        found = [
            f"{cost:.9g} {', '.join(words)} "
            f"{ {name: value for name, value in changed.items() if given.get(name) != value} }"
            for cost, changed, words in rows
        ]
        yield f"what may be tried on a {place}, {more}", sorted(found)


def usual_rows() -> Iterator[tuple[str, Any]]:
    """What a plan takes where nothing is said, by machine and tokens; and how long it trains."""
    plain = Machine(8 << 30, 6 << 30, 4, None, 0, None, is_this=False)
    gpu = dataclasses.replace(plain, vram_bytes=2 << 30)
    machines = {"CPU": plain, "GPU": gpu, "TPU": dataclasses.replace(gpu, is_tpu=True)}
    asked = ({}, {"seq_len": 96}, {"gradient_accumulation_steps": 3}, {"batch_size": 5})
    for (place, machine), options, tokens in itertools.product(
        machines.items(), asked, (None, 10**6, 10**8, 10**10)
    ):
        found = [
            choices.usual_options(options, machine, names_a_model=named, train_tokens=tokens)
            for named in (False, True)
        ]
        yield f"usual on a {place}, {options}, {tokens} tokens", found
    for length, tokens in itertools.product(
        ({}, {"tokens_per_param": 3.5}, {"max_iters": 7}, {"epochs": 2.5}), (None, 10**5, 10**10)
    ):
        found = compute_plans.plan_compute(
            10**6, flops_per_token=6e6, tokens_per_step=3000, train_tokens=tokens, **length
        )
        yield f"length by {length}, {tokens} tokens", numbers_of(found)
    for size in (9, 99, 104, 105, 12_345_678):
        rounded = [compute_plans.two_digits(size, rounded=way) for way in (round, math.floor)]
        fitted = [compute_plans.fitted_tokens(size), compute_plans.fitted_parameters(size)]
        yield f"digits and laws of {size}", [*rounded, *fitted]


def schedule_rows() -> Iterator[tuple[str, Any]]:
    """Learning rates over a run, to nine digits."""
    for kind, warmup, steps, most in itertools.product(
        ("constant", "cosine", "linear-decay"), (0, 0.2, 1, 4), (None, 20), (None, 5)
    ):
        shares = [
            schedule.learning_rate_factor(
                step, total_steps=steps, warmup=warmup, schedule=kind, final_fraction=0.1,
                decay_fraction=0.3, elapsed_fraction=share, most_warmup_steps=most,
            )
            for step, share in itertools.product((0, 1, 3, 4, 5, 15, 20, 30), (0.0, 0.1, 0.8, 1.0))
        ]  # fmt: skip
        name = f"{kind}, warm-up {warmup}, {steps} steps, {most} at most"
        yield f"rates: {name}", [float(f"{share:.9g}") for share in shares]
    for size, optimizer, adapting in itertools.product(
        (1, 10**4, 10**6, 10**9), ("adamw", "muon"), (False, True)
    ):
        rate = schedule.default_learning_rate(size, optimizer, adapting=adapting)
        yield f"rate of {size} by {optimizer}{', adapting' * adapting}", float(f"{rate:.9g}")


def make_inputs(compression: str | None) -> InputList:
    rows = [InputFile(n, Path(f"{n}.txt"), "text", compression, 10**7 + n, 1, 2) for n in range(3)]
    return InputList(rows)


def text_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    for size, workers in itertools.product((10**4, 10**7, 10**10), (1, 2, 4, 9)):
        yield (
            f"tokenizer of {size:,} bytes, {workers} workers",
            [
                tokenizer_footprint.planned_peak_bytes(size, vocab_size=9000, num_workers=workers),
                tokenizer_footprint.planned_peak_bytes(
                    size, vocab_size=900, num_workers=workers, distinct_bytes=size // 3
                ),
                countingplan.smallest_budget_bytes(workers),
                countingplan.needed_bytes(workers, is_plain=False, reading=5, held_bytes=size),
                dataset_resources.planned_bytes(size, num_workers=workers, budget_bytes=300 * MIB),
                dataset_resources.planned_table_bytes(num_workers=workers, budget_bytes=3000 * MIB),
            ],
        )
    for size, keeps, near in itertools.product((10**5, 10**9), (False, True), (False, True)):
        needed = dataset_resources.planned_disk_bytes(
            size, one_pass_bytes=50 * MIB, token_bytes=4, keeps_text=keeps, near_copies=near
        )
        yield f"disk of {size:,} bytes{', kept' * keeps}{', near copies' * near}", needed
    for size, stored in itertools.product((1, 10**9, 3 << 30, 10**11, 1 << 42), (False, True)):
        sizes = Sizes.of(size, is_stored=stored)
        yield f"tasks of {size:,} bytes{' in a store' * stored}", numbers_of(sizes)
    for tokens in (65_535, 65_536, 65_537):
        yield f"file of {tokens:,} tokens", learning.file_bytes(1000, 30, num_tokens=tokens)
    for stretch, text, most in itertools.product((10**6, 10**8), (10**6, 10**9), (None, 9, 999)):
        needed = learning.repeated_bytes(stretch, text_bytes=text, max_token_bytes=most)
        yield f"repeated {stretch:,} of {text:,}, tokens of {most}", needed
    for characters in (10, 100_000):
        yield f"{characters:,} characters", pretokenizingplan.character_bytes(characters)
    for length, mixed, stride in itertools.product((64, 1024), (0, 500), (None, 10)):
        yield (
            f"stream of {length}, {mixed} mixed, stride {stride}",
            loader_footprint.planned_bytes(
                seq_len=length, shuffle_buffer_size=mixed, stride=stride
            ),
        )
    monkeypatch.setattr(classifier_resources, "reader_bytes", lambda inputs, options: 12_345)
    for megabytes, compression, workers in itertools.product((500, 3000), (None, "gzip"), (1, 6)):
        label = f"in {megabytes} MiB, {compression or 'plain'}, {workers} workers"
        budget = MemoryBudget(megabytes * MIB, used_bytes=100 * MIB)
        classifying = ClassifierSettings(
            good=("a",), other=("b",), out_dir=Path("c"), num_workers=workers, max_examples=5000,
            buckets=10_000,
        )  # fmt: skip
        shares = classifier_resources.plan_shares(classifying, budget, make_inputs(compression))
        yield f"classifier {label}", [numbers_of(shares), budget.remaining_bytes]
        budget = MemoryBudget(megabytes * MIB, used_bytes=100 * MIB)
        preparing = build_settings(
            PrepareSettings, {"input_files": ["a"], "out_dir": "c", "num_workers": workers}
        )
        given = dataset_resources.Inputs(
            num_files=3, num_in_order=2 if compression else 0, reader_bytes=12_345
        )
        shares = dataset_resources.plan_shares(preparing, budget, given)
        yield f"preparing {label}", [numbers_of(shares), budget.remaining_bytes]


def compute() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        rows = [
            *train_rows(),
            *offload_rows(),
            *running_rows(patch),
            *sizing_rows(),
            *text_rows(patch),
        ]
        rows += [*jax_rows(), *rope_rows(), *choice_rows(), *usual_rows(), *schedule_rows()]
    assert len(dict(rows)) == len(rows)
    return json.loads(json.dumps(dict(rows)))


def test_every_term_of_a_formula_counts() -> None:
    found, known = compute(), json.loads(TABLE.read_text())
    assert list(found) == list(known)
    for name, numbers in known.items():
        assert found[name] == numbers, f"{name} ({__doc__})"


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in compute().items())
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
