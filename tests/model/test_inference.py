"""What running a network takes: rows that JAX fills up are counted as they are computed."""

import re
from dataclasses import replace

import pytest

from lowtide.errors import BudgetError
from lowtide.memory import format_size
from lowtide.model import inference
from lowtide.model.config import GPTConfig
from lowtide.model.inference import (
    PROMPT_PART,
    InferenceNeed,
    filled_tokens,
    fit_context,
    fit_rows,
    planned_bytes,
)
from lowtide.model.program import Program

CONFIG = GPTConfig(vocab_size=100, context_length=4096, num_layers=1, width=64, num_heads=16)


@pytest.mark.parametrize("context", [16, 1000, 4096])
def test_rows_are_filled_to_few_lengths_within_the_context(context):
    lengths = {filled_tokens(tokens, context) for tokens in range(1, context + 1)}
    assert len(lengths) <= 32 and max(lengths) == context
    for tokens in range(1, context + 1):
        assert tokens <= filled_tokens(tokens, context) <= max(64, 1.25 * tokens + 16)
    assert filled_tokens(context + 5, context) == context + 5  # which is refused elsewhere


def test_attention_of_jax_is_counted_over_what_is_filled():
    def need(tokens, backend):
        return planned_bytes(
            CONFIG, rows=1, tokens=tokens, program=Program(0, 0), backend=backend
        ).working

    filled = filled_tokens(2061, 4096)
    assert need(2061, "jax") == need(filled, "jax")
    assert need(filled, "jax") - need(filled, "torch") == 3 * 4 * 16 * filled**2


def test_a_prompt_is_read_in_parts_and_rows_one_token_at_a_time():
    def working(rows, tokens, backend="torch"):
        return planned_bytes(
            CONFIG, rows=rows, tokens=tokens, program=Program(0, 0), generates=True, backend=backend
        ).working

    assert working(1, PROMPT_PART) == working(1, 4 * PROMPT_PART)
    assert working(1, PROMPT_PART - 1) < working(1, PROMPT_PART)
    logits = 3 * 4 * 100  # of each row; more rows than a part has tokens are what is at once
    many = 2 * PROMPT_PART
    assert working(many, 8) - many * logits == 2 * (working(1, PROMPT_PART) - logits)
    attention = 3 * 4 * 16 * PROMPT_PART * 4 * PROMPT_PART
    part = working(1, 4 * PROMPT_PART)
    assert working(1, 4 * PROMPT_PART, "jax") - part == attention


def test_what_native_generating_names_is_enough_for_a_process_that_is_a_little_larger():
    for size in range(40 << 20, 41 << 20, 100_000):
        with pytest.raises(BudgetError) as refused:
            fit_rows(CONFIG, 1, 1, tokens=8, program=Program(size, size), backend="native")
        (mib,) = re.findall(r"--memory (\d+)MiB", str(refused.value))
        later = Program(size + 500_000, size + 500_000)
        assert fit_rows(CONFIG, 1, int(mib) << 20, tokens=8, program=later, backend="native") == 1


def need_of(**parts):
    return InferenceNeed(**{"weights": 0, "working": 0, "cache": 0, "program": 0, **parts})


def test_a_tenth_of_what_is_not_exact_is_to_spare():
    need = need_of(weights=1000, working=200, cache=300, program=500, tokenizer=40, text=60)
    assert need.total_bytes == 2100
    assert need.budget_bytes == 1000 + int(1100 * 1.1)
    assert need.running_budget_bytes == 1500 + int(600 * 1.1)


@pytest.fixture
def needs(monkeypatch):
    """Stands for the plan: a row of a token takes 10 bytes; notes what is asked."""
    asked = []

    def plan(config, *, rows, tokens, program, **options):
        asked.append((rows, tokens, program, options))
        return need_of(weights=10 * rows * tokens, program=100)

    monkeypatch.setattr(inference, "planned_bytes", plan)
    return asked


OPTIONS = {"generates": True, "backend": "jax", "tokenizer_bytes": 3, "weight_bytes": 4}


@pytest.mark.parametrize(
    ("budget", "tried"),
    [
        (610, [5]), (609, [5, 3]), (410, [5, 3]), (409, [5, 3, 2]), (310, [5, 3, 2]),
        (309, [5, 3, 2, 1]),
    ],
)  # fmt: skip
def test_rows_are_halved_until_the_budget_holds_them(needs, budget, tried):
    found = fit_rows(CONFIG, 5, budget, tokens=10, program="p", **OPTIONS)
    assert found == tried[-1]
    assert needs == [(count, 10, "p", OPTIONS) for count in tried]


def test_a_program_that_was_measured_here_needs_no_tenth_to_spare(needs):
    def fit(is_running):
        options = {**OPTIONS, "is_running": is_running}
        return fit_rows(CONFIG, 4, 500, tokens=10, program="p", **options)

    assert (fit(True), fit(False)) == (4, 2)


@pytest.mark.parametrize(("backend", "mib"), [("torch", 3), ("native", 4)])
def test_what_one_row_takes_is_named_whole(monkeypatch, backend, mib):
    need = need_of(
        weights=1 << 20, working=1 << 19, cache=1 << 18, program=1 << 17, tokenizer=1 << 16
    )
    monkeypatch.setattr(inference, "planned_bytes", lambda *given, **options: need)
    for text_bytes in (0, 1 << 18):
        with pytest.raises(BudgetError) as refused:
            fit_rows(
                CONFIG, 1, 1 << 20, tokens=8, program="p", backend=backend, text_bytes=text_bytes
            )
        whole = replace(need, text=text_bytes)
        text = ", text held at once 256.0 KiB" if text_bytes else ""
        assert refused.value.message == (
            f"running this model needs {format_size(whole.budget_bytes)} even one row at a time "
            "(weights 1.0 MiB, activations 512.0 KiB, cache 256.0 KiB, program 128.0 KiB, "
            f"tokenizer 64.0 KiB{text}), the budget is 1.0 MiB"
        )
        assert refused.value.next_step == f"give at least --memory {mib}MiB"


@pytest.mark.parametrize(
    ("wanted", "budget", "context", "asked"),
    [
        (None, 41_060, 4096, [4096]), (None, 41_059, 2048, [4096, 2048]),
        (None, 11_000, 1024, [4096, 2048, 1024]), (10, 41_060, 4096, [4096]),
        (100, 1100, 100, [4096, 2048, 1024, 512, 256, 128, 100]),
        (3000, 11_000, 1024, [4096, 2048, 1024]),
    ],
)  # fmt: skip
def test_contexts_are_halved_until_the_budget_holds_their_cache(
    needs, wanted, budget, context, asked
):
    options = {"backend": "native", "tokenizer_bytes": 3, "weight_bytes": 4}
    assert fit_context(CONFIG, budget, program="p", wanted=wanted, **options) == context
    assert needs == [(1, tokens, "p", {"generates": True, **options}) for tokens in asked]
    with pytest.raises(BudgetError):
        fit_context(CONFIG, 99, program="p", wanted=wanted, **options)


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, 4096), ({"tokens": 7}, 7), ({"tokens": 9999}, 5000), ({"generates": True}, 1024),
        ({"generates": True, "tokens": 2000}, 2000), ({"tokenization": "mine"}, 4096),
        ({"backend": "native", "generates": True, "text_bytes": 5}, 1024),
    ],
)  # fmt: skip
def test_what_is_looked_at_before_a_framework_is_loaded(monkeypatch, tmp_path, options, tokens):
    asked = []
    config = CONFIG.replace(context_length=5000)
    program = Program(1, 2, device="cpu")
    for name, stand_in in {
        "find_program": lambda device, backend: program,
        "find_model_dir": lambda name, folder: folder / name,
        "load_config": lambda folder: config,
        "turns_bytes": lambda folder, config: 22,
        "vocabulary_bytes": lambda name: 11 if name == tmp_path / "m" else 33,
        "fit_rows": lambda *given, **more: asked.append((given, more)),
    }.items():
        monkeypatch.setattr(inference, name, stand_in)
    inference.refuse_hopeless("m", tmp_path, None, **options)
    assert asked == []
    inference.refuse_hopeless("m", tmp_path, "3GiB", **options)
    backend = options.get("backend", "torch")
    more = {
        "tokens": tokens, "program": program, "generates": options.get("generates", False),
        "text_bytes": options.get("text_bytes", 0), "backend": backend,
        "tokenizer_bytes": 33 if "tokenization" in options else 11,
        # Blocks may be read in turns, but where torch writes text.
        "weight_bytes": 22 if backend == "native" else
        0 if options.get("generates") else inference.in_turns_bytes(config),
    }  # fmt: skip
    assert asked == [((config, 1, 3 << 30), more)]
    program = Program(1, 2, device="cuda")
    inference.refuse_hopeless("m", tmp_path, "3GiB", **options)
    assert len(asked) == 1


def test_a_model_that_cannot_be_read_is_told_when_it_is_loaded(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(inference, "find_program", lambda *given, **options: Program(1, 2))
    monkeypatch.setattr(inference, "fit_rows", lambda *given, **options: asked.append(given))
    inference.refuse_hopeless("nothing", tmp_path, "3GiB")
    assert asked == []
