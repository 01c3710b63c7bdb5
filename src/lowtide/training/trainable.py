"""The public network: a GPT with a `fit` method, as in introductory guides.

In:      a GPTConfig, or the folder of a run or a published model
Out:     GPT with `fit`

Other networks do not depend on training; this one, used only by the public API, does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch

from lowtide.model import gpt
from lowtide.model.config import find_model_dir
from lowtide.model.devices import pick_device
from lowtide.model.weights import load_network

if TYPE_CHECKING:
    from lowtide.keywordtypes import TrainKeywords
    from lowtide.training.results import TrainResult

__all__ = ["GPT", "load_model"]


class GPT(gpt.GPT):
    """A network of the shape of a GPTConfig, with initial weights.

    `GPT(GPTConfig(vocab_size=50304, num_layers=2)).fit(GPTDataLoader(config, dataset_dir="data"))`
    """

    def fit(
        self,
        data_loader: Any,
        *,
        eval_data_loaders: Mapping[str, Any] | None = None,
        **options: Unpack[TrainKeywords],
    ) -> TrainResult:
        """Train on a GPTDataLoader or any data that Trainer accepts; options are Trainer's."""
        # Imported here, because a model that only generates text does not need the loop.
        from lowtide.training.loaders import fit

        return fit(self, data_loader, eval_data_loaders=eval_data_loaders, **options)


def load_model(
    folder: str | Path,
    *,
    device: str | int | torch.device = "cpu",
    note: Callable[[str], None] | None = None,
) -> GPT:
    """Load a network: that of a run (its name or folder), or the folder of a transformers model.

    Damaged weights are reported by `note` (stderr if not given), and the newest undamaged
    checkpoint is loaded.
    """
    place = f"cuda:{device}" if isinstance(device, int) else device  # as torch counts GPUs
    if isinstance(place, str) or place.type in ("meta", "cuda"):  # meta holds no numbers
        place = pick_device(str(place))
    return load_network(GPT, find_model_dir(folder), device=place, note=note)
