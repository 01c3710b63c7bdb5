"""Two processes as torchrun starts them: losses of one, checkpoints any number can go on from."""

import json
import socket
import sys
import textwrap

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = textwrap.dedent(
    """
    import sys, torch
    from pathlib import Path
    from lowtide.loader.windows import TokenDataset
    from lowtide.model.config import GPTConfig
    from lowtide.model.gpt import GPT
    from lowtide.training.trainer import Trainer

    folder = Path(sys.argv[1])
    if torch.distributed.is_torchelastic_launched():
        torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    for name, parallel, steps in json_runs:
        torch.manual_seed(11)
        config = GPTConfig(vocab_size=37, context_length=16, num_layers=2, width=32, num_heads=2)
        data = TokenDataset(folder / "tokens.npy", split="train", seq_len=16)
        val = TokenDataset(folder / "tokens.npy", split="val", seq_len=16)
        Trainer(
            GPT(config), data=data, val_data=val, model_name=name,
            checkpoints_dir=folder / "checkpoints", parallel=parallel, max_iters=steps,
            batch_size=2, gradient_accumulation_steps=4, save_interval=3, eval_interval=3,
            eval_iters=3, log_interval=1, learning_rate=3e-3, warmup=2, schedule="constant",
            device="cpu", optimizer="muon", weight_decay=0.5, cautious_decay=True,
        ).fit()
    """
)


def run_alone(folder, runs, monkeypatch):
    """Run the script in this process, which torchrun did not start."""
    monkeypatch.setattr(sys, "argv", ["script.py", str(folder)])
    exec(compile(SCRIPT.replace("json_runs", repr(runs)), "script.py", "exec"), {})


def launch_two(folder, runs, start_forks):
    """Start two with what torchrun tells them; it takes seconds to start by itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "none"}
    script = SCRIPT.replace("json_runs", repr(runs))
    ranks = [{**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    codes, printed = start_forks(*((script, [folder], rank) for rank in ranks))()
    assert codes == [0, 0], printed[-3000:]


def losses(folder, name, key="loss", event="step"):
    lines = (folder / "checkpoints" / name / "metrics.jsonl").read_text().splitlines()
    return [row[key] for row in map(json.loads, lines) if row.get("event") == event]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_two_processes_train_like_one_and_resume_each_other(
    token_file, tmp_path, monkeypatch, start_forks
):
    run_alone(tmp_path, [("one", "ddp", 6), ("mixed", "ddp", 3)], monkeypatch)
    launch_two(
        tmp_path, [("ddp", "ddp", 6), ("fsdp", "fsdp", 6), ("mixed", "fsdp", 6)], start_forks
    )
    expected = losses(tmp_path, "one")
    assert len(expected) == 6
    whole = load_file(tmp_path / "checkpoints/one/model.safetensors")
    for name in ("ddp", "fsdp", "mixed"):
        assert losses(tmp_path, name) == pytest.approx(expected, abs=3e-4), name
        val = losses(tmp_path, name, "val_loss", "eval")
        assert val == pytest.approx(losses(tmp_path, "one", "val_loss", "eval"), abs=3e-4), name
        for key, tensor in load_file(tmp_path / f"checkpoints/{name}/model.safetensors").items():
            torch.testing.assert_close(tensor, whole[key], rtol=0.02, atol=3e-4)
