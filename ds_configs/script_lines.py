"""What a training script needs for a plan beside its ds_config, as lines of Python."""

from __future__ import annotations

import json
from typing import Any

from ..estimators.hardware.cluster import Cluster
from ..estimators.models.model_shape import ModelShape
from ..estimators.plan import Plan
from ..estimators.tiles import tiles_of
from ..estimators.workload import Workload
from .training_arguments import ATTENTION, training_arguments, training_arguments_snippet

_TORCH_DTYPE = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}


def script_lines(model: ModelShape, workload: Workload, plan: Plan, cluster: Cluster, config_path: str) -> list[str]:
    """The lines of Python that the plan needs in the training script, before the training begins."""
    lines = model_lines(workload) + _pageable_inputs(plan, workload)
    if workload.framework == "hf":
        arguments = script_arguments(workload, plan, cluster, config_path)
        if plan.sequence_parallel_size > 1:
            lines += _SHARING_IMPORTS
        return lines + training_arguments_snippet(arguments).splitlines()
    if plan.gradient_checkpointing:
        enable = (
            "activation_checkpointing_enable(offload=True)"
            if plan.cpu_checkpointing
            else "gradient_checkpointing_enable()"
        )
        lines.append(f"model.{enable}")
    if plan.sequence_parallel_size > 1:
        lines += _sharing_lines(plan, workload)
    if plan.autotp_size > 1:
        lines += _splitting_lines(plan.autotp_size)
    if workload.loss == "fused" or workload.kernels == "liger":
        lines.append("liger_kernel.transformers._apply_liger_kernel_to_instance(model=model)")
    return lines + _tiling_lines(model, plan, workload, "model")


def trainer_lines(model: ModelShape, workload: Workload, plan: Plan) -> list[str]:
    """The lines that such a script needs once the Trainer is made, before `trainer.train()`."""
    return _tiling_lines(model, plan, workload, "trainer.model") if workload.framework == "hf" else []


def script_arguments(workload: Workload, plan: Plan, cluster: Cluster, config_path: str) -> dict[str, Any]:
    """The script's TrainingArguments; on CPUs with what keeps the Trainer from looking for a GPU."""
    arguments = training_arguments(plan, workload, cluster, config_path=config_path)
    return arguments | ({"use_cpu": True, "ddp_backend": "gloo"} if cluster.gpu.is_cpu else {})


def model_lines(workload: Workload) -> list[str]:
    """How the model is loaded and adapted, where that is not transformers' default."""
    arguments = []
    if workload.attention in ATTENTION and workload.attention != "sdpa":
        arguments.append(f"    attn_implementation={json.dumps(ATTENTION[workload.attention])},")
    if workload.method == "qlora" and workload.quantization == "int8":
        arguments.append("    quantization_config=BitsAndBytesConfig(load_in_8bit=True),")
    elif workload.method == "qlora" and workload.quantization == "nf4":  # a GPTQ checkpoint says so itself
        arguments += [
            "    quantization_config=BitsAndBytesConfig(",
            '        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,',
            f"        bnb_4bit_compute_dtype={_TORCH_DTYPE[workload.precision]}),",
        ]
    lines = ["from_pretrained(", "    ...,", *arguments, ")"] if arguments else []
    if workload.method != "full":
        targets = list(workload.lora_targets) if workload.lora_targets else "all-linear"
        dropout = f", lora_dropout={workload.lora_dropout:g}" if workload.lora_dropout else ""
        saved = f", modules_to_save={json.dumps(workload.modules_to_save)}" if workload.modules_to_save else ""
        lines.append(f"LoraConfig(r={workload.lora_rank}, target_modules={json.dumps(targets)}{dropout}{saved})")
        if workload.modules_to_save:
            # deepspeed 0.19.8 runtime/zero/stage3.py `defragment` asserts that all that trains has one type, and the
            # engine casts nothing of a model that zero.Init built; copies keep their originals' type.
            lines.append("get_peft_model(..., autocast_adapter_dtype=False)")
    return lines


def _pageable_inputs(plan: Plan, workload: Workload) -> list[str]:
    """How a script keeps transformers from page-locking layers' inputs on the host, which rounds each up to a power of
    two; nothing where it may (transformers 5.23 modeling_utils.py `_activation_checkpointing_enable`)."""
    if not plan.cpu_checkpointing or workload.software.pinned_inputs:
        return []
    return [
        "import transformers.modeling_utils",
        "from torch.autograd.graph import save_on_cpu",
        'transformers.modeling_utils.save_on_cpu = lambda **options: save_on_cpu(**options | {"pin_memory": False})',
    ]


def _tiling_lines(model: ModelShape, plan: Plan, workload: Workload, name: str) -> list[str]:
    """How a script lets feed-forward and loss of the model called `name` work on tiles; nothing where they do not."""
    tiles = tiles_of(model, workload, plan)
    calls = {"tile_feed_forward": tiles.mlp, "tile_loss": tiles.loss}
    used = {function: count for function, count in calls.items() if count}
    if not used:
        return []
    return [
        f"from ds_advise.ds_configs.tiled_compute import {', '.join(used)}",
        *(f"{function}({name}, tiles={count})" for function, count in used.items()),
    ]


_SHARING_IMPORTS = [
    "from accelerate.parallelism_config import ParallelismConfig",
    "from accelerate.utils import DeepSpeedSequenceParallelConfig",
]


def _sharing_lines(plan: Plan, workload: Workload) -> list[str]:
    """How a script of one's own lets GPUs share samples; the loss is the mean of the ranks', exact where each has as
    many labels."""
    return [
        "from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF, UlyssesSPDataLoaderAdapter",
        "mpu = UlyssesSPAttentionHF.register_with_transformers(",
        f'    model, core_attn_implementation="{ATTENTION[workload.attention]}",',
        f"    sequence_parallel_size={plan.sequence_parallel_size}, micro_batch_size={plan.micro_batch_size})",
        "engine, *_ = deepspeed.initialize(model=model, config=config, mpu=mpu, ...)",
        "group = mpu.get_sequence_parallel_group()",
        "loader = UlyssesSPDataLoaderAdapter(",
        "    loader, sp_rank=mpu.get_sequence_parallel_rank(), sp_group=group,",
        f"    sp_world_size={plan.sequence_parallel_size}, device=engine.device)",
        'loss = engine(**batch, labels=batch["shift_labels"]).loss  # of this rank\'s tokens',
        "loss = torch.stack(torch.distributed.nn.functional.all_gather(loss, group=group)).mean()",
    ]


def _splitting_lines(ranks: int) -> list[str]:
    """How a script of one's own gives GPUs that split layers the same samples; DeepSpeed compares their first batch."""
    return [
        "sampler = DistributedSampler(",
        f"    dataset, num_replicas=torch.distributed.get_world_size() // {ranks},",
        f"    rank=torch.distributed.get_rank() // {ranks})",
    ]
