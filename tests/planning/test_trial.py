"""A few steps in a process of their own: what it is asked, and what becomes of its answers."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide import packages
from lowtide.model.config import GPTConfig
from lowtide.planning import trial
from lowtide.planning.trial import Trial, run_trial
from lowtide.settings import settings_as_json
from lowtide.training.settings import train_settings

CHOICE: Any = SimpleNamespace(
    config=GPTConfig(61, 64, 2, 32, 4), options={"batch_size": 8}, settings=train_settings()
)


def test_what_a_process_is_asked_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    answers: list[Any] = [
        SimpleNamespace(returncode=0, stdout='{"tokens_per_second": 1234.5}', stderr=""),
        SimpleNamespace(returncode=3, stdout="", stderr="Traceback\nerror: too little memory\n"),
        SimpleNamespace(returncode=-9, stdout="", stderr=" \n"),
        subprocess.TimeoutExpired("x", 90),
    ]

    def run(words: list[str], **options: Any) -> Any:
        asked.append((words, json.loads(options.pop("input")), options))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    waits: list[str] = []
    monkeypatch.setattr(trial, "subprocess", SimpleNamespace(
        run=run, TimeoutExpired=subprocess.TimeoutExpired))  # fmt: skip
    monkeypatch.setattr(trial, "sleep_while_waiting", lambda: waits.append("asleep"))
    assert [run_trial(CHOICE, seconds=2), *(run_trial(CHOICE) for _ in range(3))] == [
        Trial(1234.5),
        Trial(None, "error: too little memory"),
        Trial(None, "the trial ended without a word"),
        Trial(None, "no step ended in 90 seconds"),
    ]
    words, _, options = asked[0]
    assert words == [sys.executable, "-m", "lowtide.training.trial"] and len(waits) == 4
    wanted = {"config": settings_as_json(CHOICE.config), "settings": CHOICE.options}
    assert [one[1] for one in asked] == [{**wanted, "seconds": time} for time in (2, 8, 8, 8)]
    assert options == {"capture_output": True, "text": True, "timeout": 90, "check": False}


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_without_its_framework_there_is_none(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr(packages, "has_package", lambda name: name != backend)
    choice: Any = SimpleNamespace(settings=train_settings(backend=backend))
    problem = run_trial(choice).problem
    assert f"{backend} is not installed here (" in problem and "pip install" in problem
