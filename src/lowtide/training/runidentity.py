"""The identity of a run: the model it started from, and a check that a given model may resume it.

In:      a network, a run's folder
Out:     a fingerprint of weights; UsageError for a model of another run
Memory:  one tensor at a time
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import xxhash

from lowtide.errors import UsageError
from lowtide.filenames import WEIGHTS_NAME
from lowtide.model.arrayfiles import ArrayFile, iter_portable, stored_form
from lowtide.model.config import GPTConfig
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.training.checkpoints import RunFolder
from lowtide.training.resuming import read_identity

__all__ = ["optimizer_of", "require_same_model", "weights_fingerprint"]


class Model(Protocol):
    """A network of either backend."""

    @property
    def config(self) -> GPTConfig | ModuleConfig: ...
    def state_dict(self) -> Mapping[str, Any]: ...


def weights_fingerprint(model: Model) -> str:
    """A hash of all weights by name."""
    digest = xxhash.xxh3_128()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(stored_form(tensor).read())
    return digest.hexdigest()


def optimizer_of(numbers: Mapping[str, Any]) -> str | None:
    """The --optimizer whose moments a checkpoint holds; None for one that is not lowtide's."""
    rows = numbers.get("optimizers", [])
    rows = rows if isinstance(rows, list) else []
    kinds = {row.get("kind") for row in rows if isinstance(row, dict)}
    if kinds & {"Muon", "PackedMuon"}:
        return "muon"
    return "adamw" if kinds in ({"AdamW"}, {"AdamW8bit"}, {"PackedAdamW"}) else None


def require_same_model(run: RunFolder, model: Model) -> None:
    """Refuse to resume a run with a model that has neither its first nor its newest weights.

    A script that is run again creates the weights the run started with, if it sets a seed; a model
    that was trained in this process has the run's newest ones.
    """
    shape = run.load_module_config() or run.load_config()
    if model.config.replace(dropout=0.0) != shape.replace(dropout=0.0):
        raise _other_model(run, "a model of another shape")
    known = read_identity(run.root).get("weights")
    if known is None or known == weights_fingerprint(model) or _has_weights(model, run):
        return
    raise _other_model(run, "a model that began with other weights")


def _has_weights(model: Model, run: RunFolder) -> bool:
    saved = ArrayFile(run.newest_dir() / WEIGHTS_NAME)
    own = iter_portable(model.state_dict(), model.config)
    return all(saved.holds(name, tensor) for name, tensor in own)


def _other_model(run: RunFolder, what: str) -> UsageError:
    return UsageError(
        f"{run.root.name!r} is the name of a run with {what}",
        path=run.root,
        next_step="resume=True goes on with that run's weights, model_name=... starts another run, "
        "overwrite=True removes that run and starts anew",
    )
