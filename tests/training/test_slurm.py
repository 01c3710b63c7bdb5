"""The SLURM script: it trains with the run's flags, saves on the warning, requeues, goes on."""

import shlex
import shutil
import subprocess

import pytest

from lowtide.cli import main
from lowtide.errors import UsageError
from lowtide.flags import settings_as_flags
from lowtide.training.settings import train_settings
from lowtide.training.slurm import write_slurm_script
from lowtide.training.unusedsettings import refuse_unread
from lowtide.verbs import VERBS


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--dataset-dir", "data/my set", "--model-name", "big", "--max-iters", "10000"]
    words += ["--eval-dataset-dir", "general=data/a", "--eval-dataset-dir", "web=data/b"]
    assert main(["train", "--slurm", "--memory", "8GiB", *words]) == 0
    return tmp_path / "checkpoints" / "big" / "train.slurm"


def test_flags_make_the_same_settings_again(script):
    text = script.read_text()
    assert "#SBATCH --requeue" in text
    assert "#SBATCH --mem=9012M" in text
    expected = "--dataset-dir 'data/my set' --model-name big --max-iters 10000 --memory 8GiB "
    expected += "--eval-dataset-dir general=data/a --eval-dataset-dir web=data/b"
    assert text.count(expected) == 3  # one process, several, several machines
    assert "--slurm" not in text


def test_a_folder_may_have_any_name(tmp_path, monkeypatch, capsys):
    """SLURM reads quotes as a shell does, and a % as the beginning of a number of its own."""
    (tmp_path / "100% mine").mkdir()
    monkeypatch.chdir(tmp_path / "100% mine")
    assert main(["train", "--slurm", "--dataset-dir", "d", "--model-name", "a b"]) == 0
    path = tmp_path / "100% mine" / "checkpoints" / "a b" / "train.slurm"
    lines = path.read_text().splitlines()
    asked = [shlex.split(line)[1] for line in lines if line.startswith("#SBATCH --output")]
    assert asked == [f"--output={tmp_path}/100%% mine/checkpoints/a b/slurm-%j.log"]
    assert shlex.split(capsys.readouterr().out) == ["sbatch", str(path)]


@pytest.mark.parametrize("options", [{"overwrite": True}, {"resume": False}])
def test_what_a_restart_cannot_do_is_refused(options):
    with pytest.raises(UsageError, match="expected no --slurm beside it: each restart would be"):
        train_settings(slurm=True, **options)


def test_only_what_differs_from_the_default_is_written():
    settings = train_settings(compile=True, resume=False, learning_rate=3e-4)
    assert settings_as_flags(settings) == ["--no-resume", "--learning-rate", "0.0003", "--compile"]


def written_flags(path):
    line = next(line for line in path.read_text().splitlines() if "python -m lowtide train" in line)
    return shlex.split(line.partition(" train ")[2])[:-1]


def test_a_default_that_was_given_is_written_for_a_run_that_has_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--dataset-dir", "d", "--weight-decay", "0.1", "--no-use-mixed-precision"]
    assert main(["train", "--slurm", *words]) == 0
    assert written_flags(tmp_path / "checkpoints" / "model" / "train.slurm") == [
        *("--dataset-dir", "d", "--weight-decay", "0.1", "--no-use-mixed-precision"),
    ]


@pytest.mark.parametrize(
    ("options", "in_vain"),
    [
        (
            {"dataset_dir": "d", "optimizer": "adamw", "schedule": "cosine"},
            {"--momentum-warmup", "--cautious-decay", "--decay-fraction"},
        ),
        ({"dataset_dir": "d", "weight_decay": 0.0}, {"--cautious-decay"}),
        ({"dataset_dir": "d", "init_from_model": "base"}, {"--zero-init"}),
        ({"dataset_id": "owner/name"}, {"--order"}),
    ],
)
def test_what_a_preset_gives_in_vain_is_not_written(tmp_path, options, in_vain):
    """As flags they would be refused when the job runs."""
    settings = train_settings(preset="small-data", checkpoints_dir=tmp_path, **options)
    flags = written_flags(write_slurm_script(settings))
    usual = {"--momentum-warmup", "--cautious-decay", "--decay-fraction", "--zero-init", "--order"}
    assert "--beta2" in flags and usual - {*flags} == in_vain
    refuse_unread(VERBS["train"].parse("train", flags))


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_several_machines_meet_at_the_first(script, tmp_path, monkeypatch):
    log = tmp_path / "log"
    for name, answer in (("srun", f"echo $* > {log}"), ("scontrol", "echo node7; echo node8")):
        (tmp_path / name).write_text(f"#!/bin/bash\n{answer}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, value in (("JOB_NUM_NODES", "2"), ("JOB_NODELIST", "node[7-8]"), ("JOB_ID", "42"),
                        ("GPUS_ON_NODE", "4")):  # fmt: skip
        monkeypatch.setenv(f"SLURM_{name}", value)
    subprocess.run(["bash", str(script)], timeout=120, check=True)
    words = log.read_text()
    assert "torch.distributed.run --nnodes 2 --nproc-per-node 4" in words
    assert "--rdzv-endpoint node7:29400 --rdzv-id 42-0 -m lowtide train --dataset-dir" in words


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_warning_makes_it_save_and_requeue(tmp_path, monkeypatch):
    """A stand-in for python notes the signal; scontrol is a script that notes the requeueing."""
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log"
    fake = tmp_path / "python"
    fake.write_text(
        f"#!/bin/bash\ntrap 'echo saved >> {log}; exit 130' TERM\necho started >> {log}\n"
        # Again and again: bash may miss the first one, which comes before it waits.
        "while true; do kill -TERM $PPID; read -t 0.05 <> <(:); done\n"
    )
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/bash\necho $* >> {log}\n")
    for path in (fake, scontrol):
        path.chmod(0o755)
    monkeypatch.setattr("lowtide.training.slurm.sys.executable", str(fake))
    script = write_slurm_script(train_settings(model_name="m", memory="1GiB"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    done = subprocess.run(["bash", str(script)], timeout=120, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert log.read_text().split("\n")[:3] == ["started", "saved", "requeue 42"]


def test_what_the_script_asks_for_by_itself(tmp_path):
    path = write_slurm_script(
        train_settings(checkpoints_dir=tmp_path, model_name="m", memory=f"{10 << 20}B")
    )
    assert path == (tmp_path / "m" / "train.slurm")
    assert path.stat().st_mode & 0o777 == 0o755
    text = path.read_text()
    for line in ("cpus-per-task=8", "time=04:00:00", "mem=11M"):
        assert f"#SBATCH --{line}" in text
    assert "@180" in text and "29400" in text
    path.unlink()
    more = write_slurm_script(
        train_settings(checkpoints_dir=tmp_path, model_name="m", memory=f"{(10 << 20) + 1}B")
    )
    assert "--mem=12M" in more.read_text()  # never less than the budget and a tenth
