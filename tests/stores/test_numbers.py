"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py 'stores'` writes this anew).
"""

from __future__ import annotations

from typing import Any

from ..numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "stores.extentfiles": {"EXTENT_BYTES": 2_097_152, "TRAILER_BYTES": 16, "_BLOCK_BYTES": 4_096},
    "stores.extentfolder": {
        "_SPARE_SHARE": 128,
        "_MANY": 4_096,
        "_CLOSED": -1,
        "ExtentFolder.__init__(many)": 4_096,
        "ExtentFolder.__init__(spare_share)": 128,
        "ExtentFolder.forget(remove)": False,
        "ExtentFolder.make_room(beyond)": -1.0,
        "ExtentFolder.evict(beyond)": -1.0,
    },
    "stores.extents": {
        "FETCH_THREADS": 4,
        "_CLIENT_BYTES": 16_777_216,
        "_MANY": 4_096,
        "_URGENT": -1,
        "PlannedUse.again": float("inf"),
        "ExtentCache.__init__(fetch_threads)": 4,
        "ExtentCache.__init__(many_uses)": 4_096,
    },
    "stores.localcopy": {"_RANGE_BYTES": 4_194_304, "copy_object(range_bytes)": 4_194_304},
    "stores.objects": {
        "_ATTEMPTS": 10,
        "_PART_BYTES": 5_242_880,
        "_MOST_PARTS": 9_000,
        "UPLOAD_BYTES": 15_728_640,
        "_FIRST_WAIT_S": 0.2,
        "_LONGEST_WAIT_S": 30.0,
        "_TOLD_WAIT_S": 3.0,
        "_REQUEST_S": 60,
        "ObjectInfo.has_etag": True,
        "Store._retrying(writes)": False,
        "Store._retrying(attempts)": 10,
    },
    "stores.paths": {
        "READ_AHEAD_BYTES": 4_194_304,
        "READER_BYTES": 8_388_608,
        "_FIRST_AHEAD_BYTES": 262_144,
        "_BUFFER_BYTES": 65_536,
        "_KEPT": 4_096,
        "StorePath.stat(follow_symlinks)": True,
        "StorePath.exists(follow_symlinks)": True,
        "StorePath.is_file(follow_symlinks)": True,
        "StorePath.open(buffering)": -1,
        "_RangeFile.seek(whence)": 0,
        "keep_info(kept)": 4_096,
    },
    "stores.refusals": {"find_refusal(writes)": False},
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("stores", NUMBERS) == {}
