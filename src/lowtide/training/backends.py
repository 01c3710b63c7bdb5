"""The interface to torch and JAX, as loop, evaluation and saving use it.

In:      the name of a backend
Out:     a Backend, whose module is imported on demand; an Engine per run

Neither backend is imported here, and neither imports the other: only the one in use has to be
installed.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from lowtide.errors import UsageError
from lowtide.model.config import GPTConfig
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.model.networks import require_values
from lowtide.packages import naming_missing_packages
from lowtide.tokenizer import Tokenizer
from lowtide.training.batchsources import BatchSource
from lowtide.training.checkpoints import RunFolder
from lowtide.training.results import EvalSums
from lowtide.training.saving import Snapshot
from lowtide.training.settings import TrainSettings
from lowtide.training.state import RunState

__all__ = [
    "Backend",
    "Counters",
    "Engine",
    "Feed",
    "Group",
    "Model",
    "as_model",
    "backend_of",
    "follow_network",
    "open_backend",
]

_MODULES = {
    "torch": "lowtide.training.torchbackend",
    "ladder": "lowtide.ladder.backend",
    "jax": "lowtide.jaxtraining.backend",
}


class Group(Protocol):
    """This process among those that train together."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def is_first(self) -> bool: ...
    @property
    def on_cpu(self) -> bool: ...
    @property
    def pins_memory(self) -> bool: ...
    @property
    def saves_beside(self) -> bool: ...
    def any(self, flag: bool) -> bool: ...
    def least(self, value: int) -> int: ...
    def all_say(self, value: Any) -> list[Any]: ...
    def first_says(self, value: Any) -> Any: ...
    def wait(self) -> None: ...


class Model(Protocol):
    """A network: its shape, and its weights under our names."""

    @property
    def config(self) -> GPTConfig | ModuleConfig: ...
    def state_dict(self) -> Mapping[str, Any]: ...


class Counters(Protocol):
    """Sums of the steps since the last row, kept on the device; single numbers have `item`."""

    @property
    def norm(self) -> Any: ...
    @property
    def bad(self) -> Any: ...
    @property
    def bad_in_a_row(self) -> Any: ...
    def add(self, loss: Any, norm: Any, skip: Any) -> None: ...
    def mean_loss(self, group: Any) -> float: ...
    def next_row(self) -> None: ...
    def state_dict(self) -> dict[str, float]: ...
    def load_state_dict(self, state: Mapping[str, float]) -> None: ...


class Feed(Protocol):
    """Batches as the engine takes them; its position is that of the next batch."""

    def __next__(self) -> tuple[Any, Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class Engine(Protocol):
    """One run's network and optimizer on their devices."""

    state: RunState
    learning_rate: float

    @property
    def notes(self) -> list[str]: ...
    def compute(self, inputs: Any, targets: Any, *, share_done: float = 0.0) -> Any: ...
    def update(self, loss: Any, learning_rate_factor: float) -> tuple[Any, Any]: ...
    def weights(self) -> dict[str, Any]: ...
    def moments(self) -> dict[str, Any]: ...
    def numbers(self) -> dict[str, Any]: ...
    def load_state(self, run: RunFolder, numbers: dict[str, Any]) -> Path: ...
    def eval_sums(
        self, tokenizer: Tokenizer | None, *, batch_size: int
    ) -> AbstractContextManager[EvalSums]: ...
    def sample(self, tokenizer: Tokenizer) -> str: ...
    def device_peak_bytes(self) -> int | None: ...
    def wait(self) -> None: ...
    def finish(self) -> None: ...


class Backend(Protocol):
    """How networks are made, loaded and trained."""

    def device_kind(self, device: str) -> str: ...
    def open_group(self, device: str) -> AbstractContextManager[Group]: ...
    def device_memory(self, group: Any) -> Callable[[], tuple[int, int]] | None: ...
    def new_model(self, config: GPTConfig, *, seed: int, zero_init: bool = False) -> Model: ...
    def set_embedding(self, model: Any, rows: np.ndarray[Any, Any]) -> None: ...
    def load_weights(self, model: Any, folder: Path, *, verify: bool = True) -> None: ...
    def held_bytes(self, model: Any) -> int: ...
    def make_engine(
        self,
        model: Any,
        settings: TrainSettings,
        state: RunState,
        group: Any,
        *,
        rows: int,
        given: Any,
        note: Callable[[str], None],
        tokenizer: Tokenizer | None = None,
    ) -> Engine: ...
    def make_counters(self, group: Any) -> Counters: ...
    def make_feed(self, source: BatchSource, group: Any, config: Any) -> Feed: ...
    def make_snapshot(self) -> Snapshot: ...
    def portable(self, weights: Mapping[str, Any], config: Any) -> dict[str, Any]: ...


def backend_of(settings: TrainSettings) -> Backend:
    """The backend of a run with these settings."""
    offload = settings.machine.offload
    if offload == "auto":
        raise UsageError(
            "offload is 'auto', which is chosen before a network is made, and this one is there",
            next_step="lowtide.train(offload='auto', …), or `lowtide train --offload auto`",
        )
    return open_backend("ladder" if offload != "none" else settings.computing.backend)


def follow_network(options: Any, model: Any) -> None:
    """Set the backend in options to that of a given network; another one is refused."""
    made = getattr(model, "backend", "torch")
    if options.setdefault("backend", made) != made:
        raise UsageError(
            f"backend is {options['backend']!r}, and the network that was given is of {made}",
            next_step="leave it out, or let lowtide.train(…) make the network",
        )


def as_model(given: Any, *, seq_len: int | None, vocab_size: int | None) -> Model:
    """The network itself; a torch module that is not lowtide's is wrapped as one."""
    require_values(given)
    if isinstance(getattr(given, "config", None), GPTConfig | ModuleConfig):
        return given
    with naming_missing_packages("a torch module"):
        modules: Any = importlib.import_module("lowtide.training.modules")
    return modules.wrap_module(given, seq_len=seq_len, vocab_size=vocab_size)


@functools.cache
def open_backend(name: Literal["torch", "ladder", "jax"]) -> Backend:
    """Import a backend by name; a missing package is named, with the command that installs it."""
    with naming_missing_packages(f"--backend {'jax' if name == 'jax' else 'torch'}"):
        return importlib.import_module(_MODULES[name]).BACKEND
