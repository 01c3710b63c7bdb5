"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py ''` writes this anew).
"""

from __future__ import annotations

from typing import Any

from .numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "cgroups": {"_UNLIMITED": 1_152_921_504_606_846_976},
    "checksumrecords": {"RECORD_VERSION": 1},
    "cli": {"_EXIT_INTERRUPTED": 130, "main(whole_process)": False},
    "counts": {
        "LARGEST_INT": 9_223_372_036_854_775_808,
        "_UNITS": {
            "k": 1_000,
            "m": 1_000_000,
            "b": 1_000_000_000,
            "g": 1_000_000_000,
            "t": 1_000_000_000_000,
        },
    },
    "errors": {
        "_OS_ADVICE": {
            28: ("the disk is full", "free some space, then give the same command again"),
            122: ("the disk quota is used up", "free some space, then give the same command again"),
            13: ("permission denied", "check who may read and write this path"),
            1: ("permission denied", "check who may read and write this path"),
            30: ("the file system is read-only", "choose an output folder that can be written"),
            2: ("no such file or folder", "check the path for typing errors"),
            21: ("this is a folder, a file was expected", "name a file"),
            17: ("this exists already", "choose another path, or remove it first"),
            36: ("the name is too long", "choose a shorter one"),
            27: ("the file is larger than the system allows", "raise the limit: ulimit -f"),
            116: (
                "this file was changed while it was read",
                "leave it alone until the command has ended, then give the same command again",
            ),
            74: (
                "this file of unfinished work is damaged",
                "remove it with the folder it is in, then give the same command again",
            ),
            40: ("this link leads in a circle", "name the file it should lead to"),
            6: ("this is a pipe or a device, expected a file", "write its contents to a file"),
            12: ("out of memory", "close other programs, or give a smaller --memory"),
            5: ("the disk failed to read or write", "check the disk (dmesg), then try again"),
            20: ("a part of this path is a file, not a folder", "choose another path"),
            24: ("too many open files", "raise the limit with: ulimit -n 4096"),
        }
    },
    "files": {
        "_BUFFER_BYTES": 1_048_576,
        "_MOST_WHOLE_BYTES": 1_073_741_824,
        "publish(sync_folder)": True,
        "hold_lock(create_folder)": False,
        "atomic_path(sync_folder)": True,
        "atomic_file(sync_folder)": True,
        "write_bytes(sync_folder)": True,
        "read_whole(most_bytes)": 1_073_741_824,
    },
    "flatsettings": {"setting_types(marked)": False},
    "freenames": {"_HEAD_BYTES": 1_024},
    "gpus": {"CUDA_CONTEXT_BYTES": 629_145_600, "find_gpu(number)": 0},
    "helptext": {"_WIDEST": 100, "_INDENT": 26, "Flag.positional": False, "Flag.repeated": False},
    "intervals": {
        "Intervals.refresh_seconds": 0.2,
        "Intervals.metrics_seconds": 1.0,
        "Intervals.line_seconds": 10.0,
    },
    "journal": {"_TAIL_BYTES": 64},
    "keywords": {"PublicFunction.__call__(progress)": True},
    "lmeval": {
        "_USUAL_ROWS": 8,
        "_USUAL_TOKENS": 256,
        "Scorer.__init__(best)": False,
        "Scorer.__init__(batch_size)": 8,
        "Scorer.fit(generates)": False,
    },
    "longjson": {
        "_LONG_BYTES": 1_048_576,
        "_STEP_BYTES": 262_144,
        "StoredRows.__init__(indent)": 2,
    },
    "memory": {
        "MIB": 1_048_576,
        "_M_TRIM_THRESHOLD": -1,
        "_M_MMAP_THRESHOLD": -3,
        "_SAMPLE_SECONDS": 0.05,
        "_UNITS": {
            "": 1,
            "b": 1,
            "k": 1_000,
            "kb": 1_000,
            "m": 1_000_000,
            "mb": 1_000_000,
            "g": 1_000_000_000,
            "gb": 1_000_000_000,
            "t": 1_000_000_000_000,
            "tb": 1_000_000_000_000,
            "p": 1_000_000_000_000_000,
            "pb": 1_000_000_000_000_000,
            "kib": 1_024,
            "mib": 1_048_576,
            "gib": 1_073_741_824,
            "tib": 1_099_511_627_776,
            "pib": 1_125_899_906_842_624,
        },
        "_KCMP": {"x86_64": 312, "aarch64": 272},
        "_KCMP_VM": 1,
        "PeakMeter.__init__(whole_process)": False,
    },
    "notebooks": {"_MOST_ROWS": 12, "_MOST_LETTERS": 300, "table_of(depth)": 0},
    "progress": {
        "_BAR_CELLS": 20,
        "_LAST_ROW_BYTES": 4_096,
        "Phase.advance(count)": 1,
        "Progress.__init__(is_brief)": False,
        "Progress.phase(start)": 0,
    },
    "publishing": {"_THREADS": 16, "PublishGroup.__init__(size)": 64},
    "signatures": {"_WIDTH": 92, "Option.positional": False, "_parameter(by_keyword)": False},
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("", NUMBERS) == {}
