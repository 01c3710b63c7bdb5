"""Train, evaluate, generate, export, report and plan keep their budgets on input of any size.

Each verb runs as a command on an input and on one ten times larger; what is added must not show.
That the tests can fail is tested too: the same command, made to hold its input, is found out. All
three are run by one process, a fork of one that has torch where the verb needs it.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from lowtide.files import write_json
from lowtide.model.arrayfiles import save_weights
from lowtide.model.config import GPTConfig
from lowtide.model.tensors import portable_shapes
from lowtide.tokenizer import Tokenizer

from .commands import run_commands
from .zero_models import write_model

MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """A verb's words with {} for the input, a budget to keep, and how it is made to hold."""

    words: str
    budget: str
    small_bytes: int
    mutation: str


CASES = {
    # The text is tokenized before torch is there: the stage that could hold it, by itself.
    "train": Case(
        "train --input-file {} --checkpoints-dir {}.runs --num-layers 1 --width 8 "
        "--num-heads 1 --seq-len 16 --batch-size 2 --max-iters 1 --eval-iters 1 --sample-tokens 0 "
        "--device cpu --memory",
        "600MiB",
        3 * MIB,
        "import lowtide.training.texttokens as t, pathlib\n"
        "real = t.pretokenize_file\n"
        "def hold(**options):\n"
        "    held.append(pathlib.Path(options['file']).read_text())\n"
        "    return real(**options)\n"
        "t.pretokenize_file = hold",
    ),
    "evaluate": Case(
        "evaluate --model-name {model} --dataset-dir {} --split all --eval-iters 2 --batch-size 4 "
        "--device cpu --dtype uint16 --memory",
        "500MiB",
        4 * MIB,
        "import lowtide.loader.windows as w, numpy\n"
        "real = w.TokenDataset.__init__\n"
        "def hold(self, path, **options):\n"
        "    held.append(numpy.fromfile(path, numpy.uint16) + 0)\n"
        "    real(self, path, **options)\n"
        "w.TokenDataset.__init__ = hold",
    ),
    "evaluate-tasks": Case(
        "evaluate --model-name {model} --tasks {} --batch-size 4 --device cpu --memory",
        "500MiB",
        3 * MIB,
        "import lowtide.training.evaluating as e\n"
        "real = e.iter_questions\n"
        "def hold(*given, **options):\n"
        "    held.append(list(real(*given, **options)))\n"
        "    return iter(held[-1])\n"
        "e.iter_questions = hold",
    ),
    "generate": Case(
        "generate --model-name {model} --prompt-file {} --max-new-tokens 2 --device cpu --memory",
        "170MiB",
        3 * MIB,
        "import lowtide.generation.prompts as p\n"
        "real = p.Prompt.iter_text\n"
        "p.Prompt.iter_text = lambda self: held.append(list(real(self))) or iter(held[-1])",
    ),
    "generate-lines": Case(
        "generate --model-name {model} --prompt-file {} --each-line --max-new-tokens 2 "
        "--device cpu --memory",
        "170MiB",
        3 * MIB,
        "import lowtide.generation.prompts as p\n"
        "real = p.Prompt.iter_text\n"
        "p.Prompt.iter_text = lambda self: held.append(list(real(self))) or iter(held[-1])",
    ),
    "export": Case(
        "export --model-name {} --out-dir {}.hf --memory",
        "100MiB",
        4 * MIB,
        "import lowtide.model.tensorfiles as t\n"
        "real = t.iter_pieces\n"
        "def hold(*given, **options):\n"
        "    held.append(list(real(*given, **options)))\n"
        "    return iter(held[-1])\n"
        "t.iter_pieces = hold",
    ),
    "export-gguf": Case(
        "export --model-name {} --out-dir {}.hf --to gguf --type q8_0 --memory",
        "130MiB",
        4 * MIB,
        "import lowtide.model.gguf as g\n"
        "real = g._iter_blocks\n"
        "def hold(*given, **options):\n"
        "    held.append(list(real(*given, **options)))\n"
        "    return iter(held[-1])\n"
        "g._iter_blocks = hold",
    ),
    "report": Case(
        "report {} --out {}.html --memory",
        "100MiB",
        MIB,
        "import lowtide.reporting.metrics as m\n"
        "real = m.MetricsFile.iter_rows\n"
        "def hold(*given, **options):\n"
        "    held.append(list(real(*given, **options)))\n"
        "    return iter(held[-1])\n"
        "m.MetricsFile.iter_rows = hold",
    ),
    "plan": Case(
        "plan --input-files {} --size 1M --no-measure --memory",
        "2GiB",  # what is planned for, not what planning takes: see below
        3 * MIB,
        "import lowtide.planning.plandata as d\n"
        "real = d._sample\n"
        "def hold(inputs, **options):\n"
        "    held.append(inputs[0].path.read_bytes())\n"
        "    return real(inputs, **options)\n"
        "d._sample = hold",
    ),
}
_OWN_BUDGET = {"plan": 100 * MIB}  # of a verb whose --memory means something else


def write_text(path: Path, size: int) -> None:
    source = random.Random(0)
    words = ["".join(source.choices("etaoinshrdlu", k=source.randrange(2, 9))) for _ in range(900)]
    block = "".join(" ".join(source.choices(words, k=12)) + "\n" for _ in range(1200))
    with path.open("w") as file:
        for _ in range(-(-size // len(block))):
            file.write(block)


def write_metrics(folder: Path, size: int) -> None:
    folder.mkdir()
    write_json(folder / "settings.json", {"batch_size": 4})
    with (folder / "metrics.jsonl").open("w") as file:
        written = step = 0
        while written < size:
            step += 1
            row = {"time": step / 10, "job": "train", "step": step, "loss": 1 / step}
            row |= {"memory_bytes": step, "peak_memory_bytes": step, "budget_bytes": 1 << 30}
            written += file.write(json.dumps(row) + "\n")


def write_input(verb: str, path: Path, size: int) -> None:
    if verb.startswith("export"):  # the bytes are those of the output: no float32 is read whole
        write_model(path, GPTConfig(50304, 16, 1, max(8, size // 4 // 50304 // 8 * 8), 1))
    elif verb == "report":
        write_metrics(path, size)
    elif verb == "evaluate-tasks":
        rows = [json.dumps({"text": "low tide " * 14563 + str(row)}) for row in range(size >> 17)]
        path.write_text("\n".join(rows))
    elif verb == "generate-lines":  # one of which is nearly all
        path.write_text("a short one\n" + "low tide " * (size // 9) + "\nanother\n")
    elif verb == "evaluate":
        np.zeros(size // 2, np.uint16).tofile(path)
    else:
        write_text(path, size)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    write_model(folder, GPTConfig(50304, 16, 1, 8, 1))
    return folder


def words_of(case: Case, path: Path, model: Path) -> list[str]:
    return [*(word.format(path, model=model) for word in case.words.split()), case.budget]


@pytest.mark.parametrize("verb", CASES)
def test_ten_times_the_input_takes_no_more_and_holding_it_is_found_out(
    verb: str, tmp_path: Path, model: Path, request: pytest.FixtureRequest
) -> None:
    case = CASES[verb]
    # The others begin without torch, and must.
    needs_torch = verb.startswith("evaluate")
    settles = needs_torch or verb == "train"
    start_forks = request.getfixturevalue("start_forks") if needs_torch else None
    write_input(verb, tmp_path / "small", case.small_bytes)
    write_input(verb, tmp_path / "large", 10 * case.small_bytes)
    # The same once more, under a name that no output has yet.
    (tmp_path / "held").symlink_to(tmp_path / "large")
    # Text is tokenized before torch is there, and of torch a fork maps what it comes to touch: the
    # first of all would find less than the others.
    (tmp_path / "first").symlink_to(tmp_path / "small")
    runs = run_commands(
        [
            *([("", words_of(case, tmp_path / "first", model))] if settles else []),
            ("", words_of(case, tmp_path / "small", model)),
            ("", words_of(case, tmp_path / "large", model)),
            (case.mutation, words_of(case, tmp_path / "held", model)),
        ],
        tmp_path,
        start_forks,
    )[-3:]
    assert [ran.exit_code for ran in runs[:2]] == [0, 0], [ran.errors for ran in runs]
    assert runs[2].exit_code in (0, 3), runs[2].errors
    small, large, held = (ran.peak_bytes for ran in runs)
    slack = int(0.45 * 9 * case.small_bytes)
    assert large - small < slack
    size = int(float(case.budget[:-3]) * (1 << (30 if case.budget.endswith("GiB") else 20)))
    assert large < _OWN_BUDGET.get(verb, size)
    assert held - small > slack, "what holds its input passes this test: it proves nothing"


def test_a_model_is_loaded_and_writes_in_little_more_than_its_files_take(tmp_path: Path) -> None:
    """Numbers of two bytes: not held in four, nor twice, and no framework beside them."""
    config = GPTConfig(4096, 64, 6, 768, 12, layout="llama", mlp_width=2048)
    folder = tmp_path / "model"
    folder.mkdir()
    Tokenizer.from_characters(map(chr, range(0x100, 0x100 + 4000))).save(folder)
    write_json(folder / "config.json", config.to_huggingface())
    tensors = {name: np.zeros(shape, np.float16) for name, shape in portable_shapes(config).items()}
    save_weights(folder / "model.safetensors", tensors)
    size = sum(path.stat().st_size for path in folder.iterdir())
    budget = f"{(size >> 20) + 150}MiB"
    words = ["generate", "--model-name", str(folder), "--max-new-tokens", "1", "--memory", budget]
    (ran,) = run_commands([("", words)], tmp_path, None)
    assert ran.exit_code == 0, ran.errors
    assert size < ran.peak_bytes < size + 90 * MIB
