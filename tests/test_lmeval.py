"""The evaluation suite's view of a model: scores and texts as lowtide's own verbs give them."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

from lowtide import lmeval
from lowtide.errors import BudgetError
from lowtide.files import write_json
from lowtide.generation.decoding import generate_text
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.inference import planned_bytes
from lowtide.model.weights import portable_tensors, save_weights
from lowtide.packages import MissingPackageError
from lowtide.tokenizer import Tokenizer
from lowtide.training.evaluating import evaluate
from lowtide.training.evaluation import score_rows
from lowtide.training.likelihood import score_choices

QUESTIONS = [
    {"context": f"the tide {n}", "choices": ["comes in", "goes", "out at noon"], "answer": n % 3}
    for n in range(12)
]
TASK = """
task: tides
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{{metric: acc}}, {{metric: acc_norm}}, {{metric: acc_bytes}}]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "mine"
    folder.mkdir()
    tokenizer = Tokenizer.from_merges([(b"t", b"h"), (b"th", b"e"), (b" ", b"t")])
    torch.manual_seed(0)
    config = GPTConfig(tokenizer.vocab_size, 48, 2, 32, 2)
    model = GPT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    write_json(folder / "config.json", config.to_huggingface())
    save_weights(folder / "model.safetensors", portable_tensors(model.state_dict(), config))
    tokenizer.save(folder)
    return folder


@pytest.fixture(scope="module")
def scorer(run):
    return lmeval.Scorer("mine", checkpoints_dir=str(run.parent), device="cpu", batch_size="auto")


def test_a_shorter_length_is_what_is_fitted_first(run, monkeypatch):
    asked = []
    monkeypatch.setattr(lmeval.Scorer, "fit", lambda self, tokens: asked.append(tokens))
    for length in (8, 48, 4000, None):  # the model has a context of 48
        lmeval.Scorer(str(run), device="cpu", max_length=length)
    assert asked == [8, 48, 48, 48]


def test_scores_are_those_of_tasks(scorer):
    pairs = [("the tide", "comes in"), ("low", "tide"), ("the" * 40, "out")]
    encode = scorer.tokenizer.encode
    ids = [
        (encode(left).tolist(), encode(f"{left} {right}").tolist()[len(encode(left)) :])
        for left, right in pairs
    ]
    wanted = score_choices(
        partial(score_rows, scorer.model), scorer.tokenizer, pairs, rows=2, max_tokens=48
    )
    found = scorer.score(ids)
    assert [greedy for _, greedy in found] == [score.is_greedy for score in wanted]
    assert [value for value, _ in found] == pytest.approx(
        [score.log_likelihood for score in wanted], rel=1e-5
    )
    assert scorer.score([]) == [] and scorer.rows == 8


def test_texts_are_those_of_generate(scorer):
    options = {"until": ["z"], "max_gen_toks": 6}
    found = scorer.write(["the tide", "low"], options)
    wanted = [
        generate_text(
            scorer.model, scorer.tokenizer, prompt, max_new_tokens=6, preset="deterministic",
            stop=("z",),
        )
        for prompt in ("the tide", "low")
    ]  # fmt: skip
    assert found == wanted
    sampled = {"until": "z", "max_gen_toks": 9, "do_sample": True, "temperature": 1.5}
    assert scorer.write(["the"], sampled) == scorer.write(["the"], sampled)


def test_rows_that_write_are_counted_as_such(run, monkeypatch):
    """Texts under way hold a cache of keys and values, and there are never more than 1,024."""
    scorer = lmeval.Scorer(str(run), device="cpu", batch_size=5000)
    asked = []
    monkeypatch.setattr(
        "lowtide.generation.decoding.generate_text",
        lambda *args, batch_size, **more: asked.append(batch_size) or ["a"],
    )
    assert scorer.write(["the"], {}) == ["a"] and asked == [1024]
    program = scorer._program
    one, many = (
        planned_bytes(scorer.config, rows=rows, tokens=48, program=program, generates=True)
        for rows in (1, 300)
    )
    scorer._budget = (one.budget_bytes + many.budget_bytes) // 2
    assert scorer.write(["the"], {}) == ["a"] and asked[1] < 300


def test_requests_of_one_kind_go_together():
    asked = []

    def write(prompts, options):
        asked.append((prompts, options))
        return [prompt.upper() for prompt in prompts]

    one, other = {"until": ["a"]}, {"until": ["b"]}
    requests = [("a", one), ("b", dict(one)), ("c", other), ("d", one)]
    assert lmeval._in_groups(requests, write) == ["A", "B", "C", "D"]
    assert asked == [(["a", "b"], one), (["c"], other), (["d"], one)]


def test_a_budget_that_is_too_small_is_refused_before_weights_are_read(run):
    with pytest.raises(BudgetError, match="even one row at a time"):
        lmeval.Scorer(str(run), device="cpu", memory="1MiB")


def test_without_the_suite_the_command_that_installs_it_is_named(monkeypatch, capsys):
    monkeypatch.setattr("lowtide.packages.has_package", lambda module: module != "lm_eval")
    lmeval.model_class.cache_clear()
    with pytest.raises(MissingPackageError, match="needs the package lm_eval"):
        lmeval.model_class()
    with pytest.raises(SystemExit):
        lmeval.main()
    assert 'pip install "lowtide[lmeval]"' in capsys.readouterr().err


def test_the_suite_gives_the_accuracies_of_tasks(run, tmp_path):
    """Where it is installed: pip install "lowtide[lmeval]"."""
    lm_eval = pytest.importorskip("lm_eval")
    pytest.importorskip("datasets")
    from lm_eval.tasks import TaskManager

    path = tmp_path / "tides.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in QUESTIONS))
    (tmp_path / "tides.yaml").write_text(TASK.format(path=path))
    ours = evaluate(model_name=str(run), tasks=(f"tides={path}",), device="cpu")["tides"]
    lmeval.model_class.cache_clear()
    lmeval.model_class()
    results = lm_eval.simple_evaluate(
        model="lowtide",
        model_args=f"pretrained={run}",
        device="cpu",
        tasks=["tides"],
        task_manager=TaskManager(include_path=str(tmp_path)),
        bootstrap_iters=0,
    )["results"]["tides"]
    assert results["acc,none"] == pytest.approx(ours.accuracy)
    assert results["acc_norm,none"] == pytest.approx(ours.accuracy_chars)
    assert results["acc_bytes,none"] == pytest.approx(ours.accuracy_bytes)
