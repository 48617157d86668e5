"""One rank of a training: `python -m ds_advise.advisor.train.rank JOB.json`, started by a launcher.

Runs the Hugging Face Trainer with the job's configuration, data and checkpoints. Rank 0 saves the model, and writes
`result.json` to the job's folder. No code from the model's folder is executed: weights are safetensors only, without
remote code.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from ...ds_configs.tiled_compute import tile_feed_forward, tile_loss
from ...ds_configs.training_script import ATTENTION
from ...estimators.time.job import PADDED_TO
from ...validate.checkpoint import WHOLE
from ..data.prepare import Index, open_tokens
from .folder import TrainingJob, TrainingResult, read_job, write_record

IGNORED = -100
"""The label that transformers' losses ignore."""

TensorSample = dict[str, torch.Tensor]


class TokenDataset(Dataset[TensorSample]):
    """The samples of an index. `position_ids` restart with every piece of a packed sample."""

    def __init__(self, folder: Path, index: Path) -> None:
        self._tokens = open_tokens(folder)
        self._index = Index.load(index)

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, number: int) -> TensorSample:
        ids, labels, positions = [], [], []
        for piece in self._index.pieces(number):
            numbers = self._tokens.ids[piece].astype(np.int64)
            labelled = np.where(self._tokens.is_trained[piece], numbers, IGNORED)
            labelled[0] = IGNORED  # it would be predicted from the previous piece
            ids.append(numbers)
            labels.append(labelled)
            positions.append(np.arange(len(numbers)))
        return {
            name: torch.from_numpy(np.concatenate(parts))
            for name, parts in (("input_ids", ids), ("labels", labels), ("position_ids", positions))
        }


class Collator:
    """Collator that pads on the right to the longest sample of a batch, rounded up to `PADDED_TO` within `seq_len`.

    packing: whether samples are packed. The batch then has `position_ids` and no attention mask; transformers keeps
        attention within each piece, and padding forms pieces of its own. Otherwise the batch has the mask, and the
        model derives the positions.
    shared_by: ranks that share each sample. The length is then a multiple of their number, and the batch has
        `position_ids` and no mask, which Ulysses drops: padding comes last, so no token attends to it.
    """

    def __init__(self, *, pad_id: int, seq_len: int, packing: bool, shared_by: int = 1) -> None:
        self._pad_id = pad_id
        self._seq_len = seq_len
        self._packing = packing
        self._shared_by = shared_by

    def __call__(self, samples: Sequence[TensorSample]) -> TensorSample:
        longest = max(len(sample["input_ids"]) for sample in samples)
        multiple = math.lcm(PADDED_TO, self._shared_by)
        length = min(-(-longest // multiple) * multiple, self._seq_len)
        batch = {
            "input_ids": _padded(samples, "input_ids", length, self._pad_id),
            "labels": _padded(samples, "labels", length, IGNORED),
        }
        if self._packing:
            batch["position_ids"] = _padded(samples, "position_ids", length, 0)
        elif self._shared_by > 1:
            batch["position_ids"] = torch.arange(length).repeat(len(samples), 1)
        else:
            batch["attention_mask"] = torch.stack(
                [(torch.arange(length) < len(sample["input_ids"])).long() for sample in samples]
            )
        return batch


def _padded(samples: Sequence[TensorSample], name: str, length: int, value: int) -> torch.Tensor:
    return torch.stack(
        [torch.nn.functional.pad(sample[name], (0, length - len(sample[name])), value=value) for sample in samples]
    )


def main() -> None:
    file = Path(sys.argv[1])
    job = read_job(file)
    import deepspeed

    transformers: Any = import_module("transformers")
    on_cpu = job.device == "cpu"
    # Before TrainingArguments, which would create a process group on a GPU.
    deepspeed.init_distributed("gloo" if on_cpu else None)
    where = {"use_cpu": True, "ddp_backend": "gloo"} if on_cpu else {}
    # Before the model, so that transformers knows of ZeRO-3 and shards the model while it loads.
    arguments = transformers.TrainingArguments(**_with_objects(job.arguments), **where)
    transformers.set_seed(arguments.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(job.tokenizer, trust_remote_code=False)
    train, evaluation, collator = _data(job, tokenizer)
    model = _model(job, arguments)
    uses_cache = getattr(model.config, "use_cache", None)
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=train,
        eval_dataset=evaluation,
        data_collator=collator,
        processing_class=tokenizer,
        callbacks=[_callback(transformers)],
    )
    if job.mlp_tiles:
        tile_feed_forward(trainer.model, job.mlp_tiles)
    if job.loss_tiles:
        tile_loss(trainer.model, job.loss_tiles)
    swanlab = _swanlab() if "swanlab" in arguments.report_to and dist.get_rank() == 0 else None
    with contextlib.suppress(_AllStepsMadeError):
        trainer.train(resume_from_checkpoint=job.checkpoint)
    finished = trainer.state.global_step >= trainer.state.max_steps
    if finished:
        last = trainer.state.global_step
        evaluated = any("eval_loss" in entry and entry["step"] == last for entry in trainer.state.log_history)
        if evaluation is not None and not evaluated:
            trainer.evaluate()
        if job.gathers:
            if uses_cache is not None:  # the Trainer turns it off, and the saved model would generate without a cache
                model.config.use_cache = uses_cache
            trainer.save_model(job.arguments["output_dir"])
    if dist.get_rank() == 0:
        write_record(_result(trainer.state, finished=finished, whole=job.gathers), file.with_name("result.json"))
    if swanlab is not None:
        swanlab.finish()
    dist.barrier()
    dist.destroy_process_group()


def _with_objects(arguments: dict[str, Any]) -> dict[str, Any]:
    """TrainingArguments from JSON, with an object for accelerate's ParallelismConfig."""
    values = arguments.get("parallelism_config")
    if values is None:
        return arguments
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import DeepSpeedSequenceParallelConfig

    _restart_loader()
    handler = DeepSpeedSequenceParallelConfig(**values["sp_handler"])
    return arguments | {"parallelism_config": ParallelismConfig(**(values | {"sp_handler": handler}))}


def _restart_loader() -> None:
    """Restart DeepSpeed's sequence-parallel loader in every epoch. The Trainer takes exactly as many batches as an
    epoch has, but the loader detects the end of an epoch only beyond its last batch; every second epoch would be empty
    (deepspeed 0.19.8 ulysses_sp.py `UlyssesSPDataLoaderAdapter`)."""
    loader: Any = import_module("deepspeed.runtime.sequence_parallel.ulysses_sp").UlyssesSPDataLoaderAdapter

    def begin(self: Any) -> Any:
        self.iter = iter(self.dl)
        self.micro_batches.clear()
        return self

    loader.__iter__ = begin


def _data(job: TrainingJob, tokenizer: Any) -> tuple[Any, Any, Any]:
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    evaluation = None
    if job.evaluation_tokens is not None and job.evaluation_samples is not None:
        evaluation = TokenDataset(Path(job.evaluation_tokens), Path(job.evaluation_samples))
    shared_by = int((job.arguments.get("parallelism_config") or {}).get("sp_size", 1))
    collator = Collator(pad_id=pad_id, seq_len=job.workload.seq_len, packing=job.packing, shared_by=shared_by)
    return TokenDataset(Path(job.tokens), Path(job.samples)), evaluation, collator


def _model(job: TrainingJob, arguments: Any) -> Any:
    transformers: Any = import_module("transformers")
    workload, dtype = job.workload, getattr(torch, job.dtype)
    more: dict[str, Any] = {}
    if workload.method == "qlora":
        # Under ZeRO-3 transformers takes no device_map; bitsandbytes' quantizer then takes the rank's own GPU.
        sharded = import_module("transformers.integrations").is_deepspeed_zero3_enabled()
        more = {
            **({} if sharded else {"device_map": {"": arguments.local_process_index}}),
            "quantization_config": transformers.BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=dtype,
            ),
        }
    model = transformers.AutoModelForCausalLM.from_pretrained(
        job.model,
        dtype=dtype,
        attn_implementation=ATTENTION[workload.attention],
        trust_remote_code=False,
        use_safetensors=True,
        **more,
    )
    if workload.method == "full":
        return model
    peft: Any = import_module("peft")
    if workload.method == "qlora":
        model = peft.prepare_model_for_kbit_training(
            model,
            use_gradient_checkpointing=arguments.gradient_checkpointing,
            gradient_checkpointing_kwargs=arguments.gradient_checkpointing_kwargs,
        )
    return peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=workload.lora_rank,
            lora_alpha=job.lora_alpha,
            lora_dropout=workload.lora_dropout,
            task_type="CAUSAL_LM",
            modules_to_save=list(workload.modules_to_save) or None,
            target_modules=list(workload.lora_targets) if workload.lora_targets else "all-linear",
        ),
        autocast_adapter_dtype=workload.method == "qlora"
        and not workload.modules_to_save,  # the same condition as in `ds_configs.training_script`
    )


def _swanlab() -> Any:
    """The swanlab module with an active run, which transformers' callback (5.23) requires: `get_run` raises without
    one. SWANLAB_MODE selects the mode. If SwanLab cannot be reached or no user is logged in, the run is kept in
    ./swanlog for `swanlab sync`."""
    swanlab = import_module("swanlab")
    try:
        swanlab.init(project=os.environ.get("SWANLAB_PROJECT"))
    except Exception as error:
        print(f"SwanLab is offline: {error}", file=sys.stderr)
        swanlab.init(project=os.environ.get("SWANLAB_PROJECT"), mode="offline", reinit=True)
    return swanlab


class _AllStepsMadeError(Exception):
    """Raised if the checkpoint to resume from is that of the last step."""


def _callback(transformers: Any) -> Any:
    class Checkpoints(transformers.TrainerCallback):  # type: ignore[misc]
        """Callback that marks a checkpoint when all ranks have saved their parts, and that prevents a step beyond the
        last, which the Trainer would make unless an epoch ends there."""

        def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            if state.global_step >= state.max_steps:
                raise _AllStepsMadeError

        def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
            dist.barrier()
            if state.is_world_process_zero:
                Path(args.output_dir, f"checkpoint-{state.global_step}", WHOLE).touch()

    return Checkpoints()


def _result(state: Any, *, finished: bool, whole: bool) -> TrainingResult:
    def logged(name: str) -> tuple[tuple[int, float], ...]:
        return tuple((entry["step"], float(entry[name])) for entry in state.log_history if name in entry)

    return TrainingResult(
        finished=finished, step=state.global_step, losses=logged("loss"), evaluations=logged("eval_loss"), whole=whole
    )


if __name__ == "__main__":
    main()
