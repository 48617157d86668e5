"""Train the job's model with plain `deepspeed.initialize`, as the commands of the "deepspeed" flavour start it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean

import deepspeed
import torch
from job import build_model, finish, read_job, samples


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
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trainable, config=config)
    micro, rank, ranks = engine.train_micro_batch_size_per_gpu(), torch.distributed.get_rank(), engine.world_size
    mine = samples(job)[rank::ranks]
    losses = []
    for _ in range(job["optimizer_steps"]):
        step = []
        for start in range(0, len(mine), micro):
            batch = {name: torch.stack([sample[name] for sample in mine[start : start + micro]]) for name in mine[0]}
            loss = engine(**batch).loss
            engine.backward(loss)
            engine.step()
            step.append(loss.item())
        losses.append(fmean(step))
    finish(job, losses, engine)


if __name__ == "__main__":
    main()
