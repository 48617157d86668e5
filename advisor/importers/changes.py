"""What has to change in a file for a better plan: only keys whose value is not what is wanted already."""

from __future__ import annotations

from .hf_arguments import TWO_PRECISIONS
from .imported_run import ImportedRun, Improvement, KeyPath, Value
from .source import Source


def batch_changes(
    run: ImportedRun,
    better: Improvement,
    *,
    micro: str,
    checkpointing: str,
    accumulation: str = "gradient_accumulation_steps",
) -> dict[KeyPath, Value]:
    """Batch sizes and gradient checkpointing under the names of a tool."""
    plan = better.plan
    wanted = {
        micro: (run.micro_batch_size, plan.micro_batch_size),
        accumulation: (run.gradient_accumulation_steps, plan.gradient_accumulation_steps),
        checkpointing: (bool(run.gradient_checkpointing), plan.gradient_checkpointing),
    }
    return {(name,): new for name, (old, new) in wanted.items() if old != new or old is None}


def deepspeed_change(source: Source, run: ImportedRun, better: Improvement) -> dict[KeyPath, Value]:
    """The key `deepspeed`: where it held the configuration itself it does so again."""
    if better.config_name is None:
        return {}
    held = source.kind != "shell" and run.deepspeed is not None and isinstance(source.values.get("deepspeed"), dict)
    return {("deepspeed",): better.config if held else better.config_name}


def fault_changes(run: ImportedRun) -> dict[KeyPath, Value]:
    """What takes out what the Trainer refuses."""
    return {("fp16",): False} if TWO_PRECISIONS in run.faults else {}
