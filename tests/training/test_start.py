"""`lowtide train` from the command line: every kind of data, sizes, adaptation, resume, errors."""

import contextlib
import json
import re
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lowtide.cli import main
from lowtide.errors import DataError, UsageError
from lowtide.model.config import GPTConfig
from lowtide.model.weights import load_model
from lowtide.tokenizer import Tokenizer
from lowtide.training import start
from lowtide.training.firstembedding import first_embedding
from lowtide.training.offloading import RUNGS
from lowtide.training.settings import train_settings
from lowtide.training.start import train

WORDS = ["the", "cat", "dog", "sat", "ran", "on", "a", "mat", "log", "and", "then", "slept"]
SMALL = ["--num-layers", "1", "--width", "32", "--num-heads", "2", "--seq-len", "16"]
SHORT = ["--batch-size", "4", "--max-iters", "4", "--eval-interval", "2", "--eval-iters", "2"]


def write_text(path, *, seed=0, words=WORDS, count=3000):
    random = np.random.default_rng(seed)
    chosen = random.choice(words, size=count)
    path.write_text(" ".join(chosen) + ".\n", encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def text(tmp_path):
    return write_text(tmp_path / "text.txt")


def run(*words):
    assert main([str(word) for word in words]) == 0


def files_below(folder):
    """Every file with when it was written and its size."""
    stats = [(path, path.stat()) for path in folder.rglob("*") if path.is_file()]
    return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in stats}


def test_a_text_file_by_characters_then_text_comes_out(text, capsys):
    run(
        "train", "--input-file", text, "--tokenization", "char", "--model-name", "m", *SMALL, *SHORT
    )
    out, err = capsys.readouterr()
    assert "finished at step 4" in out
    assert "coverage: 4 steps x 64 tokens = 256 tokens" in err
    assert re.search(r"step 2: val \d\.\d\d \| \d\.\d{3} bits/byte", err)
    run("generate", "--model-name", "m", "--prompt", "the ", "--max-new-tokens", "40")
    assert capsys.readouterr().out.startswith("the ")
    before = files_below(Path("checkpoints/m"))
    run(
        "train", "--input-file", text, "--tokenization", "char", "--model-name", "m", *SMALL, *SHORT
    )
    assert "this run is finished: 4 steps" in capsys.readouterr().err
    assert files_below(Path("checkpoints/m")) == before
    other = ["--weight-decay", "0.3", "--model-name", "m", *SMALL, *SHORT]
    run("train", "--input-file", text, "--tokenization", "char", *other)
    assert "this run is finished: 4 steps" in capsys.readouterr().err
    assert files_below(Path("checkpoints/m")) == before


def test_a_tokenizer_is_learned_for_a_stream_and_epochs_end_it(text, tmp_path, capsys):
    words = ["--dataset-id", text, "--vocab-size", "275", "--target-params", "50000"]
    words += ["--batch-size", "4", "--gradient-accumulation-steps", "2", "--seq-len", "16"]
    words += ["--model-name", "s", "--use-streaming", "--shuffle-buffer-size", "100"]
    run("train", *words, "--epochs", "2")
    out, err = capsys.readouterr()
    assert "tokenizer of 275 tokens learned" in err
    assert "coverage: as many steps as 2.0 epochs have" in err
    tokens = len(Tokenizer.load(tmp_path / "checkpoints/s").encode(text.read_text()))
    steps = int(re.search(r"finished at step (\d+)", out).group(1))
    assert steps == pytest.approx(2 * tokens / 16 / 8, rel=0.1)
    rows = map(json.loads, (tmp_path / "checkpoints/s/metrics.jsonl").read_text().splitlines())
    rates = [row["learning_rate"] for row in rows if row.get("event") == "step"]
    falls = sum(one > other for one, other in pairwise(rates))
    assert falls >= len(rates) - 3  # with the share that was read, not at the end of an epoch
    assert rates[-1] < 0.2 * max(rates)


@pytest.mark.parametrize("flag", ["--input-file", "--dataset-id"])
def test_without_a_tokenizer_one_that_suits_the_size_is_learned(text, tmp_path, capsys, flag):
    size = ["--target-params", "50000", "--seq-len", "16"]
    words = [flag, text, "--model-name", "m", *size, "--batch-size", "4", "--sample-tokens", "2"]
    run("train", *words, "--max-iters", "2")
    err = capsys.readouterr().err
    assert "tokens learned from" in err
    tokenizer = Tokenizer.load(tmp_path / "checkpoints/m")
    assert 256 < tokenizer.vocab_size <= 400
    assert not (tmp_path / "checkpoints/m/data/head.txt").exists()
    run("train", *words, "--max-iters", "3")
    assert "going on from step 2" in capsys.readouterr().err
    assert Tokenizer.load(tmp_path / "checkpoints/m").fingerprint == tokenizer.fingerprint
    # What plan says of the same flags.
    run("plan", flag, text, *size, "--no-measure", "--json")
    planned = json.loads(capsys.readouterr().out)
    assert planned["data"]["vocab_size"] == (300 if flag == "--input-file" else 400)


def test_a_vocabulary_that_leaves_no_network_is_refused_with_the_remedy(text, tmp_path, capsys):
    letters = [chr(0x4E00 + number) for number in range(20000)]
    Tokenizer.from_characters(sorted({*letters, *text.read_text()})).save(tmp_path / "tok")
    words = ["--input-file", text, "--tokenization", "tok", "--target-params", "170000"]
    assert main(["train", *map(str, words), "--seq-len", "16", "--max-iters", "1"]) == 2
    err = capsys.readouterr().err
    assert "takes nearly all of 170,000 parameters" in err
    assert "of text with --vocab-size " in err and " and without --tokenization" in err


def test_npy_files_and_their_own_validation(tmp_path, capsys):
    ids = np.random.default_rng(0).integers(300, size=2000)
    np.save("train.npy", ids.astype(np.int32))
    np.save("val.npy", ids[:400].astype(np.int32))
    tokenizer = Tokenizer.from_characters([chr(300 + i) for i in range(300)])
    tokenizer.save(tmp_path / "tok")
    run("train", "--train-data-path", "train.npy", "--val-data-path", "val.npy", "--tokenization",
        "tok", "--model-name", "n", *SMALL, *SHORT)  # fmt: skip
    err = capsys.readouterr().err
    assert "step 4: val" in err
    assert "sequences from 2,000 tokens" in err  # all of the file: validation has its own


def test_the_npy_beside_a_text_file_is_found(text, tmp_path, capsys):
    tokenizer = Tokenizer.from_characters(set(text.read_text()))
    tokenizer.save(tmp_path / "tok")
    np.save("text.npy", tokenizer.encode(text.read_text()).astype(np.int32))
    run("train", "--input-file", text, "--tokenization", "tok", "--model-name", "n", *SMALL, *SHORT)
    err = capsys.readouterr().err
    assert "Using tokens on disk: " in err
    assert "text.npy" in err


def test_adaptation_shows_both_losses_and_takes_a_name_or_a_path(text, tmp_path, capsys):
    other = write_text(tmp_path / "other.txt", seed=1, words=["zebra", "quartz", "vex"])
    tokenizer = Tokenizer.from_characters(set(text.read_text() + other.read_text()))
    tokenizer.save(tmp_path / "tok")
    for path in (text, other):
        np.save(path.with_suffix(".npy"), tokenizer.encode(path.read_text()).astype(np.int32))
    base = ["--tokenization", "tok", "--batch-size", "8", "--eval-iters", "4"]
    run("train", "--input-file", text, "--model-name", "base", *SMALL, *base, "--max-iters", "60")
    words = ["--input-file", other, *base, "--max-iters", "30"]
    words += ["--eval-interval", "10", "--learning-rate", "0.01", "--eval-dataset-dir", "text.npy"]
    for number, base_model in enumerate(
        ("base", "checkpoints/base", tmp_path / "checkpoints/base")
    ):
        run("train", *words, "--model-name", f"d{number}", "--init-from-model", base_model)
        err = capsys.readouterr().err
        assert re.search(r"step 10: val \d\.\d\d \| eval_general \d\.\d\d", err)
        assert "warning: the model is forgetting: eval_general" in err
        assert "rows of 16 tokens: the context of" in err
    run("train", *words, "--model-name", "r", "--init-from-model", "base",
        "--replay-dataset-dir", "text.npy", "--replay-fraction", "0.5")  # fmt: skip
    replayed = capsys.readouterr().err
    assert "replay: 50% of the rows from text.npy" in replayed
    general = [r["eval_general_loss"] for r in eval_rows("r")]
    assert general[-1] < [r["eval_general_loss"] for r in eval_rows("d0")][-1]
    run("evaluate", "--model-name", "r", "--dataset-dir", "general=text.npy", "--eval-iters", "4")
    assert re.match(r"general: loss \d+\.\d{4}  perplexity .* bits/byte", capsys.readouterr().out)


def eval_rows(name):
    with open(f"checkpoints/{name}/metrics.jsonl") as file:  # noqa: PTH123
        return [row for row in map(json.loads, file) if row.get("event") == "eval"]


def test_a_tokenizer_that_does_not_fit_the_model_is_refused(text, tmp_path):
    options = {"max_iters": 2, "seq_len": 16, "num_layers": 1, "width": 32, "num_heads": 2}
    train(input_file=text, tokenization="char", model_name="base", **options)
    other = write_text(tmp_path / "other.txt", words=["other", "letters", "zyx"])
    with pytest.raises(DataError, match=r"base was trained with tokenizer char(.|\n)*prepare"):
        train(
            input_file=other,
            tokenization="char",
            model_name="d",
            init_from_model="base",
            max_iters=2,
            seq_len=16,
        )


def test_a_checkpoint_of_a_run_has_the_runs_tokenizer(text, tmp_path, capsys, monkeypatch):
    made = ["--tokenization", "char", "--model-name", "base", *SMALL, *SHORT]
    run("train", "--input-file", text, *made, "--save-interval", "2")
    step = tmp_path / "checkpoints/base/steps/step_00000002"
    write = ["--prompt", "the ", "--max-new-tokens", "2"]
    run("generate", "--model-name", step, *write)
    tokens = next(tmp_path.glob("checkpoints/base/data/*.npy"))
    run("evaluate", "--model-name", step, "--dataset-dir", tokens, "--eval-iters", "1")
    run("export", "--model-name", step, "--out-dir", "out")
    assert (tmp_path / "out/tokenizer.json").is_file()
    monkeypatch.chdir(step)
    run("generate", "--model-name", ".", *write)
    run("generate", "--model-name", tmp_path / "out", *write)
    other = write_text(tmp_path / "other.txt", words=["other", "letters", "zyx"])
    with pytest.raises(DataError, match=r"step_00000002 was trained with tokenizer char"):
        options = {"tokenization": "char", "seq_len": 16, "checkpoints_dir": tmp_path}
        train(input_file=other, init_from_model=str(step), model_name="d", **options)


def test_a_model_without_a_tokenizer_is_trained_with_a_warning(text, tmp_path, capsys):
    run(
        "train", "--input-file", text, "--tokenization", "char", "--model-name", "b", *SMALL, *SHORT
    )
    capsys.readouterr()
    more = ["--input-file", text, "--init-from-model", "b", "--seq-len", "16", *SHORT]
    run("train", *more, "--model-name", "c")
    assert "has no tokenizer" not in capsys.readouterr().err
    for name in ("tokenizer.json", "checksums.json"):  # as published models may be
        (tmp_path / "checkpoints/b" / name).unlink()
    run("train", *more, "--tokenization", "char", "--model-name", "d")
    assert "warning: checkpoints/b has no tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "tide"}, "layout is tide, this model has qwen3"),
        ({"tie_weights": False}, "tie_weights is False, this model has True"),
        ({"target_params": 10**6}, "target_params is 1,000,000, this model has "),
        ({"num_layers": 3}, "num_layers is 3, this model has 1"),
        ({"layout": "qwen3", "tie_weights": True, "num_layers": 1}, None),
    ],
)
def test_a_shape_that_the_base_model_has_not_is_refused(text, options, message):
    """Layout and size were taken, and the base model's trained."""
    shape = {"seq_len": 16, "num_layers": 1, "width": 32, "num_heads": 2}
    train(input_file=text, tokenization="char", model_name="base", max_iters=1, **shape)

    def adapt():
        return train(
            input_file=text, tokenization="char", model_name="d", init_from_model="base",
            max_iters=1, seq_len=16, **options,
        )  # fmt: skip

    if message is None:
        assert adapt().steps == 1
        return
    with pytest.raises(UsageError, match=message) as refused:
        adapt()
    assert refused.value.next_step == "leave the shape out: it is the base model's"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_the_first_process_alone_clears_a_run_and_the_others_wait(
    monkeypatch, tmp_path, overwrite, is_first
):
    calls = []
    group = SimpleNamespace(is_first=is_first, wait=lambda: calls.append("wait"))
    run = SimpleNamespace(
        root=tmp_path,
        clear=lambda: calls.append("clear"),
        find_whole=lambda note, set_aside=False: calls.append(("find", note, set_aside)) or "whole",
    )
    for name in ("settings", "checkpoint"):
        note = partial(lambda name, *given: calls.append((name, *given[1:])), name)
        monkeypatch.setattr(start, f"require_same_{name}", note)
    settings = train_settings(model_name="m", overwrite=overwrite)
    start._agree(settings, run, group, print)
    first = ["clear"] * overwrite + [("find", print, True)] if is_first else []
    last = ["wait", ("find", print, False), ("checkpoint", tmp_path, "whole")]
    assert calls == [("settings", settings), *first, *last]


@pytest.mark.parametrize(
    ("offload", "kinds", "overwrite", "rungs"),
    [
        ("none", None, False, None),
        ("auto", None, False, RUNGS),
        ("auto", ["AdamW"], False, ("none",)),
        ("auto", ["AdamW", "PackedMuon"], False, RUNGS[1:]),
        ("auto", ["PackedAdamW"], True, RUNGS),
    ],
)
def test_a_run_goes_on_with_the_kind_of_states_it_has(
    monkeypatch, capsys, offload, kinds, overwrite, rungs
):
    asked = []
    chosen = train_settings(offload="disk")
    monkeypatch.setattr(start, "expected_shape", lambda settings: "shape")
    monkeypatch.setattr(
        start, "choose_rung", lambda *given, rungs: asked.append((*given, rungs)) or chosen
    )
    numbers = {} if kinds is None else {"optimizers": [{"kind": kind} for kind in kinds]}
    run = SimpleNamespace(exists=lambda: kinds is not None, load_numbers=lambda: numbers)
    settings = train_settings(offload=offload, overwrite=overwrite)
    found = start._with_rung(settings, run)
    if rungs is None:
        assert found is settings and not asked
    else:
        assert found is chosen and asked == [(settings, "shape", rungs)]
        assert "--offload disk: the first that fits" in capsys.readouterr().err


def test_errors_of_users_name_what_is_wrong(text, tmp_path):
    with pytest.raises(UsageError, match="nothing to train on is given"):
        train(model_name="x")
    with pytest.raises(UsageError, match="--dataset-dir and --input-file are given"):
        train(model_name="x", dataset_dir=tmp_path, input_file=text)
    with pytest.raises(DataError, match="input file not found"):
        train(model_name="x", input_file=tmp_path / "nothing.txt")
    with pytest.raises(DataError, match="no model 'nobody'"):
        train(model_name="x", input_file=text, init_from_model="nobody")
    with pytest.raises(UsageError, match="target_params and width are both given"):
        train(input_file=text, tokenization="char", target_params=10**5, width=64, max_iters=1)


def test_config_files_of_the_guides_are_understood(text, tmp_path, capsys):
    config = {
        "name": "tiny",
        "description": "as guide 001 writes it",
        "n_layer": 1,
        "n_embd": 32,
        "n_head": 2,
        "block_size": 16,
        "batch_size": 4,
        "grad_accum_steps": 2,
        "warmup_iters": 2,
        "max_iters": 3,
        "eval_iters": 2,
        "learning_rate": 1e-3,
    }
    (tmp_path / "tiny.json").write_text(json.dumps(config))
    run("train", "--input_file", text, "--tokenization", "char", "--model_name", "c",
        "--config_file", "tiny.json")  # fmt: skip
    assert "3 steps x 128 tokens" in capsys.readouterr().err


def test_a_hopeless_budget_is_refused_before_the_data_is_read(text, tmp_path, capsys):
    words = ["--input-file", text, "--vocab-size", "300", "--model-name", "m", "--memory", "1MiB"]
    for shape in (SMALL, ["--target-params", "50000", "--seq-len", "16"]):
        assert main([str(word) for word in ("train", *words, *shape, *SHORT)]) == 1
        assert "the budget is 1.0 MiB" in capsys.readouterr().err
        assert not (tmp_path / "checkpoints").exists()


def test_another_shape_than_the_weights_have_is_refused(text, capsys):
    words = ["train", "--input-file", text, "--tokenization", "char", *SHORT]
    run(*words, "--model-name", "m", *SMALL)
    other = [*SMALL, "--num-heads", "4"]
    assert main([str(word) for word in (*words, "--model-name", "m", *other)]) == 2
    err = capsys.readouterr().err
    assert "num_heads is 4, this run has 2" in err and "another --model-name" in err
    more = ["--model-name", "n", "--init-from-model", "m", "--width", "64", "--seq-len", "16"]
    assert main([str(word) for word in (*words, *more)]) == 2
    assert "width is 64, this model has 32" in capsys.readouterr().err


def test_a_run_goes_on_by_its_name_and_data_alone(text, capsys):
    """What its first command said is left out: its layout, seed, order and length of rows."""
    words = ["train", "--input-file", text, "--eval-iters", "1"]
    shape = ["--num-layers", "1", "--width", "32", "--num-heads", "2", "--tokenization", "char"]
    run(*words, *shape, "--seq-len", "16", "--max-iters", "1", "--model-name", "base")
    short = ["--init-from-model", "base", "--seq-len", "8", "--order", "shifted", "--seed", "3"]
    run(*words, *short, "--max-iters", "1", "--model-name", "short")
    own = ["--layout", "tide", "--average-over", "0.5", "--seq-len", "16", "--max-iters", "2"]
    run(*words, *shape, *own, "--model-name", "own")
    capsys.readouterr()
    for name in ("short", "own"):
        run(*words, "--max-iters", "3", "--model-name", name)
        err = capsys.readouterr().err
        assert "going on from step" in err and "order" not in err
    other = [*words, "--max-iters", "4", "--model-name", "own", "--layout", "qwen3"]
    assert main([str(word) for word in other]) == 2
    assert "layout is qwen3, this run has tide" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "how"),
    [("cooccurrence", {}), ("frequency", {}), ("cooccurrence", {"offload": "packed"})],
)
def test_the_embedding_begins_at_what_stands_beside_what(text, kind, how, capsys, monkeypatch):
    made, asked = [], []

    def keep(*arguments, **options):
        asked.append(options)
        made.append(first_embedding(*arguments, **options))
        return made[0]

    monkeypatch.setattr(start, "first_embedding", keep)
    shape = {"num_layers": 1, "width": 32, "num_heads": 1, "seq_len": 16, "batch_size": 2}
    run = {**shape, "input_file": text, "tokenization": "char", "learning_rate": 1e-9, **how}
    train(**run, max_iters=1, sample_tokens=0, first_embedding=kind)
    assert asked == [{"seed": 1337, "frequency": kind == "frequency"}]
    assert "counting which tokens stand beside which" in capsys.readouterr().err
    weights = load_model("checkpoints/model").state_dict()
    assert np.allclose(weights["embedding.weight"].numpy(), made[0], atol=1e-5)
    if not how:
        train(**run, max_iters=2, sample_tokens=0, first_embedding=kind)
        assert len(made) == 1  # it goes on with what it has learned


def test_small_models_begin_at_counts_and_their_runs_say_so(text, capsys):
    words = ["--input-file", text, "--target-params", "20000", "--seq-len", "16", *SHORT]
    kept = {}
    for name, more in (("words", ["--vocab-size", "300"]), ("letters", ["--tokenization", "char"])):
        run("train", *words, "--model-name", name, *more)
        said = "counting which tokens stand beside which" in capsys.readouterr().err
        settings = json.loads(Path("checkpoints", name, "settings.json").read_text())
        width = json.loads(Path("checkpoints", name, "config.json").read_text())["hidden_size"]
        kept[name] = (said, settings["first_embedding"], width)
    assert kept["words"][:2] == (True, "frequency") and kept["words"][2] < 300
    assert kept["letters"][:2] == (False, "random"), kept


def test_text_that_is_streamed_is_not_there_to_be_counted(text, capsys):
    words = ["--dataset-id", text, "--vocab-size", "275", "--first-embedding", "cooccurrence"]
    run("train", *words, "--model-name", "s", *SMALL, *SHORT)
    assert "the embedding begins at random: text that is streamed" in capsys.readouterr().err


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("base_dir", [None, Path("base")])
@pytest.mark.parametrize("how", ["random", "cooccurrence", "frequency"])
def test_first_weights_are_those_of_the_model_to_start_from(monkeypatch, exists, base_dir, how):
    calls, notes = [], []
    backend = SimpleNamespace(
        new_model=lambda config, **options: calls.append((config, options)) or "model",
        load_weights=lambda model, folder: calls.append((model, folder)),
    )
    run = SimpleNamespace(exists=lambda: exists, newest_dir=lambda: Path("newest"), source_dir=None)
    data = SimpleNamespace(tokenizer="tokenizer", train="data")
    for name, stand_in in {
        "_shape": lambda *given: "config",
        "require_weights": lambda *given: calls.append(given),
        "backend_of": lambda settings: backend,
        "foreign_note": lambda tokenizer, config: f"{tokenizer} of {config}",
        "_set_first_embedding": lambda *given: calls.append(("counted", *given[1:6])),
    }.items():
        monkeypatch.setattr(start, name, stand_in)
    counts = how != "random"
    settings = train_settings(first_embedding=how, seed=7, zero_init=True)
    assert start._make_model(settings, run, "group", data, base_dir, notes.append) == "model"
    looked_at = base_dir or Path("newest")
    expected = [(looked_at, "config")] if exists or base_dir else []
    expected += [("config", {"seed": 7, "zero_init": True})]
    if base_dir is not None:
        expected += [("model", base_dir)]
    elif counts and not exists:
        expected += [("counted", "model", "data", how, 7, "group")]
    assert calls == expected and run.source_dir == base_dir
    said = ["--first-embedding: the embedding is that of the model to start from"] * counts
    said += ["starting from base", "tokenizer of config"]
    assert notes == (said if base_dir else [])


@pytest.mark.parametrize("kind", ["new", "base", "run"])
@pytest.mark.parametrize("seq_len", [16, 17])
def test_rows_are_no_longer_than_the_context(monkeypatch, tmp_path, kind, seq_len):
    """By what is there: the run's own shape, the base model's, or the one that is asked for."""
    there = GPTConfig(512, 16, 1, 32, 2)
    asked, checked = [], []
    run = SimpleNamespace(exists=lambda: kind == "run", load_config=lambda: there, root=tmp_path)
    data = SimpleNamespace(tokenizer=SimpleNamespace(vocab_size=300))
    monkeypatch.setattr(start, "load_config", lambda folder: there)
    monkeypatch.setattr(start, "require_vocabulary", lambda *given: checked.append(given))
    monkeypatch.setattr(
        start, "model_config", lambda model, vocabulary: asked.append(vocabulary) or there
    )
    settings = train_settings(model_name="m", checkpoints_dir=tmp_path, seq_len=seq_len)
    settings = start.replace_settings(settings, dropout=0.25)
    base = tmp_path / "base" if kind != "new" else None
    refused = pytest.raises(UsageError, match="seq_len is 17, the model's context 16")
    with refused if seq_len > 16 else contextlib.nullcontext():
        found = start._shape(settings, run, data, base)
        assert found == (there if kind == "new" else there.replace(dropout=0.25))
    assert asked == ([start.padded_vocab_size(300)] if kind == "new" else [])
    assert [given[0] for given in checked] == [data.tokenizer]
    assert checked[0][2] == (base or tmp_path / "m")
    other = start.replace_settings(settings, width=64)
    if kind != "new":
        with pytest.raises(UsageError, match="width is 64, this model has 32"):
            start._shape(other, run, data, base)


def test_a_run_is_opened_once_and_locked_by_the_first_process(tmp_path, monkeypatch):
    calls = []

    def note(name, result=None):
        return lambda *given, **options: calls.append((name, *given, *options.values())) or result

    group = SimpleNamespace(is_first=False)
    run = SimpleNamespace(
        root="root", exists=lambda: False, locked=note("locked", contextlib.nullcontext())
    )
    opened = SimpleNamespace(open_group=note("group", contextlib.nullcontext(group)))
    for name, stand_in in {
        "sleep_while_waiting": note("sleep"), "RunFolder": note("run", run),
        "require_own_run": note("own"), "_with_rung": lambda settings, run: settings,
        "PeakMeter": note("meter", contextlib.nullcontext()),
        "backend_of": lambda settings: opened, "_train": note("train", "result"),
    }.items():  # fmt: skip
        monkeypatch.setattr(start, name, stand_in)
    settings = train_settings(model_name="m", checkpoints_dir=tmp_path, keep_checkpoints=4)
    assert train(settings) == "result"
    assert calls == [
        ("sleep",), ("run", tmp_path / "m", 4), ("own", "root"), ("meter",), ("group", "auto"),
        ("locked", False), ("train", settings, run, group),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="slurm is True, expected false here"):
        train(train_settings(slurm=True))
    run.exists = lambda: True
    for given, goes_on in (({}, True), ({"resume": False}, False),
                           ({"resume": False, "overwrite": True}, True)):  # fmt: skip
        refused = pytest.raises(UsageError, match="--no-resume forbids")
        with contextlib.nullcontext() if goes_on else refused:
            train(train_settings(**given))


@pytest.mark.parametrize("on_cpu", [False, True])
def test_a_trainer_gets_what_the_settings_made(monkeypatch, on_cpu):
    calls = []

    def note(name, result=None):
        return lambda *given, **options: calls.append((name, given, options)) or result

    class Noting:
        def __init__(self, model, **options):
            calls.append(("Trainer", model, options))

        def fit(self):
            return self.run, self.program

    data = SimpleNamespace(train="train", val="val", others="others", tokenizer="tokenizer")
    group, run = SimpleNamespace(on_cpu=on_cpu, is_first=True), SimpleNamespace()
    for name, stand_in in {
        "_agree": note("agree"), "_find_base_dir": note("base", "base"),
        "_as_the_run_has_them": lambda settings, *rest: settings,
        "program_here": note("program", "program"), "refuse_hopeless": note("refuse"),
        "_open_data": note("data", data), "_make_model": note("model", "model"),
        "_with_beginning": lambda settings, *rest: settings, "Trainer": Noting,
    }.items():  # fmt: skip
        monkeypatch.setattr(start, name, stand_in)
    settings = train_settings(overwrite=True, device="cpu")
    assert start._train(settings, run, group) == (run, "program" if on_cpu else None)
    names = [
        "agree",
        "base",
        *(["program", "refuse"] if on_cpu else []),
        "data",
        "model",
        "Trainer",
    ]
    assert [call[0] for call in calls] == names
    assert calls[0][1][:3] == (settings, run, group)
    after = calls[1][1][0]
    assert not after.run.overwrite and calls[1][1] == (after, run, group)
    if on_cpu:
        assert calls[2][1:] == ((0,), {"device": "cpu", "backend": "torch"})
        assert calls[3][1:] == ((after,), {"program": "program", "is_running": True})
    made = {"data": "train", "val_data": "val", "eval_data": "others", "tokenizer": "tokenizer"}
    assert calls[-1] == ("Trainer", "model", {**made, "settings": after})
    assert calls[-2][1][:5] == (after, run, group, data, "base")


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize(("exists", "wanted"), [(False, None), (True, "base"), (False, "base")])
def test_the_first_process_makes_the_base_and_the_others_find_it(
    monkeypatch, is_first, exists, wanted
):
    calls = []
    monkeypatch.setattr(start, "find_base", lambda settings: calls.append("find") or Path("b"))
    group = SimpleNamespace(is_first=is_first, wait=lambda: calls.append("wait"))
    run = SimpleNamespace(exists=lambda: exists)
    found = start._find_base_dir(train_settings(init_from_model=wanted), run, group)
    looks = wanted is not None and not exists
    assert found == (Path("b") if looks else None)
    assert calls == (["find"] * is_first + ["wait", "find"] if looks else [])
