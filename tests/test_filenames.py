"""Names of files are a promise: datasets, models and runs of other versions are found by them."""

from __future__ import annotations

from lowtide import filenames

NAMES = {
    "CHECKSUMS_NAME": "checksums.json",
    "CLASSIFIER_MODEL_NAME": "model.bin",
    "CLASSIFIER_NAME": "classifier.json",
    "CONFIG_NAME": "config.json",
    "GENERATION_CONFIG_NAME": "generation_config.json",
    "LEARNED_NAME": "training.json",
    "LOCK_NAME": ".lock",
    "MERGES_NAME": "merges.txt",
    "METADATA_NAME": "dataset_metadata.json",
    "METRICS_NAME": "metrics.jsonl",
    "PIECES_NAME": "tokenizer.model",
    "SETTINGS_NAME": "settings.json",
    "TEKKEN_NAME": "tekken.json",
    "TOKENIZER_CONFIG_NAME": "tokenizer_config.json",
    "TOKENIZER_NAME": "tokenizer.json",
    "VOCABULARY_NAME": "vocab.json",
    "WEIGHTS_INDEX_NAME": "model.safetensors.index.json",
    "WEIGHTS_NAME": "model.safetensors",
    "WORK_NAME": ".work",
}


def test_every_file_keeps_its_name() -> None:
    assert {name: getattr(filenames, name) for name in filenames.__all__} == NAMES
