"""The snippet of the guide to sharded datasets, with its import line changed."""

import re

import numpy as np
import pytest
import torch

from lowtide import GPT, GPTConfig, load_model, prepare_dataset
from lowtide.errors import DataError, UsageError
from lowtide.files import write_json
from lowtide.model.arrayfiles import save_weights
from lowtide.model.weights import portable_tensors
from lowtide.training import loaders

WORDS = ["once", "upon", "a", "time", "little", "cat", "liked", "to", "run", "and", "play", "far"]


@pytest.fixture
def tokenizer(tmp_path, monkeypatch):
    """Two datasets of one tokenizer, where the guide has them."""
    from lowtide import Tokenizer

    monkeypatch.chdir(tmp_path)
    Tokenizer.from_characters(sorted(set("".join(WORDS) + " .\n"))).save("tok")
    for seed, name in enumerate(("domain_corpus", "general_corpus")):
        random = np.random.default_rng(seed)
        lines = [" ".join(random.choice(WORDS, size=12)) + "." for _ in range(200)]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")
        prepare_dataset(
            input_files=[f"{name}.txt"], out_dir=f"data/{name}", tokenization="tok",
            dedup=False, filter=False, val_fraction=0.2,
        )  # fmt: skip
    return Tokenizer.load("tok")


def make_model(tokenizer):
    torch.manual_seed(0)
    config = GPTConfig(tokenizer.vocab_size, 16, 1, 32, 2)
    return config, GPT(config)


def test_dual_evaluation_as_the_guide_writes_it(tokenizer, capsys):
    config, model = make_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    from lowtide import GPTDataLoader

    # Domain loader (train + val)
    domain_loader = GPTDataLoader(config, tokenizer, dataset_dir="data/domain_corpus")

    # General eval loader (val only - no training data loaded)
    general_loader = GPTDataLoader(
        config, tokenizer,
        dataset_dir="data/general_corpus",
        eval_only=True  # Only loads val shards
    )  # fmt: skip

    before = [p.detach().clone() for p in model.parameters()]
    # Train with dual evaluation
    result = model.fit(
        data_loader=domain_loader,
        optimizer=optimizer,
        eval_data_loaders={"general": general_loader},
        max_iters=6,
        eval_interval=3,
        eval_iters=1,
    )
    assert result.steps == 6
    assert re.search(r"step 6: val \d\.\d\d \| eval_general \d\.\d\d", capsys.readouterr().err)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert len(optimizer.state) == len(before)  # the one that was given did the work


def test_a_given_optimizer_goes_on_where_it_stopped(tokenizer):
    from lowtide import GPTDataLoader

    def trained(name, *lengths):
        for length in lengths:
            config, model = make_model(tokenizer)
            loader = GPTDataLoader(config, tokenizer, dataset_dir="data/domain_corpus")
            model.fit(
                loader,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                max_iters=length,
                schedule="constant",
                warmup=0,
                model_name=name,
            )
        return model

    once, twice = trained("once", 6), trained("twice", 3, 6)
    for one, other in zip(once.parameters(), twice.parameters(), strict=True):
        assert torch.equal(one, other)


def test_batches_of_both_splits(tokenizer):
    from lowtide import GPTDataLoader

    config, model = make_model(tokenizer)
    loader = GPTDataLoader(config, dataset_dir="data/domain_corpus", batch_size=4)
    for split in ("train", "val"):
        inputs, targets = loader.get_batch(split)
        assert inputs.shape == (4, 16) and torch.equal(inputs[:, 1:], targets[:, :-1])
        assert model(inputs, targets).isfinite()
    only = GPTDataLoader(config, dataset_dir="data/general_corpus", eval_only=True)
    with pytest.raises(UsageError, match="no train split"):
        only.get_batch("train")
    with pytest.raises(UsageError, match="nothing to train on"):
        model.fit(only)


def test_another_tokenizer_is_refused(tokenizer):
    from lowtide import GPTDataLoader, Tokenizer

    config, _ = make_model(tokenizer)
    with pytest.raises(DataError, match="another tokenizer"):
        GPTDataLoader(config, Tokenizer.from_characters("xyz"), dataset_dir="data/domain_corpus")


def test_data_of_other_kinds_goes_to_the_trainer_as_it_is(monkeypatch):
    made = []

    class Noting:
        def __init__(self, *given, **options):
            made.append((given, options))

        def fit(self):
            return "result"

    monkeypatch.setattr(loaders, "Trainer", Noting)
    found = loaders.fit("model", "rows", eval_data_loaders={"web": "others"}, max_iters=3)
    others = {"data": "rows", "eval_data": {"web": "others"}, "max_iters": 3}
    assert found == "result" and made == [(("model",), others)]


@pytest.mark.parametrize("given", [{}, {"batch_size": 9, "seed": 8}])
def test_rows_and_seed_are_those_of_the_loader_unless_given(monkeypatch, given):
    made = []

    class Noting:
        def __init__(self, *positional, **options):
            made.append((positional, options))

        def fit(self):
            return "result"

    monkeypatch.setattr(loaders, "Trainer", Noting)
    loader = object.__new__(loaders.GPTDataLoader)
    vars(loader).update(train="train", val="val", tokenizer="tokenizer", batch_size=3, seed=7)
    assert loaders.fit("model", loader, eval_data_loaders={"web": loader}, **given) == "result"
    own = {"batch_size": 3, "seed": 7, **given}
    data = {"data": "train", "val_data": "val", "eval_data": {"web": "val"}}
    assert made == [(("model",), {**data, "tokenizer": "tokenizer", **own})]
    vars(loader).update(train=None)
    with pytest.raises(UsageError, match="has nothing to train on"):
        loaders.fit("model", loader)


def test_batches_of_a_loader_are_read_when_they_are_asked_for(monkeypatch):
    asked = []

    def open_batches(*given, **options):
        asked.append((given, options))
        return iter([(np.zeros((1, 2), np.uint16), np.ones((1, 2), np.uint16))] * 2)

    monkeypatch.setattr(loaders, "BatchLoader", open_batches)
    loader = object.__new__(loaders.GPTDataLoader)
    vars(loader).update(train="train", val="val", batch_size=3, seed=7, _batches={})
    for split in ("train", "val", "train"):
        inputs, targets = loader.get_batch(split)
        assert inputs.dtype == targets.dtype == torch.int64
        assert (inputs.tolist(), targets.tolist()) == ([[0, 0]], [[1, 1]])
    options = {"batch_size": 3, "seed": 7, "prefetch_batches": 0}
    assert asked == [(("train",), options), (("val",), options)]
    with pytest.raises(UsageError, match="split is 'test', expected train or val"):
        loader.get_batch("test")


def test_a_run_is_loaded_by_its_name_or_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="no model 'mine': there are no runs yet"):
        load_model("mine")
    config = GPTConfig(30, 16, 1, 32, 2)
    model = GPT(config)
    folder = tmp_path / "checkpoints" / "mine"
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config.to_huggingface())
    save_weights(folder / "model.safetensors", portable_tensors(model.state_dict(), config))
    for name in ("mine", "checkpoints/mine", folder):
        again = load_model(name)
        assert isinstance(again, GPT)
        assert torch.equal(again.state_dict()["embedding.weight"], model.embedding.weight)


def test_options_of_the_wrong_kind_are_refused(tmp_path):
    with pytest.raises(UsageError, match="config is of type dict, expected a GPTConfig"):
        loaders.GPTDataLoader({}, dataset_dir=tmp_path)
    with pytest.raises(UsageError, match="batch_size is 0, expected at least 1"):
        loaders.GPTDataLoader(GPTConfig(50, 16, 1, 32, 2), dataset_dir=tmp_path, batch_size=0)
    for name in ("", None, b"run"):
        with pytest.raises(UsageError, match="expected the name or the folder of a model"):
            load_model(name)
