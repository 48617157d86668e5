"""An sbatch script: srun starts torchrun once on every node."""

from __future__ import annotations

import shlex

from ...estimators.hardware.cluster import cpu_cores
from ..launch_commands import IN_ALLOCATION, launcher_words, shell_line
from .job import Job


def slurm_script(job: Job) -> str:
    """An sbatch script: srun starts torchrun once on every node."""
    cluster = job.cluster
    device = [] if cluster.gpu.is_cpu else [f"#SBATCH --gpus-per-node={cluster.gpus_per_node}"]
    words = launcher_words("torchrun", cluster, job.target, is_module=job.is_module, rendezvous=IN_ALLOCATION)
    lines = [
        "#!/bin/bash",
        f"# {job.script} on {job.place}. Submit it from the folder of the paths below: sbatch FILE",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={cluster.nodes}",
        "#SBATCH --ntasks-per-node=1",
        *device,
        f"#SBATCH --cpus-per-task={cpu_cores(cluster)}",
        f"#SBATCH --mem={job.host_gib or 0}G",
        "#SBATCH --output=%x-%j.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        *(["#SBATCH --signal=B:USR1@300"] if job.output_dir else []),
        "# Your site decides on these; remove one # where it asks for them:",
        "##SBATCH --account=NAME",
        "##SBATCH --partition=NAME",
        "##SBATCH --time=24:00:00",
        "# NCCL chooses the network interface. Where it takes a wrong one, your site's documentation has the right",
        "# NCCL_SOCKET_IFNAME and NCCL_IB_HCA.",
        "",
        "# Activate the environment of the training here: module load ..., source .venv/bin/activate",
        "",
        *(f"export {name}={shlex.quote(value)}" for name, value in job.variables.items()),
        f"export OMP_NUM_THREADS={job.threads('SLURM_CPUS_PER_TASK')}",
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK  # since Slurm 22.05 srun does not take it from sbatch",
        "",
    ]
    line = shell_line(words)
    if job.output_dir is None:
        loads = "# Slurm starts the script again after a node failed or the job was preempted: it must load its newest"
        return "\n".join([*lines, loads, "# checkpoint by itself.", line, ""])
    return "\n".join([*lines, *_resuming(job.output_dir), f'{line} "${{resume[@]}}" &', "wait $!", ""])


def _resuming(output_dir: str) -> list[str]:
    """Lines of a job that Slurm starts again: `resume` holds the argument for the newest complete checkpoint, which the
    Trainer ends with trainer_state.json. Before the time limit it is queued again if it has saved a new one."""
    found = """find "$output_dir" -mindepth 2 -maxdepth 2 -path '*/checkpoint-*/trainer_state.json' -printf '%h\\n'"""
    return [
        f"output_dir={shlex.quote(output_dir)}  # of the script's TrainingArguments",
        f"newest_checkpoint() {{ {found} 2>/dev/null | sort -V | tail -n 1; }}",
        "",
        "# After a failed node, a preemption or the time limit Slurm starts this script again, and it goes on from the",
        "# newest checkpoint. RESUME=1 sbatch FILE goes on with an earlier job.",
        "resume=()",
        'if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || [ -n "${RESUME:-}" ]; then',
        "    before=$(newest_checkpoint)",
        '    [ -z "$before" ] || resume=(--resume_from_checkpoint "$before")',
        "fi",
        "",
        "# Five minutes before the time limit (--signal) it is queued again, if it has saved a checkpoint.",
        "queue_again() {",
        '    [ "$(newest_checkpoint)" = "${before:-}" ] || scontrol requeue "$SLURM_JOB_ID"',
        "}",
        "trap queue_again USR1",
        "",
    ]
