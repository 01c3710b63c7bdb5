"""Export: transformers loads the folder with the same logits and ids, and so do we."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from lowtide.errors import DataError, UsageError
from lowtide.files import hold_lock, write_json
from lowtide.model import export
from lowtide.model.arrayfiles import save_weights
from lowtide.model.config import GPTConfig
from lowtide.model.export import ExportSettings, export_model, write_export
from lowtide.model.gpt import GPT
from lowtide.model.weights import load_model, portable_tensors
from lowtide.progress import Phase
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.training import train_tokenizer

TEXT = "The tide is low, the tide is high; naïve cats don't swim 12 miles.\n\n  Twice! "


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT * 5, encoding="utf-8")
    learned = train_tokenizer(input=[path], vocab_size=290).tokenizer
    return {"bpe": learned, "char": Tokenizer.from_characters(sorted(set(TEXT)))}


def write_run(folder, tokenizer, layout):
    torch.manual_seed(0)
    config = GPTConfig(tokenizer.vocab_size + 5, 64, 2, 32, 2, layout=layout)
    model = GPT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # gains and gates too: what begins at 1 hides mistakes
            parameter.add_(0.1 * torch.randn_like(parameter))
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config.to_huggingface())
    save_weights(folder / "model.safetensors", portable_tensors(model.state_dict(), config))
    tokenizer.save(folder)
    return model


@pytest.mark.parametrize("layout", ["qwen3", "gpt2", "tide"])
@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_transformers_gives_the_same_ids_and_logits(tokenizers, kind, layout, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = tokenizers[kind]
    model = write_run(tmp_path / "run", tokenizer, layout)
    folder = export_model(model_name=str(tmp_path / "run"), out_dir=tmp_path / "out")
    peer_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = peer_tokenizer(TEXT)["input_ids"]
    assert ids == tokenizer.encode(TEXT).tolist()
    assert peer_tokenizer.decode(ids) == TEXT
    assert peer_tokenizer.eos_token_id == tokenizer.end_of_text_id
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    fields = json.loads((folder / "config.json").read_text())
    shape = [name for name in fields if name.startswith(("num_", "hidden_size", "max_", "n_"))]
    assert len(shape) > 3
    assert {name: getattr(peer.config, name) for name in shape} == {n: fields[n] for n in shape}
    batch = torch.tensor([ids[:60]])
    with torch.inference_mode():
        torch.testing.assert_close(peer(batch).logits, model(batch), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(load_model(folder)(batch), model(batch))
        loss = peer(batch, labels=batch).loss  # which shifts the labels itself
        # What has no place in the files would begin as nothing, and be trained.
        stored = {*load_file(folder / "model.safetensors")} - {"lm_head.weight"}
        assert {name for name, _ in peer.named_parameters()} - {"lm_head.weight"} == stored
        torch.testing.assert_close(loss, model(batch[:, :-1], batch[:, 1:]), rtol=1e-4, atol=1e-4)


def test_a_layout_of_our_own_generates_in_transformers_from_its_cache_and_beside_padding(
    tokenizers, tmp_path
):
    transformers = pytest.importorskip("transformers")
    model = write_run(tmp_path / "run", tokenizers["char"], "tide")
    folder = export_model(model_name=str(tmp_path / "run"), out_dir=tmp_path / "out")
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    ids = torch.tensor([[3, 1, 4]])
    with torch.inference_mode():  # without a cap logits are what they are
        capped, peer.config.final_logit_softcapping = peer(ids).logits, 0.0
        free = peer(ids).logits
        peer.config.final_logit_softcapping = model.config.cap
    torch.testing.assert_close(capped, model.config.cap * torch.tanh(free / model.config.cap))
    assert peer._supports_sdpa
    prompt = torch.tensor([[3, 1, 4, 1, 5]])
    greedy = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = prompt
    with torch.inference_mode():
        for _ in range(12):
            expected = torch.cat((expected, model.next_logits(expected).argmax(-1)[:, None]), 1)
    generated = peer.generate(prompt, eos_token_id=-1, **greedy)
    assert generated.tolist() == expected.tolist()
    padded = torch.cat((torch.zeros(1, 3, dtype=torch.long), prompt), 1)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    generated = peer.generate(padded, attention_mask=mask, eos_token_id=-1, **greedy)
    assert generated[:, 3:].tolist() == expected.tolist()


def test_weights_can_be_halved(tokenizers, tmp_path):
    model = write_run(tmp_path / "run", tokenizers["char"], "qwen3")
    folder = export_model(
        model_name=str(tmp_path / "run"), out_dir=tmp_path / "o", dtype="bfloat16"
    )
    size = (folder / "model.safetensors").stat().st_size
    assert size < 0.6 * (tmp_path / "run" / "model.safetensors").stat().st_size
    again = load_model(folder)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor, rtol=0.01, atol=1e-3)


def test_nothing_is_overwritten(tokenizers, tmp_path):
    write_run(tmp_path / "run", tokenizers["char"], "qwen3")
    export_model(model_name=str(tmp_path / "run"), out_dir=tmp_path / "out")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    # As a job that was killed after its last write, and is started again, would give it.
    export_model(model_name=str(tmp_path / "run"), out_dir=tmp_path / "out")
    made = "here already: it was made with dtype=float32, now dtype=bfloat16"
    with pytest.raises(UsageError, match=made):
        export_model(model_name=str(tmp_path / "run"), out_dir=tmp_path / "out", dtype="bfloat16")
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before
    (tmp_path / "out" / "export.json").unlink()
    with pytest.raises(UsageError, match="here already: nothing says what it was made of"):
        export_model(model_name=str(tmp_path / "run"), out_dir=tmp_path / "out")


@pytest.mark.parametrize("to", ["transformers", "gguf"])
def test_an_export_of_another_config_or_template_is_not_there_already(to, tokenizers, tmp_path):
    run = tmp_path / "run"
    write_run(run, tokenizers["bpe"], "qwen3")
    given = ExportSettings(model_name=str(run), out_dir=tmp_path / "out", to=to)
    assert [write_export(given)[1] for _ in range(2)] == [False, True]
    fields = json.loads((run / "config.json").read_text())
    write_json(run / "config.json", {**fields, "rope_theta": 500.0, "rope_parameters": None})
    with pytest.raises(UsageError, match=r"here already: it was made with config.json=\w+, now"):
        write_export(given)
    write_json(run / "config.json", fields)
    assert write_export(given)[1]
    (run / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(UsageError, match=r"made with chat_template\.jinja=None, now"):
        write_export(given)
    again = replace(given, out_dir=tmp_path / "again")
    assert not write_export(again)[1]
    (run / "chat_template.jinja").unlink()
    with pytest.raises(UsageError, match=r"chat_template.jinja=\w+, now chat_template.jinja=None"):
        write_export(again)


@pytest.mark.parametrize("to", ["transformers", "gguf"])
def test_a_damaged_export_is_not_finished(to, tokenizers, tmp_path):
    """The same command again looks at what it wrote: what is lost is written anew, and what is not
    as it was is named, since it may be a change of the user's."""
    write_run(tmp_path / "run", tokenizers["bpe"], "qwen3")
    given = {"model_name": str(tmp_path / "run"), "out_dir": tmp_path / "out", "to": to}
    export_model(**given)
    kept = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    for path, data in kept.items():
        if path.name.endswith(("export.json", "checksums.json", ".lock")):
            continue
        half = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1])
        for damaged in (half, half + data[len(half) :]):
            path.write_bytes(damaged)
            with pytest.raises(DataError) as caught:
                export_model(**given)
            assert caught.value.path == path
            assert "give the command again" in str(caught.value.next_step)
        path.unlink()
        assert not write_export(ExportSettings(**given))[1]
        assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == kept
        assert write_export(ExportSettings(**given))[1]


@pytest.mark.usefixtures("events_only")
def test_memory_goes_into_the_metrics_of_the_run(tokenizers, tmp_path, capsys):
    write_run(tmp_path / "run", tokenizers["char"], "qwen3")
    (tmp_path / "run" / "metrics.jsonl").touch()
    export_model(model_name=str(tmp_path / "run"), out_dir=tmp_path / "out")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row.get("phase", row.get("event")) for row in rows] == ["write", "end"]
    # So small an export may find all of its memory in what the process has already.
    assert all(row["job"] == "export" and row["peak_memory_bytes"] >= 0 for row in rows)
    assert not (tmp_path / "out" / "metrics.jsonl").exists()
    assert "peak memory" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_progress_comes_to_its_end(tokenizers, tmp_path, monkeypatch, dtype):
    write_run(tmp_path / "run", tokenizers["char"], "qwen3")
    seen = []
    update = Phase.update
    monkeypatch.setattr(
        Phase, "update", lambda self, done: (seen.append((self.total, done)), update(self, done))
    )
    export_model(model_name=str(tmp_path / "run"), out_dir=tmp_path / "out", dtype=dtype)
    total, done = seen[-1]
    assert total == done > 0


def test_another_export_to_the_same_folder_is_named(tmp_path, tokenizers):
    write_run(tmp_path / "checkpoints" / "run", tokenizers["bpe"], "qwen3")
    given = {"model_name": "run", "checkpoints_dir": tmp_path / "checkpoints"}
    with (
        hold_lock(tmp_path / "hf", create_folder=True),
        pytest.raises(UsageError, match="another lowtide command is at work here: process"),
    ):
        export_model(**given, out_dir=tmp_path / "hf")
    export_model(**given, out_dir=tmp_path / "hf")
    assert (tmp_path / "hf" / "model.safetensors").exists()


@pytest.mark.parametrize("to", ["transformers", "gguf"])
def test_a_tokenizer_with_more_ids_than_the_network_is_refused(to, tokenizers, tmp_path):
    write_run(tmp_path / "run", tokenizers["char"], "qwen3")
    tokenizers["bpe"].save(tmp_path / "run")
    with pytest.raises(DataError, match="290"):
        export_model(model_name=str(tmp_path / "run"), out_dir=tmp_path / "out", to=to)
    assert not list((tmp_path / "out").glob("*.safetensors")) + list(tmp_path.glob("out/*.gguf"))


def test_what_another_command_wrote_meanwhile_is_not_written_again(
    tokenizers, tmp_path, monkeypatch
):
    write_run(tmp_path / "run", tokenizers["char"], "qwen3")
    given = ExportSettings(model_name=str(tmp_path / "run"), out_dir=tmp_path / "out")
    answers = iter([False, True])
    monkeypatch.setattr(export, "_is_there", lambda *given: next(answers))
    assert write_export(given) == (tmp_path / "out", True)
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_record_of_a_later_version_may_say_more(tokenizers, tmp_path):
    write_run(tmp_path / "run", tokenizers["char"], "qwen3")
    given = ExportSettings(model_name=str(tmp_path / "run"), out_dir=tmp_path / "out")
    assert not write_export(given)[1]
    record = tmp_path / "out" / "export.json"
    known = json.loads(record.read_text())
    write_json(record, {**known, "later": 1})
    assert write_export(given)[1]
    write_json(record, {**known, "add_tokens": "sum"})
    with pytest.raises(UsageError, match="made with add_tokens=sum, now add_tokens=None"):
        write_export(given)
    write_json(record, {name: value for name, value in known.items() if name != "dtype"})
    with pytest.raises(UsageError, match="made with dtype=None, now dtype=float32"):
        write_export(given)


def test_weights_in_several_files_have_one_checksum(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"model-{name}.safetensors").write_text(name)
    both = export._weights_checksum(tmp_path)
    (tmp_path / "model-b.safetensors").write_text("c")
    other = export._weights_checksum(tmp_path)
    (tmp_path / "model-b.safetensors").unlink()
    assert len({both, other, export._weights_checksum(tmp_path)}) == 3
    (tmp_path / "model.safetensors").write_text("whole")
    whole = export._weights_checksum(tmp_path)
    assert whole == export.checksum_file(tmp_path / "model.safetensors")
