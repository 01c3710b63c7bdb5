"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py 'corpus'` writes this anew).
"""

from __future__ import annotations

from typing import Any

from ..numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "corpus.blockcleaning": {
        "BLOCK_BYTES_HELD": 12,
        "RULES_BYTES_HELD": 8,
        "CleanJob.collect_characters": False,
        "CleanJob.collect_scores": False,
        "write_block(place)": 0,
        "write_block(keep_text)": True,
    },
    "corpus.classifiers": {
        "_HIERARCHICAL": 1,
        "_EXPANDED_BYTES": 8_388_608,
        "_MOST_MARKED": 67_108_864,
        "_WORD_BYTES": 32,
        "check_model_memory(least_bytes)": 0,
    },
    "corpus.cleaning": {
        "DOCUMENT_ROW_BYTES": 64,
        "HASH_ROW_BYTES": 16,
        "FIRST": 1,
        "LAST": 2,
        "_LARGEST_KEY": 18_446_744_073_709_551_615,
        "_INPUT": 0,
        "_ORDINAL": 1,
        "_BEGIN": 2,
        "_END": 3,
        "_FLAGS": 7,
        "native_options(collect_characters)": False,
        "native_options(collect_scores)": False,
        "clean_block(collect_characters)": False,
        "clean_block(collect_scores)": False,
    },
    "corpus.contents": {
        "PART_BYTES": 67_108_864,
        "_BUFFER_BYTES": 1_048_576,
        "ContentLog.reach(offset)": 0,
    },
    "corpus.cutting": {"PROBE_BYTES": 65_536},
    "corpus.decompression": {
        "_BUFFER_BYTES": 1_048_576,
        "_ZSTD_MAGIC": 4_247_762_216,
        "_ZSTD_SKIPPABLE": 407_710_288,
        "_LARGEST_WINDOW": 2_147_483_648,
        "_OTHER_BYTES": 1_048_576,
    },
    "corpus.deduplication": {
        "MIN_TABLE_BYTES": 8_388_608,
        "MODEST_TABLE_BYTES": 16_777_216,
        "TABLE_ROW_BYTES": 19,
        "_MANY": 64,
        "_DIGEST_BYTES": 16,
        "_READ_BYTES": 1_048_576,
    },
    "corpus.encodings": {"TELLING_BYTES": 64},
    "corpus.evaluations": {
        "_GRAM_BYTES": 32,
        "_COUNT_BYTES": 8,
        "_TEXT_BYTES": 6,
        "_SHARE": 3,
        "_UNPACKED": 5,
        "load_items(least_bytes)": 0,
    },
    "corpus.footprint": {"_OBJECTS_LOOKED_AT": 16},
    "corpus.grouping": {"_GROUP_FILES": 1_024, "_EXPANSION": 8},
    "corpus.hub": {"open_hub_rows(streaming)": True},
    "corpus.inputformats": {"InputFormat.is_file": True},
    "corpus.inputs": {
        "InputFile.modified_ns": 0,
        "InputFile.changed_ns": 0,
        "InputList.__init__(first_index)": 0,
    },
    "corpus.jsonrows": {"_LONG_ROW": 262_144},
    "corpus.largepages": {
        "_READ_BYTES": 262_144,
        "_MOST_NUMBERS_BYTES": 8_388_608,
        "_GROUPS_AT_ONCE": 512,
    },
    "corpus.longrows": {"_READ_BYTES": 1_048_576},
    "corpus.parquetpages": {
        "_HEADER_BYTES": 4_096,
        "_LARGEST_HEADER": 16_777_216,
        "_DATA_PAGE": 0,
        "_DICTIONARY_PAGE": 2,
        "_DATA_PAGE_V2": 3,
        "_DICTIONARY_ENCODINGS": (2, 8),
        "_INCREMENTAL": 7,
        "_PLAIN": 0,
        "_RUNS": 3,
        "_SMALL_DICTIONARY": 16_384,
        "_LARGE_PAGE": 8_388_608,
        "_MOST_VALUES": 1_048_576,
        "_STREAMED_BYTES": 4_194_304,
    },
    "corpus.ranking": {"_DIGIT_BITS": 16, "_KEEP_ALL": 0},
    "corpus.reading": {
        "_NUMBERS_AT_ONCE": 4_096,
        "Document.is_first": True,
        "Document.is_last": True,
        "_skip_bad(tell)": True,
        "iter_blocks(known)": 0,
    },
    "corpus.readingflags": {
        "_MOST_WORKERS": 4_096,
        "_LONGEST_SEPARATOR": 1_024,
        "ReadingFlags.skip_bad_inputs": False,
        "ReadingFlags.block_bytes": 4_194_304,
    },
    "corpus.removals": {
        "_SAMPLES_PER_RULE": 3,
        "Report.add(documents_in)": 0,
        "Report.add(lines_in)": 0,
        "Report.add(bytes_in)": 0,
        "Report.add(unknown_characters)": 0,
    },
    "corpus.rows": {
        "_BATCH_ROWS": 256,
        "_BATCH_BYTES": 2_097_152,
        "_ROW_GROUPS_PLANNED": 256,
        "_ROW_BYTES": 64,
        "_SHORT_BYTES": 1_024,
        "_FEWEST_ROWS": 16,
    },
    "corpus.settings": {
        "CleaningSettings.normalize": True,
        "CleaningSettings.lowercase": False,
        "CleaningSettings.filter": True,
        "CleaningSettings.min_line_chars": 0,
        "CleaningSettings.max_line_chars": 100_000,
        "CleaningSettings.min_line_words": 0,
        "CleaningSettings.min_document_chars": 20,
        "CleaningSettings.max_document_chars": 0,
        "CleaningSettings.min_document_words": 3,
        "CleaningSettings.max_repetition": 0.8,
        "CleaningSettings.dedup": True,
        "CleaningSettings.min_dedup_chars": 20,
        "CleaningSettings.min_language_score": 0.65,
        "CleaningSettings.keep_above": 0.5,
    },
    "corpus.stepprocess": {"KEPT": 0, "DROPPED": 1, "CHANGED": 2, "FAILED": 3},
    "corpus.textblocks": {
        "BLOCK_BYTES": 4_194_304,
        "ReadingSettings.block_bytes": 4_194_304,
        "ReadingSettings.reader_bytes": 1_073_741_824,
        "ReadingSettings.skip_bad": False,
        "TextBlock.continues": False,
        "TextBlock.continued": False,
        "TextBlock.stored_bytes": 0,
    },
    "corpus.usersteps": {
        "_BATCH_BYTES": 1_048_576,
        "_MOST_TIMES": 2,
        "_MOST_SMALL_BYTES": 8_388_608,
        "_GROWTH_BYTES": 25_165_824,
    },
    "corpus.workers": {"WorkerPool.run(num_waiting)": 1},
    "corpus.workfiles": {"_ALIGNMENT": 64, "WorkFile.read(begin)": 0},
    "corpus.xzdictionaries": {
        "XZ_HEADER_BYTES": 12,
        "_LONGEST_HEADER": 1_024,
        "_LONGEST_INDEX": 16_777_216,
        "_LZMA2": 33,
        "_PADDING_STEP": 65_536,
    },
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("corpus", NUMBERS) == {}
