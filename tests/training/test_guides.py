"""The commands of the guides to large datasets and to memory, on small data, as users type them."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from lowtide.cli import main

WORDS = ["once", "upon", "a", "time", "little", "cat", "liked", "to", "run", "and", "play", "far"]
SMALL = ["--num_layers", "1", "--width", "32", "--num_heads", "2", "--seq_len", "16"]
SHORT = ["--batch_size", "4", "--eval_interval", "2", "--eval_iters", "2"]
PREPARE = ["--no_dedup", "--no_filter"]


@pytest.fixture
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("wiki", "books", "domain")):
        random = np.random.default_rng(seed)
        lines = [" ".join(random.choice(WORDS, size=12)) + "." for _ in range(300)]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")


def run(*words):
    assert main([str(word) for word in words]) == 0


@pytest.mark.usefixtures("_here")
def test_prepare_train_generate_adapt_export(capsys, tmp_path):
    run("prepare", "--input_files", "wiki.txt", "books.txt", "--out_dir", "data/general",
        "--tokenization", "char", "--tokens_per_shard", "5000", *PREPARE)  # fmt: skip
    run("train", "--dataset_dir", "data/general", "--tokenization", "char", "--model_name", "base",
        *SMALL, *SHORT, "--max_iters", "4")  # fmt: skip
    run("generate", "--model_name", "base", "--prompt", "once", "--max-new-tokens", "20")
    assert "once" in capsys.readouterr().out
    run("prepare", "--input_files", "domain.txt", "--out_dir", "data/domain",
        "--tokenization", "checkpoints/base", *PREPARE)  # fmt: skip
    config = {"name": "adapt", "learning_rate": 5e-5, "warmup_iters": 2, "block_size": 16}
    (tmp_path / "adapt.json").write_text(json.dumps(config))
    run("train", "--dataset_dir", "data/domain", "--model_name", "domain_model", *SHORT,
        "--config_file", "adapt.json", "--init_from_model", "checkpoints/base",
        "--eval_dataset_dir", "data/general", "--max_iters", "4")  # fmt: skip
    err = capsys.readouterr().err
    assert re.search(r"step 4: val \d\.\d\d \| eval_general \d\.\d\d", err)
    assert "learning" not in err
    run("evaluate", "--model-name", "domain_model", "--dataset-dir", "general=data/general",
        "--dataset-dir", "data/domain", "--eval-iters", "2")  # fmt: skip
    out = capsys.readouterr().out
    assert re.search(r"^general: loss", out, re.MULTILINE)
    assert re.search(r"^domain: loss", out, re.MULTILINE)
    run("export", "--model-name", "domain_model", "--out-dir", "hf")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in (tmp_path / "hf").iterdir()
    }


@pytest.mark.usefixtures("_here")
def test_the_memory_guides_command(capsys):
    pytest.importorskip("bitsandbytes")
    run("train", "--dataset-id", "wiki.txt", "--vocab-size", "300", "--target-params", "30000",
        "--batch-size", "8", "--gradient-accumulation-steps", "8", "--use-streaming",
        "--use-mixed-precision", "--use-8bit-optimizer", "--shuffle-buffer-size", "50",
        "--seq-len", "16", "--stride", "16", "--max-examples", "1", "--epochs", "1",
        "--model-name", "small")  # fmt: skip
    out, err = capsys.readouterr()
    assert "finished at step" in out
    assert "streaming wiki.txt" in err


@pytest.mark.usefixtures("_here")
def test_torchrun_starts_the_command(tmp_path):
    words = ["train", "--input-file", "wiki.txt", "--tokenization", "char", "--model-name", "two"]
    words += [*SMALL, *SHORT, "--max-iters", "3", "--device", "cpu"]
    launch = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "lowtide",
    ]
    done = subprocess.run(
        [sys.executable, *launch, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("finished at step 3") == 1
    assert (tmp_path / "checkpoints/two/model.safetensors").is_file()
