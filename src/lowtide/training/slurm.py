"""A SLURM script for a run: it requeues itself before its time limit and resumes where it stopped.

In:      TrainSettings
Out:     train.slurm in the run's folder
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.files import read_whole, write_bytes
from lowtide.flags import settings_as_flags
from lowtide.flatsettings import named_settings
from lowtide.memory import default_budget_bytes, parse_size
from lowtide.training.settings import TrainSettings
from lowtide.training.unusedsettings import supplied_in_vain

__all__ = ["write_slurm_script"]

_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --output={log}
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cores}
#SBATCH --mem={memory_mib}M
#SBATCH --time={time}
#SBATCH --requeue
#SBATCH --signal=B:TERM@{notice}
# Change the lines above to what the cluster wants (--nodes=2 trains on two), and add for example:
#   #SBATCH --gres=gpu:4
#   #SBATCH --partition=NAME
# kill -USR1 of the training process prints where it stands into the log.

set -u
cd {folder}
export OMP_NUM_THREADS="${{SLURM_CPUS_PER_TASK:-{cores}}}"
num_devices="${{SLURM_GPUS_ON_NODE:-1}}"

# SLURM sends TERM {notice} seconds before the end: the run saves a checkpoint, then the job is
# queued again and the same command goes on.
again=0
training=""
trap 'again=1; [ -n "$training" ] && kill -TERM "$training"' TERM

if [ "${{SLURM_JOB_NUM_NODES:-1}}" -gt 1 ]; then
    first="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
    srun {python} -m torch.distributed.run --nnodes "$SLURM_JOB_NUM_NODES" \\
        --nproc-per-node "$num_devices" --rdzv-backend c10d --rdzv-endpoint "$first:{port}" \\
        --rdzv-id "$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}" -m lowtide train {words} &
elif [ "$num_devices" -gt 1 ]; then
    {python} -m torch.distributed.run --standalone --nproc-per-node "$num_devices" \\
        -m lowtide train {words} &
else
    {python} -m lowtide train {words} &
fi
training=$!
[ "$again" -eq 1 ] && kill -TERM "$training"
wait "$training"; code=$?
while kill -0 "$training" 2>/dev/null; do wait "$training"; code=$?; done
if [ "$again" -eq 1 ]; then
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"
"""


def write_slurm_script(
    settings: TrainSettings,
    *,
    cores: int = 8,
    time: str = "04:00:00",
    notice_seconds: int = 180,
    port: int = 29400,
) -> Path:
    """Write the script and return its path; it requests the run's budget and a tenth more."""
    budget = (
        parse_size(settings.machine.memory) if settings.machine.memory else default_budget_bytes()
    )
    run_dir = settings.run.folder.absolute()
    if "\n" in str(run_dir):  # the part after a newline would be run as a command
        raise UsageError(
            "a name with a line end cannot stand in a script for SLURM",
            path=run_dir,
            next_step="choose another --model-name or --checkpoints-dir",
        )
    run_dir.mkdir(parents=True, exist_ok=True)
    given = named_settings(settings) if settings.left_out else set[str]()
    vain = supplied_in_vain(settings)
    words = settings_as_flags(settings, leave_out=("slurm", *vain), spell_out=given)
    script = _SCRIPT.format(
        name=shlex.quote(settings.run.model_name),
        log=shlex.quote(f"{run_dir}/".replace("%", "%%") + "slurm-%j.log"),
        folder=shlex.quote(str(Path.cwd())),
        python=shlex.quote(sys.executable),
        words=shlex.join(words),
        cores=cores,
        memory_mib=-(-budget * 11 // 10 // (1 << 20)),
        time=time,
        notice=notice_seconds,
        port=port,
    ).encode("utf-8", "surrogateescape")  # names need not be UTF-8
    path = run_dir / "train.slurm"
    if path.exists() and read_whole(path) != script:
        raise UsageError(
            f"{path.name} is here already, and says something else",
            path=path,
            next_step="sbatch it as it is, or remove it for a new one",
        )
    write_bytes(path, script)
    path.chmod(0o755)
    return path
