"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py 'dataset'` writes this anew).
"""

from __future__ import annotations

from typing import Any

from ..numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "dataset.appendable": {"AppendResult.was_there": False},
    "dataset.contamination": {"COMMON": 10, "_STEP_BYTES": 1_048_576, "_HIT_BYTES": 28},
    "dataset.conversion": {
        "_SHARES": {"tokenizer": 33_554_432, "ids and ends": 25_165_824},
        "ConvertResult.was_there": False,
    },
    "dataset.encoding": {
        "ENCODED_ROW_BYTES": 32,
        "encode_corpus(first_block)": 0,
        "SourceCounts.__init__(first_index)": 0,
    },
    "dataset.existing": {"PrepareResult.was_there": False},
    "dataset.identity": {"_MOST_NOTICES": 20, "drop_known(first_index)": 0},
    "dataset.inspection": {"_TOKENIZER_BYTES": 33_554_432, "_TOKEN_BYTES": 64},
    "dataset.layout": {"FORMAT_VERSION": 1},
    "dataset.near.deciding": {"_STEP_BYTES": 1_048_576, "_ROW_BYTES": 64},
    "dataset.near.likeness": {"_MOST_ROWS": 8, "_BAND_SHARE": 0.27, "_MISSED": 0.02},
    "dataset.near.pairs": {"_LEAST_ROWS": 4_096, "_STEP_ROWS": 65_536},
    "dataset.near.removals": {"_ROW_BYTES": 64, "_STEP_ROWS": 4_096},
    "dataset.near.running": {"_BLOCKS_IN_PART": 16},
    "dataset.npywriting": {
        "WORKER_BYTES": 25_165_824,
        "_STEP_BYTES": 67_108_864,
        "_WINDOW_BYTES": 1_048_576,
        "_BATCH_BYTES": 2_097_152,
        "_Unfinished.position": 0,
        "_Unfinished.count": 0,
    },
    "dataset.phases": {"run_encoding(first_block)": 0},
    "dataset.pretokenization": {
        "_BLOCK_BYTES": 1_048_576,
        "_SLACK_BYTES": 16_777_216,
        "_STREAM_BYTES": 46_137_344,
        "PretokenizeResult.was_there": False,
    },
    "dataset.provenance": {"_VERSION": 1},
    "dataset.rehashing": {"_DECODE_TOKENS": 1_048_576, "_HELD_BYTES": 4_194_304},
    "dataset.removed": {"RemovedText.__init__(first_block)": 0},
    "dataset.resources": {
        "_TOKENIZER_BYTES": 50_331_648,
        "LINE_BYTES": 200,
        "_PROGRAM_BYTES": 26_214_400,
        "NEAR_DISK_SHARE": 0.8,
        "FILE_BYTES": 100,
        "Inputs.num_files": 0,
        "Inputs.num_in_order": 0,
        "Inputs.reader_bytes": 0,
        "Inputs.step_bytes": 0,
        "planned_bytes(line_bytes)": 200,
        "planned_disk_bytes(bytes_per_token)": 3.5,
        "planned_disk_bytes(token_bytes)": 2,
        "planned_disk_bytes(near_copies)": False,
        "check_disk(near_copies)": False,
    },
    "dataset.seen": {"ROW_BYTES": 12, "_STEP_ROWS": 65_536, "write_seen(all_lines)": False},
    "dataset.settings": {
        "_MOST_WORKERS": 4_096,
        "_MOST_NGRAM": 64,
        "_PrepareInputs.tokens_per_shard": 10_000_000,
        "_PrepareInputs.val_fraction": 0.1,
        "_PrepareInputs.skip_bad_inputs": False,
        "PrepareSettings.near_dedup": 0.0,
        "PrepareSettings.near_dedup_ngram": 5,
        "PrepareSettings.shuffle": True,
        "PrepareSettings.seed": 0,
        "PrepareSettings.dry_run": False,
        "PrepareSettings.restart": False,
        "PretokenizeSettings.skip_bad_inputs": False,
        "AppendSettings.skip_bad_inputs": False,
        "AppendSettings.restart": False,
        "ConvertSettings.val_fraction": 0.1,
        "ConvertSettings.tokens_per_shard": 10_000_000,
        "InspectSettings.start": 0,
        "InspectSettings.tokens": 100,
        "InspectSettings.show_ids": False,
        "InspectSettings.test_loading": False,
    },
    "dataset.sharding": {
        "_CHUNK_BYTES": 8_388_608,
        "MAX_OPEN_FILES": 200,
        "LAST_KEY": 18_446_744_073_709_551_615,
        "ENCODED_ROW_BYTES_HELD": 128,
        "_MIN_SPLIT_DOCUMENTS": 100,
        "ShardJob.first_number": 0,
        "ShardJob.range_bytes": 16_777_216,
        "ShardJob.first_block": 0,
    },
    "dataset.staged.encoding": {
        "_ROW_BYTES_HELD": 256,
        "_CHUNK_BYTES": 8_388_608,
        "_EncodedPart.num_documents": 0,
        "_EncodedPart.num_tokens": 0,
        "_EncodedPart.seen_bytes": 0,
    },
    "dataset.staged.gathering": {"_RANGE_BYTES": 16_777_216},
    "dataset.staged.job": {
        "CleanPart.__init__(collect_characters)": False,
        "CleanPart.__init__(collect_scores)": False,
    },
    "dataset.staged.parts": {"Part.begin": 0},
    "dataset.staged.plan": {
        "_MOST_PARTS": 30_000,
        "_MOST_PARTITIONS": 256,
        "_PARTITION_TEXT_BYTES": 67_108_864,
        "_MIB": 1_048_576,
        "Sizes.num_buckets": 4_096,
        "Sizes.group_bytes": 268_435_456,
    },
    "dataset.staged.running": {"prepare_shared(lease_seconds)": 30.0},
    "dataset.staged.scoring": {"_CHUNK_BYTES": 1_048_576},
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
    "dataset.tokenfiles.streams": {
        "STEP_TOKENS": 262_144,
        "INDEX_ROWS": 65_536,
        "TokenFile.num_documents": 0,
        "TokenFile.ends_offset": 0,
        "TokenFile.ends_are_lengths": False,
    },
    "dataset.tokenfiles.table": {"_METADATA_BEGINNING": 4_096},
    "dataset.verification": {
        "_BUFFER_BYTES": 2_097_152,
        "_ENDS_BYTES": 524_288,
        "_WORKER_BYTES": 10_485_760,
        "_TOKENIZER_BYTES": 33_554_432,
    },
    "dataset.workfolder": {"_VERSION": 3},
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("dataset", NUMBERS) == {}
