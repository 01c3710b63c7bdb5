"""The sizes of a torch module that is not lowtide's own, by which a run is planned.

In:      a module's sizes (training/modules.py counts them)
Out:     ModuleConfig, and config.json of its run, for the script that created the module
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowtide.errors import DataError
from lowtide.quickclasses import dataclass

__all__ = ["ModuleConfig"]

_MODEL_TYPE = "torch_module"


@dataclass(frozen=True)
class ModuleConfig:
    """The sizes of a module; the same names as those of GPTConfig where both have them."""

    module: str
    """The name of its class."""
    vocab_size: int
    context_length: int
    """The tokens of a row that it is trained on."""
    num_parameters: int
    multiplying: int
    """Parameters that do arithmetic for every token: all but those of embeddings."""
    width: int
    """The median of its matrices' shorter sides."""
    dropout: float = 1.0
    """Always True, since a module may draw random numbers; they depend on the step in any case."""

    @property
    def layout(self) -> str:
        """The layout's name in messages, which lowtide's own networks have several of."""
        return "module"

    def replace(self, **changes: Any) -> ModuleConfig:
        """The same with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_huggingface(self) -> dict[str, Any]:
        """The fields of config.json."""
        fields = dataclasses.asdict(self)
        del fields["dropout"]
        return {"model_type": _MODEL_TYPE, **fields}

    @classmethod
    def read(cls, fields: Mapping[str, Any], path: Path) -> ModuleConfig | None:
        """The config that a run of a module wrote; None if `fields` are those of a network."""
        if fields.get("model_type") != _MODEL_TYPE:
            return None
        names = {field.name for field in dataclasses.fields(cls)} - {"dropout"}
        if set(fields) != {"model_type", *names}:
            raise DataError(
                f"{path.name} does not describe a module",
                path=path,
                next_step="bring back the file as the run wrote it",
            )
        return cls(**{name: fields[name] for name in names})
