"""Train the job's model on accelerate without the Trainer, as `accelerate launch --config_file` starts it."""

from __future__ import annotations

from statistics import fmean

import torch
from accelerate import Accelerator
from accelerate.utils import DummyOptim, InitProcessGroupKwargs
from job import build_model, finish, read_job, samples


def main() -> None:
    job = read_job()
    printed = job["training_arguments"]
    accelerator = Accelerator(
        mixed_precision="bf16",
        gradient_accumulation_steps=printed["gradient_accumulation_steps"],
        kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")],
    )  # gloo: no GPU here
    model = build_model(job)
    optimizer = DummyOptim(model.parameters(), lr=printed["learning_rate"])  # the file's `optimizer` block says which
    data = torch.utils.data.DataLoader(samples(job), batch_size=printed["per_device_train_batch_size"])
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    losses = []
    for _ in range(job["optimizer_steps"]):
        step = []
        for batch in data:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            step.append(loss.item())
        losses.append(fmean(step))
    finish(job, losses, model)


if __name__ == "__main__":
    main()
