"""The evaluation suite's view of a model: scores and texts as lowtide's own verbs give them."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from lowtide import lmeval
from lowtide.errors import BudgetError
from lowtide.files import write_json
from lowtide.generation.decoding import generate_text
from lowtide.model.arrayfiles import save_weights
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.inference import planned_bytes
from lowtide.model.weights import portable_tensors
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


def bare_scorer(**parts):
    scorer = object.__new__(lmeval.Scorer)
    scorer.config = SimpleNamespace(context_length=10)
    scorer.max_tokens, scorer.rows, scorer._budget = 5, 8, 100
    scorer._program, scorer._tokenizer_bytes = "program", 7
    scorer.device = SimpleNamespace(type="cpu")
    scorer.model, scorer.tokenizer = "model", SimpleNamespace(end_of_text_id=3)
    for name, value in parts.items():
        setattr(scorer, name, value)
    return scorer


def test_a_context_that_is_too_long_loses_its_beginning(monkeypatch):
    asked = []

    def score_ids(score, texts, *, rows):
        asked.append((texts, rows))
        return [SimpleNamespace(log_likelihood=-1.0, is_greedy=True) for _ in texts]

    monkeypatch.setattr("lowtide.training.likelihood.score_ids", score_ids)
    scorer = bare_scorer(fit=lambda tokens: 100 + tokens)
    pairs = [([1, 2, 3], [4, 5]), ([1, 2, 3, 4, 5], [6, 7]), ([1], list(range(9))), ([], [5])]
    assert scorer.score(pairs) == [(-1.0, True)] * 4
    assert asked.pop() == (
        [
            ([1, 2, 3, 4, 5], 2),
            ([2, 3, 4, 5, 6, 7], 2),  # five tokens and the one before them
            ([3, 4, 5, 6, 7, 8], 5),
            ([5], 0),
        ],
        105,
    )
    assert scorer.score([([], [5])]) and asked.pop()[1] == 101
    assert scorer.score([]) == [] and asked.pop() == ([], 101)


def test_what_is_asked_of_generation(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "lowtide.generation.decoding.generate_text",
        lambda model, tokenizer, prompts, **options: asked.append((prompts, options)) or ["x"],
    )
    scorer = bare_scorer(fit=lambda tokens, *, generates: (tokens, generates))
    usual = {
        "max_new_tokens": 256, "stop": (), "temperature": 0.0, "top_k": 0, "top_p": 1.0,
        "repetition_penalty": 1.0, "batch_size": (10, True), "seed": None,
    }  # fmt: skip
    sampling = {"do_sample": True, "max_gen_toks": 3}
    for prompts, options, changes in (
        (["a", "bc"], {}, {}),
        (["a", "é"], {"until": "z", "max_gen_toks": 4}, {"stop": ("z",), "max_new_tokens": 4,
                                                        "batch_size": (6, True)}),
        ([], {"until": ["y", "z"], "max_gen_toks": 0, "temperature": 2.0, "top_k": 5},
         {"stop": ("y", "z"), "max_new_tokens": 0, "batch_size": (1, True)}),
        ([], {"max_gen_toks": 3}, {"max_new_tokens": 3, "batch_size": (3, True)}),
        (["a"], sampling, {"max_new_tokens": 3, "temperature": 1.0, "seed": 0,
                           "batch_size": (4, True)}),
        (["a"], {**sampling, "temperature": 0.5, "top_k": 9, "top_p": 0.25},
         {"max_new_tokens": 3, "temperature": 0.5, "top_k": 9, "top_p": 0.25, "seed": 0,
          "batch_size": (4, True)}),
    ):  # fmt: skip
        assert scorer.write(prompts, options) == ["x"]
        assert asked.pop() == (prompts, usual | changes)


def test_rows_on_a_device_are_those_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "lowtide.model.inference.fit_rows",
        lambda config, rows, budget, **more: asked.append((rows, budget, more)) or 1,
    )
    scorer = bare_scorer()
    assert scorer.fit(9) == 1 and scorer.fit(9, generates=True) == 1
    given = {"tokens": 9, "program": "program", "tokenizer_bytes": 7}
    assert asked == [(8, 100, {**given, "generates": kind}) for kind in (False, True)]
    scorer.device = SimpleNamespace(type="cuda")
    scorer.rows = 5000
    assert scorer.fit(9) == 5000 and scorer.fit(9, generates=True) == 1024
    without = bare_scorer(tokenizer=SimpleNamespace(end_of_text_id=None))
    assert (scorer.prefix_id, without.prefix_id) == (3, 0)


def test_what_the_suite_calls(monkeypatch):
    """The suite is a stand-in here; with the real one the accuracies are compared below."""
    made, hooked, windows, registered = [], [], [], []

    class TemplateLM:
        def __init__(self):
            self.cache_hook = SimpleNamespace(add_partial=lambda *given: hooked.append(given))

    def rolling(**options):
        windows.append(options)
        return [([1], [2]), ([2], [3])]

    modules = {
        "lm_eval.api.model": SimpleNamespace(TemplateLM=TemplateLM),
        "lm_eval.api.registry": SimpleNamespace(
            register_model=lambda name: lambda cls: registered.append(name) or cls
        ),
        "lm_eval.utils": SimpleNamespace(
            get_rolling_token_windows=rolling, make_disjoint_window=lambda pair: pair
        ),
        "lm_eval.__main__": SimpleNamespace(cli_evaluate=lambda: made.append("run")),
    }
    monkeypatch.setattr(lmeval, "import_package", lambda name, what: modules[name])
    tokenizer = SimpleNamespace(
        encode=lambda text, *, special: torch.tensor([len(text)]), end_of_text_id=3
    )
    scorer = SimpleNamespace(
        prefix_id=3, max_tokens=5, tokenizer=tokenizer,
        score=lambda pairs: [(-1.0 * len(context), True) for context, _ in pairs],
        write=lambda prompts, options: [prompt.upper() for prompt in prompts],
    )  # fmt: skip
    monkeypatch.setattr(
        lmeval, "Scorer", lambda pretrained, **options: made.append((pretrained, options)) or scorer
    )
    lmeval.model_class.cache_clear()
    try:
        model = lmeval.model_class()("mine", best=True, device=None, batch_size=4, other="x")
        lmeval.main()
    finally:
        lmeval.model_class.cache_clear()
    assert made == [("mine", {"best": True, "batch_size": 4}), "run"]
    assert registered == ["lowtide"]
    assert (model.eot_token_id, model.max_length, model.tok_encode("abc")) == (3, 5, [3])
    requests = [(("a", "b"), [1, 2], [3]), (("c", "d"), [1], [2])]
    assert model._loglikelihood_tokens(requests) == [(-2.0, True), (-1.0, True)]
    assert hooked == [
        ("loglikelihood", ("a", "b"), (-2.0, True)), ("loglikelihood", ("c", "d"), (-1.0, True)),
    ]  # fmt: skip
    whole = [SimpleNamespace(args=("text",)), SimpleNamespace(args=("more",))]
    assert model.loglikelihood_rolling(whole) == [-2.0, -2.0]
    assert windows == [
        {"token_list": [4], "prefix_token": 3, "max_seq_len": 5, "context_len": 1}
    ] * 2  # fmt: skip
    asked = [SimpleNamespace(args=("one", {"until": ["a"]}))]
    assert model.generate_until(asked) == ["ONE"]
