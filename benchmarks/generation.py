"""Tokens per second of generation on a CPU: lowtide and transformers with its cache, alternately.

Both generate with the same random weights, greedily, from prompts of 32 tokens: by default GPT-2's
shape of 124M parameters, one text and several at once. Ids are compared before anything is timed.
Rounds alternate in one process, so a busy machine affects both; the best round of each is printed,
in tokens per second and in seconds of processor time. With --dtype bfloat16 both have the weights
in two bytes; transformers then also computes in bfloat16, so that its ids may differ.

    python benchmarks/generation.py --rounds 3 --tokens 64 --texts 1 8
    python benchmarks/generation.py --layout llama --width 2048 --layers 20 --texts 1 8
    python benchmarks/generation.py --layout llama --width 2048 --layers 20 --dtype bfloat16
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from lowtide.files import write_json
from lowtide.generation.continuations import Rows
from lowtide.generation.drawing import ArrayChooser
from lowtide.generation.settings import PRESETS
from lowtide.model.config import GPTConfig
from lowtide.model.decoder import DecoderNetwork, DecoderSteps
from lowtide.model.decoderweights import load_decoder
from lowtide.model.gpt import GPT
from lowtide.model.sizing import count_parameters
from lowtide.model.weights import portable_tensors, save_weights

PROMPT_TOKENS = 32


def make_models(
    options: argparse.Namespace,
) -> tuple[DecoderNetwork, transformers.PreTrainedModel]:
    """Return the same network twice."""
    torch.manual_seed(0)
    config = GPTConfig(
        options.vocabulary,
        1024,
        options.layers,
        options.width,
        options.width // 64,
        layout=options.layout,
        num_kv_heads=options.width // 256 if options.layout == "llama" else 0,
    )
    dtype = getattr(torch, options.dtype)
    with tempfile.TemporaryDirectory() as folder:
        write_json(f"{folder}/config.json", config.to_huggingface())
        tensors = portable_tensors(GPT(config).state_dict(), config, dtype)
        save_weights(f"{folder}/model.safetensors", tensors)
        del tensors
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        return load_decoder(Path(folder)), theirs.eval()


def write_ours(network: DecoderNetwork, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Return the ids that lowtide generates."""
    chooser = functools.partial(
        ArrayChooser, sampling=PRESETS["deterministic"], vocab_size=network.config.vocab_size
    )
    rows = Rows(DecoderSteps(network, len(prompts)), chooser, len(prompts), context=1024)
    for prompt in prompts:
        rows.begin(prompt, max_new_tokens=tokens)
    steps = [[token for _, token in rows.step()] for _ in range(tokens)]
    return [list(row) for row in zip(*steps, strict=True)]


def write_theirs(
    model: transformers.PreTrainedModel, prompts: list[list[int]], tokens: int
) -> list[list[int]]:
    """Return the ids that transformers generates."""
    ids = torch.tensor(prompts)
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return found[:, PROMPT_TOKENS:].tolist()


def seconds(call: Callable[..., object], *arguments: object) -> tuple[float, float]:
    """Return how long a call takes, and its processor time."""
    begin, spent = time.perf_counter(), time.process_time()
    call(*arguments)
    return time.perf_counter() - begin, time.process_time() - spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--layout", default="gpt2", choices=("gpt2", "qwen3", "llama"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args()
    ours, theirs = make_models(options)
    print(
        f"{count_parameters(ours.config):,} numbers, {options.dtype}, "
        f"{torch.get_num_threads()} threads",
        flush=True,
    )
    for texts in options.texts:
        generator = torch.Generator().manual_seed(1)
        prompts = torch.randint(
            options.vocabulary, (texts, PROMPT_TOKENS), generator=generator
        ).tolist()
        row: dict[str, object] = {"texts": texts}
        row["same_ids"] = write_ours(ours, prompts, 8) == write_theirs(theirs, prompts, 8)
        times: dict[str, list[tuple[float, float]]] = {"lowtide": [], "transformers": []}
        for _ in range(options.rounds):
            times["lowtide"].append(seconds(write_ours, ours, prompts, options.tokens))
            times["transformers"].append(seconds(write_theirs, theirs, prompts, options.tokens))
        for name, found in times.items():
            row[f"{name}_tokens_per_s"] = round(texts * options.tokens / min(found)[0], 1)
            row[f"{name}_cpu_s"] = round(min(spent for _, spent in found), 1)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
