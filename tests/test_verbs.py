"""The verbs: each has help and examples that work, and imports nothing before it is used."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lowtide import modelverbs
from lowtide.answers import shown_as
from lowtide.errors import BudgetError
from lowtide.generation import generating
from lowtide.generation.settings import GenerateSettings
from lowtide.model import inference
from lowtide.training import admission
from lowtide.training.settings import EvaluateSettings, TrainSettings
from lowtide.verbs import VERBS

ROOT = Path(__file__).parent.parent


# Each verb in a fork: it finds what the command line itself imports, and nothing of other verbs.
_HELP = """
import os, sys
from lowtide.cli import main
for name in sys.argv[1:]:
    if not os.fork():
        code = main([name, "--help"])
        print(f"\\n{name}: {code} {'torch' in sys.modules}", flush=True)
        os._exit(0)
    os.wait()
"""


def test_help_of_each_verb_works_without_torch() -> None:
    command = [sys.executable, "-c", _HELP, *sorted(VERBS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    for name in sorted(VERBS):
        assert f"{name}: 0 False" in lines, done.stderr


@pytest.mark.parametrize("name", sorted(VERBS))
def test_examples_of_each_verb_are_understood(name: str) -> None:
    verb = VERBS[name]
    assert verb.examples
    for example in verb.examples:
        program, verb_name, *words = shlex.split(example)
        assert (program, verb_name) == ("lowtide", name)
        assert verb.parse(name, words)


@pytest.mark.parametrize("name", sorted(VERBS))
def test_help_begins_with_what_a_verb_does_and_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        VERBS[name].parse(name, ["--help"])
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: lowtide {name}")
    assert f"{VERBS[name].summary}." in " ".join(shown.split())
    for example in VERBS[name].examples:
        assert f"\n  {example}\n" in shown


def test_verbs_work_where_python_drops_docstrings(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("A line of the story.\n" * 9)
    python = [sys.executable, "-OO", "-m", "lowtide"]
    for words in ("--help", "prepare --help", "prepare --input-files text.txt --out-dir data"):
        command = [*python, *words.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "data" / "dataset_metadata.json").exists()


def test_no_settings_import_tyro_by_themselves() -> None:
    modules = sorted({verb.settings.partition(":")[0] for verb in VERBS.values()})
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    assert 'tyro.conf' not in sys.modules, name"
    )
    subprocess.run([sys.executable, "-c", code, *modules], check=True)


def test_a_run_tells_where_it_is_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGUSR1 prints to stderr, from the first moment on."""
    told: list[Any] = []
    monkeypatch.setattr(modelverbs.faulthandler, "register", lambda *a, **k: told.append((a, k)))

    def admit(settings: TrainSettings) -> None:
        raise RuntimeError("asked")

    monkeypatch.setattr(admission, "admit", admit)
    with pytest.raises(RuntimeError, match="asked"):
        modelverbs.run_train(TrainSettings())
    assert told == [((signal.SIGUSR1,), {"file": 2})]


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, [(1, 0), (400_000, 9_600_000)]),
        ({"seq_len": 64}, [(64, 0), (64, 9_600_000)]),
        ({"dataset_dir": ("data",)}, [(None, 0), (400_000, 9_600_000)]),
        ({"dataset_dir": ("data",), "seq_len": 64}, [(64, 0), (64, 9_600_000)]),
    ],
)
def test_a_budget_that_holds_no_question_is_refused_with_what_the_longest_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], asked: list[Any]
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"text": "x" * (400_000 - 12)}) + "\n")
    seen: list[tuple[int | None, int]] = []

    def refuse(*_: Any, tokens: int | None, text_bytes: int, **__: Any) -> None:
        seen.append((tokens, text_bytes))
        if len(seen) == 1:
            raise BudgetError("too small")

    monkeypatch.setattr(inference, "refuse_hopeless", refuse)
    settings = EvaluateSettings(model_name="mine", tasks=(f"one={tasks}",), **given)
    with pytest.raises(BudgetError, match="too small"):
        modelverbs._refuse_evaluation(settings)
    assert seen == asked


@pytest.mark.parametrize(
    ("at_terminal", "as_json", "shown"),
    [(True, False, "\\x1b[31mred"), (True, True, "\x1b[31mred"), (False, False, "\x1b[31mred")],
)  # fmt: skip
def test_only_a_terminal_is_guarded_from_what_a_model_writes(
    monkeypatch: pytest.MonkeyPatch, at_terminal: bool, as_json: bool, shown: str
) -> None:
    monkeypatch.setattr(inference, "refuse_hopeless", lambda *_, **__: None)
    monkeypatch.setattr(generating, "generate", lambda _: iter(["\x1b[31m", "red"]))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: at_terminal)
    with shown_as(as_json=as_json, quiet=False):
        answer = modelverbs.run_generate(GenerateSettings(model_name="mine", prompt="a"))
        assert "".join(answer.parts) == shown
