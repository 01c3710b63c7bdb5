"""Models of others come in and go out again: bytes, tokenizer and chat template as they were."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from lowtide.errors import DataError
from lowtide.files import read_json, write_json
from lowtide.generation.generating import generate
from lowtide.model.config import GPTConfig, load_config
from lowtide.model.export import export_model
from lowtide.model.gpt import GPT
from lowtide.model.weights import load_model, portable_tensors
from lowtide.tokenizer.training import train_tokenizer
from lowtide.training.start import train

TEXT = "The tide is low, the tide is high; naïve cats don't swim 12 miles.\n\n  Twice! "
LAYOUTS = ("llama", "mistral", "qwen2", "qwen3", "olmo2", "gpt2")
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT * 5, encoding="utf-8")
    return train_tokenizer(input=[path], vocab_size=290).tokenizer


def write_model(folder, tokenizer, layout, *, dtype=torch.float32, **fields):
    """A folder as others publish it: half precision, a template, ids of their own choice."""
    torch.manual_seed(5)
    window = {"sliding_window": 16, "window_layers": (0, 1)} if layout == "mistral" else {}
    config = GPTConfig(tokenizer.vocab_size + 6, 64, 2, 32, 2, layout=layout, **window)
    model = GPT(config)
    with torch.no_grad():  # none of it is 0, which any step moves
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    folder.mkdir(parents=True, exist_ok=True)
    # The tokenizer begins every text with a token of its own, as Llama's does.
    tokenizer.save(folder)
    data = json.loads((folder / "tokenizer.json").read_text())
    begin = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
        },
    }
    write_json(folder / "tokenizer.json", data)
    written = {**config.to_huggingface(), "eos_token_id": [7, 8], "pad_token_id": 9, **fields}
    write_json(folder / "config.json", written)
    write_json(folder / "generation_config.json", {"temperature": 0.6, "eos_token_id": [7, 8]})
    write_json(folder / "tokenizer_config.json", {"chat_template": TEMPLATE, "eos_token": "!"})
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    tensors = portable_tensors(model.state_dict(), config, dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return model


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text(TEXT * 40, encoding="utf-8")
    return path


def tensors_of(folder):
    return load_file(folder / "model.safetensors")


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype, name
        assert torch.equal(tensor.view(torch.uint8), right[name].view(torch.uint8)), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_exported_untouched_is_the_same_to_the_byte(layout, tokenizer, tmp_path):
    write_model(tmp_path / "in", tokenizer, layout, dtype=torch.bfloat16)
    out = export_model(model_name=str(tmp_path / "in"), out_dir=tmp_path / "out")
    assert_same(tensors_of(tmp_path / "in"), tensors_of(out))
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (out / name).read_bytes() == (tmp_path / "in" / name).read_bytes(), name
    fields = read_json(out / "config.json")
    assert fields["dtype"] == "bfloat16" and fields["model_type"] == layout
    assert (fields["eos_token_id"], fields["pad_token_id"]) == ([7, 8], 9)
    assert read_json(out / "tokenizer_config.json")["chat_template"] == TEMPLATE
    assert load_config(out) == load_config(tmp_path / "in")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_that_learns_nothing_goes_back_as_it_came(
    layout, tokenizer, text_file, tmp_path, capsys
):
    transformers = pytest.importorskip("transformers")
    base = write_model(tmp_path / "in", tokenizer, layout, dtype=torch.bfloat16)
    options = {"input_file": text_file, "seq_len": 32, "batch_size": 2, "max_iters": 1}
    options |= {"model_name": "run", "checkpoints_dir": tmp_path, "eval_interval": 1}
    train(init_from_model=str(tmp_path / "in"), learning_rate=1e-30, weight_decay=0.0, **options)
    run = tmp_path / "run"
    out = export_model(model_name=str(run), out_dir=tmp_path / "out", dtype="bfloat16")
    assert_same(tensors_of(tmp_path / "in"), tensors_of(out))
    best = run / "best"
    for folder in (run, best, out):
        assert read_json(folder / "config.json")["eos_token_id"] == [7, 8]
        kept = ("tokenizer.json", "chat_template.jinja", "generation_config.json")
        for name in kept:
            assert (folder / name).read_bytes() == (tmp_path / "in" / name).read_bytes(), name
    # The run's folder as it stands is the same model, and the same ids, in transformers.
    peer_tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    theirs = peer_tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    is_same = theirs == tokenizer.encode(TEXT).tolist()
    told = "transformers splits the text of every qwen2 model" in capsys.readouterr().err
    assert is_same != told and told == (layout == "qwen2")
    assert peer_tokenizer(TEXT)["input_ids"][0] == 0
    assert peer_tokenizer.chat_template == TEMPLATE
    peer = transformers.AutoModelForCausalLM.from_pretrained(run).eval()
    ids = torch.arange(40)[None]
    with torch.inference_mode():
        model = load_model(run)
        torch.testing.assert_close(peer(ids).logits, model(ids), rtol=1e-4, atol=1e-4)
    assert base.config == model.config.replace(dropout=base.config.dropout)
    text = "".join(generate(model_name=str(run), prompt="The tide", max_new_tokens=4, seed=1))
    assert text.startswith("The tide")


def test_a_resumed_run_keeps_its_tokenizers_files(tokenizer, text_file, tmp_path):
    write_model(tmp_path / "in", tokenizer, "llama")
    options = {"input_file": text_file, "seq_len": 32, "batch_size": 2, "model_name": "run"}
    options |= {"checkpoints_dir": tmp_path, "init_from_model": str(tmp_path / "in")}
    train(max_iters=1, **options)
    for path in (tmp_path / "in").iterdir():  # the run has all it needs
        path.unlink()
    train(max_iters=2, **options)
    text = json.loads((tmp_path / "run" / "tokenizer.json").read_text())
    assert text["post_processor"]["type"] == "TemplateProcessing"


def test_generation_begins_as_the_tokenizer_does(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    write_model(tmp_path, tokenizer, "llama")
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.tensor([[0, *tokenizer.encode("The tide").tolist()]])
    wanted = peer.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False,
        eos_token_id=None, pad_token_id=0, bad_words_ids=[[n] for n in range(290, 296)],
    )[0, ids.shape[1] :]  # fmt: skip
    options = {"prompt": "The tide", "temperature": 0, "repetition_penalty": 1}
    text = "".join(generate(model_name=str(tmp_path), max_new_tokens=8, **options))
    assert text.removesuffix("\n") == "The tide" + tokenizer.decode(wanted.tolist())


def change(folder, **fields):
    write_json(folder / "config.json", {**read_json(folder / "config.json"), **fields})


def split_up(folder):
    tensors = tensors_of(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for part, mine in parts.items():
        save_file({name: tensors[name] for name in mine}, folder / part)
    index = {"metadata": {}, "weight_map": {n: p for p, mine in parts.items() for n in mine}}
    write_json(folder / "model.safetensors.index.json", index)


def missing_shard(folder):
    split_up(folder)
    (folder / "b.safetensors").unlink()


def emptied_shard(folder):
    split_up(folder)
    save_file({"x": torch.zeros(2)}, folder / "b.safetensors")


def only_a_pickle(folder):
    torch.save(tensors_of(folder), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def two_tables(folder):
    tensors = tensors_of(folder)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, folder / "model.safetensors")


def stored_bias(folder):
    tensors = tensors_of(folder)
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)
    save_file(tensors, folder / "model.safetensors")


def whole_numbers(folder):
    tensors = {name: tensor.to(torch.int8) for name, tensor in tensors_of(folder).items()}
    save_file(tensors, folder / "model.safetensors")


DAMAGE = {
    "missing_shard": (missing_shard, "b.safetensors is missing"),
    "emptied_shard": (emptied_shard, "the index says .* is in b.safetensors, which does not"),
    "pickle": (only_a_pickle, "pytorch_model.bin is a pickle"),
    "two_tables": (two_tables, "tie_word_embeddings is true, but lm_head.weight and"),
    "bias": (stored_bias, "the weights have model.layers.0.self_attn.q_proj.bias, which the"),
    "int8": (whole_numbers, "is of type I8, expected F64, F32"),
    "wide": (lambda folder: change(folder, intermediate_size=80), r"config.json says \(80, 32\)"),
    "biases": (lambda folder: change(folder, attention_bias=True), "the weights lack .*bias"),
    "untied": (lambda folder: change(folder, tie_word_embeddings=False), "lack lm_head.weight"),
    "short": (
        lambda folder: change(folder, num_hidden_layers=1),
        "the weights have model.layers.1",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_bad_models_are_named_and_nothing_is_made(name, tokenizer, text_file, tmp_path):
    spoil, message = DAMAGE[name]
    folder = tmp_path / "in"
    write_model(folder, tokenizer, "llama")
    spoil(folder)
    with pytest.raises(DataError, match=message) as caught:
        load_model(folder)
    assert caught.value.path is not None and caught.value.next_step
    with pytest.raises(DataError, match=message):
        export_model(model_name=str(folder), out_dir=tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.json*")) and not list(tmp_path.glob("out/*.safe*"))
    with pytest.raises(DataError, match=message):
        train(
            init_from_model=str(folder), input_file=text_file, seq_len=32, max_iters=1,
            model_name="run", checkpoints_dir=tmp_path,
        )  # fmt: skip
    assert not (tmp_path / "run" / "steps").exists()


def test_a_tokenizer_of_another_model_is_refused(tokenizer, text_file, tmp_path):
    write_model(tmp_path / "in", tokenizer, "llama")
    fewer = GPTConfig(tokenizer.vocab_size - 9, 64, 2, 32, 2, layout="llama")
    write_json(tmp_path / "in" / "config.json", fewer.to_huggingface())
    tensors = portable_tensors(GPT(fewer).state_dict(), fewer)
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    message = f"the tokenizer has {tokenizer.vocab_size} ids, the model's embedding"
    model_name = str(tmp_path / "in")
    with pytest.raises(DataError, match=message):
        export_model(model_name=model_name, out_dir=tmp_path / "out")
    with pytest.raises(DataError, match=message):
        list(generate(model_name=model_name, prompt="The tide"))
    with pytest.raises(DataError, match=message):
        train(
            init_from_model=model_name, input_file=text_file, seq_len=32, max_iters=1,
            model_name="run", checkpoints_dir=tmp_path,
        )  # fmt: skip


def test_a_stored_copy_of_a_tied_table_and_old_buffers_are_passed_over(tokenizer, tmp_path):
    model = write_model(tmp_path, tokenizer, "gpt2")
    tensors = tensors_of(tmp_path)
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()
    tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.bool)
    tensors["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    save_file(bare, tmp_path / "model.safetensors")
    again = load_model(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
