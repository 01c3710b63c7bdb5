"""The commands that torture.py kills: every writing verb, and each way of working that it has."""

from __future__ import annotations

import dataclasses

__all__ = ["CASES", "TRAIN", "Case"]

TRAIN = "--target-params 20000 --seq-len 32 --batch-size 4 --max-iters 12 --save-interval 3"
TRAIN += " --eval-interval 6 --memory 4GiB"
_PREPARE = "prepare --input-files text --tokenization tok --out-dir out --tokens-per-shard 60000"
_RANKED = "--score score.bin --keep-top 0.4"


@dataclasses.dataclass(frozen=True)
class Case:
    """A verb's command, in a folder that has what `needs` names; `out` is what it writes."""

    name: str
    command: str
    out: str
    needs: tuple[str, ...] = ("text",)
    varies: bool = True
    """Takes --memory and --processes."""
    workers: int = 1
    """Processes that work on it at once."""


CASES = [
    Case("train-tokenizer", "train-tokenizer --input text --vocab-size 600 --out-dir out", "out"),
    Case("train-tokenizer char", "train-tokenizer --input text --kind char --out-dir out", "out"),
    Case(
        "prepare",
        _PREPARE,
        "out",
        ("text", "tok"),
    ),
    Case(
        "prepare shared",
        f"{_PREPARE} --engine files --near-dedup 0.7",
        "out",
        ("text", "tok"),
        workers=3,
    ),
    Case(
        "prepare near copies",
        f"{_PREPARE} --near-dedup 0.7",
        "out",
        ("text", "tok"),
    ),
    Case(
        "train-tokenizer shared",
        "train-tokenizer --input text --vocab-size 600 --out-dir out --engine files",
        "out",
        workers=3,
    ),
    Case(
        "prepare judged",
        f"{_PREPARE} --rules refinedweb --mask email,phone --language-model language.bin "
        f"--languages x --min-language-score 0.4 {_RANKED}",
        "out",
        ("text", "tok", "language.bin", "score.bin"),
    ),
    Case(
        "train-classifier",
        "train-classifier --good text/a.txt --other more.jsonl --out-dir out --buckets 5000 "
        "--epochs 20",
        "out",
        ("text", "more.jsonl"),
    ),
    Case("prepare char", "prepare --input-files text --tokenization char --out-dir out", "out"),
    Case(
        "append",
        "append data --input-files more.jsonl",
        "data",
        ("data", "more.jsonl"),
    ),
    Case(
        "append shared",
        "append data --input-files more.jsonl --engine files",
        "data",
        ("data", "more.jsonl"),
        workers=3,
    ),
    Case(
        "append near copies",
        "append near --input-files more.jsonl",
        "near",
        ("near", "more.jsonl", "items.jsonl"),
    ),
    Case(
        "pretokenize",
        "pretokenize text/a.txt --tokenization tok --out-path out.npy",
        "out.npy",
        ("text", "tok"),
    ),
    Case(
        "pretokenize several",
        "pretokenize text/a.txt text/b.txt text/c.jsonl --tokenization char",
        "text",
    ),
    Case("convert nanogpt", "convert data out --to nanogpt", "out", ("data",), varies=False),
    Case("convert llmc", "convert data out --to llmc", "out", ("data",), varies=False),
    Case("convert megatron", "convert data out --to megatron", "out", ("data",), varies=False),
    Case(
        "convert lowtide",
        "convert nanogpt out --from nanogpt --tokenizer tok --tokens-per-shard 60000",
        "out",
        ("nanogpt", "tok"),
        varies=False,
    ),
    Case(
        "train",
        f"train --dataset-dir data --model-name run {TRAIN}",
        "checkpoints/run",
        ("data",),
        varies=False,
    ),
    Case(
        "train jax",
        f"train --dataset-dir data --model-name run --backend jax {TRAIN}",
        "checkpoints/run",
        ("data",),
        varies=False,
    ),
    Case(
        "train on a base",
        "train --dataset-dir data --model-name run --init-from-model hf --seq-len 32 "
        "--batch-size 4 --max-iters 12 --save-interval 3 --eval-interval 6 --memory 4GiB",
        "checkpoints/run",
        ("data", "hf"),
        varies=False,
    ),
    Case(
        "export",
        "export --model-name base --out-dir out",
        "out",
        ("checkpoints/base",),
        varies=False,
    ),
    Case(
        "export gguf",
        "export --model-name base --out-dir out --to gguf --type q8_0",
        "out",
        ("checkpoints/base",),
        varies=False,
    ),
    Case(
        "prepare decontaminated",
        f"{_PREPARE} --decontaminate items.jsonl --decontaminate-by cut --near-dedup 0.7",
        "out",
        ("text", "tok", "items.jsonl"),
    ),
    Case(
        "prepare step",
        f"{_PREPARE} --step step.py:keep --decontaminate items.jsonl",
        "out",
        ("text", "tok", "step.py", "items.jsonl"),
    ),
    Case(
        "prepare all shared",
        f"{_PREPARE} --engine files {_RANKED} --decontaminate items.jsonl --step step.py:keep",
        "out",
        ("text", "tok", "score.bin", "step.py", "items.jsonl"),
        workers=2,
    ),
    Case(
        "prepare from a store",
        "prepare --input-files s3://bucket/text --tokenization tok --out-dir out "
        "--tokens-per-shard 60000",
        "out",
        ("tok",),
    ),
    Case(
        "train from a store",
        f"train --dataset-dir s3://bucket/data --cache-dir cache --model-name run {TRAIN}",
        "checkpoints/run",
        (),
        varies=False,
    ),
    Case(
        "train offload",
        f"train --dataset-dir data --model-name run --offload disk {TRAIN}",
        "checkpoints/run",
        ("data",),
        varies=False,
    ),
    Case(
        "train on text",
        f"train --input-file text/b.txt --model-name run {TRAIN}",
        "checkpoints/run",
        varies=False,
    ),
    Case(
        "train on new tokens",
        "train --input-file text/b.txt --init-from-model base --add-tokens tokens.txt "
        "--model-name run --seq-len 32 --batch-size 4 --max-iters 12 --save-interval 3 "
        "--eval-interval 6 --memory 4GiB",
        "checkpoints/run",
        ("text", "tokens.txt", "checkpoints/base"),
        varies=False,
    ),
    Case(
        "train on a stream",
        f"train --dataset-id text --model-name run {TRAIN}",
        "checkpoints/run",
        varies=False,
    ),
    Case(
        "train offload muon",
        f"train --dataset-dir data --model-name run --offload packed --optimizer muon {TRAIN}",
        "checkpoints/run",
        ("data",),
        varies=False,
    ),
    Case(
        "export new tokens",
        "export --model-name base --out-dir out --add-tokens tokens.txt",
        "out",
        ("checkpoints/base", "tokens.txt"),
        varies=False,
    ),
]
