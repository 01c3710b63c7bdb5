"""Train language models on any amount of text inside a memory budget you choose.

Every public name is here; each is loaded when it is first used, so `import lowtide` is quick and
torch is imported only by what needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide.dataset.preparation import prepare_dataset
    from lowtide.errors import BudgetError, DataError, LowtideError, UsageError
    from lowtide.generation.decoding import generate_text
    from lowtide.loader.batches import BatchLoader
    from lowtide.loader.mixtures import Mixture
    from lowtide.loader.streaming import StreamingDataLoader, estimate_memory_usage
    from lowtide.loader.tensors import create_dataloaders
    from lowtide.loader.windows import TokenDataset
    from lowtide.memory import MemoryBudget
    from lowtide.model.config import GPTConfig
    from lowtide.model.export import export_model
    from lowtide.model.gpt import GPT
    from lowtide.model.weights import load_model
    from lowtide.planning.plan import make_plan
    from lowtide.tokenizer.tokenizer import Tokenizer
    from lowtide.tokenizer.training import train_tokenizer
    from lowtide.training.evaluation import evaluate
    from lowtide.training.loaders import GPTDataLoader
    from lowtide.training.start import train
    from lowtide.training.trainer import Trainer

__version__ = "0.1.0"

# To add a public name: a row here, an import above for type checkers, and its place in __all__.
_HOMES = {
    "BatchLoader": "lowtide.loader.batches",
    "BudgetError": "lowtide.errors",
    "DataError": "lowtide.errors",
    "GPT": "lowtide.model.gpt",
    "GPTConfig": "lowtide.model.config",
    "GPTDataLoader": "lowtide.training.loaders",
    "LowtideError": "lowtide.errors",
    "MemoryBudget": "lowtide.memory",
    "Mixture": "lowtide.loader.mixtures",
    "StreamingDataLoader": "lowtide.loader.streaming",
    "TokenDataset": "lowtide.loader.windows",
    "Tokenizer": "lowtide.tokenizer.tokenizer",
    "Trainer": "lowtide.training.trainer",
    "UsageError": "lowtide.errors",
    "create_dataloaders": "lowtide.loader.tensors",
    "estimate_memory_usage": "lowtide.loader.streaming",
    "evaluate": "lowtide.training.evaluation",
    "export_model": "lowtide.model.export",
    "generate_text": "lowtide.generation.decoding",
    "load_model": "lowtide.model.weights",
    "make_plan": "lowtide.planning.plan",
    "train": "lowtide.training.start",
    "train_tokenizer": "lowtide.tokenizer.training",
    "prepare_dataset": "lowtide.dataset.preparation",
}

__all__ = [
    "GPT",
    "BatchLoader",
    "BudgetError",
    "DataError",
    "GPTConfig",
    "GPTDataLoader",
    "LowtideError",
    "MemoryBudget",
    "Mixture",
    "StreamingDataLoader",
    "TokenDataset",
    "Tokenizer",
    "Trainer",
    "UsageError",
    "__version__",
    "create_dataloaders",
    "estimate_memory_usage",
    "evaluate",
    "export_model",
    "generate_text",
    "load_model",
    "make_plan",
    "prepare_dataset",
    "train",
    "train_tokenizer",
]


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
    return __all__
