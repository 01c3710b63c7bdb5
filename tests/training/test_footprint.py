"""Footprints: what is planned covers what is used, and data does not count."""

import json
import subprocess
import sys
import textwrap
from dataclasses import astuple, replace

import numpy as np
import pytest

from lowtide.errors import BudgetError
from lowtide.memory import format_size
from lowtide.model.config import GPTConfig
from lowtide.model.program import Program
from lowtide.model.sizing import count_parameters
from lowtide.training import footprint
from lowtide.training.footprint import Footprint, fit_micro_batch, planned_bytes
from lowtide.training.settings import train_settings

CONFIG = GPTConfig(vocab_size=2048, context_length=128, num_layers=4, width=256, num_heads=4)


def test_accumulating_holds_both_gradients_of_a_tied_matrix():
    config = GPTConfig(50304, 32, 1, 512, 4)
    program = Program(imported_bytes=0, trained_bytes=0)
    settings = train_settings(dataset_dir="data", batch_size=2, seq_len=32)
    whole, part = (planned_bytes(config, settings, micro_batch=n, program=program) for n in (2, 1))
    matrix = 4 * 50304 * 512
    assert 0.9 * matrix < part.loss - whole.loss < matrix
    assert part.total_bytes > 640 << 20  # 681 MiB measured, 587 for the whole batch


def test_a_vocabulary_counts_by_its_files_where_its_tokens_are_long(tmp_path):
    folder = tmp_path / "runs" / "model" / "data" / "tokenizer"
    folder.mkdir(parents=True)
    program = Program(device="cpu", imported_bytes=0, trained_bytes=0)
    settings = train_settings(dataset_id="texts", checkpoints_dir=tmp_path / "runs")
    usual = planned_bytes(CONFIG, settings, program=program).tokenizer
    (folder / "tokenizer.json").write_bytes(b" " * (10 << 20))
    assert planned_bytes(CONFIG, settings, program=program).tokenizer > usual + (60 << 20)


SCRIPT = textwrap.dedent(
    """
    import json, sys, torch
    from pathlib import Path
    from lowtide.loader.windows import TokenDataset
    from lowtide.memory import process_peak_bytes
    from lowtide.model.config import GPTConfig
    from lowtide.model.gpt import GPT
    from lowtide.training.footprint import planned_bytes
    from lowtide.training.trainer import Trainer

    folder, name, options = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    torch.set_num_threads(1)
    model = GPT(GPTConfig(2048, 128, 4, 256, 4))
    data = TokenDataset(folder / name, split="all", seq_len=128)
    trainer = Trainer(
        model, data=data, checkpoints_dir=folder, model_name="run-" + name, max_iters=2,
        order="random", eval_interval=10, save_interval=10, device="cpu", **options,
    )
    trainer.fit()
    planned = planned_bytes(model.config, trainer.settings).budget_bytes
    print(json.dumps([process_peak_bytes(), planned]))
    """
)


def measure(folder, name, **options):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), name, json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout)


def test_the_plan_covers_the_peak_and_more_data_changes_nothing(tmp_path):
    ids = np.random.default_rng(0).integers(2048, size=1_000_000).astype(np.uint16)
    ids.tofile(tmp_path / "small.bin")
    with (tmp_path / "large.bin").open("wb") as file:  # mostly a hole: ids of 0, no disk used
        file.write(ids.tobytes())
        file.truncate(2 << 30)
    small, planned = measure(tmp_path, "small.bin", batch_size=8)
    large, _ = measure(tmp_path, "large.bin", batch_size=8)
    assert small < planned < 1.5 * small
    # The kernel gives pages of libraries back as it likes: some noise, nothing near 2 GiB.
    assert large < small + (64 << 20)


def test_savings_show_in_the_plan():
    plain = planned_bytes(CONFIG, train_settings(optimizer="adamw"))
    small = planned_bytes(CONFIG, train_settings(optimizer="adamw", use_8bit_optimizer=True))
    saving = planned_bytes(CONFIG, train_settings(activation_checkpointing=True))
    half = planned_bytes(CONFIG, train_settings(use_mixed_precision=True), on_gpu=True)
    whole = planned_bytes(CONFIG, train_settings(), on_gpu=True)
    muon = planned_bytes(CONFIG, train_settings(optimizer="muon"))
    assert small.optimizer == plain.optimizer // 4
    assert saving.activations < plain.activations
    assert half.activations < 0.7 * whole.activations
    assert muon.weights == plain.weights
    assert plain.total_bytes > plain.device_bytes


def test_the_micro_batch_is_the_largest_that_fits():
    settings = train_settings(batch_size=64, seq_len=128)
    needs = {
        rows: planned_bytes(CONFIG, settings, micro_batch=rows).budget_bytes for rows in (64, 16, 1)
    }
    assert fit_micro_batch(CONFIG, settings, needs[64]) == 64
    assert fit_micro_batch(CONFIG, settings, needs[64] - 1) == 32
    assert fit_micro_batch(CONFIG, settings, needs[16]) == 16
    with pytest.raises(BudgetError, match=r"even one row at a time(.|\n)*give at least --memory"):
        fit_micro_batch(CONFIG, settings, needs[1] - 1)


BIG = {"seq_len": 1024, "use_mixed_precision": True, "gradient_accumulation_steps": 2}
SMALL, MIDDLE, LARGE = (12, 768, 6), (24, 1024, 8), (24, 1536, 12)
AGAIN, EIGHT = {"activation_checkpointing": True}, {"use_8bit_optimizer": True}
COMPILED, MUON = {"compile": True}, {"optimizer": "muon"}
ALL8 = {"float8_head": True, "float8_blocks": True}
GPT2 = GPTConfig(50304, 1024, 12, 768, 12, layout="gpt2")


# (shape, rows, changes, GiB)
PEAKS = [
    (SMALL, 64, {**COMPILED, "float8_head": True}, 25.97),
    (MIDDLE, 32, {**COMPILED, **MUON, "float8_head": True}, 35.56),
    (LARGE, 16, {**COMPILED, **MUON, "float8_head": True}, 34.07),
    (MIDDLE, 32, {**COMPILED, **MUON, **ALL8}, 35.16),
    (LARGE, 16, {**COMPILED, **MUON, **ALL8}, 33.19),
]
# Measured when attention was given a copy of the values; what it took is subtracted.
PEAKS_WITH_COPIES = [
    (SMALL, 16, {}, 10.07),
    (SMALL, 16, AGAIN, 4.19),
    (SMALL, 64, AGAIN, 5.73),
    (SMALL, 16, EIGHT, 9.39),
    (SMALL, 8, {"use_mixed_precision": False}, 9.79),
    (SMALL, 16, {"precision": "fp16"}, 10.94),
    (GPT2, 16, {}, 9.09),
    (GPT2, 16, AGAIN, 4.29),
    (MIDDLE, 8, MUON, 14.26),
    (MIDDLE, 8, AGAIN, 7.28),
    (LARGE, 4, EIGHT, 15.57),
    (LARGE, 16, {**AGAIN, **MUON}, 12.93),
    (SMALL, 16, COMPILED, 9.33),
    (SMALL, 16, {**COMPILED, **AGAIN}, 4.10),
    (SMALL, 64, {**COMPILED, **AGAIN}, 5.73),
    (SMALL, 16, {**COMPILED, "loss_chunk_tokens": 1024}, 7.89),
    (SMALL, 16, {**COMPILED, "float8_head": True}, 10.81),
    (SMALL, 32, {**COMPILED, **MUON}, 14.45),
    (GPT2, 32, COMPILED, 13.12),
    (MIDDLE, 16, {**COMPILED, **AGAIN, **EIGHT}, 6.17),
    (MIDDLE, 32, {**COMPILED, **MUON}, 35.58),
    (LARGE, 16, {**COMPILED, **MUON}, 33.76),
    (LARGE, 16, {**COMPILED, **AGAIN, **MUON}, 12.23),
]


@pytest.mark.parametrize(
    ("shape", "rows", "options", "gibibytes", "copied"),
    [(*row, 0) for row in PEAKS] + [(*row, 1) for row in PEAKS_WITH_COPIES],
)
def test_device_memory_is_near_the_peaks_measured_on_an_h200(
    shape, rows, options, gibibytes, copied
):
    config = shape if shape is GPT2 else GPTConfig(50304, 1024, *shape)
    settings = train_settings(**{**BIG, "optimizer": "adamw", "batch_size": rows, **options})
    plan = planned_bytes(config, settings, on_gpu=True)
    layers = 1 if settings.computing.activation_checkpointing else config.num_layers
    number = 2 if settings.computing.use_mixed_precision else 4
    copies = copied * layers * rows * 1024 * config.width * number if shape is not GPT2 else 0
    assert plan.device_bytes == pytest.approx(gibibytes * 2**30 - copies, rel=0.06)


@pytest.mark.parametrize(
    ("width", "num_layers", "stack_bytes"),
    [
        (256, 2, 2 * 2 * 256 * 1024 * 4),  # all matrices of a shape together
        (1024, 64, 256 << 20),  # many: one stack of them at a time
        (8192, 2, 8192 * 32768 * 4),  # a single matrix larger than a stack
    ],
)
def test_muons_scratch_is_a_stack_of_matrices(width, num_layers, stack_bytes):
    config = GPTConfig(
        vocab_size=2048, context_length=128, num_layers=num_layers, width=width, num_heads=4,
        mlp_width=4 * width,
    )  # fmt: skip
    settings = train_settings(model_name="x", optimizer="muon")
    matrices = num_layers * (4 * width * width + 3 * width * 4 * width)
    gains = count_parameters(config, embeddings=False) - matrices
    assert 0 <= gains < 10 * num_layers * width
    update = planned_bytes(config, settings).update
    assert update - 4 * matrices == pytest.approx(6 * stack_bytes, abs=4 * gains)
    assert planned_bytes(config, train_settings(optimizer="adamw")).update == 0


PROGRAM = Program(300 << 20, 320 << 20, extra_bytes={"8bit": 40 << 20, "compile": 500 << 20})
# (settings, on a GPU, weights, gradients, optimizer, activations, loss, update, batches, program)
PARTS = [
    ({}, False, (13582080, 13582080, 27164160, 71892992, 25600000, 0, 81920, 335544320, 1800000)),
    ({}, True, (13582080, 13582080, 27164160, 68419584, 30720000, 0, 81920, 2483027968, 1800000)),
    (
        {"use_mixed_precision": True},
        False,
        (13582080, 13582080, 27164160, 76463672, 56320000, 0, 81920, 335544320, 1800000),
    ),
    (
        {"use_mixed_precision": True},
        True,
        (13582080, 13582080, 27164160, 38440832, 20480000, 0, 81920, 2483027968, 1800000),
    ),
    (
        {"use_mixed_precision": True, "precision": "fp16", "activation_checkpointing": True},
        True,
        (13582080, 13582080, 27164160, 8406976, 20480000, 0, 81920, 2483027968, 1800000),
    ),
    (
        {"activation_checkpointing": True, "compile": True, "use_mixed_precision": True},
        True,
        (13582080, 13582080, 27164160, 4718592, 20480000, 0, 81920, 2483027968, 1800000),
    ),
    (
        {"use_8bit_optimizer": True, "compile": True},
        False,
        (13582080, 13582080, 6791040, 71892992, 25600000, 0, 81920, 901775360, 1800000),
    ),
    (
        {"optimizer": "adamw", "dataset_id": "x", "shuffle_buffer_size": 100},
        False,
        (13582080, 13582080, 27164160, 71892992, 25600000, 0, 82075648, 335544320, 1800000),
    ),
    (
        {"dataset_id": "x", "use_streaming": False},
        False,
        (13582080, 13582080, 27164160, 71892992, 25600000, 0, 81920, 335544320, 1800000),
    ),
    (
        {"use_mixed_precision": True, "float8_head": True, "compile": True},
        True,
        (13582080, 13582080, 27164160, 36867968, 30720000, 0, 81920, 2483027968, 1800000),
    ),
    (
        {"loss_chunk_tokens": 64},
        False,
        (13582080, 13582080, 27164160, 71892992, 6400000, 0, 81920, 335544320, 1800000),
    ),
    (
        {"optimizer": "muon", "gradient_accumulation_steps": 4, "num_workers": 0},
        False,
        (13582080, 13582080, 18702080, 89102745, 30720000, 34414336, 65536, 335544320, 1800000),
    ),
]


@pytest.mark.parametrize(("options", "on_gpu", "expected"), PARTS)
def test_every_part_of_a_plan_is_as_it_was_fitted(options, on_gpu, expected):
    config = GPTConfig(5000, 128, 3, 256, 8, num_kv_heads=2)
    shape = {"batch_size": 8, "seq_len": 128, "optimizer": "adamw"}
    settings = train_settings(**{**shape, **options})
    plan = planned_bytes(config, settings, on_gpu=on_gpu, program=PROGRAM)
    assert astuple(plan)[:-2] == expected
    assert plan.offloaded is None and plan.beginning == 0
    rows = planned_bytes(config, settings, micro_batch=8, on_gpu=on_gpu, program=PROGRAM)
    assert rows == plan


def test_sums_of_a_footprint():
    plan = Footprint(1000, 200, 3000, 40_000, 5000, 600_000, 70_000, 8_000_000, 0)
    assert plan.checkpoint_bytes == 4000
    assert plan.device_bytes == 4200 + 600_000
    assert plan.host_bytes == 70_000 + 8_000_000 + 4000 + 1000
    passing = int(0.87 * 600_000 + 0.45 * 45_000)
    assert plan.total_bytes == 4200 + passing + 70_000 + 8_000_000
    assert plan.budget_bytes == plan.total_bytes + (40 << 20)
    large = replace(plan, program=1 << 30)
    assert large.budget_bytes == int(large.total_bytes * 1.1)
    assert plan.device_budget_bytes == int(plan.device_bytes * 1.1)
    rest = int((plan.total_bytes - 8_000_000) * 1.1)
    assert plan.running_budget_bytes == 8_000_000 + rest + (16 << 20)
    small = replace(plan, update=10)
    assert small.device_bytes == 4200 + 45_000
    assert small.total_bytes == 4200 + 45_000 + 70_000 + 8_000_000
    assert replace(plan, update=0).total_bytes == small.total_bytes


def test_in_the_process_that_trains_only_the_rest_is_an_estimate():
    settings = train_settings(batch_size=6, seq_len=128)
    needed = planned_bytes(CONFIG, settings, micro_batch=6, program=PROGRAM)
    budget = needed.running_budget_bytes
    options = {"program": PROGRAM, "is_running": True}
    assert fit_micro_batch(CONFIG, settings, budget, **options) == 6
    assert fit_micro_batch(CONFIG, settings, budget - 1, **options) == 3
    assert fit_micro_batch(CONFIG, settings, needed.budget_bytes, program=PROGRAM) == 6
    assert fit_micro_batch(CONFIG, settings, needed.budget_bytes - 1, program=PROGRAM) == 3
    one = planned_bytes(CONFIG, settings, micro_batch=1, program=PROGRAM).budget_bytes
    with pytest.raises(BudgetError) as caught:
        fit_micro_batch(CONFIG, settings, one - 1, program=PROGRAM)
    assert f"give at least --memory {-(-one // 2**20)}MiB" in caught.value.next_step


def test_a_counted_embedding_is_part_of_the_peak_only_where_it_is_the_most():
    wide = GPTConfig(50000, 32, 1, 64, 1)
    less = {"batch_size": 1, "seq_len": 32, "use_8bit_optimizer": True, "loss_chunk_tokens": 32}
    random, counted = (
        planned_bytes(wide, train_settings(**less, first_embedding=name), program=PROGRAM)
        for name in ("random", "cooccurrence")
    )
    # Rows of 128 columns and of 64 numbers, as float32, and what is small beside them.
    assert counted.beginning == 4 * 50000 * (128 + 64) + 40 * 128**2 + 32768 * 128 + (8 << 20)
    assert counted.total_bytes - random.total_bytes == counted.beginning - (
        random.total_bytes - random.weights - random.batches - random.program - random.tokenizer
    )
    assert counted.host_bytes > random.host_bytes
    for elsewhere in ({"init_from_model": "base"}, {"dataset_id": "x"}):  # nothing is counted there
        given = train_settings(**less, **elsewhere, first_embedding="cooccurrence")
        assert planned_bytes(wide, given, program=PROGRAM).beginning == 0
    more = {"batch_size": 64, "seq_len": 128, "optimizer": "adamw"}
    deep = GPTConfig(5000, 128, 6, 256, 8)
    totals = {
        planned_bytes(
            deep, train_settings(**more, first_embedding=name), program=PROGRAM
        ).total_bytes
        for name in ("random", "cooccurrence")
    }
    assert len(totals) == 1


@pytest.fixture
def plans(monkeypatch):
    """Stands for the plan: a row takes 100 MiB; notes what is asked."""
    asked = []

    def plan(config, settings, *, micro_batch, **options):
        asked.append((micro_batch, options))
        rows = {"activations": 60 * micro_batch << 20, "loss": 40 * micro_batch << 20}
        own = {"weights": 1 << 20, "gradients": 2 << 20, "optimizer": 3 << 20, "program": 4 << 20}
        return Footprint(**rows, **own, update=0, batches=0)

    monkeypatch.setattr(footprint, "planned_bytes", plan)
    return asked


LESS = "--seq-len, --use-8bit-optimizer or --activation-checkpointing, or --offload auto"


@pytest.mark.parametrize("is_running", [False, True])
def test_micro_batches_are_halved_until_the_budget_holds_them(plans, is_running):
    settings = train_settings(batch_size=5)

    def fit(budget, **options):
        return fit_micro_batch(CONFIG, settings, budget, program="p", **options)

    def plan(rows):
        return footprint.planned_bytes(CONFIG, settings, micro_batch=rows)

    name = "running_budget_bytes" if is_running else "budget_bytes"
    needs = {rows: getattr(plan(rows), name) for rows in (5, 3, 2, 1)}
    plans.clear()
    for rows, needed in needs.items():
        options = {"is_running": is_running, "data_bytes": 7}
        assert fit(needed, **options) == rows
        assert plans[-1] == (rows, {"program": "p", "data_bytes": 7})
        if rows > 1:
            assert fit(needed - 1, **options) == -(-rows // 2)
    with pytest.raises(BudgetError) as refused:
        fit(needs[1] - 1, is_running=is_running)
    total = plan(1).budget_bytes
    assert refused.value.message == (
        f"training this model needs {format_size(total)} even one row at a time (weights 1.0 MiB, "
        "gradients 2.0 MiB, optimizer 3.0 MiB, activations 60.0 MiB, loss 40.0 MiB, program "
        f"4.0 MiB), the budget is {format_size(needs[1] - 1)}"
    )
    mib = -(-total // (1 << 20))
    assert refused.value.next_step == f"give at least --memory {mib}MiB, or a smaller model, {LESS}"


def test_text_that_takes_more_than_training_is_named(plans):
    settings = train_settings(batch_size=2)
    assert fit_micro_batch(CONFIG, settings, 1 << 30, text_bytes=1 << 30) == 2
    with pytest.raises(BudgetError) as refused:
        fit_micro_batch(CONFIG, settings, (1 << 30) - 1, text_bytes=1 << 30)
    one = footprint.planned_bytes(CONFIG, settings, micro_batch=1).budget_bytes
    assert refused.value.message == (
        f"tokenizing the text needs 1.0 GiB, training this model {format_size(one)} even one row "
        "at a time, the budget is 1.0 GiB"
    )
    assert refused.value.next_step.startswith("give at least --memory 1024MiB; or compress")
    with pytest.raises(BudgetError, match="training this model needs"):
        fit_micro_batch(CONFIG, settings, 1, text_bytes=one)


@pytest.mark.parametrize("offload", ["none", "packed"])
def test_a_gpu_takes_the_rows_that_it_holds(plans, offload):
    settings = train_settings(batch_size=4, offload=offload)

    def fit(device_bytes, host_bytes=1 << 40):
        return footprint.fit_device_batch(
            CONFIG, settings, device_bytes=device_bytes, host_bytes=host_bytes
        )

    needs = {}
    for rows in (4, 2, 1):
        plan = footprint.planned_bytes(CONFIG, settings, micro_batch=rows)
        needs[rows] = plan.device_budget_bytes + footprint.CUDA_CONTEXT_BYTES
    plans.clear()
    assert fit(None) == 4 and plans == [(4, {"on_gpu": True})]
    assert [fit(needed) for needed in needs.values()] == [4, 2, 1]
    assert fit(needs[4] - 1) == 2
    with pytest.raises(BudgetError) as refused:
        fit(needs[1] - 1)
    context = format_size(footprint.CUDA_CONTEXT_BYTES)
    assert f"program {context}), the budget is" in refused.value.message
    mib = -(-needs[1] // (1 << 20))
    less = LESS if offload == "none" else "or --seq-len, or --offload auto"
    assert refused.value.next_step == f"give at least --vram {mib}MiB, or a smaller model, {less}"
    host = plan.host_bytes
    assert fit(None, host) == 4
    if offload == "none":
        assert fit(None, host - 1) == 4
        return
    with pytest.raises(BudgetError) as refused:
        fit(None, host - 1)
    assert refused.value.message == (
        f"--offload packed needs {format_size(host)} of host memory for this model, the budget is "
        f"{format_size(host - 1)}"
    )
    assert f"--memory {-(-host // (1 << 20))}MiB" in refused.value.next_step


def test_files_that_cannot_be_found_are_told_of_by_reading_them(tmp_path):
    settings = train_settings(dataset_id=str(tmp_path / "nothing*.txt"))
    assert footprint.stream_reading(settings.data) == footprint.StreamReading()
