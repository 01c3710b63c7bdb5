"""Networks as Python makes and loads them: where they are put, and with which defaults of torch."""

import pytest
import torch

from lowtide import GPT, GPTConfig, TokenDataset, Tokenizer, Trainer, generate_text, load_model
from lowtide.errors import UsageError
from lowtide.files import write_json
from lowtide.model.arrayfiles import save_weights
from lowtide.model.gpt import rotary_tables
from lowtide.model.weights import portable_tensors


def test_a_model_is_loaded_onto_a_device_that_is_there(tmp_path):
    config = GPTConfig(vocab_size=30, context_length=8, num_layers=1, width=16, num_heads=1)
    model = GPT(config)
    write_json(tmp_path / "config.json", config.to_huggingface())
    weights = tmp_path / "model.safetensors"
    save_weights(weights, portable_tensors(model.state_dict(), config))
    ids = torch.arange(8)[None]
    for device in ("cpu", torch.device("cpu")):
        assert torch.equal(load_model(tmp_path, device=device)(ids), model(ids))
    for device in ("nonsense", "cuda:99", "tpu", torch.device("meta"), torch.device("cuda:99"), 99):
        with pytest.raises(
            UsageError, match=f"device is '{'cuda:99' if device == 99 else device}'"
        ):
            load_model(tmp_path, device=device)


def test_models_without_numbers_are_refused(token_file, tmp_path):
    data = TokenDataset(token_file, seq_len=8)
    tokenizer = Tokenizer.from_characters("abc")
    config = GPTConfig(vocab_size=37, context_length=8, num_layers=1, width=16, num_heads=1)
    whole = torch.nn.Sequential(torch.nn.Embedding(37, 8), torch.nn.Linear(8, 37))
    whole.register_buffer("scale", torch.ones(1, device="meta"))
    with torch.device("meta"):
        model = GPT(config)
        module = torch.nn.Sequential(torch.nn.Embedding(37, 8), torch.nn.Linear(8, 37))
    with pytest.raises(UsageError, match="a model is a GPT or a torch module, not type"):
        Trainer(GPT, data=data)
    for given, kind in ((model, "parameters"), (module, "parameters"), (whole, "buffers")):
        with pytest.raises(UsageError, match=f"the model has {kind} on torch's meta device"):
            Trainer(given, data=data, model_name="meta", checkpoints_dir=tmp_path)
    with pytest.raises(UsageError, match="parameters on torch's meta device"):
        generate_text(model, tokenizer, "a", max_new_tokens=1)
    assert not (tmp_path / "meta").exists()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_results_do_not_depend_on_defaults_of_torch(token_file, tmp_path, optimizer):
    """Losses were 0 where the default device is meta, and 3 digits long in bfloat16."""
    data = TokenDataset(token_file, seq_len=8)
    config = GPTConfig(vocab_size=37, context_length=8, num_layers=1, width=16, num_heads=1)
    tokenizer = Tokenizer.from_characters("".join(map(chr, range(65, 100))))

    def losses(name):
        torch.manual_seed(0)
        model = GPT(config).float()
        device, dtype = {
            "meta": ("meta", torch.float32),
            "bfloat16": ("cpu", torch.bfloat16),
            "float64": ("cpu", torch.float64),
        }.get(name, ("cpu", torch.float32))
        torch.set_default_device(device)
        torch.set_default_dtype(dtype)
        try:
            result = Trainer(
                model, data=data, val_data=data, tokenizer=tokenizer, model_name=name,
                checkpoints_dir=tmp_path, max_iters=4, batch_size=4, optimizer=optimizer,
                spelling_rate=0.5, eval_iters=1, sample_tokens=0, learning_rate=0.01,
                device="cpu",
            ).fit()  # fmt: skip
        finally:
            torch.set_default_device("cpu")
            torch.set_default_dtype(torch.float32)
        return result.loss, result.val_loss

    expected = losses("plain")
    assert [losses(name) for name in ("meta", "bfloat16", "float64")] == [expected] * 3


def test_positions_are_exact_whatever_the_default_type():
    config = GPTConfig(vocab_size=37, context_length=64, num_layers=1, width=16, num_heads=1)
    torch.set_default_dtype(torch.bfloat16)
    try:
        tables = rotary_tables(config, 64)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(map(torch.equal, tables, rotary_tables(config, 64)))
