"""JAX as the backend of a run: devices, networks, and the engine of each run.

In:      shapes, settings, folders with weights
Out:     BACKEND, which the training loop calls (training/backends.py)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lowtide.jaxtraining.devices import JaxGroup, memory_of, open_group, pick_devices
from lowtide.jaxtraining.engine import Counters, JaxEngine
from lowtide.jaxtraining.feeding import JaxFeed
from lowtide.jaxtraining.trees import JaxGPT
from lowtide.model.arrayfiles import iter_portable
from lowtide.model.config import GPTConfig
from lowtide.tokenizer import Tokenizer
from lowtide.training.batchsources import BatchSource
from lowtide.training.settings import TrainSettings
from lowtide.training.state import RunState

__all__ = ["BACKEND"]


class _Copies:
    """Copies of arrays for a thread that writes them while training continues."""

    def take(self, value: Any) -> tuple[Any, Callable[[], None]]:
        return jax.tree.map(np.array, value), lambda: None

    def close(self) -> None:
        pass


class _JaxBackend:
    """Networks of JAX; the methods are documented in Backend."""

    def device_kind(self, device: str) -> str:
        return pick_devices(device)[0].platform

    def open_group(self, device: str) -> AbstractContextManager[JaxGroup]:
        return open_group(device)

    def device_memory(self, group: JaxGroup) -> Callable[[], tuple[int, int]] | None:
        return memory_of(group)

    def new_model(self, config: GPTConfig, *, seed: int, zero_init: bool = False) -> JaxGPT:
        return JaxGPT(config, seed=seed, zero_init=zero_init)

    def set_embedding(self, model: JaxGPT, rows: np.ndarray[Any, Any]) -> None:
        model.set_embedding(rows)

    def load_weights(self, model: JaxGPT, folder: Path, *, verify: bool = True) -> None:
        model.load_weights(folder, verify=verify)

    def held_bytes(self, model: JaxGPT) -> int:
        return model.num_bytes

    def make_engine(
        self,
        model: JaxGPT,
        settings: TrainSettings,
        state: RunState,
        group: JaxGroup,
        *,
        rows: int,
        given: Any,
        note: Callable[[str], None],
        tokenizer: Tokenizer | None = None,
    ) -> JaxEngine:
        return JaxEngine(model, settings, state, group, rows=rows, note=note)

    def make_counters(self, group: JaxGroup) -> Counters:
        return Counters()

    def make_feed(self, source: BatchSource, group: JaxGroup, config: GPTConfig) -> JaxFeed:
        return JaxFeed(source, config.vocab_size)

    def make_snapshot(self) -> _Copies:
        return _Copies()

    def portable(self, weights: Mapping[str, Any], config: GPTConfig) -> dict[str, Any]:
        return dict(iter_portable(weights, config))


BACKEND = _JaxBackend()
