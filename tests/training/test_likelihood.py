"""Likelihoods: those of one text at a time, whatever the batch; accuracies counted by hand."""

import copy
import json
import math
import re
from functools import partial

import pytest
import torch

from lowtide import cli
from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.files import write_json
from lowtide.model import inference
from lowtide.model.arrayfiles import save_weights
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.program import MIB, Program
from lowtide.model.weights import portable_tensors
from lowtide.reporting.runs import RunReader
from lowtide.stores.extents import buffer_bytes
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.training import train_tokenizer
from lowtide.training import evaluating, likelihood
from lowtide.training.evaluating import evaluate
from lowtide.training.evaluation import score_rows
from lowtide.training.likelihood import (
    TaskResult,
    answer_questions,
    measure_questions,
    score_choices,
)
from lowtide.training.questions import Question
from lowtide.training.settings import EvaluateSettings

TEXT = "The tide is low, the tide is high; naïve cats don't swim 12 miles.\n\n  Twice! "


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT * 5, encoding="utf-8")
    return train_tokenizer(input=[path], vocab_size=290).tokenizer


@pytest.fixture(scope="module", params=["llama", "tide"])
def model(tokenizer, request):
    torch.manual_seed(2)
    model = GPT(GPTConfig(tokenizer.vocab_size, 32, 2, 32, 2, layout=request.param)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def by(model):
    return partial(score_rows, model)


def score_alone(model, tokenizer, context, choice):
    """The sum over a choice's tokens, each from a forward pass of its own."""
    before = tokenizer.encode(context).tolist()
    whole = tokenizer.encode(f"{context} {choice}").tolist()
    before = before or [tokenizer.end_of_text_id]
    whole = whole if before[0] == whole[0] else before + whole
    total, greedy = 0.0, True
    with torch.inference_mode():
        for end in range(len(before), len(whole)):
            logs = model(torch.tensor([whole[max(0, end - 32) : end]]))[0, -1].log_softmax(-1)
            total += logs[whole[end]].item()
            greedy = greedy and int(logs.argmax()) == whole[end]
    return total, greedy


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_scores_do_not_depend_on_the_batch(model, tokenizer, rows):
    contexts = ["The tide is", "", "naïve cats", "12 miles. Twice! The"]
    choices = ["low", "high; naïve", "don't swim 12 miles", "x"]
    pairs = [(context, choice) for context in contexts for choice in choices]
    found = score_choices(by(model), tokenizer, pairs, rows=rows, max_tokens=32)
    for (context, choice), score in zip(pairs, found, strict=True):
        total, greedy = score_alone(model, tokenizer, context, choice)
        assert score.log_likelihood == pytest.approx(total, abs=1e-4)
        assert score.is_greedy == greedy


def test_a_choice_that_is_the_likeliest_is_greedy(model, tokenizer):
    context, choice = "naïve cats", "tide"
    ids, one = tokenizer.encode(context).tolist(), tokenizer.encode(" tide").tolist()
    assert len(one) == 1 and one[0] not in ids
    model = copy.deepcopy(model)
    with torch.no_grad():
        # The rows of tokens are those of the output matrix, too.
        model.embedding.weight[one[0]] = 10 * model.hidden(torch.tensor([ids]))[0, -1]
    likeliest = int(model(torch.tensor([ids]))[0, -1].argmax())
    pairs = [(context, choice), (context, "high")]
    found = [
        score.is_greedy
        for score in score_choices(by(model), tokenizer, pairs, rows=2, max_tokens=32)
    ]
    assert found == [likeliest == one[0], False] == [True, False]


def test_blanks_at_the_end_of_a_context_belong_to_the_choice(model, tokenizer):
    plain, spaced = score_choices(
        partial(score_rows, model),
        tokenizer,
        [("The tide is", "low"), ("The tide is \n", "low")],
        rows=2,
        max_tokens=32,
    )
    assert plain != spaced


def test_a_long_context_loses_its_beginning(model, tokenizer):
    long = TEXT * 10 + "The tide is"
    (score,) = score_choices(by(model), tokenizer, [(long, "low")], rows=1, max_tokens=32)
    ids = tokenizer.encode(f"{long} low").tolist()
    count = len(ids) - len(tokenizer.encode(long))
    ids = ids[-33:]
    with torch.inference_mode():
        logs = model(torch.tensor([ids[:-1]]))[0].log_softmax(-1)
    wanted = sum(logs[place - 1, ids[place]].item() for place in range(33 - count, 33))
    assert score.log_likelihood == pytest.approx(wanted, abs=1e-4)


def test_accuracies_are_counted_by_the_right_length(model, tokenizer):
    questions = [
        Question("The tide is", ("low", "high; naïve cats don't swim", "é"), answer)
        for answer in (0, 1, 2, 2)
    ]
    result = answer_questions(by(model), tokenizer, questions, rows=4, max_tokens=32)
    totals = [score_alone(model, tokenizer, "The tide is", c)[0] for c in questions[0].choices]
    best = {}
    for name, length in (("", lambda c: 1), ("_chars", len), ("_bytes", lambda c: len(c.encode()))):
        normed = [t / length(c) for t, c in zip(totals, questions[0].choices, strict=True)]
        best[name] = normed.index(max(normed))
    for name, chosen in best.items():
        share = sum(question.answer == chosen for question in questions) / 4
        assert getattr(result, f"accuracy{name}") == share
        error = math.sqrt(share * (1 - share) / 3)
        assert getattr(result, f"accuracy{name}_stderr") == pytest.approx(error)
    assert result.perplexity is None and result.num_questions == 4


def test_texts_to_guess_are_right_if_all_their_tokens_are_likeliest(model, tokenizer):
    questions = [Question("The tide is", (word,), 0) for word in ("low", "high", "é")]
    result = answer_questions(by(model), tokenizer, questions, rows=2, max_tokens=32)
    scores = [score_alone(model, tokenizer, "The tide is", q.choices[0]) for q in questions]
    assert result.accuracy == sum(greedy for _, greedy in scores) / 3
    mean = -sum(total for total, _ in scores) / 3
    assert result.perplexity == pytest.approx(math.exp(mean), rel=1e-3)
    assert result.accuracy_chars is None


def test_texts_to_guess_do_not_count_among_choices(model, tokenizer):
    chosen = [Question("The tide is", ("low", "high; naïve"), answer) for answer in (0, 1, 1)]
    guessed = [Question("The tide is", ("low",), 0)] * 5
    alone, mixed = (
        answer_questions(by(model), tokenizer, questions, rows=2, max_tokens=32)
        for questions in (chosen, [*guessed, *chosen])
    )
    assert (alone.num_questions, mixed.num_questions) == (3, 8)
    for name in ("accuracy_chars", "accuracy_chars_stderr", "accuracy_bytes"):
        assert getattr(mixed, name) == getattr(alone, name) is not None


def test_a_choice_that_the_context_does_not_hold_is_refused(tokenizer, tmp_path):
    """Only its end would be scored; a long context loses its beginning, which is usual."""
    fits, longer = ("low " * 8).strip(), ("low " * 40).strip()
    least = len(tokenizer.encode(f" {longer}", special="text"))
    questions = [Question("high " * 50, (fits, "high"), 0), Question("a", ("high", longer), 0)]
    measure_questions(tokenizer, questions, max_tokens=least, path=tmp_path)
    with pytest.raises(DataError, match=f"question 2 has a choice of {least} tokens") as caught:
        measure_questions(tokenizer, questions, max_tokens=least - 1, path=tmp_path)
    assert caught.value.path == tmp_path and caught.value.next_step


@pytest.fixture
def run(tmp_path, model, tokenizer):
    folder = tmp_path / "checkpoints" / "run"
    folder.mkdir(parents=True)
    write_json(folder / "config.json", model.config.to_huggingface())
    write_json(folder / "settings.json", {"batch_size": 4})
    save_weights(folder / "model.safetensors", portable_tensors(model.state_dict(), model.config))
    (folder / "metrics.jsonl").write_text("")
    tokenizer.save(folder)
    rows = [
        {"goal": "Swim", "sol1": "low", "sol2": "twelve miles", "label": n % 2} for n in range(9)
    ]
    (tmp_path / "piqa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_evaluate_answers_tasks_and_the_report_shows_them(run, tmp_path, capsys):
    results = evaluate(model_name=str(run), tasks=[f"piqa={tmp_path / 'piqa.jsonl'}"])
    result = results["piqa"]
    assert isinstance(result, TaskResult) and result.num_questions == 9
    assert result.accuracy in (4 / 9, 5 / 9)  # one of the two is always the likelier
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row.get("event") == "task"]
    assert (row["task"], row["accuracy"]) == ("piqa", result.accuracy)
    reader = RunReader(run)
    reader.read()
    (table,) = [part for part in reader.page()["sections"] if part["id"] == "tasks"]
    assert table["rows"][0][:2] == ["piqa", "9"]
    assert f"{result.accuracy:.3f}" in table["rows"][0][2]


def test_nothing_to_evaluate_on_and_names_given_twice_are_refused(run, tmp_path):
    with pytest.raises(UsageError, match="nothing to evaluate on is given"):
        evaluate(model_name=str(run))
    twice = [f"a={tmp_path / 'piqa.jsonl'}", f"a={tmp_path / 'piqa.jsonl'}"]
    with pytest.raises(UsageError, match="one name each"):
        evaluate(model_name=str(run), tasks=twice)


def test_a_budget_that_cannot_do_is_refused(run, tmp_path):
    with pytest.raises(BudgetError, match="even one row at a time"):
        evaluate(model_name=str(run), tasks=[str(tmp_path / "piqa.jsonl")], memory="20MiB")


def test_the_budget_named_before_torch_is_loaded_is_enough_in_the_process(
    run, tmp_path, monkeypatch, capsys
):
    """The process measures itself before it loads what is counted beside, on the same device."""
    loaded = []

    class Counted:
        @staticmethod
        def load(name):
            loaded.append(name)
            return Tokenizer.load(name)

    def measure(held_bytes, *, device="auto", backend="torch"):
        unknown = 0 if device == "cpu" else 40 * MIB
        return Program(300 * MIB, 325 * MIB + unknown + 40 * MIB * len(loaded))

    monkeypatch.setattr(inference, "find_program", lambda *_, **__: Program(300 * MIB, 320 * MIB))
    monkeypatch.setattr(evaluating, "program_here", measure)
    monkeypatch.setattr(evaluating, "Tokenizer", Counted)
    words = ["evaluate", "--model-name", str(run), "--device", "cpu", "--batch-size", "1"]
    for name in ("short", "longer"):
        item = {"context": f"a {name} one " * len(name), "choices": ["yes", "no"], "answer": 0}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(item) + "\n")
        words += ["--tasks", str(tmp_path / f"{name}.jsonl")]
    assert cli.main([*words, "--memory", "1MiB"]) != 0
    enough = re.search(r"--memory (\w+)", capsys.readouterr().err)
    assert cli.main([*words, "--memory", enough.group(1)]) == 0
    assert loaded


def test_a_refusal_names_what_the_largest_of_all_tasks_needs(run, tmp_path, monkeypatch):
    for name, times in (("short", 1), ("longer", 9)):
        item = {"context": "swim " * times, "choices": ["yes", "no"], "answer": 0}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(item) + "\n")
    asked = []

    def fit(config, rows, budget_bytes, *, tokens, **_):
        asked.append(tokens)
        return rows

    monkeypatch.setattr(evaluating, "fit_rows", fit)
    tasks = [str(tmp_path / "short.jsonl"), str(tmp_path / "longer.jsonl")]
    evaluate(model_name=str(run), tasks=tasks, device="cpu")
    assert asked[0] == max(asked) > min(asked)


@pytest.mark.parametrize(("places", "is_fetched"), [
    (("data",), False), (("s3://bucket/data",), True), (("data", "web=s3://bucket/data"), True),
])  # fmt: skip
def test_only_an_object_store_takes_buffers(places, is_fetched):
    settings = EvaluateSettings(model_name="m", dataset_dir=places)
    assert evaluating.fetched_bytes(settings) == (buffer_bytes() if is_fetched else 0)


def test_questions_come_in_groups_by_number_and_by_length():
    def sizes(*characters):
        questions = [Question("c" * (count - 2), ("a", "b"), 0) for count in characters]
        groups = likelihood._iter_groups(questions, most=3, most_characters=20)
        return [len(group) for group in groups]

    assert sizes(2, 2, 2, 2) == [3, 1]
    assert sizes(2, 2, 2) == [3]
    assert sizes(10, 10, 9, 10, 2) == [2, 3]  # 20 is enough; 19 is not, and each group counts anew
    assert sizes(20, 19, 19) == [1, 2]


def test_texts_of_many_choices_are_not_in_memory_together(model, tokenizer):
    held, alone = [], {}

    def score(texts):
        held.append(sum(len(ids) for ids, _ in texts))
        return score_rows(model, texts)

    pairs = [("The tide is low, " * 3, choice) for choice in ("the", "cats", "miles", "high")] * 40
    parts = list(likelihood._iter_parts([([1] * 9, 1)] * 5 + [([1] * 30, 1)], most_ids=20))
    assert [len(part) for part in parts] == [3, 3]
    whole = score_choices(score, tokenizer, pairs, rows=200, max_tokens=32)
    assert len(held) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(likelihood._iter_parts, "__kwdefaults__", {"most_ids": 100})
        assert len(score_choices(score, tokenizer, pairs, rows=200, max_tokens=32)) == len(whole)
    assert len(held) > 20 and max(held[1:]) < 100 + 33
    for found, (_, choice) in zip(whole, pairs, strict=True):
        assert alone.setdefault(choice, found.log_likelihood) == pytest.approx(found.log_likelihood)


def test_questions_that_are_answered_are_told(monkeypatch):
    told, asked = [], []

    def score(scorer, tokenizer, pairs, *, rows, max_tokens):
        asked.append((len(pairs), rows, max_tokens))
        return [likelihood.Score(-float(n), False) for n in range(len(pairs))]

    monkeypatch.setattr(likelihood, "score_choices", score)
    questions = [Question("c", ("a", "b"), 0) for _ in range(2 * 128 + 1)]
    sizes = [len(group) for group in likelihood._iter_groups(questions)]
    likelihood.answer_questions(
        None, None, questions, rows=3, max_tokens=9, on_questions=told.append
    )
    assert told == sizes and sum(sizes) == len(questions) and len(sizes) > 1
    assert asked == [(2 * size, 3, 9) for size in sizes]


@pytest.mark.parametrize(
    ("right", "count", "share", "error"),
    [
        (0, 0, 0.0, 0.0),
        (1, 1, 1.0, 0.0),
        (1, 2, 0.5, 0.5),
        (1, 3, 1 / 3, 1 / 3),
        (3, 5, 0.6, 6**0.5 / 10),
    ],
)
def test_the_error_of_a_share_is_that_of_a_samples_mean(right, count, share, error):
    counts = likelihood._Counts()
    counts.by["plain"] = right
    assert counts._share("plain", count) == pytest.approx((share, error))
