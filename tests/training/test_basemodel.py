"""The model that a run starts from: found, or made with more tokens."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from lowtide.training import admission, basemodel
from lowtide.training.settings import train_settings


@pytest.mark.parametrize("add_tokens", [None, Path("words.txt")])
def test_a_model_is_grown_where_tokens_are_added(tmp_path, monkeypatch, add_tokens):
    made = []

    def export(settings):
        made.append(settings)
        return "grown"

    monkeypatch.setattr(basemodel, "find_model_dir", lambda name, folder: folder / name)
    monkeypatch.setattr(basemodel, "export_model", export)
    settings = train_settings(
        model_name="m", init_from_model="base", checkpoints_dir=tmp_path, add_tokens=add_tokens,
        memory="3GiB",
    )  # fmt: skip
    found = basemodel.find_base(settings)
    if add_tokens is None:
        assert found == tmp_path / "base" and not made
        return
    (asked,) = made
    assert found == "grown"
    assert (asked.model_name, asked.out_dir) == (str(tmp_path / "base"), tmp_path / "m/grown")
    assert (asked.add_tokens, asked.memory) == (add_tokens, "3GiB")


@pytest.mark.parametrize(
    ("add_tokens", "goes_on", "grows"),
    [(Path("words.txt"), False, True), (Path("words.txt"), True, False), (None, False, False)],
)
def test_a_model_is_grown_before_torch_is_loaded(tmp_path, monkeypatch, add_tokens, goes_on, grows):
    found = []
    monkeypatch.setattr(admission, "find_base", lambda settings: found.append(settings.run))
    monkeypatch.setattr(admission, "refuse_hopeless", lambda settings: None)
    monkeypatch.setattr(admission, "continued_settings", lambda folder, settings: settings)
    monkeypatch.setattr(admission, "require_own_run", lambda folder: None)
    if goes_on:
        (tmp_path / "m/steps/step_4").mkdir(parents=True)
    settings = train_settings(
        model_name="m", init_from_model="base", checkpoints_dir=tmp_path, add_tokens=add_tokens,
    )  # fmt: skip
    admission.admit(settings)
    assert len(found) == grows


@pytest.mark.parametrize("is_there", [False, True])
def test_the_vocabulary_of_a_dataset_in_a_store(tmp_path, monkeypatch, is_there):
    def fetch(url, cache):
        assert (str(url), cache.folder, cache.size) == ("s3://b/d", tmp_path, "3GiB")
        return "copy" if is_there else None

    sizes = {"copy": 9, "gpt2": 50_257}
    load = SimpleNamespace(load=lambda name: SimpleNamespace(vocab_size=sizes[name]))
    monkeypatch.setattr(admission, "fetch_tokenizer", fetch)
    monkeypatch.setattr(admission, "Tokenizer", load)
    settings = train_settings(dataset_dir="s3://b/d", cache_dir=tmp_path, cache_size="3GiB")
    assert admission._vocabulary(settings) == (9 if is_there else 50_257)
