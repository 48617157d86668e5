"""Train the job's model with plain `deepspeed.initialize`, as the commands of the "deepspeed" flavour start it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
from job import build_model, finish, read_job, samples, tile
from torch.distributed.nn.functional import all_gather


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    arguments = deepspeed.add_config_arguments(parser).parse_args()
    job, config = read_job(), json.loads(Path(arguments.deepspeed_config).read_text())
    deepspeed.init_distributed("gloo")
    model = build_model(
        job,
        in_shards=deepspeed.zero.Init(config_dict_or_path=config, enabled=config["zero_optimization"]["stage"] == 3),
    )
    if job["gradient_checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    tile(model, job)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    shared_by, micro = job["sequence_parallel_size"], config["train_micro_batch_size_per_gpu"]
    groups = share_samples(model, shared_by, micro) if shared_by > 1 else None
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trainable, config=config, mpu=groups)
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    together = shared_by * job.get("autotp_size", 1)  # ranks that get the same samples
    mine = samples(job)[rank // together :: ranks // together]
    losses = []
    for _ in range(job["optimizer_steps"]):
        step = []
        for start in range(0, len(mine), micro):
            batch = {name: torch.stack([sample[name] for sample in mine[start : start + micro]]) for name in mine[0]}
            loss = engine(**batch).loss if groups is None else shared_loss(engine, batch, groups)
            engine.backward(loss)
            engine.step()
            step.append(loss.item())
        losses.append(fmean(step))
    finish(job, losses, engine)


def share_samples(model: Any, shared_by: int, micro_batch_size: int) -> Any:
    """As the printed lines do."""
    return UlyssesSPAttentionHF.register_with_transformers(
        model,
        core_attn_implementation="sdpa",
        sequence_parallel_size=shared_by,
        micro_batch_size=micro_batch_size,
    )


def shared_loss(engine: Any, batch: dict[str, torch.Tensor], groups: Any) -> torch.Tensor:
    """The loss of a batch that all ranks of a group have; each computes its part of the tokens."""
    group, rank = groups.get_sequence_parallel_group(), groups.get_sequence_parallel_rank()
    ranks = groups.get_sequence_parallel_world_size()
    shifted = torch.nn.functional.pad(batch.pop("labels"), (0, 1), value=-100)[:, 1:]
    part = {
        name: value.chunk(ranks, dim=1)[rank].contiguous()
        for name, value in (batch | {"shift_labels": shifted}).items()
    }
    loss = engine(**part, labels=part["shift_labels"]).loss
    count = (part["shift_labels"] != -100).sum()
    losses, counts = (torch.stack(all_gather(value, group=group)) for value in (loss, count))
    return (losses * counts).sum() / counts.sum()


if __name__ == "__main__":
    main()
