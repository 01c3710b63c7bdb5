"""Train language models on any amount of text inside a memory budget you choose.

Every public name is here; each is loaded when it is first used, so `import lowtide` is quick and
torch is imported only by what needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # as _HOMES has them: a test compares
    from lowtide.dataset.preparation import prepare_dataset as prepare_dataset
    from lowtide.errors import BudgetError as BudgetError
    from lowtide.errors import DataError as DataError
    from lowtide.errors import LowtideError as LowtideError
    from lowtide.errors import UsageError as UsageError
    from lowtide.generation.decoding import generate_text as generate_text
    from lowtide.loader.batches import BatchLoader as BatchLoader
    from lowtide.loader.mixtures import Mixture as Mixture
    from lowtide.loader.streaming import StreamingDataLoader as StreamingDataLoader
    from lowtide.loader.streaming import estimate_memory_usage as estimate_memory_usage
    from lowtide.loader.tensors import create_dataloaders as create_dataloaders
    from lowtide.loader.windows import TokenDataset as TokenDataset
    from lowtide.memory import MemoryBudget as MemoryBudget
    from lowtide.model.config import GPTConfig as GPTConfig
    from lowtide.model.export import export_model as export_model
    from lowtide.planning.plan import make_plan as make_plan
    from lowtide.tokenizer.tokenizer import Tokenizer as Tokenizer
    from lowtide.tokenizer.training import train_tokenizer as train_tokenizer
    from lowtide.training.evaluation import evaluate as evaluate
    from lowtide.training.loaders import GPTDataLoader as GPTDataLoader
    from lowtide.training.start import train as train
    from lowtide.training.trainable import GPT as GPT
    from lowtide.training.trainable import load_model as load_model
    from lowtide.training.trainer import Trainer as Trainer

__version__ = "0.1.0"

# The public names, and where each is loaded from when it is first used. To add one: a row here, and
# an import above for type checkers.
_HOMES = {
    "BatchLoader": "lowtide.loader.batches",
    "BudgetError": "lowtide.errors",
    "create_dataloaders": "lowtide.loader.tensors",
    "DataError": "lowtide.errors",
    "estimate_memory_usage": "lowtide.loader.streaming",
    "evaluate": "lowtide.training.evaluation",
    "export_model": "lowtide.model.export",
    "generate_text": "lowtide.generation.decoding",
    "GPT": "lowtide.training.trainable",
    "GPTConfig": "lowtide.model.config",
    "GPTDataLoader": "lowtide.training.loaders",
    "load_model": "lowtide.training.trainable",
    "LowtideError": "lowtide.errors",
    "make_plan": "lowtide.planning.plan",
    "MemoryBudget": "lowtide.memory",
    "Mixture": "lowtide.loader.mixtures",
    "prepare_dataset": "lowtide.dataset.preparation",
    "StreamingDataLoader": "lowtide.loader.streaming",
    "TokenDataset": "lowtide.loader.windows",
    "Tokenizer": "lowtide.tokenizer.tokenizer",
    "train": "lowtide.training.start",
    "train_tokenizer": "lowtide.tokenizer.training",
    "Trainer": "lowtide.training.trainer",
    "UsageError": "lowtide.errors",
}

__all__ = [*_HOMES, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'lowtide' has no attribute {name!r}")
    from lowtide.packages import naming_missing_packages

    with naming_missing_packages(f"lowtide.{name}"):
        value = getattr(importlib.import_module(home), name)
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
