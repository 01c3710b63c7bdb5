"""Train language models on any amount of text inside a memory budget you choose.

Every function takes the settings of its verb as keywords (`help(lowtide.train)` lists them, and so
do editors), or as one settings object, and returns the result of the verb. `progress=False` turns
progress output off.

From text to ids
    train_tokenizer     learn a BPE or character tokenizer          -> TrainedTokenizer
    train_classifier    train a classifier of text quality          -> TrainedClassifier
    prepare_dataset     text files to shuffled, checked shards      -> PrepareResult
    append_to_dataset   add new text to a finished dataset          -> AppendResult
    pretokenize_files   text files to .npy files of ids             -> list[PretokenizeResult]
    convert_dataset     import and export other programs' formats   -> ConvertResult
    verify_dataset      check every byte of a dataset               -> VerifyResult
    inspect             describe a dataset or a tokenizer           -> Inspection
    Tokenizer           load("gpt2"), encode, decode
    DatasetInfo         the contents of a dataset's folder

From ids to batches
    TokenDataset        windows of a dataset, a file, an array
    Mixture             several datasets, in proportions
    BatchLoader         shuffled batches as NumPy, resumable
    create_dataloaders  the same for torch
    StreamingDataLoader batches from text, tokenized on the fly; estimate_memory_usage

Models
    make_plan           estimate a run, find settings that fit      -> Plan
    train               train a model, or resume it                 -> TrainResult
    Trainer             the same with objects: your network, your data, your callbacks
    GPT, GPTConfig, GPTDataLoader, load_model
    StepEvent, EvaluationEvent, CheckpointEvent: arguments of Trainer's callbacks
    wrap_module         a torch module of your own for Trainer      -> WrappedModule
    build_optimizers    AdamW, 8-bit AdamW and Muon for any torch module
    learning_rate_factor  warm-up and decay: the share of the peak at a step
    evaluate            loss, bits per byte, accuracy               -> EvalResult, TaskResult
    generate            text from a run, streamed                   -> Iterator[str]
    generate_text       text from a model in memory                 -> str
    export_model        for transformers or llama.cpp               -> Path

Tools
    report              a page about a run, a dataset, a tokenizer  -> ReportResult
    compare_memory      peak memory of other programs and lowtide   -> list[Pair]
    run_demo            the pipeline on text every machine has      -> list[StageResult]
    shell_completion    a script for bash, zsh or fish              -> str
    MemoryBudget        a budget, and the shares taken from it

Errors: LowtideError is the parent of BudgetError, DataError and UsageError.

Settings, for calls with one object: AppendSettings, ClassifierSettings, CompareSettings,
CompletionSettings, ConvertSettings, DemoSettings, EvaluateSettings, ExportSettings,
GenerateSettings, InspectSettings, PlanSettings, PrepareSettings, PretokenizeSettings,
ReportSettings, TokenizerTrainingSettings, TrainSettings, VerifySettings.

Each name is imported when it is first used: `import lowtide` is fast, and torch is imported only
if it is needed.
"""

# Type checkers read __init__.pyi, which `make signatures` writes.

from __future__ import annotations

import importlib
import sys
from typing import Any

__version__ = "0.1.0"

# The public names, and where each is loaded from when it is first used. To add one: a row here, its
# line in the contents above, and `make signatures` for type checkers.
_HOMES = {
    "append_to_dataset": "lowtide.dataset.appending",
    "AppendResult": "lowtide.dataset.appendable",
    "AppendSettings": "lowtide.dataset.settings",
    "BatchLoader": "lowtide.loader.batches",
    "BudgetError": "lowtide.errors",
    "build_optimizers": "lowtide.training.optimizers",
    "CheckpointEvent": "lowtide.training.callbacks",
    "ClassifierSettings": "lowtide.classifier.settings",
    "compare_memory": "lowtide.planning.comparison",
    "CompareSettings": "lowtide.planning.comparison",
    "CompletionSettings": "lowtide.completion",
    "convert_dataset": "lowtide.dataset.conversion",
    "ConvertResult": "lowtide.dataset.conversion",
    "ConvertSettings": "lowtide.dataset.settings",
    "create_dataloaders": "lowtide.loader.torchloaders",
    "DataError": "lowtide.errors",
    "DatasetInfo": "lowtide.dataset.layout",
    "DemoSettings": "lowtide.demo.stages",
    "estimate_memory_usage": "lowtide.loader.footprint",
    "EvalResult": "lowtide.training.results",
    "evaluate": "lowtide.training.evaluating",
    "EvaluationEvent": "lowtide.training.callbacks",
    "EvaluateSettings": "lowtide.training.settings",
    "export_model": "lowtide.model.export",
    "ExportSettings": "lowtide.model.export",
    "generate": "lowtide.generation.generating",
    "generate_text": "lowtide.generation.decoding",
    "GenerateSettings": "lowtide.generation.settings",
    "GPT": "lowtide.training.trainable",
    "GPTConfig": "lowtide.model.config",
    "GPTDataLoader": "lowtide.training.loaders",
    "inspect": "lowtide.loader.inspection",
    "Inspection": "lowtide.loader.inspection",
    "InspectSettings": "lowtide.dataset.settings",
    "learning_rate_factor": "lowtide.training.schedule",
    "load_model": "lowtide.training.trainable",
    "LowtideError": "lowtide.errors",
    "make_plan": "lowtide.planning.plan",
    "MemoryBudget": "lowtide.memory",
    "Mixture": "lowtide.loader.mixtures",
    "Pair": "lowtide.planning.comparison",
    "Plan": "lowtide.planning.plan",
    "PlanSettings": "lowtide.planning.settings",
    "prepare_dataset": "lowtide.dataset.preparation",
    "PrepareResult": "lowtide.dataset.existing",
    "PrepareSettings": "lowtide.dataset.settings",
    "pretokenize_files": "lowtide.dataset.pretokenization",
    "PretokenizeResult": "lowtide.dataset.pretokenization",
    "PretokenizeSettings": "lowtide.dataset.settings",
    "report": "lowtide.reporting.reports",
    "ReportResult": "lowtide.reporting.reports",
    "ReportSettings": "lowtide.reporting.settings",
    "run_demo": "lowtide.demo.running",
    "shell_completion": "lowtide.completion",
    "StageResult": "lowtide.demo.running",
    "StepEvent": "lowtide.training.callbacks",
    "StreamingDataLoader": "lowtide.loader.streaming",
    "TaskResult": "lowtide.training.likelihood",
    "TokenDataset": "lowtide.loader.windows",
    "Tokenizer": "lowtide.tokenizer.tokenizer",
    "TokenizerTrainingSettings": "lowtide.tokenizer.settings",
    "train": "lowtide.training.start",
    "train_classifier": "lowtide.classifier.training",
    "train_tokenizer": "lowtide.tokenizer.training",
    "TrainedClassifier": "lowtide.classifier.training",
    "TrainedTokenizer": "lowtide.tokenizer.trained",
    "Trainer": "lowtide.training.trainer",
    "TrainResult": "lowtide.training.results",
    "TrainSettings": "lowtide.training.settings",
    "UsageError": "lowtide.errors",
    "verify_dataset": "lowtide.dataset.verification",
    "VerifyResult": "lowtide.dataset.verification",
    "VerifySettings": "lowtide.dataset.settings",
    "wrap_module": "lowtide.training.modules",
    "WrappedModule": "lowtide.training.modules",
}

__all__ = [*_HOMES, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'lowtide' has no attribute {name!r}")
    from lowtide.packages import naming_missing_packages

    with naming_missing_packages(f"lowtide.{name}"):
        value = getattr(importlib.import_module(home), name)
    if not name.endswith(("Error", "Result", "Settings")):
        from lowtide.signatures import describe

        describe(value)
    globals()[name] = value  # cached for later accesses
    return value


def __dir__() -> list[str]:
    # pydoc imports every listed name to sort and print it: help(lowtide) would import torch, and
    # print all signatures after the contents above.
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_globals.get("__name__") == "inspect":
        frame = frame.f_back
    if frame is not None and frame.f_globals.get("__name__") == "pydoc":
        return []
    return sorted(__all__)
