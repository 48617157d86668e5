"""Train the job's model with the Hugging Face Trainer, as the commands of the "hf" flavour start it."""

from __future__ import annotations

import argparse

import deepspeed
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DeepSpeedSequenceParallelConfig
from job import build_model, finish, read_job, samples, tile
from transformers import Trainer, TrainingArguments

NO_GPU = {"use_cpu": True, "ddp_backend": "gloo"}
"""All that training without a GPU takes, besides DeepSpeed's process group on gloo before TrainingArguments makes
one."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    parser.add_argument("--deepspeed")
    config_path = parser.parse_args().deepspeed
    job = read_job()
    deepspeed.init_distributed("gloo")
    length = {
        "max_steps": job["optimizer_steps"],
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    printed = job["training_arguments"] | {"deepspeed": config_path}  # None under accelerate, which knows the file
    if "parallelism_config" in printed:
        values = printed["parallelism_config"]
        handler = DeepSpeedSequenceParallelConfig(**values["sp_handler"])
        printed["parallelism_config"] = ParallelismConfig(**values | {"sp_handler": handler})
    arguments = TrainingArguments(**printed, **NO_GPU, **length)  # before the model, so that ZeRO-3 builds it in shards
    trainer = Trainer(model=build_model(job), args=arguments, train_dataset=samples(job))
    tile(trainer.model, job)
    trainer.train()
    finish(job, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], trainer.deepspeed)


if __name__ == "__main__":
    main()
