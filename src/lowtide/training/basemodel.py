"""The model that training starts from: its folder, or a copy with added tokens.

In:      RunSettings: a run or a published model, a file of tokens to add
Out:     the folder to load weights and tokenizer from
Memory:  a piece of a tensor (model/growing.py)
"""

from __future__ import annotations

from pathlib import Path

from lowtide.model.config import find_model_dir
from lowtide.model.export import ExportSettings, export_model
from lowtide.training.settings import TrainSettings

__all__ = ["GROWN", "find_base"]

GROWN = "grown"
"""The folder in the run for the model with added tokens."""


def find_base(settings: TrainSettings) -> Path:
    """Return the folder to start from; with `--add-tokens` it is made first, once."""
    name = settings.run.init_from_model
    assert name is not None
    folder = find_model_dir(name, settings.run.checkpoints_dir)
    if settings.run.add_tokens is None:
        return folder
    return export_model(
        ExportSettings(
            model_name=str(folder),
            out_dir=settings.run.folder / GROWN,
            add_tokens=settings.run.add_tokens,
            memory=settings.machine.memory,
        )
    )
