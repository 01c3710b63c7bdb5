"""GGUF: the package gguf reads the file, and every number is where llama.cpp looks for it."""

import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lowtide.errors import DataError, UsageError
from lowtide.files import write_json
from lowtide.model import gguf as gguf_module
from lowtide.model import ggufvocabulary
from lowtide.model.config import GPTConfig, load_config
from lowtide.model.export import export_model
from lowtide.model.gguf import describe_gguf, write_gguf
from lowtide.model.gpt import GPT
from lowtide.model.quantization import quantize_q4_0, quantize_q8_0
from lowtide.model.rope import RopeScaling
from lowtide.model.weights import portable_tensors
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.training import train_tokenizer

gguf = pytest.importorskip("gguf")

TEXT = "The tide is low, the tide is high; naïve cats don't swim 12 miles.\n\n  Twice! "
LLAMA3 = RopeScaling("llama3", 8.0, original_max_position_embeddings=16)
MODELS = {
    "llama": {"layout": "llama", "num_kv_heads": 1, "rope_scaling": LLAMA3},
    "llama_biases": {"layout": "llama", "attention_bias": True, "tie_weights": False},
    "mistral": {"layout": "mistral", "sliding_window": 16, "window_layers": (0, 1)},
    "qwen2": {"layout": "qwen2", "num_kv_heads": 1},
    "qwen3": {"layout": "qwen3", "head_dim": 16, "tie_weights": False},
    "olmo2": {"layout": "olmo2"},
    "gpt2": {"layout": "gpt2", "norm_eps": 1e-5},
}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT * 5, encoding="utf-8")
    learned = {
        pattern: train_tokenizer(input=[path], vocab_size=290, pattern=pattern).tokenizer
        for pattern in ("gpt2", "cl100k", "qwen2", "o200k")
    }
    return {**learned, "char": Tokenizer.from_characters(sorted(set(TEXT)))}


def write_model(folder, tokenizer, *, width=64, **fields):
    torch.manual_seed(7)
    config = GPTConfig(tokenizer.vocab_size + 3, 64, 2, width, 2, mlp_width=96, **fields)
    model = GPT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    folder.mkdir()
    tokenizer.save(folder)
    write_json(folder / "config.json", {**config.to_huggingface(), "eos_token_id": [5, 6]})
    tensors = portable_tensors(model.state_dict(), config)
    save_file(tensors, folder / "model.safetensors")
    return config, {name: tensor.numpy() for name, tensor in tensors.items()}


def export(folder, out_dir, **options):
    return export_model(model_name=str(folder), out_dir=out_dir, to="gguf", **options)


def write_pieces(folder, tokenizer, kind, **options):
    """Write a file of a model with many pieces a tensor."""
    contents = describe_gguf(
        folder,
        tokenizer=tokenizer,
        tokenizer_dir=folder,
        config=load_config(folder),
        kind=kind,
        name="m",
    )
    path = folder.parent / "model.gguf"
    write_gguf(path, contents, piece_numbers=1000, **options)
    return path


def read(path):
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    return reader, tensors


def numbers_of(tensor):
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


def expected_tensors(config, tensors):
    """The tensors by llama.cpp's names, made another way: through the package's own tables."""
    family = config.family
    arch = gguf.MODEL_ARCH[{"llama": "LLAMA", "gpt2": "GPT2"}.get(family.gguf, family.gguf.upper())]
    names = gguf.get_tensor_name_map(arch, config.num_layers)
    found = {}
    for name, tensor in tensors.items():
        short = name.removeprefix("transformer.") if config.layout == "gpt2" else name
        known = names.get_name(short, try_suffixes=(".weight", ".bias"))
        assert known is not None, name
        if config.layout == "gpt2" and tensor.ndim == 2 and ".h." in name:
            tensor = tensor.T
        for part, heads in (("attn_q.", config.num_heads), ("attn_k.", config.num_kv_heads)):
            if family.gguf == "llama" and part in known:
                shape = (heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
                tensor = tensor.reshape(shape).swapaxes(1, 2).reshape(tensor.shape)
        found[known] = tensor
    return found


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_is_where_llama_cpp_looks_for_it(name, tokenizers, tmp_path):
    config, tensors = write_model(tmp_path / "in", tokenizers["gpt2"], **MODELS[name])
    path = write_pieces(tmp_path / "in", tokenizers["gpt2"], "f32")
    reader, found = read(path)
    wanted = expected_tensors(config, tensors)
    if name == "llama":
        plain = 10000.0 ** -(np.arange(0, 32, 2) / 32)
        assert found["rope_freqs.weight"].data.shape == plain.shape
        assert found.pop("rope_freqs.weight").data[-1] == pytest.approx(8.0)
    if name == "olmo2":
        wanted["output.weight"] = wanted["token_embd.weight"]
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert np.array_equal(found[key].data, tensor), key
    arch = config.family.gguf
    fields = {key: field.contents() for key, field in reader.fields.items()}
    assert fields["general.architecture"] == arch
    assert fields[f"{arch}.block_count"] == 2 and fields[f"{arch}.embedding_length"] == 64
    assert fields[f"{arch}.attention.head_count_kv"] == config.num_kv_heads
    assert fields["tokenizer.ggml.eos_token_id"] == 5


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_numbers_are_the_packages_own(name, kind, tokenizers, tmp_path):
    config, tensors = write_model(tmp_path / "in", tokenizers["gpt2"], **MODELS[name])
    _, found = read(write_pieces(tmp_path / "in", tokenizers["gpt2"], kind))
    found.pop("rope_freqs.weight", None)
    sizes = {"f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2}
    for key, tensor in expected_tensors(config, tensors).items():
        whole = tensor.ndim == 1 or key == "position_embd.weight"
        type_ = gguf.GGMLQuantizationType(0 if whole else sizes[kind])
        assert found[key].tensor_type == type_, key
        wanted = gguf.quants.quantize(np.ascontiguousarray(tensor), type_)
        # Shapes of what is in blocks are the reader's; the bytes are compared.
        assert found[key].data.tobytes() == wanted.tobytes(), key


def test_blocks_are_the_references_also_at_the_edges():
    rng = np.random.default_rng(3)
    numbers = rng.standard_normal(32 * 500).astype(np.float32) * 10 ** rng.uniform(-20, 4, 16000)
    numbers = numbers.astype(np.float32)
    numbers[:32] = 0
    numbers[32:64] = np.tile(np.float32([1, -1]), 16)  # the first of equal magnitude counts
    numbers[64:96] = np.arange(-127.5, -127.5 + 32, dtype=np.float32)
    for ours, type_ in ((quantize_q8_0, "Q8_0"), (quantize_q4_0, "Q4_0")):
        wanted = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[type_])
        assert ours(numbers) == wanted.tobytes()


def test_rows_without_whole_blocks_are_halved_instead(tokenizers, tmp_path):
    write_model(tmp_path / "in", tokenizers["gpt2"], width=48, layout="llama")
    _, found = read(export(tmp_path / "in", tmp_path / "out", type="q8_0"))
    assert found["token_embd.weight"].tensor_type == gguf.GGMLQuantizationType.F16
    assert found["blk.0.ffn_down.weight"].tensor_type == gguf.GGMLQuantizationType.Q8_0


@pytest.mark.parametrize(
    ("pattern", "split"),
    [("gpt2", "gpt-2"), ("cl100k", "dbrx"), ("qwen2", "qwen2"), ("o200k", "gpt-4o")],
)
def test_the_tokenizer_is_all_there(pattern, split, tokenizers, tmp_path, capsys):
    tokenizer = tokenizers[pattern]
    write_model(tmp_path / "in", tokenizer, layout="llama")
    write_json(tmp_path / "in" / "tokenizer_config.json", {"chat_template": "{{ 1 }}"})
    reader, _ = read(export(tmp_path / "in", tmp_path / "out", type="q8_0"))
    fields = {key: field.contents() for key, field in reader.fields.items()}
    assert fields["tokenizer.ggml.model"] == "gpt2" and fields["tokenizer.ggml.pre"] == split
    assert fields["tokenizer.chat_template"] == "{{ 1 }}"
    assert fields["tokenizer.ggml.add_bos_token"] is False
    stored = json.loads((tmp_path / "in" / "tokenizer.json").read_text())["model"]
    texts, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    assert len(texts) == len(kinds) == tokenizer.vocab_size + 3
    assert {text: texts.index(text) for text in stored["vocab"]} == stored["vocab"]
    assert kinds[0] == 3 and texts[0] == "<|endoftext|>"
    assert texts[-1] == f"[PAD{tokenizer.vocab_size + 2}]" and kinds[-3:] == [5, 5, 5]
    merges = [m if isinstance(m, str) else " ".join(m) for m in stored["merges"]]
    assert fields["tokenizer.ggml.merges"] == merges
    assert ("splits by case" in capsys.readouterr().err) == (pattern == "o200k")


def test_sentencepiece_vocabularies_keep_the_order_of_their_merges(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    merges = [("l", "o"), ("lo", "w"), ("▁", "low"), ("▁", "l")]
    words += ["▁", "l", "o", "w", *("".join(pair) for pair in merges)]
    vocab = {word: id for id, word in enumerate(words)}
    built = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    )
    built.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    built.add_special_tokens(["<s>", "</s>", "<unk>"])
    built.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    built.save(str(tmp_path / "tokenizer.json"))
    write_model(tmp_path / "in", Tokenizer.load(tmp_path), layout="mistral")
    (tmp_path / "in" / "tokenizer.json").write_bytes((tmp_path / "tokenizer.json").read_bytes())
    reader, _ = read(export(tmp_path / "in", tmp_path / "out", type="q8_0"))
    fields = {key: field.contents() for key, field in reader.fields.items()}
    assert fields["tokenizer.ggml.model"] == "llama"
    assert fields["tokenizer.ggml.tokens"][: len(words)] == words
    scores, kinds = fields["tokenizer.ggml.scores"], fields["tokenizer.ggml.token_type"]
    assert [scores[vocab["".join(pair)]] for pair in merges] == [0, -1, -2, -3]
    assert kinds[:4] == [2, 3, 3, 6] and kinds[vocab["low"]] == 1
    assert fields["tokenizer.ggml.bos_token_id"] == 1
    assert fields["tokenizer.ggml.add_bos_token"] is True
    assert fields["tokenizer.ggml.add_space_prefix"] is True


def test_what_gguf_cannot_hold_is_refused(tokenizers, tmp_path):
    write_model(tmp_path / "char", tokenizers["char"], layout="llama")
    with pytest.raises(UsageError, match="GGUF has no vocabulary of characters"):
        export(tmp_path / "char", tmp_path / "out", type="f16")
    write_model(tmp_path / "tide", tokenizers["gpt2"], layout="tide")
    with pytest.raises(UsageError, match=r"llama\.cpp knows no tide models"):
        export(tmp_path / "tide", tmp_path / "out", type="f16")
    write_model(tmp_path / "wide", tokenizers["gpt2"], layout="qwen2", head_dim=16)
    with pytest.raises(UsageError, match="width / num_heads, these are 16"):
        export(tmp_path / "wide", tmp_path / "out", type="f16")
    assert not list((tmp_path / "out").glob("*.gguf*"))


def test_the_same_command_again_touches_nothing_and_another_is_refused(tokenizers, tmp_path):
    write_model(tmp_path / "in", tokenizers["gpt2"], layout="llama")
    path = export(tmp_path / "in", tmp_path / "out", type="q8_0")
    before = path.stat()
    assert export(tmp_path / "in", tmp_path / "out", type="q8_0") == path
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    other = export(tmp_path / "in", tmp_path / "out", type="f16")  # beside it
    assert other != path and other.is_file()
    (tmp_path / "in" / "config.json").unlink()
    (tmp_path / "in" / "model.safetensors").unlink()
    (tmp_path / "in" / "tokenizer.json").unlink()
    (tmp_path / "in").rmdir()
    write_model(tmp_path / "in", tokenizers["gpt2"], layout="qwen2")
    with pytest.raises(UsageError, match="there is a model here already"):
        export(tmp_path / "in", tmp_path / "out", type="q8_0")


@pytest.mark.parametrize(
    ("pattern", "whole", "normalizer", "split", "words"),
    [
        ("gpt2", False, "none", "gpt-2", []),
        ("gpt2", False, "nfc", "olmo", ["NFC"]),
        ("gpt2", True, "none", "gpt-2", ["rare words"]),
        ("cl100k", False, "none", "dbrx", []),
        ("cl100k", True, "none", "llama-bpe", []),
        ("cl100k", True, "nfc", "llama-bpe", ["NFC"]),
        ("qwen2", False, "nfc", "qwen2", ["NFC"]),
        ("o200k", True, "none", "gpt-4o", ["by case", "rare words"]),
        ("tekken", True, "none", "tekken", ["by case"]),
    ],
)
def test_splits_have_their_names_and_what_differs_is_told(
    tokenizers, pattern, whole, normalizer, split, words
):
    changed = {"pattern": pattern, "whole_pieces": whole, "normalizer": normalizer}
    data = dataclasses.replace(tokenizers["gpt2"].data, **changed)
    pairs, notes = ggufvocabulary._byte_level(SimpleNamespace(data=data))
    assert pairs["tokenizer.ggml.pre"] == split and pairs["tokenizer.ggml.model"] == "gpt2"
    assert len(notes) == len(words) and all(w in n for w, n in zip(words, notes, strict=True))


def test_where_a_chat_template_is_looked_for(tmp_path):
    def found(config, jinja=None):
        write_json(tmp_path / "tokenizer_config.json", config)
        if jinja is not None:
            (tmp_path / "chat_template.jinja").write_text(jinja)
        return ggufvocabulary._chat_template(tmp_path)

    assert ggufvocabulary._chat_template(tmp_path) is None
    assert found({}) is None and found([1]) is None and found({"chat_template": 5}) is None
    assert found({"chat_template": "a"}) == "a"
    named = [{"name": "tool", "template": "b"}, "odd", {"name": "default", "template": "c"}]
    assert found({"chat_template": named}) == "c"
    assert found({"chat_template": named[:2]}) is None
    assert found({"chat_template": "a"}, jinja="d") == "d"


@pytest.mark.parametrize(("contents", "has"), [
    ({}, False),
    ({"normalizer": {"type": "Prepend", "prepend": "_"}}, True),
    ({"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Split"}}, False),
    ({"pre_tokenizer": {"type": "Metaspace"}}, True),
    ({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"}}, True),
    ({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "never"}}, False),
])  # fmt: skip
def test_whether_a_blank_is_put_before_a_text(contents, has):
    assert ggufvocabulary._has_prefix(contents) is has


@pytest.mark.parametrize(
    ("piece_numbers", "sizes"),
    [(1, [4] * 6), (4, [4] * 6), (8, [8, 8, 8]), (19, [16, 8]), (1000, [24])],
)
def test_columns_are_gathered_a_few_at_a_time(tmp_path, piece_numbers, sizes):
    numbers = np.arange(24, dtype=np.float32).reshape(4, 6)
    path = tmp_path / "numbers"
    path.write_bytes(b"before" + numbers.tobytes() + b"behind")
    stored = SimpleNamespace(path=path, offset=6, shape=(4, 6), kind="F32")
    parts = list(gguf_module._iter_columns(stored, piece_numbers))
    assert [part.size for part in parts] == sizes
    assert np.array_equal(np.concatenate(parts), numbers.T.reshape(-1))
    assert (
        list(gguf_module._iter_columns(SimpleNamespace(**{**vars(stored), "shape": (0, 0)}), 8))
        == []
    )


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        (None, {}),
        (LLAMA3, {}),  # as a tensor of its own
        (RopeScaling("linear", 4.0), {"type": "linear", "factor": 4.0}),
        (
            RopeScaling("yarn", 4.0, original_max_position_embeddings=16),
            {"type": "yarn", "factor": 4.0, "original_context_length": 16},
        ),
    ],
)
def test_scaled_positions_are_described(scaling, said):
    config = GPTConfig(64, 64, 1, 32, 2, layout="llama", rope_scaling=scaling)
    pairs = gguf_module._shape_pairs(config, "f16", "m")
    found = {name: value for name, value in pairs.items() if ".rope.scaling." in name}
    assert found == {f"llama.rope.scaling.{name}": value for name, value in said.items()}


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ({}, None),
        ({"attention_factor": 0.1 * math.log(4) + 1}, None),
        ({"attention_factor": 1.0}, "attention_factor"),
        ({"beta_fast": 16.0}, "beta_fast"),
        ({"beta_slow": 2.0}, "beta_slow"),
        ({"truncate": False}, "truncate"),
    ],
)
def test_parts_of_yarn_that_files_cannot_say_are_refused(own, other, tokenizers, tmp_path):
    scaling = RopeScaling("yarn", 4.0, 16, **own)
    write_model(tmp_path / "m", tokenizers["gpt2"], layout="llama", rope_scaling=scaling)
    if other is None:
        assert export(tmp_path / "m", tmp_path / "out", type="f16").is_file()
        return
    with pytest.raises(UsageError, match=f"has no {other} of its own for YaRN"):
        export(tmp_path / "m", tmp_path / "out", type="f16")
    assert not list((tmp_path / "out").glob("*.gguf*"))


@pytest.mark.parametrize(("kind", "number"), [("f32", 0), ("f16", 1), ("q8_0", 7), ("q4_0", 2)])
def test_a_network_is_described_by_all_its_sizes(kind, number):
    config = GPTConfig(64, 48, 3, 32, 4, layout="llama", num_kv_heads=2, mlp_width=80)
    assert gguf_module._shape_pairs(config, kind, "mine") == {
        "general.architecture": "llama", "general.type": "model", "general.name": "mine",
        "general.file_type": number, "general.quantization_version": 2,
        "llama.context_length": 48, "llama.embedding_length": 32, "llama.block_count": 3,
        "llama.feed_forward_length": 80, "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2, "llama.vocab_size": 64,
        "llama.attention.layer_norm_rms_epsilon": config.norm_eps,
        "llama.attention.key_length": 8, "llama.attention.value_length": 8,
        "llama.rope.dimension_count": 8, "llama.rope.freq_base": config.rope_theta,
    }  # fmt: skip
    learned = gguf_module._shape_pairs(config.replace(layout="gpt2", num_kv_heads=4), kind, "m")
    assert learned["gpt2.attention.layer_norm_epsilon"] == config.norm_eps
    assert not any(".rope." in name for name in learned)


def test_weights_that_are_replaced_meanwhile_are_refused(tmp_path, tokenizers):
    """As when the run saves another checkpoint: no file of two of them is left."""
    folder, seen = tmp_path / "m", []
    write_model(folder, tokenizers["gpt2"], layout="llama")
    path = folder / "model.safetensors"

    def on_bytes(count):
        if not seen:
            path.with_suffix(".other").write_bytes(path.read_bytes())
            path.with_suffix(".other").replace(path)
        seen.append(count)

    with pytest.raises(DataError, match="replaced while they were read"):
        write_pieces(folder, tokenizers["gpt2"], "f32", on_bytes=on_bytes)
    assert seen and not (tmp_path / "model.gguf").exists()
