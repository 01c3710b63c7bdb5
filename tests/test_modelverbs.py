"""What the verbs of models print and answer, by stand-ins for what they call."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide import modelverbs
from lowtide.answers import Answer
from lowtide.errors import BudgetError, DataError


def shown(found: Answer | None) -> tuple[str, dict[str, Any]]:
    assert found is not None
    return found.end.join(found.parts), dict(found.data())


@dataclasses.dataclass
class Loss:
    loss: float
    perplexity: float
    num_tokens: int
    bits_per_byte: float | None


def test_an_evaluation_tells_losses_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from lowtide.training import likelihood

    task = object.__new__(likelihood.TaskResult)
    monkeypatch.setattr(modelverbs, "_refuse_evaluation", lambda settings: None)
    monkeypatch.setattr(likelihood, "describe_result", lambda result: "two of three")
    monkeypatch.setattr(
        modelverbs, "to_json", lambda one: "asked" if one is task else dataclasses.asdict(one)
    )
    results: dict[str, Any] = {
        "val": Loss(2.0, 7.389, 1234, 0.5), "web": Loss(1.0, 2.718, 5, None), "arc": task,
    }  # fmt: skip
    checked: list[int] = []
    settings: Any = SimpleNamespace(chosen_backend=lambda: checked.append(1))
    for names, more in ((["val", "web", "arc"], {"tasks": {"arc": "asked"}}), (["val"], {})):
        given = {name: results[name] for name in names}
        monkeypatch.setattr("lowtide.training.evaluating.evaluate", lambda settings, g=given: g)
        text, data = shown(modelverbs.run_evaluate(settings))
        lines = {
            "val": "val: loss 2.0000  perplexity 7.39  0.5000 bits/byte  (1,234 tokens)",
            "web": "web: loss 1.0000  perplexity 2.72  (5 tokens)",
            "arc": "arc: two of three",
        }
        assert text == "\n".join(lines[name] for name in names)
        rows = {name: dataclasses.asdict(results[name]) for name in names if name != "arc"}
        assert data == {"datasets": rows, **more}
    assert checked == [1, 1]


@pytest.mark.parametrize(
    ("was_there", "text"),
    [(False, "hf/mine"), (True, "hf/mine: is there already, nothing was touched")],
)
def test_an_export_tells_where_it_is(
    monkeypatch: pytest.MonkeyPatch, was_there: bool, text: str
) -> None:
    monkeypatch.setattr(
        "lowtide.model.export.write_export", lambda settings: (Path("hf/mine"), was_there)
    )
    settings: Any = None
    assert shown(modelverbs.run_export(settings)) == (
        text, {"path": Path("hf/mine"), "was_there": was_there}
    )  # fmt: skip


@pytest.mark.parametrize("was_there", [False, True])
def test_a_report_is_made_or_watched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], was_there: bool
) -> None:
    from lowtide.reporting.reports import ReportResult

    made = ReportResult(Path("a.html"), "run", 2048, was_there)
    monkeypatch.setattr("lowtide.reporting.reports.report", lambda settings: made)
    monkeypatch.setattr(
        "lowtide.reporting.watching.watch", lambda settings, *, announce: announce("http://here/")
    )
    settings: Any = SimpleNamespace(watch=False)
    text, data = shown(modelverbs.run_report(settings))
    more = "; was there already, nothing was touched" if was_there else ""
    assert text == f"a.html: run, 2.0 KiB{more}"
    assert data == {"path": "a.html", "kind": "run", "num_bytes": 2048, "was_there": was_there}
    settings.watch = True
    assert modelverbs.run_report(settings) is None
    assert capsys.readouterr().out == "http://here/  (Ctrl-C ends it)\n"


@pytest.mark.parametrize(
    ("step", "shown_step"),
    [
        ("skip such files with --skip-bad-inputs", "skip such files with lowtide prepare "
         "--skip-bad-inputs"),
        ("--encoding utf-16", "lowtide prepare --encoding utf-16"),
        ("repair the row", "repair the row"),
        (None, None),
    ],
)  # fmt: skip
def test_a_training_names_the_verb_that_has_a_flag(
    monkeypatch: pytest.MonkeyPatch, step: str | None, shown_step: str | None
) -> None:
    def admit(settings: Any) -> None:
        raise DataError("no text", next_step=step)

    monkeypatch.setattr(modelverbs.faulthandler, "register", lambda *given, **more: None)
    monkeypatch.setattr("lowtide.training.admission.admit", admit)
    settings: Any = SimpleNamespace(output=SimpleNamespace(slurm=False))
    with pytest.raises(DataError) as caught:
        modelverbs.run_train(settings)
    assert caught.value.next_step == shown_step


@pytest.mark.parametrize(("best", "more"), [(1.25, ", best validation loss 1.2500"), (None, "")])
def test_a_training_tells_where_it_stopped_by_its_first_process(
    monkeypatch: pytest.MonkeyPatch, best: float | None, more: str
) -> None:
    @dataclasses.dataclass
    class Result:
        stopped: str
        steps: int
        loss: float
        best_val_loss: float | None

    calls: list[str] = []
    result = Result("done", 7, 2.5, best)
    monkeypatch.setattr(modelverbs.faulthandler, "register", lambda *given, **more: None)
    monkeypatch.setattr(
        "lowtide.training.admission.admit", lambda settings: calls.append("admitted")
    )
    monkeypatch.setattr(
        "lowtide.training.start.train", lambda settings: calls.append("trained") or result
    )
    settings: Any = SimpleNamespace(
        output=SimpleNamespace(slurm=False), run=SimpleNamespace(folder=Path("runs/mine"))
    )
    text, data = shown(modelverbs.run_train(settings))
    assert text == f"runs/mine: done at step 7, loss 2.5000{more}"
    assert data == {"run_dir": Path("runs/mine"), **dataclasses.asdict(result)}
    assert calls == ["admitted", "trained"]
    monkeypatch.setattr(modelverbs.ranks, "is_first", lambda: False)
    assert modelverbs.run_train(settings) is None
    settings.output.slurm = True
    monkeypatch.setattr("lowtide.training.slurm.write_slurm_script", lambda settings: "job.sh")
    assert shown(modelverbs.run_train(settings)) == ("sbatch job.sh", {"script": "job.sh"})
    assert len(calls) == 4


@pytest.mark.parametrize(
    ("dataset", "seq_len", "longest", "first", "second"),
    [
        ("data", None, 0, None, None),
        ("", None, 0, 1, None),
        ("data", 8, 0, 8, None),
        ("", None, 100, 1, 100),
        ("", 8, 100, 8, 8),
        ("", 200, 100, 200, 100),
        ("data", None, 100, None, "usual"),
        ("data", 8, 100, 8, 8),
        ("data", None, 1 << 30, None, 1 << 30),
    ],
)
def test_a_budget_is_refused_with_what_all_questions_need(
    monkeypatch: pytest.MonkeyPatch, dataset: str, seq_len: int | None, longest: int,
    first: int | None, second: Any,
) -> None:  # fmt: skip
    from lowtide.model import inference

    asked: list[Any] = []

    def refuse(*given: Any, **more: Any) -> None:
        asked.append(more)
        raise BudgetError("too small")

    monkeypatch.setattr(inference, "refuse_hopeless", refuse)
    monkeypatch.setattr("lowtide.training.evaluating.fetched_bytes", lambda settings: 50)
    monkeypatch.setattr("lowtide.training.questions.longest_line", lambda path: path)
    monkeypatch.setattr("lowtide.training.questions.held_text_bytes", lambda count: count // 2)
    settings: Any = SimpleNamespace(
        model_name="m", checkpoints_dir="c", memory="1MiB", device="cpu", seq_len=seq_len,
        dataset_dir=dataset, chosen_backend=lambda: "torch", tokenization="t",
        task_files=lambda: {"a": 1, "b": longest} if longest else {},
    )  # fmt: skip
    with pytest.raises(BudgetError):
        modelverbs._refuse_evaluation(settings)
    common = {"device": "cpu", "backend": "torch", "tokenization": "t"}
    assert asked[0] == {**common, "tokens": first, "text_bytes": 50}
    if second is None:
        assert len(asked) == 1
        return
    wanted = inference.LONGEST_USUAL if second == "usual" else second
    assert asked[1:] == [{**common, "tokens": wanted, "text_bytes": max(longest // 2, 50)}]


def test_a_demo_a_plan_and_pairs_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: Any = SimpleNamespace(out_dir=Path("demo"))
    monkeypatch.setattr(modelverbs, "require_package", lambda *given: None)
    monkeypatch.setattr("lowtide.demo.running.run_demo", lambda settings: ["stage"])
    monkeypatch.setattr(
        "lowtide.demo.running.describe_results", lambda results, out: f"{results} {out}"
    )
    assert shown(modelverbs.run_demo(settings)) == (
        "\n['stage'] demo", {"out_dir": Path("demo"), "stages": ["stage"]}
    )  # fmt: skip
    monkeypatch.setattr("lowtide.planning.make_plan", lambda settings: "plan")
    monkeypatch.setattr("lowtide.planning.summary.describe_plan", lambda plan: f"the {plan}\x1b")
    monkeypatch.setattr("lowtide.planning.summary.plan_as_json", lambda plan: {"plan": plan})
    monkeypatch.setattr("lowtide.planning.summary.plan_error", lambda plan: None)
    assert shown(modelverbs.run_plan(settings)) == ("the plan\\x1b", {"plan": "plan"})
    monkeypatch.setattr("lowtide.planning.comparison.compare_memory", lambda settings: ["pair"])
    monkeypatch.setattr("lowtide.planning.comparison.describe_pairs", lambda pairs: "a table")
    assert shown(modelverbs.run_compare_memory(settings)) == ("a table", {"pairs": ["pair"]})
