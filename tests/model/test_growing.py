"""More tokens for a model: rows as the mean of their pieces, ids that transformers gives too."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from lowtide.errors import DataError, UsageError
from lowtide.files import write_json
from lowtide.model.arrayfiles import save_weights
from lowtide.model.config import GPTConfig, load_config
from lowtide.model.export import ExportSettings, export_model
from lowtide.model.gpt import GPT
from lowtide.model.growing import NewTokens, find_new_tokens, grown_config
from lowtide.model.weights import load_model, portable_tensors
from lowtide.tokenizer import Tokenizer
from lowtide.training.start import train

TOKENS = ["tide pool", "<think>", "\u00e9tale"]
TEXT = "the tide pool at \u00e9tale, <think>low tide</think> tide pools " * 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    merges = [(b"t", b"h"), (b"th", b"e"), (b"t", b"i"), (b"d", b"e"), (b"ti", b"de")]
    return Tokenizer.from_merges(merges, special_tokens=["<|endoftext|>"])


def make_model(folder: Path, tokenizer: Tokenizer, *, rows: int, dtype=None, **changes) -> Path:
    torch.manual_seed(0)
    config = GPTConfig(rows, 32, 2, 16, 2, **changes)
    folder.mkdir()
    write_json(folder / "config.json", config.to_huggingface())
    save_weights(
        folder / "model.safetensors", portable_tensors(GPT(config).state_dict(), config, dtype)
    )
    tokenizer.save(folder)
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.txt"
    path.write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("spare", "tied", "dtype"), [(0, True, None), (64, False, None), (1, False, torch.bfloat16)]
)
def test_new_rows_are_the_mean_of_their_pieces(tmp_path, file, tokenizer, spare, tied, dtype):
    first = tokenizer.vocab_size
    base = make_model(
        tmp_path / "base", tokenizer, rows=first + spare, tie_weights=tied, layout="llama"
        if not tied else "qwen3", dtype=dtype,
    )  # fmt: skip
    out = tmp_path / "grown"
    export_model(ExportSettings(str(base), out, add_tokens=file))
    config = load_config(out)
    assert config.vocab_size == max(first + spare, first + 3)
    old, new = (load_model(folder).state_dict() for folder in (base, out))
    names = ["embedding.weight"] + ([] if tied else ["head.weight"])
    for name, tensor in old.items():
        if name not in names:
            assert torch.equal(tensor, new[name]), name
    for name in names:
        assert torch.equal(old[name][:first], new[name][:first])
        for id, text in enumerate(TOKENS, first):
            pieces = torch.tensor(tokenizer.encode(text).astype(np.int64))
            wanted = old[name][pieces].mean(0)
            wanted = wanted.bfloat16().float() if dtype else wanted
            torch.testing.assert_close(
                new[name][id], wanted, rtol=1e-2 if dtype else 1e-6, atol=1e-6
            )
        assert torch.equal(old[name][first + 3 :], new[name][first + 3 :])
    added = json.loads((out / "tokenizer.json").read_text())["added_tokens"][-3:]
    rules = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    assert added == [{"id": id, "content": text, **rules} for id, text in enumerate(TOKENS, first)]
    grown = Tokenizer.load(out)
    assert grown.vocab_size == first + 3 and grown.fingerprint != tokenizer.fingerprint
    assert grown.decode(grown.encode(TEXT)) == TEXT
    assert set(range(first, first + 3)) <= set(grown.encode(TEXT).tolist())
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    export_model(ExportSettings(str(base), out, add_tokens=file))
    assert before == {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    with pytest.raises(UsageError, match="model here already"):
        export_model(ExportSettings(str(base), out))


def test_transformers_gives_the_same_ids_and_logits(tmp_path, file, tokenizer):
    transformers = pytest.importorskip("transformers")
    base = make_model(tmp_path / "base", tokenizer, rows=tokenizer.vocab_size)
    out = export_model(ExportSettings(str(base), tmp_path / "grown", add_tokens=file))
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    ours = Tokenizer.load(out)
    ids = ours.encode(TEXT).tolist()
    assert theirs.encode(TEXT, add_special_tokens=False) == ids
    network = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    rows = torch.tensor([ids[:20]])
    with torch.inference_mode():
        wanted = network(rows).logits
        torch.testing.assert_close(load_model(out)(rows), wanted, rtol=1e-4, atol=1e-4)


def test_training_starts_with_more_tokens_and_keeps_them(tmp_path, file, tokenizer):
    base = make_model(tmp_path / "base", tokenizer, rows=tokenizer.vocab_size)
    (tmp_path / "text.txt").write_text(TEXT * 20, encoding="utf-8")
    options = {
        "input_file": tmp_path / "text.txt",
        "init_from_model": str(base),
        "add_tokens": file,
        "checkpoints_dir": tmp_path / "runs",
        "model_name": "grown",
        "max_iters": 2,
        "batch_size": 2,
        "seq_len": 16,
        "eval_iters": 1,
        "sample_tokens": 0,
        "device": "cpu",
    }
    train(**options)
    run = tmp_path / "runs" / "grown"
    found = Tokenizer.load(run)
    assert found.fingerprint == Tokenizer.load(run / "grown").fingerprint
    assert load_config(run).vocab_size == tokenizer.vocab_size + 3
    assert tokenizer.vocab_size in found.encode(TEXT).tolist()
    train(**{**options, "max_iters": 3})
    exported = export_model(ExportSettings("grown", tmp_path / "hf", tmp_path / "runs"))
    assert len(load_file(exported / "model.safetensors")["model.embed_tokens.weight"]) == (
        tokenizer.vocab_size + 3
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("new\n\nother\n", "line 2 is empty"),
        ("new\n  \n", "line 2 is empty"),
        ("new\nother\nnew\n", "line 3 is 'new' again, as on line 1"),
        ("new\ntide\nthe\n", r"has 'tide' \(line 2, id 261\), 'the' \(line 3, id 258\) already"),
        ("t\nh\ni\n", r"has 't' \(line 1, id 117\), .*, 'i' \(line 3, id 106\) already"),
        ("t\nh\ni\ns\n", r"'i' \(line 3, id 106\) and 1 more already"),
        ("<|endoftext|>\n", "already"),
        ("", "this list of new tokens is empty"),
        ("x" * 1025, "line 1 is longer than 1,024 bytes"),
    ],
)
def test_tokens_that_cannot_be_added_are_named(tmp_path, tokenizer, content, message):
    path = tmp_path / "tokens.txt"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        find_new_tokens(path, tokenizer)


def test_a_byte_order_mark_is_not_part_of_a_token(tmp_path, tokenizer):
    path = tmp_path / "tokens.txt"
    path.write_bytes("\ufeffnew\r\nother\r\n".encode())
    assert find_new_tokens(path, tokenizer).texts == ("new", "other")


def test_a_line_without_an_end_is_not_read_whole(tmp_path, tokenizer):
    path = tmp_path / "tokens.txt"
    path.write_bytes(b"new\n" + b"x" * (4 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="line 2 is longer than 1,024 bytes"):
            find_new_tokens(path, tokenizer)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_files_and_settings_that_do_not_fit_are_refused(tmp_path, tokenizer, file):
    with pytest.raises(DataError, match="file of tokens not found"):
        find_new_tokens(tmp_path / "none.txt", tokenizer)
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not UTF-8"):
        find_new_tokens(tmp_path / "bad.txt", tokenizer)
    with pytest.raises(UsageError, match="by characters"):
        find_new_tokens(file, Tokenizer.from_characters("ab"))
    tokens = NewTokens(("a",), ((1,),), 1 << 22)
    with pytest.raises(DataError, match="1 tokens do not fit"):
        grown_config(GPTConfig(300, 8, 1, 8, 1), tokens, file)
    with pytest.raises(UsageError, match="add_tokens is"):
        ExportSettings("m", tmp_path, to="gguf", add_tokens=file)
    with pytest.raises(UsageError, match="expected --init-from-model"):
        train(input_file=file, add_tokens=file)


def test_what_the_tokenizer_puts_around_a_text_stays(tmp_path, file, tokenizer):
    base = make_model(tmp_path / "base", tokenizer, rows=tokenizer.vocab_size)
    contents = json.loads((base / "tokenizer.json").read_text())
    contents["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False}
    (base / "tokenizer.json").write_text(json.dumps(contents))
    (base / "added_tokens.json").write_text("{}")
    out = export_model(ExportSettings(str(base), tmp_path / "grown", add_tokens=file))
    grown = json.loads((out / "tokenizer.json").read_text())
    assert grown["post_processor"] == contents["post_processor"]
    assert grown["model"] == contents["model"] and not (out / "added_tokens.json").exists()


def test_a_pipe_of_tokens_is_not_waited_for(tmp_path, tokenizer):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):
        find_new_tokens(tmp_path / "pipe", tokenizer)
