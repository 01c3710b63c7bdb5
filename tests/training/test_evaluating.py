"""What a backend is asked for when a model is evaluated: stand-ins note every call."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.training import evaluating
from lowtide.training.evaluating import EvaluateSettings

CONFIG: Any = SimpleNamespace(context_length=100)


class NotingProgress:
    """Stands for the progress of a job."""

    budget_bytes: int | None = 77

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.phases: list[Any] = []
        self.rows: list[Any] = []
        self.note = self.notes.append
        self.write_metrics = self.rows.append

    @contextlib.contextmanager
    def phase(self, name: str, **options: Any) -> Any:
        self.phases.append((name, options))
        yield SimpleNamespace(advance="advance")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked of the parts that read files and compute."""
    calls: list[Any] = []

    class Dataset:
        def __init__(self, path: str, **options: Any) -> None:
            calls.append(("open", path, options))

        def __len__(self) -> int:
            return 50

    class Check:
        def __init__(self, datasets: Any, *, wanted: bool) -> None:
            calls.append(("check", len(datasets), wanted))

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *given: object) -> None:
            calls.append("close")

        def start(self) -> None:
            calls.append("start")

        def finish(self, seconds: float) -> str:
            calls.append(("finish", seconds))
            return "two files are left"

        def require_whole(self) -> None:
            calls.append("whole")

    def windows(sums: Any, dataset: Any, **options: Any) -> str:
        calls.append(("windows", sums, options))
        return "result"

    tokenizer = SimpleNamespace(vocab_size=9)
    for name, stand_in in {
        "TokenDataset": Dataset,
        "DataCheck": Check,
        "evaluate_windows": windows,
        "load_config": lambda folder: CONFIG,
        "Tokenizer": SimpleNamespace(load=lambda name: tokenizer),
        "vocabulary_bytes": lambda name: 5,
        "require_vocabulary": lambda *given: calls.append(("vocabulary", *given[1:])),
        "require_same_tokenizer": lambda *given: calls.append(("same", given[2])),
        "fit_rows": lambda config, rows, budget, **options: (
            calls.append((rows, budget, options)) or rows - 1
        ),
        "program_here": lambda *given, **options: (given, options),
    }.items():
        monkeypatch.setattr(evaluating, name, stand_in)
    return calls


def evaluator(is_cpu: bool) -> Any:
    networks = SimpleNamespace(
        is_cpu=lambda place: is_cpu, load=lambda folder, place: f"network of {folder}"
    )
    return SimpleNamespace(
        networks=networks,
        load_in_turns=None,
        sums=lambda network, place, tokenizer, batch_size: (network, place, batch_size),
        scorer=lambda network, place, batch_size: (network, place, batch_size),
    )


@pytest.mark.parametrize(
    ("options", "rows", "seq_len", "wanted", "total"),
    [
        ({}, 15, 100, None, 50),
        ({"seq_len": 7, "batch_size": 2, "eval_iters": 1}, 1, 7, 32, 32),
        ({"seq_len": 100, "eval_iters": 2, "check_data": False}, 15, 100, 64, 50),
    ],
)
def test_a_dataset_is_evaluated_as_the_settings_say(
    asked: list[Any], tmp_path: Any, options: Any, rows: int, seq_len: int, wanted: Any, total: int
) -> None:
    (tmp_path / "d").mkdir()
    settings = EvaluateSettings(
        "m", dataset_dir=(f"web={tmp_path / 'd'}", "f.npy"), backend="torch", device="cpu",
        dtype="uint16", **options,
    )  # fmt: skip
    progress: Any = NotingProgress()
    found = evaluating._evaluate_all(settings, tmp_path, evaluator(True), "here", progress)
    assert found == {"web": "result", "f.npy": "result"}
    program = ((0,), {"device": "cpu", "backend": "torch"})
    fitted = {
        "tokens": seq_len, "program": program, "is_running": True, "text_bytes": 0,
        "backend": "torch", "tokenizer_bytes": 5,
    }  # fmt: skip
    assert asked[:2] == [("vocabulary", CONFIG, tmp_path), (rows + 1, 77, fitted)]
    sums = (f"network of {tmp_path}", "here", rows)
    after = [
        ("same", "model m"), ("check", 1, options.get("check_data", True)), "start",
        ("windows", sums, {"batch_size": rows, "num_windows": wanted, "on_windows": "advance"}),
        ("finish", evaluating.FINISH_SECONDS), "whole", "close",
    ]  # fmt: skip
    opening = {"split": "val", "seq_len": seq_len, "dtype": "uint16", "vocab_size": 9}
    opening["val_fraction"] = 0.1
    assert asked[2:] == [
        ("open", str(tmp_path / "d"), {**opening, "eval_only": True}), *after,
        ("open", "f.npy", {**opening, "eval_only": False}), *after,
    ]  # fmt: skip
    fewer = "1 row at once keep the budget" if rows == 1 else "15 rows at once keep the budget"
    assert progress.notes == [fewer, "two files are left", "two files are left"]
    phase = {"total": total, "unit": "windows"}
    assert progress.phases == [("web", phase), ("f.npy", phase)]


def test_a_gpu_takes_as_many_rows_as_were_asked_for(asked: list[Any], tmp_path: Any) -> None:
    progress: Any = NotingProgress()
    settings = EvaluateSettings("m", dataset_dir=("f.npy",), split="all", backend="torch")
    evaluating._evaluate_all(settings, tmp_path, evaluator(False), "gpu", progress)
    assert ("windows", (f"network of {tmp_path}", "gpu", 16)) in [call[:2] for call in asked]
    assert "rows" not in "".join(progress.notes)


@pytest.mark.parametrize("seq_len", [100, 101])
def test_rows_beyond_the_context_are_refused(asked: list[Any], tmp_path: Any, seq_len: int) -> None:
    settings = EvaluateSettings("m", dataset_dir=("f.npy",), seq_len=seq_len, backend="torch")
    fits = pytest.raises(UsageError, match="101 tokens do not fit a context of 100")
    with fits if seq_len > 100 else contextlib.nullcontext():
        evaluating._evaluate_all(settings, tmp_path, evaluator(True), "", NotingProgress())  # type: ignore[arg-type]
    assert ("same", "model m") in asked or seq_len > 100


@pytest.mark.parametrize(
    ("options", "longest", "most"),
    [
        ({}, 100, 30),
        ({"seq_len": 60}, 60, 30),
        ({"seq_len": 400}, 100, 30),
        ({"seq_len": 60, "dataset_dir": ("f.npy",)}, 60, 60),
        ({"dataset_dir": ("f.npy",)}, 100, 100),
    ],
)
def test_rows_of_tasks_are_fitted_after_the_largest_of_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, options: Any, longest: int, most: int
) -> None:
    sizes = {
        "a": SimpleNamespace(questions=1, tokens=20),
        "b": SimpleNamespace(questions=1, tokens=30),
    }
    measured, fitted = [], []

    def measure(tokenizer: Any, questions: Any, *, max_tokens: int, path: Path) -> Any:
        assert path.stem == questions
        measured.append(max_tokens)
        return sizes[questions]

    def fit(rows: int, tokens: int, other_bytes: int) -> int:
        fitted.append((rows, tokens, other_bytes))
        return rows // 2

    monkeypatch.setattr(evaluating, "measure_questions", measure)
    monkeypatch.setattr(evaluating, "iter_questions", lambda path: path.stem)
    monkeypatch.setattr(evaluating, "longest_line", lambda path: 7 if path.stem == "b" else 0)
    monkeypatch.setattr(evaluating, "held_text_bytes", lambda line: line)
    settings = EvaluateSettings("m", tasks=("a.jsonl", "b.jsonl"), batch_size=6, **options)
    tasks = evaluating._measure_tasks(settings, None, CONFIG, fit)  # type: ignore[arg-type]
    assert measured == [longest] * 2
    assert fitted == [(1, longest, 7), (1, most, 7), (6, 20, 0), (6, 30, 7)]
    assert {name: (task.path.name, task.size, task.rows) for name, task in tasks.items()} == {
        "a": ("a.jsonl", sizes["a"], 3), "b": ("b.jsonl", sizes["b"], 3)
    }  # fmt: skip
    fitted.clear()
    monkeypatch.setattr(evaluating, "longest_line", lambda path: 0)
    evaluating._measure_tasks(settings, None, CONFIG, fit)  # type: ignore[arg-type]
    assert fitted[0] == (1, most, 0) and len(fitted) == 3
    sizes["b"].questions = 0
    with pytest.raises(DataError, match="there are no questions in it"):
        evaluating._measure_tasks(settings, None, CONFIG, fit)  # type: ignore[arg-type]


def test_answers_are_a_row_of_metrics(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"context": "a", "choices": ["b", "c"], "answer": 0}) + "\n")
    given: list[Any] = []

    def answer(scorer: Any, tokenizer: Any, questions: Any, **options: Any) -> Any:
        given.append((scorer, tokenizer, len(list(questions)), options))
        return evaluating.TaskResult(1, 1.0, 0.0)

    monkeypatch.setattr(evaluating, "answer_questions", answer)
    model = evaluating._Loaded(evaluator(True), "network", "here", "tokenizer")  # type: ignore[arg-type]
    task = evaluating._Task(path, evaluating.TaskSize(1, 12), 3)
    progress: Any = NotingProgress()
    result = evaluating._answer_task("t", task, model, progress)
    options = {"rows": 3, "max_tokens": 12, "on_questions": "advance"}
    assert given == [(("network", "here", 3), "tokenizer", 1, options)]
    assert progress.phases == [("t", {"total": 1, "unit": "questions"})]
    fields = evaluating.dataclasses.asdict(result)
    assert progress.rows == [{"event": "task", "task": "t", **fields}]


@pytest.mark.parametrize(
    ("dataset", "task", "fits"),
    [("a=b", "a=t.jsonl", False), ("x/a", "a=t.jsonl", False), ("a=b", "b=t.jsonl", True),
     ("x/a", "x=t.jsonl", True)],
)  # fmt: skip
def test_datasets_and_tasks_have_names_of_their_own(dataset: str, task: str, fits: bool) -> None:
    refused = pytest.raises(UsageError, match="expected other names than the datasets")
    with contextlib.nullcontext() if fits else refused:
        settings = EvaluateSettings("m", dataset_dir=(dataset,), tasks=(task,))
        assert list(settings.task_files()) == [task[0]]


def test_every_dataset_has_a_name_of_its_own() -> None:
    """The result of the first was lost where both folders have the same name."""
    with pytest.raises(UsageError, match="dataset_dir is 'data/web, old/web', expected one name"):
        EvaluateSettings("m", dataset_dir=("data/web", "old/web"))
    settings = EvaluateSettings("m", dataset_dir=("data/web", "old=old/web", "data/books/", "."))
    assert settings.datasets() == {
        "web": "data/web", "old": "old/web", "books": "data/books/", ".": ".",
    }  # fmt: skip
    with pytest.raises(UsageError, match="expected NAME=DIR or DIR"):
        EvaluateSettings("m", dataset_dir=("web=",))


@pytest.mark.parametrize(
    ("name", "value"),
    [("split", "train"), ("eval_iters", 3), ("dtype", "uint16"), ("check_data", False)],
)
def test_settings_of_datasets_are_refused_beside_tasks_alone(name: str, value: Any) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(UsageError, match=f"{name} is .*, expected --dataset-dir beside it"):
        EvaluateSettings("m", tasks=("t.jsonl",), **options)
    EvaluateSettings("m", tasks=("t.jsonl",), dataset_dir=("d",), **options)


@pytest.mark.parametrize(
    ("saved", "share"),
    [(None, 0.1), ('{"val_fraction": 0.02}', 0.02), ('{"val_fraction": 0.0}', 0.1),
     ('{"val_fraction": "a"}', 0.1), ("[1]", 0.1)],
)  # fmt: skip
def test_a_file_is_split_where_the_run_split_it(
    tmp_path: Path, saved: str | None, share: float
) -> None:
    """With the usual share, ids that the run was trained on counted as validation."""
    if saved is not None:
        (tmp_path / "settings.json").write_text(saved)
    assert evaluating._val_fraction(tmp_path) == share
    assert evaluating._val_fraction(tmp_path / "best") == share


def test_a_run_may_be_called_best(tmp_path: Path) -> None:
    run = tmp_path / "best"
    run.mkdir()
    (run / "settings.json").write_text('{"val_fraction": 0.3}')
    assert evaluating._val_fraction(run) == evaluating._val_fraction(run / "best") == 0.3


def test_blocks_are_read_in_turns_where_the_budget_does_not_hold_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes: list[str] = []
    place: Any = "here"
    progress: Any = SimpleNamespace(budget_bytes=77, note=notes.append)
    able, unable = evaluator(True), evaluator(True)
    able.load_in_turns = lambda folder: f"{folder} in turns"

    def fit(config: Any, rows: int, budget: int, **options: Any) -> int:
        if options["tokens"] > 9 and "weight_bytes" not in options:
            raise BudgetError("too much")
        if options["tokens"] > 99:
            raise BudgetError("far too much")
        return rows if "weight_bytes" in options else rows - 1

    monkeypatch.setattr(evaluating, "fit_rows", fit)
    monkeypatch.setattr(evaluating, "in_turns_bytes", lambda config: 3)
    monkeypatch.setattr(evaluating, "program_here", lambda *given, **options: "program")
    settings = EvaluateSettings("m", dataset_dir=("d",), backend="torch", device="cpu")
    fitter = evaluating._Fitter(settings, CONFIG, able, place, progress, 5)
    assert fitter(4, 9, 0) == 3
    assert fitter.load(Path("m"), place) == "network of m" and not notes
    with pytest.raises(BudgetError, match="far too much"):
        fitter(4, 100, 0)
    assert not notes
    assert fitter(4, 10, 0) == 4
    assert fitter.load(Path("m"), place) == "m in turns" and len(notes) == 1
    assert fitter(4, 9, 0) == 4 and len(notes) == 1  # the others then, too
    with pytest.raises(BudgetError, match=r"^too much"):
        evaluating._Fitter(settings, CONFIG, unable, place, progress, 5)(4, 10, 0)
