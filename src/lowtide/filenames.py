"""The names of files that more than one module of lowtide writes or looks for."""

from __future__ import annotations

__all__ = [
    "CHECKSUMS_NAME",
    "CLASSIFIER_MODEL_NAME",
    "CLASSIFIER_NAME",
    "CONFIG_NAME",
    "GENERATION_CONFIG_NAME",
    "LEARNED_NAME",
    "LOCK_NAME",
    "MERGES_NAME",
    "METADATA_NAME",
    "METRICS_NAME",
    "PIECES_NAME",
    "SETTINGS_NAME",
    "TEKKEN_NAME",
    "TOKENIZER_CONFIG_NAME",
    "TOKENIZER_NAME",
    "VOCABULARY_NAME",
    "WEIGHTS_INDEX_NAME",
    "WEIGHTS_NAME",
    "WORK_NAME",
]

# In every output folder.
WORK_NAME = ".work"  # unfinished work, which the same command resumes
LOCK_NAME = ".lock"
METRICS_NAME = "metrics.jsonl"

METADATA_NAME = "dataset_metadata.json"  # of a dataset
CLASSIFIER_NAME = "classifier.json"  # settings and measurements of a classifier
CLASSIFIER_MODEL_NAME = "model.bin"

# Of a tokenizer: ours and Hugging Face's file, GPT-2's two, and how ours was learned.
TOKENIZER_NAME = "tokenizer.json"
TEKKEN_NAME = "tekken.json"
PIECES_NAME = "tokenizer.model"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
VOCABULARY_NAME = "vocab.json"
MERGES_NAME = "merges.txt"
LEARNED_NAME = "training.json"

# Of a run, and of a model in Hugging Face's layout.
CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"
WEIGHTS_NAME = "model.safetensors"
WEIGHTS_INDEX_NAME = "model.safetensors.index.json"  # of weights in several files
SETTINGS_NAME = "settings.json"
CHECKSUMS_NAME = "checksums.json"
