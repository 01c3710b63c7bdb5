"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py 'model'` writes this anew).
"""

from __future__ import annotations

from typing import Any

from ..numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "model.arrayfiles": {"save_weights(record)": True},
    "model.blocks": {"_WINDOW_PART": 512, "Attention._look_up(is_causal)": False},
    "model.checksums": {"_VERSION": 1, "_VERSIONS_KEPT": 2},
    "model.companions": {"_LARGEST": 67_108_864},
    "model.config": {
        "_LARGEST": {
            "vocab_size": 4_194_304,
            "context_length": 1_048_576,
            "num_layers": 1_024,
            "width": 131_072,
            "num_heads": 1_024,
            "num_kv_heads": 1_024,
            "head_dim": 4_096,
            "mlp_width": 524_288,
        }
    },
    "model.configjson": {"_MOST_LAYERS": 1_024},
    "model.export": {"_TOKENIZER_TIMES": 16},
    "model.firstweights": {
        "_STD": 0.02,
        "_GROUP": 16,
        "_SKIPPED": 1_048_576,
        "iter_first_weights(zero_init)": False,
    },
    "model.float8": {
        "LARGEST_E4M3": 448.0,
        "_ERROR_SCALE": 32768.0,
        "_BLOCK": 2_048,
        "_TILE": {"ROWS": 64, "COLUMNS": 64},
        "_ERROR_TILE": {"ROWS": 64, "COLUMNS": 128},
        "Float8Head.chunk(cap)": 0.0,
        "loss_and_float8_error(cap)": 0.0,
    },
    "model.float8_linear": {"_SCALE": 8.0},
    "model.gguf": {
        "_VERSION": 3,
        "_ALIGNMENT": 32,
        "_PIECE_NUMBERS": 524_288,
        "_U32": 4,
        "_I32": 5,
        "_F32": 6,
        "_BOOL": 7,
        "_STRING": 8,
        "_ARRAY": 9,
        "_TYPES": {
            "f32": (0, 0, 1, 4),
            "f16": (1, 1, 1, 2),
            "bf16": (30, 32, 1, 2),
            "q8_0": (8, 7, 32, 34),
            "q4_0": (2, 2, 32, 18),
        },
    },
    "model.ggufvocabulary": {
        "_NORMAL": 1,
        "_UNKNOWN": 2,
        "_CONTROL": 3,
        "_ADDED": 4,
        "_UNUSED": 5,
        "_BYTE": 6,
        "_SPLITS": {
            "gpt2": ("gpt-2", False),
            "cl100k": ("dbrx", False),
            "qwen2": ("qwen2", False),
            "qwen35": ("qwen35", False),
            "digits": ("smollm", False),
            "o200k": ("gpt-4o", False),
            "tekken": ("tekken", True),
        },
    },
    "model.gpt": {"_FIRST_POSITIONS": 8_192, "GPT.compile_blocks(whole)": False},
    "model.inference": {
        "_MARGIN": 1.1,
        "_USUAL_TOKENS": 4_096,
        "PROMPT_PART": 1_024,
        "TOKEN_BYTES": 360,
        "planned_bytes(generates)": False,
        "refuse_hopeless(generates)": False,
        "fit_rows(generates)": False,
    },
    "model.kernels": {
        "BLOCK": 4_096,
        "NUM_WARPS": 8,
        "fused_loss_and_error(cap)": 0.0,
        "fused_loss_and_error(block)": 4_096,
        "fused_loss_and_error(num_warps)": 8,
    },
    "model.loss": {"chunked_cross_entropy(float8)": False, "chunked_cross_entropy(cap)": 0.0},
    "model.program": {
        "MIB": 1_048_576,
        "_TIMEOUT_SECONDS": 300,
        "_PROBE_VERSION": 3,
        "_LATER_BYTES": 41_943_040,
        "_USUAL_EXTRA_BYTES": {
            "8bit": 41_943_040,
            "compile": 367_001_600,
            "recompute": 167_772_160,
        },
        "_PYARROW_BYTES": 41_943_040,
        "Program.bytes_for(use_8bit)": False,
        "Program.bytes_for(compiles)": False,
        "Program.bytes_for(recomputes)": False,
        "Program.bytes_for(reads_parquet)": False,
        "find_program(use_8bit)": False,
        "find_program(compiles)": False,
        "find_program(recomputes)": False,
    },
    "model.quantization": {"BLOCK": 32},
    "model.rotation": {"_BLOCK_TOKENS": 32},
    "model.sizing": {
        "_TOLERANCE": 0.05,
        "_LEAST_NETWORK": 0.1,
        "_VOCABULARY_AT_A_MILLION": 2_000,
        "_SMALLEST_VOCABULARY": 300,
        "_LARGEST_VOCABULARY": 32_000,
        "_RETURNED_BYTES": 33_554_432,
        "_LOSS_CHUNK_BYTES": 67_108_864,
        "_GPU_LOSS_CHUNK_BYTES": 3_355_443_200,
        "count_parameters(embeddings)": True,
        "activation_bytes(accumulating)": False,
        "shape_for_parameters(context_length)": 256,
        "shape_for_parameters(tie_weights)": True,
    },
    "model.targets": {
        "_SECOND_ENDS": 0.6666666666666666,
        "_THIRD_ENDS": 0.3333333333333333,
        "plain_loss_and_error(cap)": 0.0,
    },
    "model.tensorfiles": {
        "PIECE_BYTES": 25_165_824,
        "PIECE_NUMBERS": 1_048_576,
        "_LARGEST_HEADER": 104_857_600,
        "ITEM_BYTES": {"F64": 8, "F32": 4, "F16": 2, "BF16": 2},
        "_WHOLE_BYTES": {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1},
    },
    "model.tide": {"_GATE_INPUTS": 32},
    "model.tide_blocks": {"_FIRST_MIX": (1.0, 0.1)},
    "model.weights": {"load_weights(verify)": True},
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("model", NUMBERS) == {}
