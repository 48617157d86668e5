"""A training and an evaluation by transformers' own Trainer, in the phases of a dry run: two ranks, random weights."""

import os

import numpy
import torch
from accelerate import PartialState
from ds_advise.probes.dry_run import models
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, trainer_pt_utils


def train_and_evaluate(request, recorder):
    """Train `request.iterations` steps, then evaluate.

    Ranks gather as over NCCL, into one tensor. What goes to the host is forgotten, because here it is the same memory.
    """
    run, workload = request.run, request.run.workload
    os.environ |= {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_TORCH_DEVICE": "cpu",
        "LOCAL_WORLD_SIZE": str(run.cluster.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",  # the ranks have met already
    }
    tokens = {name: [3] * workload.seq_len for name in ("input_ids", "labels")}
    arguments = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=run.micro_batch_size,
        gradient_accumulation_steps=run.gradient_accumulation_steps,
        per_device_eval_batch_size=workload.eval_batch,
        eval_accumulation_steps=workload.eval_logits,
        max_steps=request.iterations,
        bf16=True,
        use_cpu=True,
        report_to=[],
        deepspeed=dict(run.config) | {"bf16": {"enabled": "auto"}},
        gradient_checkpointing=run.gradient_checkpointing,
        save_strategy="no",
        learning_rate=1e-4,
    )
    described = models.transformers_config(run.model | {"pad_token_id": 0})
    with recorder.phase(0, "load"):
        model = AutoModelForCausalLM.from_config(described, dtype=torch.bfloat16, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():  # finite, or the engine skips its steps
            getattr(parameter, "ds_tensor", parameter).normal_(0, 0.02)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=[tokens] * 64,
        eval_dataset=[tokens] * (run.cluster.world_size * workload.eval_batch * (workload.eval_logits or 2)),
        compute_metrics=(lambda _: {}) if workload.eval_logits else None,
    )
    trainer.train()
    PartialState().backend = "one tensor"
    torch.distributed.all_gather_into_tensor = _gather
    trainer_pt_utils.nested_numpify = lambda _: numpy.zeros(1)
    with recorder.phase(request.iterations, "evaluation"):
        trainer.evaluate()


def _gather(output, given):
    parts = output.view(torch.distributed.get_world_size(), *given.shape).unbind()
    torch.distributed.all_gather(list(parts), given)
