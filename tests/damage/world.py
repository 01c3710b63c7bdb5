"""A small world with one of everything that is read: made once, copied for every blow.

Out:     WORLD_FILES: what to damage, and the commands that read it
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from lowtide import cli

sys.path.insert(0, str(Path(__file__).parents[1] / "corpus"))
from fasttext_files import TinyModel

__all__ = ["BASES", "TARGETS", "Target", "make_world", "restore_world", "run_command"]

_WORDS = "the tide is low and the water leaves the sand, says document number"


@dataclass(frozen=True)
class Target:
    """A file of the world, and commands that read it.

    `strict`: any change must be refused by what verifies, converts or trains on it.
    """

    path: str
    commands: tuple[tuple[str, ...], ...]
    strict: bool = False
    again: bool = False
    """The commands made it: where they end well, it must be as it was."""
    shards: str = ""
    """A dataset that the commands finish: where they end well, it has the tokens of `data`."""
    ids: str = ""
    """A file that the commands may make: where they end well, it is `a.npy` or not there."""


def run_command(words: list[str]) -> tuple[int, str, str]:
    """Run a command in this process; its exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(words)
    return code, out.getvalue(), err.getvalue()


_TRAIN = "--target-params 10000 --seq-len 16 --batch-size 2 --max-iters 2 --memory 4GiB"
_MAKE = [
    "train-tokenizer --input a.txt --vocab-size 300 --out-dir tok --processes 1",
    "prepare --input-files a.txt --tokenization tok --out-dir data --tokens-per-shard 2000 "
    "--processes 1",
    "prepare --input-files a.txt --tokenization char --out-dir chars --processes 1",
    "pretokenize a.txt --tokenization tok --processes 1",
    "train-classifier --good good.txt --other a.jsonl --out-dir quality --buckets 1000 "
    "--epochs 2 --processes 1",
    "prepare --input-files a.txt good.txt --tokenization tok --out-dir judged --near-dedup 0.8 "
    "--decontaminate items.jsonl --score score.ftz --keep-top 0.9 --processes 1",
    "convert data llmc --to llmc",
    "convert data megatron --to megatron",
    "convert data nanogpt --to nanogpt",
    f"train --dataset-dir data --model-name run {_TRAIN}",
    "export --model-name run --out-dir hf",
    "export --model-name run --out-dir gguf --to gguf",
]


def make_world(folder: Path, *, with_model: bool) -> None:
    """Make everything in `folder`; without a model it takes a second, and needs no torch."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    lines = [f"{_WORDS} {number}\n" for number in range(400)]
    (folder / "a.txt").write_text("<|endoftext|>".join(lines))
    rows = "".join(json.dumps({"text": line}) + "\n" for line in lines)
    (folder / "a.jsonl").write_text(rows)
    pq.write_table(pa.table({"text": lines}), folder / "a.parquet")
    (folder / "a.txt.gz").write_bytes(gzip.compress("".join(lines).encode()))
    (folder / "a.jsonl.xz").write_bytes(lzma.compress(rows.encode()))
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    (folder / "a.txt.zst").write_bytes(compressor.compress("".join(lines).encode()))
    TinyModel(["the", "tide", "low"], ["en", "de"]).write(folder / "language.bin")
    TinyModel(
        ["the", "tide"], ["hq", "lq"], bucket=40, minn=2, maxn=3, quantized=True, loss="hs"
    ).write(folder / "score.ftz")
    _write_tasks(folder / "tasks.jsonl")
    good = [
        f"good words of item {number} have a meaning of {number * 7} waves" for number in range(60)
    ]
    (folder / "good.txt").write_text("<|endoftext|>".join(good))
    items = [{"question": f"{_WORDS} {number}"} for number in range(3)]
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (folder / "tokens.txt").write_text("lowtide\nsandbank\n")
    (folder / "step.py").write_text("def keep(text):\n    return text if len(text) % 3 else None\n")
    _write_package_tokenizer(folder / "unigram.json")
    (folder / "flags.json").write_text(json.dumps({"vocab_size": 290, "input": ["a.txt"]}))
    with contextlib.chdir(folder):
        for line in _MAKE:
            if with_model or line.split()[0] not in ("train", "export"):
                code, _, err = run_command(line.split())
                assert code == 0, err
        _leave_unfinished()
        (folder / "bpe").mkdir()
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(folder / "tok" / name, folder / "bpe" / name)
        from lowtide.tokenizer import Tokenizer

        Tokenizer.load("tok").save_tiktoken("gpt2.tiktoken")


_GO_ON = "prepare --input-files a.txt --tokenization tok --processes 1 --out-dir"
_UNFINISHED = {
    f"{_GO_ON} stopped": "lowtide.dataset.threaded.plan_shards",
    f"{_GO_ON} shared --engine files": "lowtide.dataset.staged.gathering.GatherStage.run",
}
"""Commands, and the function at which they are interrupted."""


def _leave_unfinished() -> None:
    """Work that an interrupt left; the same command goes on with it."""
    for line, function in _UNFINISHED.items():
        with mock.patch(function, side_effect=KeyboardInterrupt):
            code, _, err = run_command(line.split())
            assert code == 130, err


def _write_tasks(path: Path) -> None:
    """Questions in the shapes that `evaluate --tasks` knows."""
    rows = [
        {"context": "the tide is", "choices": ["low", "high"], "answer": 0},
        {"text": "the water leaves the sand"},
        {"goal": "swim", "sol1": "in water", "sol2": "in sand", "label": 0},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_package_tokenizer(path: Path) -> None:
    """A tokenizer that only the package tokenizers runs."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    pieces = [
        ("<unk>", 0.0),
        *((letter, -3.0) for letter in "▁abcdefghijklmnopqrstuvwxyz,0123456789"),
    ]
    tokenizer = Tokenizer(models.Unigram([*pieces, ("▁the", -1.0)], 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(path))


def restore_world(world: str | Path, target: str | Path) -> None:
    """Make a copy of the world, or a copy in which something happened whole again.

    By links: nobody writes into a file but the metrics, and damage makes a new one. So what is
    still the same file is left alone, and a copy is whole again in a tenth of the time.
    """
    Path(target).mkdir(exist_ok=True)
    with os.scandir(world) as entries:
        wanted = {entry.name: entry for entry in entries}
    with os.scandir(target) as entries:
        found = list(entries)
    for entry in found:
        source = wanted.get(entry.name)
        if entry.is_dir(follow_symlinks=False):
            if source is None or not source.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
        elif source is not None and source.inode() == entry.inode():
            del wanted[entry.name]
        else:
            Path(entry.path).unlink()
    for name, source in wanted.items():
        place = Path(target, name)
        if source.is_dir(follow_symlinks=False):
            restore_world(source.path, place)
        elif source.is_symlink() or name.endswith(".jsonl"):
            shutil.copyfile(source.path, place, follow_symlinks=False)
        else:
            os.link(source.path, place)


def _words(*lines: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(line.split()) for line in lines)


def _reading(path: str) -> tuple[tuple[str, ...], ...]:
    return _words(
        f"prepare --input-files {path} --tokenization tok --out-dir new --processes 1",
        f"train-tokenizer --input {path} --vocab-size 280 --out-dir new2 --processes 1",
        f"pretokenize {path} --tokenization tok --out-path new.npy --processes 1",
    )


_TOKENIZER = (
    "inspect {} --text low",
    "pretokenize a.txt --tokenization {} --out-path new.npy --processes 1",
    "report {} --out new.html",
)
_DATASET = (
    "verify data --processes 1",
    "inspect data",
    "inspect data --test-loading",
    "report data --out new.html",
    "append data --input-files a.jsonl --processes 1",
    "convert data new --to nanogpt",
)
_MODEL = (
    "generate --model-name run --prompt low --max-new-tokens 3",
    "export --model-name run --out-dir new",
    f"train --dataset-dir data --model-name run {_TRAIN.replace('iters 2', 'iters 3')}",
    "report run --out new.html",
)
_JUDGED = "prepare --input-files a.txt --tokenization tok --out-dir new --processes 1 {}"
_CLASSIFIER, _RANKED = (line for line in _MAKE if line.startswith("train-cl") or "judged" in line)
_PUBLISHED = (
    "generate --model-name hf --prompt low --max-new-tokens 3",
    "export --model-name hf --out-dir new --to gguf --type q4_0",
    "export --model-name hf --out-dir new",
    "evaluate --model-name hf --tasks tasks.jsonl --batch-size 2",
)
_FROM_BASE = f"train --dataset-dir data --model-name b --init-from-model hf {_TRAIN}"


def _for(names: tuple[str, ...], source: str) -> tuple[tuple[str, ...], ...]:
    return _words(*(name.format(source) for name in names))


TEXT_TARGETS = [
    Target("a.txt", _reading("a.txt")),
    Target("a.jsonl", _reading("a.jsonl")),
    Target("a.parquet", _reading("a.parquet")),
    Target("a.txt.gz", _reading("a.txt.gz"), strict=True),
    Target("a.jsonl.xz", _reading("a.jsonl.xz"), strict=True),
    Target("a.txt.zst", _reading("a.txt.zst"), strict=True),
    Target("flags.json", _words("train-tokenizer --config-file flags.json --out-dir new")),
    Target("tok/tokenizer.json", _for(_TOKENIZER, "tok"), ids="new.npy"),
    Target("tok/training.json", _words("report tok --out new.html", _MAKE[0])),
    Target("tok/metrics.jsonl", _words("report tok --out new.html", _MAKE[0])),
    Target("bpe/vocab.json", _for(_TOKENIZER, "bpe")),
    Target("bpe/merges.txt", _for(_TOKENIZER, "bpe")),
    Target("gpt2.tiktoken", _for(_TOKENIZER, "gpt2.tiktoken")),
    Target("chars/tokenizer.json", _for(_TOKENIZER, "chars/tokenizer.json")),
    Target("data/dataset_metadata.json", _for(_DATASET, "data")),
    Target("data/tokenizer.json", _for(_DATASET, "data")),
    Target("data/metrics.jsonl", _words("report data --out new.html", "verify data")),
    Target("data/train/shard_00000*.bin", _for(_DATASET, "data"), strict=True),
    Target("data/train/shard_00000*.docs", _for(_DATASET, "data"), strict=True),
    Target(
        "a.npy",
        _words(
            "inspect a.npy",
            "inspect a.npy --test-loading",
            "convert a.npy new --from npy --tokenizer tok",
        ),
        strict=True,
    ),
    Target(
        "llmc/train_000000.bin",
        _words("convert llmc new --from llmc --tokenizer tok", "convert llmc new --tokenizer tok"),
    ),
    Target("megatron/train.bin", _words("convert megatron new --from megatron --tokenizer tok")),
    Target("megatron/train.idx", _words("convert megatron new --from megatron --tokenizer tok")),
    Target("nanogpt/train.bin", _words("convert nanogpt new --from nanogpt --tokenizer tok")),
    Target("nanogpt/*.json", _words("convert data nanogpt --to nanogpt")),
    *(
        Target(pattern, _words(line), shards=folder.partition(".")[0].rstrip("/"))
        for line, folder in zip(_UNFINISHED, ("stopped/.work", "shared.work"), strict=True)
        for pattern in (f"{folder}/*.json*", f"{folder}/*/*")
    ),
    Target("nanogpt/*.bin", _words("convert data nanogpt --to nanogpt"), again=True),
    Target("megatron/*.[bi][id][nx]", _words("convert data megatron --to megatron"), again=True),
    Target("a.npy", _words("pretokenize a.txt --tokenization tok --processes 1"), again=True),
    Target("tok/vocab.json", _words(_MAKE[0]), again=True),
    Target("tok/merges.txt", _words(_MAKE[0]), again=True),
    Target("quality/model.bin", _words(_CLASSIFIER), again=True),
    Target("quality/model.bin", _words(_JUDGED.format("--score quality/model.bin"))),
    Target("quality/classifier.json", _words(_CLASSIFIER)),
    Target("items.jsonl", _words(_JUDGED.format("--decontaminate items.jsonl"))),
    Target("judged/*.jsonl", _words("verify judged --processes 1", _RANKED)),
    Target("judged/dataset_metadata.json", _words("verify judged --processes 1", _RANKED)),
    Target("language.bin", _words(_JUDGED.format("--language-model language.bin --languages en"))),
    Target("score.ftz", _words(_JUDGED.format("--score score.ftz"))),
    Target("unigram.json", _for(_TOKENIZER, "unigram.json")),
]
_FROM_DATA = f"train --dataset-dir data --model-name b {_TRAIN}"
_FROM_IDS = f"train --train-data-path a.npy --model-name b {_TRAIN}"
MODEL_TARGETS = [
    Target(
        "data/[tv]*/*.*[ns]",
        _words(_FROM_DATA, "evaluate --model-name run --dataset-dir data --split all"),
        strict=True,
    ),
    Target(
        "a.npy",
        _words(_FROM_IDS, "evaluate --model-name run --dataset-dir a.npy --split all"),
        strict=True,
    ),
    Target("checkpoints/run/config.json", _for(_MODEL, "run")),
    Target("checkpoints/run/settings.json", _for(_MODEL, "run")),
    Target("checkpoints/run/tokenizer.json", _for(_MODEL, "run")),
    Target("checkpoints/run/metrics.jsonl", _for(_MODEL, "run")),
    Target("checkpoints/run/model.safetensors", _for(_MODEL, "run")),
    Target("checkpoints/run/checksums.json", _for(_MODEL, "run")),
    Target("checkpoints/run/steps/*/*.json", _for(_MODEL, "run")),
    Target("checkpoints/run/steps/*/*.safetensors", _for(_MODEL, "run")),
    *(
        Target(f"hf/{name}", _words(_FROM_BASE, *_PUBLISHED))
        for name in ("config.json", "model.safetensors", "tokenizer.json", "*_config.json")
    ),
    Target("tasks.jsonl", _words("evaluate --model-name run --tasks tasks.jsonl --batch-size 2")),
    Target("gguf/*.json", _words("export --model-name run --out-dir gguf --to gguf")),
    Target("gguf/*.gguf", _words("export --model-name run --out-dir gguf --to gguf"), again=True),
    Target("hf/[cgmt][oe]*", _words("export --model-name run --out-dir hf"), again=True),
    Target("hf/export.json", _words("export --model-name run --out-dir hf")),
    Target("tokens.txt", _words("export --model-name run --out-dir new --add-tokens tokens.txt")),
    Target("step.py", _words(_JUDGED.format("--step step.py:keep"))),
    Target(
        "checkpoints/run/steps/*/*",
        _words(
            f"train --dataset-dir data --model-name run --offload packed "
            f"{_TRAIN.replace('iters 2', 'iters 3')}"
        ),
    ),
]
TARGETS = {False: TEXT_TARGETS, True: [*TEXT_TARGETS, *MODEL_TARGETS]}

# A command of each verb that works in the world: flags with nonsense are added to it.
BASES = {
    "train-tokenizer": "--input a.txt --vocab-size 280 --out-dir new --processes 1",
    "prepare": "--input-files a.txt --tokenization tok --out-dir new --processes 1 --rules c4 "
    "--mask email --language-model language.bin --languages en --score score.ftz "
    "--decontaminate items.jsonl --near-dedup 0.8",
    "train-classifier": "--good good.txt --other a.jsonl --out-dir new --buckets 1000 --epochs 1 "
    "--processes 1",
    "pretokenize": "a.txt --tokenization tok --out-path new.npy --processes 1",
    "append": "data --input-files a.jsonl --processes 1",
    "verify": "data --processes 1",
    "inspect": "data",
    "convert": "data new --to nanogpt",
    "report": "data --out new.html",
    "plan": "--input-files a.txt --size 1M --no-measure",
    "train": f"--dataset-dir data --model-name new {_TRAIN}",
    "generate": "--model-name run --prompt low --max-new-tokens 3",
    "evaluate": "--model-name run --dataset-dir data --tasks tasks.jsonl",
    "export": "--model-name run --out-dir new",
}
