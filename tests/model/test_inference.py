"""What running a network takes: rows that JAX fills up are counted as they are computed."""

import re

import pytest

from lowtide.errors import BudgetError
from lowtide.model.config import GPTConfig
from lowtide.model.inference import PROMPT_PART, filled_tokens, fit_rows, planned_bytes
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
