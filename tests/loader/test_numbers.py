"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py 'loader'` writes this anew).
"""

from __future__ import annotations

from typing import Any

from ..numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "loader.batches": {
        "STATE_VERSION": 1,
        "planned_bytes(prefetch_batches)": 4,
        "planned_bytes(item_bytes)": 8,
        "planned_bytes(segments)": False,
        "BatchLoader.__init__(seed)": 0,
        "BatchLoader.__init__(prefetch_batches)": 4,
        "BatchLoader.__init__(num_workers)": 2,
        "BatchLoader.__init__(rank)": 0,
        "BatchLoader.__init__(world_size)": 1,
        "BatchLoader.__init__(segments)": False,
        "BatchLoader.__init__(pin_memory)": False,
    },
    "loader.checkedfiles": {
        "_LEAST_BYTES": 8_388_608,
        "_MOST_RECORD_BYTES": 4_194_304,
        "CheckedFiles.__init__(least_bytes)": 8_388_608,
        "CheckedFiles.__init__(most_record_bytes)": 4_194_304,
    },
    "loader.datachecks": {
        "FINISH_SECONDS": 5.0,
        "_BUFFER_BYTES": 262_144,
        "_SLICE_SECONDS": 0.01,
        "_PAUSES_PER_SLICE": 9,
        "_LOOK_AGAIN_SECONDS": 1.0,
        "DataCheck.__init__(wanted)": True,
    },
    "loader.footprint": {"_TEXT_BYTES": 48_234_496},
    "loader.mixtures": {"_MAX_TOTAL": 1_099_511_627_776},
    "loader.ordering": {
        "_MASK": 18_446_744_073_709_551_615,
        "_GOLDEN": 11_400_714_819_323_198_485,
        "_ROUNDS": 8,
        "_TABLE_SIZE": 256,
        "_MIN_BITS": 14,
    },
    "loader.selftest": {
        "_MAX_CHECKED_WINDOWS": 536_870_912,
        "_CHUNK_WINDOWS": 65_536,
        "check_loading(seq_len)": 1_024,
        "check_loading(batch_size)": 32,
        "check_loading(seconds)": 2.0,
        "describe_tokens(first)": 0,
        "describe_tokens(count)": 100,
        "_check_order(chunk_windows)": 65_536,
        "_check_order(most_windows)": 536_870_912,
    },
    "loader.shuffledblocks": {
        "BLOCK_TOKENS": 4_194_304,
        "GROUP_BLOCKS": 8,
        "BlockOrder.permuted_blocks(first)": 0,
    },
    "loader.sources": {
        "_SAMPLE_BYTES": 4_096,
        "TokenSource.first_token": 0,
        "TokenSource.total_tokens": 0,
        "find_tokens(val_fraction)": 0.1,
        "find_tokens(eval_only)": False,
    },
    "loader.storeahead": {
        "_SLACK_BATCHES": 64,
        "_MOST_RANKED_BLOCKS": 1_048_576,
        "ReadAhead.__init__(most_ranked_blocks)": 1_048_576,
        "ReadAhead.require_cache(seed)": 0,
    },
    "loader.storedtokens": {"_MOST_METADATA_BYTES": 1_073_741_824},
    "loader.storestreams": {"_ENDS_STEP": 256, "_REQUEST_THREADS": 32},
    "loader.streaming": {
        "STATE_VERSION": 1,
        "_SAMPLE_BYTES": 1_048_576,
        "_ALMOST_OVER": 0.999,
        "StreamingDataLoader.__init__(seq_len)": 128,
        "StreamingDataLoader.__init__(batch_size)": 32,
        "StreamingDataLoader.__init__(streaming)": True,
        "StreamingDataLoader.__init__(shuffle_buffer_size)": 10_000,
        "StreamingDataLoader.__init__(val_fraction)": 0.0,
        "StreamingDataLoader.__init__(seed)": 42,
        "StreamingDataLoader.__init__(drop_last)": False,
        "StreamingDataLoader.__init__(rank)": 0,
        "StreamingDataLoader.__init__(world_size)": 1,
        "StreamingDataLoader.__init__(reader_bytes)": 1_073_741_824,
        "StreamingDataLoader.estimate_windows(sample_bytes)": 1_048_576,
    },
    "loader.textencoders": {
        "ENCODING_THREADS": 2,
        "_PART_BYTES": 1_048_576,
        "TextEncoder.part_bytes": 1_048_576,
        "make_encoder(part_bytes)": 1_048_576,
    },
    "loader.texts": {
        "_TEXT_BYTES": 512,
        "Text.ends_document": True,
        "Text.begins_document": True,
        "FileTexts.__init__(block_bytes)": 4_194_304,
        "FileTexts.__init__(reader_bytes)": 1_073_741_824,
        "HubTexts.__init__(streaming)": True,
        "iter_encoded(group_bytes)": 1_048_576,
    },
    "loader.tokenblocks": {
        "BlockStart.number": 0,
        "BlockStart.skip_tokens": 0,
        "BlockStart.documents": 0,
    },
    "loader.tokenstreams": {"_MAX_OPEN_FILES": 256},
    "loader.torchloaders": {
        "_MAX_WORKERS": 1_024,
        "_READ_AHEAD_WINDOWS": 64,
        "LocalTokenizedDatasetFixed.__init__(seq_len)": 1_024,
        "LocalTokenizedDataset.__init__(seq_len)": 1_024,
        "LocalTokenizedDataset.__init__(shuffle)": True,
        "LocalTokenizedDataset.__init__(seed)": 42,
        "LocalTokenizedDataset.__init__(rank)": 0,
        "LocalTokenizedDataset.__init__(world_size)": 1,
        "TokenDataLoader.__init__(seed)": 42,
        "TokenDataLoader.__init__(num_workers)": 0,
        "TokenDataLoader.__init__(pin_memory)": False,
        "TokenDataLoader.__init__(rank)": 0,
        "TokenDataLoader.__init__(world_size)": 1,
        "create_dataloaders(batch_size)": 32,
        "create_dataloaders(seq_len)": 1_024,
        "create_dataloaders(num_workers)": 4,
        "create_dataloaders(prefetch_factor)": 4,
        "create_dataloaders(seed)": 42,
        "create_dataloaders(val_fraction)": 0.1,
        "create_dataloaders(rank)": 0,
        "create_dataloaders(world_size)": 1,
    },
    "loader.windows": {
        "_OUTPUT_LIMITS": {
            "int64": 9_223_372_036_854_775_808,
            "int32": 2_147_483_648,
            "uint16": 65_536,
        },
        "TokenDataset.__init__(seq_len)": 1_024,
        "TokenDataset.__init__(val_fraction)": 0.1,
        "TokenDataset.__init__(eval_only)": False,
    },
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("loader", NUMBERS) == {}
