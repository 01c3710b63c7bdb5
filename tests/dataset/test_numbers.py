"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py 'dataset'` writes this anew).
"""

from __future__ import annotations

from typing import Any

from ..numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "dataset.appending": {"_DECODE_TOKENS": 1_048_576, "_HELD_BYTES": 4_194_304},
    "dataset.conversion": {"_SHARES": {"tokenizer": 33_554_432, "ids and ends": 25_165_824}},
    "dataset.encoding": {
        "ENCODED_ROW_BYTES": 32,
        "encode_corpus(first_block)": 0,
        "SourceCounts.__init__(first_index)": 0,
    },
    "dataset.identity": {"_MOST_NOTICES": 20, "drop_known(first_index)": 0},
    "dataset.inspection": {"_TOKENIZER_BYTES": 33_554_432, "_TOKEN_BYTES": 64},
    "dataset.workfolder": {"_VERSION": 3},
    "dataset.layout": {"FORMAT_VERSION": 1},
    "dataset.preparation": {"run_encoding(first_block)": 0},
    "dataset.pretokenization": {
        "_STEP_BYTES": 67_108_864,
        "_WINDOW_BYTES": 1_048_576,
        "_WORKER_BYTES": 25_165_824,
        "_BATCH_BYTES": 2_097_152,
        "_BLOCK_BYTES": 1_048_576,
        "_SLACK_BYTES": 16_777_216,
        "_STREAM_BYTES": 46_137_344,
    },
    "dataset.provenance": {"_VERSION": 1},
    "dataset.resources": {
        "_TOKENIZER_BYTES": 50_331_648,
        "LINE_BYTES": 200,
        "_PROGRAM_BYTES": 26_214_400,
        "FILE_BYTES": 100,
        "planned_bytes(line_bytes)": 200,
        "planned_disk_bytes(bytes_per_token)": 3.5,
        "planned_disk_bytes(token_bytes)": 2,
    },
    "dataset.seen": {"ROW_BYTES": 12, "_STEP_ROWS": 65_536, "write_seen(all_lines)": False},
    "dataset.settings": {"_MOST_PROCESSES": 4_096},
    "dataset.sharding": {
        "_CHUNK_BYTES": 8_388_608,
        "MAX_OPEN_FILES": 200,
        "_LAST_KEY": 18_446_744_073_709_551_615,
        "_MIN_SPLIT_DOCUMENTS": 100,
    },
    "dataset.tokenfiles.llmc": {
        "_HEADER_BYTES": 1_024,
        "_TYPES": {(20_240_520, 1): "<u2", (20_240_801, 7): "<u4"},
    },
    "dataset.tokenfiles.megatron": {"_TYPES": {4: "<i4", 5: "<i8", 8: "<u2"}, "_LENGTHS_AT": 34},
    "dataset.tokenfiles.npy": {"NPY_HEADER_BYTES": 128, "_LONGEST_HEADER": 1_048_576},
    "dataset.tokenfiles.raw": {"_SAMPLE_BYTES": 4_096},
    "dataset.tokenfiles.shards": {
        "ID_BYTES": {"uint16": 2, "uint32": 4},
        "_SCAN_BYTES": 4_194_304,
        "_HEAD_BYTES": 4_096,
        "_ENDS_STEP": 16_384,
    },
    "dataset.tokenfiles.streams": {"STEP_TOKENS": 262_144, "INDEX_ROWS": 65_536},
    "dataset.verification": {
        "_BUFFER_BYTES": 2_097_152,
        "_ENDS_BYTES": 524_288,
        "_WORKER_BYTES": 10_485_760,
        "_TOKENIZER_BYTES": 33_554_432,
    },
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("dataset", NUMBERS) == {}
