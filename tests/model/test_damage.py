"""Files of a model that hold anything: an error of ours, before anything is allocated."""

import json
import os

import pytest

from lowtide.errors import DataError
from lowtide.model.arrayfiles import save_weights
from lowtide.model.config import GPTConfig, find_model_dir, load_config
from lowtide.model.export import export_model
from lowtide.model.gpt import GPT
from lowtide.model.weights import load_model, portable_tensors


@pytest.fixture(params=["qwen3", "gpt2", "tide"])
def folder(request, tmp_path):
    config = GPTConfig(40, 16, 1, 16, 2, layout=request.param)
    save_weights(tmp_path / "model.safetensors", portable_tensors(GPT(config).state_dict(), config))
    (tmp_path / "config.json").write_text(json.dumps(config.to_huggingface()))
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def change(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"max_position_embeddings": 10**8}, {"n_positions": 10**8}),
        ({"num_hidden_layers": 10**5}, {"n_layer": 10**5}),
        ({"num_hidden_layers": 1000}, {"n_layer": 1000}),
        ({"vocab_size": 1 << 21}, {"vocab_size": 1 << 21}),
        ({"hidden_size": 4096, "head_dim": 2048}, {"n_embd": 4096}),
        ({"vocab_size": -1}, {"vocab_size": 10**400}),
    ],
)
def test_sizes_beyond_the_weights_are_refused_before_anything_is_made(
    folder, monkeypatch, ours, theirs
):
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    change(folder, **(theirs if kind == "gpt2" else ours))

    def never(*arguments):
        pytest.fail("a network was built")

    monkeypatch.setattr(GPT, "__init__", never)
    with pytest.raises(DataError) as caught:
        load_model(folder)
    assert caught.value.next_step is not None


@pytest.mark.parametrize("value", ["12", None, [1], {}, 1.5, True, float("nan")])
@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "rope_parameters", "dropout"])
def test_values_of_other_types_name_the_file(tmp_path, name, value):
    fields = {**GPTConfig(40, 16, 1, 16, 2).to_huggingface(), name: value}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    if name == "rope_parameters" and value in (None, {}):
        assert load_config(tmp_path).rope_theta == 10000.0
        return
    with pytest.raises(DataError) as caught:
        load_config(tmp_path)
    assert caught.value.path == tmp_path / "config.json"


@pytest.mark.parametrize("value", ["", [], {}, False, 0.0])
@pytest.mark.parametrize("name", ["head_dim", "num_key_value_heads"])
def test_what_is_empty_is_no_size(tmp_path, name, value):
    """Null and no key mean the usual size; nothing else does."""
    usual = GPTConfig(40, 16, 1, 16, 2).to_huggingface()
    (tmp_path / "config.json").write_text(json.dumps({**usual, name: value}))
    with pytest.raises(DataError, match=f"{name} is .*, expected a number"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**usual, name: None}))
    assert load_config(tmp_path).head_dim == 8


def test_missing_keys_are_named(tmp_path):
    fields = GPTConfig(40, 16, 1, 16, 2).to_huggingface()
    del fields["hidden_size"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(DataError, match="hidden_size is missing"):
        load_config(tmp_path)


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "..", "pipe", "gone"])
def test_an_index_stays_in_its_folder_and_names_files(folder, name):
    os.mkfifo(folder / "pipe")
    index = {"weight_map": {"model.norm.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "checksums.json").unlink()
    with pytest.raises(DataError):
        load_model(folder)


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}'])
def test_an_index_that_is_none_is_refused(folder, content):
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(DataError, match="weight_map"):
        load_model(folder)


def test_weights_that_are_a_pipe_are_refused(folder):
    (folder / "model.safetensors").unlink()
    (folder / "checksums.json").unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(DataError, match="not a file"):
        load_model(folder)


def test_a_missing_base_is_looked_for_where_it_was_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        find_model_dir("checkpoints/base")
    assert str(caught.value.path) == "checkpoints/base"
    with pytest.raises(DataError) as caught:
        find_model_dir("base")
    assert str(caught.value.path) == "checkpoints/base"


def test_export_reads_as_carefully(folder, tmp_path):
    change(folder, vocab_size=1 << 21)
    with pytest.raises(DataError):
        export_model(model_name=str(folder), out_dir=tmp_path / "out")
