"""Measure a GPU's FLOP/s, and the bandwidth between it and the host, in two seconds.

Out:     stdout: {"flops", "link_bytes"}, each per second
Memory:  256 MiB of page-locked host memory, 700 MiB of the GPU
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import torch

__all__ = ["measure_rates"]

_SIDE = 8192
_COPIED_BYTES = 128 << 20
_SECONDS = 0.8


def measure_rates() -> dict[str, float]:
    """Time simultaneous copies in both directions, as in offloading, and bfloat16 products."""
    device = torch.device("cuda")
    outward, inward = torch.cuda.Stream(device), torch.cuda.Stream(device)
    there = [torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=device) for _ in range(2)]
    here = [torch.empty(_COPIED_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]

    def copy() -> None:
        with torch.cuda.stream(outward):
            here[0].copy_(there[0], non_blocking=True)
        with torch.cuda.stream(inward):
            there[1].copy_(here[1], non_blocking=True)

    left = torch.randn(_SIDE, _SIDE, device=device, dtype=torch.bfloat16)
    right, out = torch.randn_like(left), torch.empty_like(left)
    return {
        "link_bytes": _COPIED_BYTES / _seconds(copy),
        "flops": 2 * _SIDE**3 / _seconds(lambda: torch.mm(left, right, out=out)),
    }


def _seconds(act: Callable[[], object]) -> float:
    """Return the mean time of a call."""
    act()
    torch.cuda.synchronize()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < _SECONDS:
        for _ in range(8):
            act()
        torch.cuda.synchronize()
        count += 8
    return (time.perf_counter() - start) / count


if __name__ == "__main__":
    if not torch.cuda.is_available():
        raise SystemExit("error: no GPU of NVIDIA's is here to be measured")
    print(json.dumps(measure_rates()))
