"""Sizes, limits and defaults by number.

Budgets, files on the disk and messages depend on them: a change must be intended, so it is also
made here (`python tests/numbers_of.py 'engine'` writes this again).
"""

from __future__ import annotations

from typing import Any

from ..numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "engine.folders": {"_BUFFER_BYTES": 1_048_576, "_REMOVERS": 8, "_REMOVED_AT_ONCE": 1_024},
    "engine.leases": {
        "LEASE_SECONDS": 30.0,
        "MOST_FAILURES": 3,
        "MOST_LOSSES": 20,
        "Leases.seconds": 30.0,
        "Leases._beats": 0,
    },
    "engine.localcopies": {"LocalCopies.find(begin)": 0},
    "engine.outputs": {
        "PAGE_BYTES": 4_096,
        "_SUM_BYTES": 8,
        "_COPY_BYTES": 2_097_152,
        "_TAIL_BYTES": 8_192,
        "_ALIGNMENT": 8,
        "Output.read(begin)": 0,
        "Output.read_from(begin)": 0,
        "Output.check(begin)": 0,
        "Output.copy(begin)": 0,
    },
    "engine.partitions": {
        "_COPY_BYTES": 1_048_576,
        "_JOIN_BYTES": 8_388_608,
        "_PLACE_NUMBERS": 5,
        "PartitionedRows.__init__(copy_bytes)": 1_048_576,
        "PartitionedRows.__init__(join_bytes)": 8_388_608,
        "PartitionReader.__init__(copy_bytes)": 1_048_576,
    },
    "engine.plans": {"_MOST_LOOKS": 100},
    "engine.raynodes": {"_OBJECT_STORE_BYTES": 83_886_080, "_POLL_SECONDS": 0.5, "_MOST_LOSSES": 3},
    "engine.records": {
        "_OUTPUTS_KEPT": 256,
        "_PLACES_KEPT": 4_096,
        "Records.__init__(places_kept)": 4_096,
    },
    "engine.shared": {
        "_SHORTEST_PAUSE": 0.01,
        "run_shared(lease_seconds)": 30.0,
        "run_shared(shortest_pause)": 0.01,
        "_StageRun.is_alone": False,
    },
    "engine.storefolders": {
        "_MOST_SMALL_BYTES": 67_108_864,
        "_BUFFER_BYTES": 1_048_576,
        "_PROBES": 3,
    },
    "engine.taskscratch": {"_STEP_BYTES": 8_388_608, "TaskScratch.hold(room_bytes)": 0},
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("engine", NUMBERS) == {}
