"""GGUF in llama.cpp itself, where xllamacpp is installed: its ids, greedy ids and losses."""

import json
import math
import urllib.request

import numpy as np
import pytest
import torch

from lowtide.generation.settings import PRESETS
from lowtide.model.export import export_model
from lowtide.model.weights import load_model
from lowtide.tokenizer.training import train_tokenizer

from ..generation.tokens import iter_tokens
from .test_gguf import MODELS, TEXT, write_model

llama = pytest.importorskip("xllamacpp")

PATTERNS = {"qwen2": "qwen2", "qwen3": "qwen2", "olmo2": "cl100k"}
MORE = "Tides rise twice a day: 1,234 times — naïvely, don't you swim?\n\tHigh tide.  "


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT * 5, encoding="utf-8")
    return {
        pattern: train_tokenizer(input=[path], vocab_size=290, pattern=pattern).tokenizer
        for pattern in ("gpt2", "cl100k", "qwen2", "digits")
    }


class Served:
    """A model in llama.cpp's own server, in this process."""

    def __init__(self, path):
        params = llama.CommonParams()
        params.model.path, params.port = str(path), 0
        params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 64, 1, 1
        params.warmup, params.verbosity = False, -1
        params.cache_type_k = params.cache_type_v = llama.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = llama.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.server = llama.Server(params)

    def tokenize(self, text):
        body = json.dumps({"content": text, "add_special": False}).encode()
        url = f"{self.server.listening_address}/tokenize"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["tokens"]

    def log_likelihoods(self, ids, vocab_size):
        """Of every token at every place but the first [len(ids) - 1, V]."""
        found = np.full((len(ids) - 1, vocab_size), -np.inf)
        for place in range(1, len(ids)):
            asked = {"prompt": ids[:place], "n_predict": 1, "n_probs": vocab_size}
            # A letter is made to follow, as of half a character nothing would be told; what is told
            # is as it was before.
            asked |= {"temperature": 0, "logit_bias": [[ids[0], 1000.0]]}
            answer = self.server.handle_completions(asked)
            (row,) = answer["choices"][0]["logprobs"]["content"]
            for top in row["top_logprobs"]:
                found[place - 1, top["id"]] = top["logprob"]
        return found


def export(folder, out_dir, kind):
    return export_model(model_name=str(folder), out_dir=out_dir, to="gguf", type=kind)


@pytest.mark.parametrize("pattern", ["gpt2", "cl100k", "qwen2", "digits"])
def test_it_splits_as_we_do(pattern, tokenizers, tmp_path):
    tokenizer = tokenizers[pattern]
    write_model(tmp_path / "in", tokenizer, layout="llama")
    served = Served(export(tmp_path / "in", tmp_path / "out", "f32"))
    for text in (TEXT, MORE, "12345 ½ ٣٤", "日本語 ПриветМир", "a\r\n\r\n b"):
        assert served.tokenize(text) == tokenizer.encode(text).tolist(), text


@pytest.mark.parametrize("name", MODELS)
def test_it_writes_what_we_write_and_loses_as_much(name, tokenizers, tmp_path):
    """Rows within the window, which llama.cpp's graphs of these families do not have."""
    tokenizer = tokenizers[PATTERNS.get(name, "gpt2")]
    config, _ = write_model(tmp_path / "in", tokenizer, **MODELS[name])
    model = load_model(tmp_path / "in")
    ids = tokenizer.encode(TEXT).tolist()[: 8 if config.sliding_window else 24]
    greedy = PRESETS["deterministic"]
    ids += [int(token) for token in iter_tokens(model, ids, max_new_tokens=8, sampling=greedy)]
    with torch.inference_mode():
        ours = model(torch.tensor([ids[:-1]]))[0].log_softmax(-1).numpy()
    served = Served(export(tmp_path / "in", tmp_path / "f32", "f32"))
    theirs = served.log_likelihoods(ids, config.vocab_size)
    assert np.array_equal(theirs.argmax(-1), ours.argmax(-1))  # so greedy texts are the same
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=2e-3)  # GELU is a table of float16 there
    small = Served(export(tmp_path / "in", tmp_path / "q8", "q8_0"))
    found = small.log_likelihoods(ids, config.vocab_size)
    places = np.arange(len(ids) - 1), np.array(ids[1:])
    assert abs(math.expm1(found[places].mean() - ours[places].mean())) < 0.01
