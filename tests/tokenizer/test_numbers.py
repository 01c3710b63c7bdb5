"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py 'tokenizer'` writes this anew).
"""

from __future__ import annotations

from typing import Any

from ..numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "tokenizer.bytelevel": {"MAX_TOKENS": 16_777_216},
    "tokenizer.comparison": {"CompareMemorySettings.vocab_size": 1_000},
    "tokenizer.counting": {
        "_PLAIN_HOLDS": 3_145_728,
        "_STREAM_HOLDS": 6_291_456,
        "_HARD_STRETCH": 262_144,
        "_HARD_TABLES": 67_108_864,
        "_MARGIN_BYTES": 2_097_152,
        "_FILE_BYTES": 64,
        "_ROWS_AT_ONCE": 32_768,
        "InputPlace.input_index": 0,
        "InputPlace.offset": 0,
        "CountingNeeds.other_bytes": 0,
    },
    "tokenizer.countingplan": {
        "WINDOW_BYTES": 1_048_576,
        "_THREAD_BYTES": 6_291_456,
        "SLACK_BYTES": 12_582_912,
        "_SPECIAL_BYTES": 1_600,
        "_SMALLEST_TABLES": 8_388_608,
        "_SMALL_WINDOW": 10_485_760,
        "_PROGRAM_BYTES": 41_943_040,
        "_fixed_bytes(reading)": 0,
    },
    "tokenizer.filesteps": {
        "WINDOW_BYTES": 1_048_576,
        "_STEP_BYTES": 268_435_456,
        "iter_file_steps(specials)": True,
        "iter_file_steps(out_offset)": 0,
        "iter_file_steps(done)": (0, 0),
        "iter_file_steps(step_bytes)": 268_435_456,
        "iter_file_steps(window_bytes)": 1_048_576,
        "iter_file_steps(largest_window)": 2_147_483_648,
        "encode_natively(window_bytes)": 1_048_576,
        "encode_by_windows(window_bytes)": 1_048_576,
    },
    "tokenizer.footprint": {
        "_SLICE_BYTES": 16_384,
        "_NUM_SLICES": 256,
        "_SLOWER": 0.93,
        "_MIB": 1_048_576,
    },
    "tokenizer.ids": {"_STEP": 16_384},
    "tokenizer.inspection": {
        "_READ_BYTES": 1_048_576,
        "_SAMPLE_BYTES": 67_108_864,
        "_SENTENCE_CHARACTERS": 240,
        "_LONGEST_SHOWN": 10,
        "_BACKGROUNDS": (153, 194, 224, 229, 189),
        "inspect_tokenizer(color)": False,
    },
    "tokenizer.jsonsections": {
        "_BYTE_LEVEL": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    },
    "tokenizer.learning": {
        "_LONG_PIECE": 262_144,
        "_SHORT_SYMBOLS": 65_000,
        "_MUCH_WRITTEN": 8_388_608,
        "_FEWEST_THREADS": 4,
        "_MOST_THREADS": 8,
        "_THREAD_BYTES": 4_194_304,
        "_SEGMENT_TIMES": 80,
        "learn_merges(num_workers)": 1,
        "_pick_learner(num_workers)": 1,
    },
    "tokenizer.limits": {
        "CountingLimits.batch_bytes": 8_388_608,
        "CountingLimits.round_bytes": 268_435_456,
        "CountingLimits.small_file_bytes": 1_048_576,
        "CountingLimits.checkpoint_seconds": 30.0,
        "CountingLimits.hash_part_bytes": 67_108_864,
        "CountingLimits.merges_per_call": 256,
        "CountingLimits.written_byte_bytes": 11,
        "EncodingLimits.window_bytes": 1_048_576,
        "EncodingLimits.cache_bytes": 16_777_216,
        "EncodingLimits.native_characters": 262_144,
        "EncodingLimits.piece_characters": 32_768,
        "EncodingLimits.most_characters": 16_777_216,
    },
    "tokenizer.needs": {
        "PIECE_BYTES": 16_777_216,
        "USUAL_BYTES": 20_971_520,
        "_CHARACTER_BYTES": 3_145_728,
        "_TABLE_TIMES": 24,
        "_PROGRAM_BYTES": 8_388_608,
        "_JSON_TIMES": 7,
        "_PARTS_TIMES": 11,
        "_RANKS_TIMES": 25,
        "_PARSED_TIMES": 4,
        "_TEKKEN_TIMES": 11,
        "_PIECES_TIMES": 75,
        "TokenizerNeeds.table_bytes": 0,
        "TokenizerNeeds.thread_bytes": 0,
        "TokenizerNeeds.by_package": False,
    },
    "tokenizer.ownrecords": {"_PART_BYTES": 65_536},
    "tokenizer.package": {"SLOWER": 100, "_CONTEXT": 1_024, "_MOST_TRIES": 64},
    "tokenizer.piecefiles": {
        "_BPE": 2,
        "_FIXED_BYTES": {1: 8, 5: 4},
        "_UNKNOWN": 2,
        "_CONTROL": 3,
        "_ADDED": 4,
        "_UNUSED": 5,
        "_BYTE": 6,
        "_Pieces.model_type": 1,
        "_Pieces.has_byte_fallback": False,
        "_Pieces.charsmap_bytes": 0,
        "_Pieces.adds_blank": True,
        "_Pieces.removes_blanks": True,
        "_Pieces.blank_is_suffix": False,
    },
    "tokenizer.pieces": {
        "_NEVER": 0,
        "_EACH": 1,
        "_EACH_WITHOUT": 2,
        "_FIRST_WITHOUT": 3,
        "_SCHEMES": {"never": 0, "always": 2, "first": 3},
        "_MOST_LOOKS": 4_096,
        "PieceEncoder.encode(is_first)": True,
    },
    "tokenizer.reference": {
        "_SMALL_IN_UNICODE_16": 661,
        "learn_merges(min_frequency)": 1,
        "learn_merges(longest_token)": float("inf"),
    },
    "tokenizer.scanning": {
        "CHARACTER_BYTES": 400,
        "_READ_BYTES": 1_048_576,
        "scan_characters(read_bytes)": 1_048_576,
        "_iter_texts(read_bytes)": 1_048_576,
    },
    "tokenizer.settings": {
        "TokenizerTrainingSettings.vocab_size": 32_000,
        "TokenizerTrainingSettings.min_frequency": 1,
        "TokenizerTrainingSettings.skip_bad_inputs": False,
    },
    "tokenizer.sharedtraining": {"train_together(lease_seconds)": 30.0},
    "tokenizer.sharing": {"_MOST_PARTS": 30_000, "_COPY_BYTES": 1_048_576, "CountPart.begin": 0},
    "tokenizer.stretches": {
        "_QUIET_SECONDS": 3.0,
        "_PART_BYTES": 65_536,
        "_TAIL_BYTES": 4_096,
        "_EDGE_BYTES": 1_024,
        "_SHRINKS": 50,
        "Stretch.size_bytes": 0,
        "Stretch.in_stream": False,
        "Stretch.repeats": False,
        "Stretch.text_bytes": 0,
        "Stretch.unseen_bytes": 0,
        "find_stretch(streams)": True,
    },
    "tokenizer.tokentexts": {
        "TokenTexts.is_byte_level": False,
        "TokenTexts.has_bytes": False,
        "TokenTexts.is_joined": True,
    },
    "tokenizer.trained": {"TrainedTokenizer.was_there": False},
    "tokenizer.training": {
        "_SCAN_BYTES": 25_165_824,
        "FILE_BYTES": 450,
    },
    "tokenizer.vocabulary": {
        "_MOST_UNUSED": 262_144,
        "AddedToken.special": True,
        "AddedToken.lstrip": False,
        "AddedToken.rstrip": False,
        "AddedToken.normalized": False,
        "Vocabulary.whole_pieces": False,
    },
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("tokenizer", NUMBERS) == {}
