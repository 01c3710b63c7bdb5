"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py 'generation'` writes this anew).
"""

from __future__ import annotations

from typing import Any

from ..numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "generation.continuations": {"_Row.is_begun": False, "_Read.slot": -1},
    "generation.decoding": {"generate_text(num_samples)": 1},
    "generation.prompts": {
        "_READ_BYTES": 1_048_576,
        "_TOKENS_BEFORE": 8,
        "_FIRST_END_BYTES": 16_384,
        "_LARGEST_END_BYTES": 8_388_608,
        "Prompt.begin": 0,
        "Prompt.size_bytes": 0,
        "Prompt.read_bytes": 1_048_576,
        "encode_end(first_bytes)": 16_384,
        "encode_end(largest_bytes)": 8_388_608,
        "iter_prompts(read_bytes)": 1_048_576,
        "_check(read_bytes)": 1_048_576,
        "_decode(final)": False,
        "_iter_lines(read_bytes)": 1_048_576,
    },
    "generation.settings": {
        "BATCH_SIZE": 8,
        "MOST_TEXTS": 1_024,
        "SamplingSettings.temperature": 0.8,
        "SamplingSettings.top_k": 50,
        "SamplingSettings.top_p": 0.95,
        "SamplingSettings.repetition_penalty": 1.1,
        "WritingSettings.num_samples": 1,
        "WritingSettings.max_new_tokens": 100,
        "WritingSettings.batch_size": 8,
        "GenerateSettings.each_line": False,
        "GenerateSettings.best": False,
        "GenerateSettings.max_new_tokens": 100,
        "GenerateSettings.num_samples": 1,
        "GenerateSettings.batch_size": 8,
    },
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("generation", NUMBERS) == {}
