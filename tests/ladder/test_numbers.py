"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py 'ladder'` writes this anew).
"""

from __future__ import annotations

from typing import Any

from ..numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {
    "ladder.backend": {
        "_LadderBackend.new_model(zero_init)": False,
        "_LadderBackend.load_weights(verify)": True,
    },
    "ladder.engine": {"_EPS": 1e-08, "LadderEngine.compute(share_done)": 0.0},
    "ladder.executor": {"Executor.__init__(compiled)": False},
    "ladder.filehome": {
        "_PAGE": 4_096,
        "FileHome.__init__(slots)": 3,
        "FileHome.__init__(staged)": False,
    },
    "ladder.homes": {"HostHome.__init__(slots)": 2, "HostMemory.__init__(lock)": True},
    "ladder.kernels": {"_ROWS": 8},
    "ladder.network": {
        "PackedGPT.__init__(zero_init)": False,
        "PackedGPT.load_weights(verify)": True,
        "PackedGPT.settle(muon)": False,
    },
    "ladder.packing": {
        "BLOCK": 128,
        "PIECE": 4_194_304,
        "chunk_bytes(with_low_bits)": True,
        "_unpack_by_torch(piece)": 4_194_304,
    },
    "ladder.placement": {"Placement.__init__(muon)": False},
    "ladder.torchdraws": {"_KEPT": 5_016, "TorchDraws.__init__(step)": 1_048_576},
}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("ladder", NUMBERS) == {}
