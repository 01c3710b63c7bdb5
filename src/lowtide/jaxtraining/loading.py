"""Networks of JAX loaded onto its devices, for evaluating and generating.

In:      the name of a device, a folder with weights
Out:     NETWORKS, as model/networks.py describes it
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lowtide.jaxtraining.devices import JaxGroup, memory_of, pick_devices
from lowtide.jaxtraining.trees import JaxGPT, load_on

__all__ = ["NETWORKS"]


class JaxNetworks:
    """Networks of JAX, for evaluating and generating; the methods are documented in Networks."""

    def open(self, device: str) -> JaxGroup:
        return JaxGroup(pick_devices(device)[:1])

    def is_cpu(self, place: JaxGroup) -> bool:
        return place.on_cpu

    def device_memory(self, place: JaxGroup) -> Callable[[], tuple[int, int]] | None:
        return memory_of(place)

    def load(self, folder: Path, place: JaxGroup) -> JaxGPT:
        return load_on(folder, place.devices[0])


NETWORKS = JaxNetworks()
