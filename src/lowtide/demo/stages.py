"""The stages of the demo: the regular commands, as a user would type them in its folder.

In:      DemoSettings, the text
Out:     Stages; commands.sh
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from lowtide.files import write_bytes
from lowtide.flags import settings_as_flags
from lowtide.quickclasses import dataclass

__all__ = ["DemoSettings", "Stage", "plan_stages", "resume_command", "write_commands"]

_SEQUENCE_LENGTH = 128
_BATCH_SIZE = 16
_MODEL_FLAGS = {"--num-layers": 4, "--width": 128, "--num-heads": 4}
_NEW_TOKENS = 160


@dataclass(frozen=True)
class DemoSettings:
    """The input and the output folder of the demo."""

    text: Path | None = None
    """Your own text file (txt, jsonl or parquet); default: the source files of Python's standard
    library."""
    out_dir: Path = Path("demo")
    """Folder for everything the demo makes."""
    memory: str = "1GiB"
    """Memory budget of each stage."""
    vocab_size: int = 2048
    """Vocabulary size of the tokenizer."""
    max_iters: int = 400
    """Training steps."""
    prompt: str | None = None
    """Prompt of the generated text."""


@dataclass(frozen=True)
class Stage:
    """One command of the demo; its throughput is `amount` of `unit` per second."""

    verb: str
    flags: Mapping[str, object]
    """Flags and their values; None for a flag without a value."""
    amount: float
    unit: str
    metrics_dir: str | None
    """The folder of the command's metrics.jsonl."""

    @property
    def words(self) -> list[str]:
        words = [self.verb]
        for flag, value in self.flags.items():
            words += [flag] if value is None else [flag, str(value)]
        return words

    @property
    def command(self) -> str:
        return shlex.join(["lowtide", *self.words])

    @property
    def result(self) -> dict[str, str]:
        """The flags that decide the result; the memory budget does not."""
        return {flag: str(value) for flag, value in self.flags.items() if flag != "--memory"}


def plan_stages(
    settings: DemoSettings,
    text_path: Path,
    *,
    model_flags: Mapping[str, int] = _MODEL_FLAGS,
) -> list[Stage]:
    """Return the stages as the commands a user would type inside the demo's folder."""
    text_bytes = text_path.stat().st_size
    text = text_path.relative_to(settings.out_dir) if settings.text is None else text_path
    memory = {"--memory": settings.memory}
    tokenizer_flags = {"--input": text, "--vocab-size": settings.vocab_size}
    # Code is not prose: its whitespace is significant, and many lines are repeated.
    as_it_is = {"--no-normalize": None, "--no-filter": None, "--no-dedup": None}
    prepare_flags = {"--input-files": text, "--tokenization": "tokenizer", **as_it_is}
    num_steps = settings.max_iters
    train_flags = {
        "--dataset-dir": "data",
        "--model-name": "demo",
        **model_flags,
        "--seq-len": _SEQUENCE_LENGTH,
        "--batch-size": _BATCH_SIZE,
        "--max-iters": num_steps,
        "--eval-interval": max(1, num_steps // 4),
        "--eval-iters": 10,
        "--save-interval": max(1, num_steps // 8),
    }
    generate_flags = {
        "--model-name": "demo",
        "--prompt": settings.prompt or ("def __init__(self" if settings.text is None else "The"),
        "--max-new-tokens": _NEW_TOKENS,
        "--seed": 1,
    }
    return [
        Stage(
            "train-tokenizer",
            {**tokenizer_flags, "--out-dir": "tokenizer", **memory},
            text_bytes,
            "B",
            "tokenizer",
        ),
        Stage("prepare", {**prepare_flags, "--out-dir": "data", **memory}, text_bytes, "B", "data"),
        Stage(
            "train",
            {**train_flags, **memory},
            num_steps * _BATCH_SIZE * _SEQUENCE_LENGTH,
            "tokens",
            "checkpoints/demo",
        ),
        Stage("generate", generate_flags, _NEW_TOKENS, "tokens", None),
    ]


def write_commands(path: Path, settings: DemoSettings, stages: list[Stage]) -> None:
    where = "text/python.jsonl: one document per source file" if settings.text is None else "yours"
    lines = [
        "#!/bin/sh",
        "# The commands `lowtide demo` ran, in this folder. What is whole is not made again:",
        "# remove an output folder, or name another one, to see its stage work.",
        f"# The text is {where}.",
        "set -e",
        'cd "$(dirname "$0")"',
        *(stage.command for stage in stages),
    ]
    write_bytes(path, ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))
    path.chmod(0o755)


def resume_command(settings: DemoSettings) -> str:
    words = settings_as_flags(settings, leave_out=["memory"])  # it may be what was wrong
    return shlex.join(["lowtide", "demo", *words])
