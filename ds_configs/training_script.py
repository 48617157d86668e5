"""The parts of a plan that belong in the training script: TrainingArguments, and lines of Python."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..estimators.hardware import Cluster
from ..estimators.memory.activations.loss import tile_sizes
from ..estimators.models.model_shape import ModelShape
from ..estimators.models.vision_parts import frozen_prefixes
from ..estimators.objectives import LAST_TRL_WITH_PPO, OBJECTIVES
from ..estimators.optimizers import optimizer
from ..estimators.parameter_groups import script_makes_adam
from ..estimators.plan import Plan
from ..estimators.workload import TORCH_DTYPES, Workload
from .module_loop import module_lines
from .unquantized_copy import loaded_checkpoint, trains_gptq

ATTENTION = {"sdpa": "sdpa", "flash": "flash_attention_2", "eager": "eager"}
"""transformers' names of the attention kernels."""

_PPO_NAMES = {"max_completion_length": "response_length", "beta": "kl_coef", "num_iterations": "num_ppo_epochs"}
"""PPOConfig's names for fields of GRPOConfig."""

_CLASSES = {"parallelism_config": "ParallelismConfig", "sp_handler": "DeepSpeedSequenceParallelConfig"}
"""Arguments whose values are objects of accelerate's classes -> name of the class in Python source."""


def training_arguments(
    plan: Plan,
    workload: Workload,
    cluster: Cluster,
    *,
    config_path: str = "ds_config.json",
    epochs: float | None = None,
) -> dict[str, Any]:
    """Keyword arguments of TrainingArguments, in the order of printing. They fill every `auto` of the "hf" flavor.

    With TRL they are those of its own class (`arguments_class`), which truncates sequences to `max_length`.
    gradient_checkpointing_kwargs: by default the non-reentrant form, which LoRA needs (behind frozen embeddings no
    input of a block requires a gradient, and the reentrant form then computes none).
    optim: only for optimizers that the training script makes; an `optimizer` block overrides it.
    epochs: of the training; None leaves them to the script (by default 3).
    """
    arguments: dict[str, Any] = {
        "output_dir": "output",
        **({} if epochs is None else {"num_train_epochs": epochs}),
        "per_device_train_batch_size": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "gradient_checkpointing": plan.gradient_checkpointing,
        **evaluation_arguments(workload),
    }
    arguments |= _rollout_arguments(workload, plan)
    if workload.framework == "trl" and workload.rollouts is None:
        arguments["max_length"] = workload.seq_len  # by default 1024
    objective = OBJECTIVES[workload.objective]
    if objective.value_model:  # the script makes its models, and accelerate has DeepSpeed's configuration
        unread = ("gradient_checkpointing", "deepspeed")
        arguments = {name: value for name, value in arguments.items() if name not in unread}
    elif objective.trainer:
        arguments["model_init_kwargs"] = {"dtype": TORCH_DTYPES[workload.precision]}  # by default float32
        arguments |= dict(objective.arguments)
        arguments |= {"precompute_ref_log_probs": True} if workload.precompute_ref_log_probs else {}
    if plan.gradient_checkpointing and not objective.value_model:
        reentrant = workload.checkpoints_reentrantly(plan.zero_stage)
        arguments["gradient_checkpointing_kwargs"] = {"use_reentrant": reentrant}
        if plan.cpu_checkpointing:
            arguments["gradient_checkpointing_kwargs"]["offload"] = True
    if workload.precision != "fp32":
        arguments[workload.precision] = True
    if workload.matmul_precision == "tf32":
        arguments["tf32"] = True
    spec = optimizer(workload.optimizer)
    if not spec.block_type:
        arguments["optim"] = spec.trainer_names[0]
    elif script_makes_adam(workload, plan) and workload.optimizer == "adamw":
        arguments["optim"] = "adamw_torch_fused" if workload.software.optimizer_step == "fused" else "adamw_torch"
    if workload.loss == "fused" or workload.kernels == "liger":
        arguments["use_liger_kernel"] = True
    if workload.loss in ("standard", "tiled") and workload.kernels == "liger":
        arguments["liger_kernel_config"] = {"fused_linear_cross_entropy": False}
    if plan.sequence_parallel_size > 1:
        arguments["parallelism_config"] = parallelism_config(plan, workload, cluster)
    return arguments if objective.value_model else {**arguments, "deepspeed": config_path}


def packages(workload: Workload) -> dict[str, str]:
    """pip name -> option that needs it, for the imports of a training besides torch, DeepSpeed, transformers,
    accelerate and datasets."""
    method, loss, kernels, rollouts = workload.method, workload.loss, workload.kernels, workload.rollouts
    generator = "generate" if rollouts is None else rollouts.rollout
    needed = (
        (workload.framework == "trl", trl_requirement(workload), f"--framework {workload.framework}"),
        (method != "full", "peft", f"--method {method}"),
        (method == "qlora" and not trains_gptq(workload), "bitsandbytes", f"--method {method}"),
        *((trains_gptq(workload), name, f"--quantization {workload.quantization}") for name in GPTQ_PACKAGES),
        (workload.optimizer == "adamw_8bit", "bitsandbytes", f"--optimizer {workload.optimizer}"),
        (loss == "fused", "liger-kernel", f"--loss {loss}"),
        (kernels != "torch", {"liger": "liger-kernel"}.get(kernels, kernels), f"--kernels {kernels}"),
        (workload.attention == "flash", "flash-attn", f"--attention {workload.attention}"),
        (generator != "generate", "vllm", f"--rollout {generator}"),
    )
    return {name: option for is_needed, name, option in needed if is_needed}


GPTQ_PACKAGES = ("gptqmodel", "optimum")
"""pip names of what loads and runs GPTQ weights (transformers 5.24 quantizers/quantizer_gptq.py
`validate_environment`)."""


def trl_requirement(workload: Workload) -> str:
    """pip requirement of TRL."""
    major, minor = LAST_TRL_WITH_PPO
    return f"trl<{major}.{minor + 1}" if OBJECTIVES[workload.objective].value_model else "trl"


def evaluation_arguments(workload: Workload) -> dict[str, Any]:
    """The arguments for the evaluation in the workload; empty without one."""
    arguments: dict[str, Any] = {
        "per_device_eval_batch_size": workload.eval_batch,
        "eval_accumulation_steps": workload.eval_logits,
        "predict_with_generate": True if workload.eval_new_tokens else None,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _rollout_arguments(workload: Workload, plan: Plan) -> dict[str, Any]:
    """Arguments that differ from the defaults of GRPOConfig, RLOOConfig or PPOConfig; lengths and groups are always
    included."""
    rollouts, default = workload.rollouts, OBJECTIVES[workload.objective].rollouts
    if rollouts is None or default is None:
        return {}
    rollouts = rollouts.as_in_trl(plan.gradient_accumulation_steps)
    renamed = _PPO_NAMES if OBJECTIVES[workload.objective].value_model else {}
    always = ["max_completion_length"] if renamed else ["num_generations", "max_completion_length"]
    changing = ["beta", "num_iterations", "steps_per_generation", "ds3_gather_for_generation"]
    changing.append("local_rollout_forward_batch_size")
    names = [*always, *(name for name in changing if getattr(rollouts, name) != getattr(default, name))]
    arguments: dict[str, Any] = {renamed.get(name, name): getattr(rollouts, name) for name in names}
    if rollouts.rollout == "generate":
        return arguments
    arguments |= {"use_vllm": True, "vllm_mode": rollouts.rollout.removeprefix("vllm-")}
    if rollouts.rollout == "vllm-server":
        return arguments | ({"vllm_server_host": "SERVER_NODE"} if rollouts.server_has_node else {})
    named = ("vllm_gpu_memory_utilization", "vllm_tensor_parallel_size", "vllm_enable_sleep_mode")
    arguments |= {name: getattr(rollouts, name) for name in named if getattr(rollouts, name) != getattr(default, name)}
    return arguments | {"vllm_max_model_length": workload.seq_len}  # the default, the model's maximum, does not fit


def server_commands(workload: Workload, cluster: Cluster, model: str) -> list[str]:
    """The command that starts the vLLM server on the GPUs after those of the training; empty without a server. With
    several nodes the server has a node of its own."""
    rollouts = workload.rollouts
    if rollouts is None or rollouts.rollout != "vllm-server":
        return []
    ranks, gpus = rollouts.vllm_tensor_parallel_size, rollouts.server_gpus
    first = 0 if rollouts.server_has_node else cluster.gpus_per_node
    devices = ",".join(str(first + number) for number in range(gpus))
    split = f" --tensor-parallel-size {ranks}" if ranks > 1 else ""
    split += f" --data-parallel-size {gpus // ranks}" if gpus > ranks else ""
    return [
        f"CUDA_VISIBLE_DEVICES={devices} trl vllm-serve --model {model}{split} --max-model-len {workload.seq_len} &"
    ]


def parallelism_config(plan: Plan, workload: Workload, cluster: Cluster) -> dict[str, Any]:
    """Keyword arguments of accelerate's ParallelismConfig, and of its `sp_handler`, if GPUs share samples.

    dp_shard_size: number of groups of GPUs, from which accelerate computes train_batch_size. The model must be loaded
    with the same attention.
    """
    return {
        "sp_backend": "deepspeed",
        "sp_size": plan.sequence_parallel_size,
        "dp_shard_size": cluster.world_size // plan.sequence_parallel_size,
        "sp_handler": {"sp_seq_length_is_variable": True, "sp_attn_implementation": ATTENTION[workload.attention]},
    }


def arguments_class(workload: Workload) -> str:
    by_trl = OBJECTIVES[workload.objective].config or "SFTConfig"
    by_trainer = "Seq2SeqTrainingArguments" if workload.eval_new_tokens else "TrainingArguments"
    return by_trl if workload.framework == "trl" else by_trainer


def training_arguments_snippet(arguments: Mapping[str, Any], class_name: str = "TrainingArguments") -> str:
    """Python source of the call, one argument per line; objects of accelerate's classes span several lines."""
    lines = ""
    for name, value in arguments.items():
        nested = training_arguments_snippet(value, _CLASSES[name]) if name in _CLASSES else python_source(value)
        lines += f"\n{name}={nested},".replace("\n", "\n    ")
    return f"{class_name}({lines}\n)"


def python_source(value: Any, name: str = "") -> str:
    """Python source of a value on one line, with double quotes like formatters. name: name of the argument, which
    determines the class of an object."""
    if name in _CLASSES:
        return f"{_CLASSES[name]}({', '.join(f'{key}={python_source(item, key)}' for key, item in value.items())})"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{python_source(key)}: {python_source(item)}" for key, item in value.items()) + "}"
    return repr(value)


_COLUMNS = 76
"""Maximum columns of a source line that fits on a screen of 80 columns."""


def _call(function: str, arguments: Sequence[str], columns: int = _COLUMNS) -> list[str]:
    """Python source of a call, on several lines if it is longer than `columns`."""
    line = f"{function}({', '.join(arguments)})"
    if len(line) <= columns:
        return [line]
    rows = [f"    {arguments[0]}"]
    for argument in arguments[1:]:
        if len(rows[-1]) + len(argument) + 3 <= columns:
            rows[-1] += f", {argument}"
        else:
            rows.append(f"    {argument}")
    return [f"{function}(", *(f"{row}," for row in rows[:-1]), f"{rows[-1]})"]


def script_lines(
    model: ModelShape,
    workload: Workload,
    plan: Plan,
    cluster: Cluster,
    config_path: str,
    *,
    epochs: float | None = None,
) -> list[str]:
    """The lines that the plan needs in the training script before the training begins. The arguments of a trainer come
    before the model, which ZeRO-3 then shards while it loads."""
    if workload.uses_trainer:
        arguments = script_arguments(workload, plan, cluster, config_path, epochs=epochs)
        lines = pageable_inputs(plan, workload) + _objective_import(workload)
        if plan.sequence_parallel_size > 1:
            lines += _SHARING_IMPORTS
        first, *rest = training_arguments_snippet(arguments, arguments_class(workload)).splitlines()
        lines += [f"args = {first}" if OBJECTIVES[workload.objective].trainer else first, *rest]
        return [*lines, *model_lines(model, workload, plan), *_objective_trainer(model, workload)]
    lines = model_lines(model, workload, plan) + pageable_inputs(plan, workload)
    if model.module:
        return [
            *([model.module.checkpointing] if plan.gradient_checkpointing else []),
            *module_lines(model.module, workload),
        ]
    if plan.gradient_checkpointing:
        offloaded = plan.cpu_checkpointing
        enable = "activation_checkpointing_enable(offload=True)" if offloaded else "gradient_checkpointing_enable()"
        lines.append(f"model.{enable}")
    if plan.sequence_parallel_size > 1:
        lines += _sharing_lines(plan, workload)
    if plan.autotp_size > 1:
        lines += _splitting_lines(plan.autotp_size)
    if workload.loss == "fused" or workload.kernels == "liger":
        lines.append("liger_kernel.transformers._apply_liger_kernel_to_instance(model=model)")
    return lines + _loss_lines(workload, "model") + _tiling_lines(model, plan, workload, "model")


def _objective_trainer(model: ModelShape, workload: Workload) -> list[str]:
    """Lines that create the objective's trainer, which loads the model and the reference model by itself."""
    spec = OBJECTIVES[workload.objective]
    if not spec.trainer:
        return []
    arguments = [f"model={_source(model, workload)}"]
    if spec.value_model:
        arguments = [f"{name}={name}" for name in ("model", "ref_model", "reward_model", "value_model")]
    elif workload.rollouts is not None:
        reward = workload.rollouts.reward_model
        arguments.append(f"reward_funcs={'...' if reward is None else json.dumps(reward.name)}")
    arguments += ["args=args", "train_dataset=...", "processing_class=..."]
    if workload.method != "full":
        arguments.append("peft_config=peft_config")
    return _call(f"trainer = {spec.trainer}", arguments)


def _source(model: ModelShape, workload: Workload) -> str:
    """Source of the path that the model is loaded from."""
    loaded = loaded_checkpoint(model, workload)
    return json.dumps(loaded) if loaded else "..."


def _objective_import(workload: Workload) -> list[str]:
    spec = OBJECTIVES[workload.objective]
    return [f"from {spec.module} import {spec.config}, {spec.trainer}"] if spec.trainer else []


def trainer_lines(model: ModelShape, workload: Workload, plan: Plan) -> list[str]:
    """The lines that a script with the Trainer needs before `trainer.train()`."""
    if not workload.uses_trainer:
        return []
    return _loss_lines(workload, "trainer.model") + _tiling_lines(model, plan, workload, "trainer.model")


def script_arguments(
    workload: Workload, plan: Plan, cluster: Cluster, config_path: str, *, epochs: float | None = None
) -> dict[str, Any]:
    """The script's TrainingArguments; on CPUs with the Trainer's settings for CPUs."""
    arguments = training_arguments(plan, workload, cluster, config_path=config_path, epochs=epochs)
    return arguments | ({"use_cpu": True, "ddp_backend": "gloo"} if cluster.gpu.is_cpu else {})


def fsdp_arguments(workload: Workload, plan: Plan, cluster: Cluster, *, epochs: float | None = None) -> dict[str, Any]:
    """The script's TrainingArguments for a plan of plain PyTorch. Without `sync_each_batch`, accumulated gradients stay
    unsharded on every GPU under FSDP (accelerate 1.15 accelerator.py `no_sync`)."""
    arguments = script_arguments(workload, plan, cluster, "", epochs=epochs)
    arguments.pop("deepspeed", None)
    if plan.is_fsdp and plan.gradient_accumulation_steps > 1:
        arguments["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    return arguments


_AUTO_CLASSES = {"classification": "AutoModelForSequenceClassification", "embedding": "AutoModel"}
"""transformers' class of an objective whose trainer does not load the model."""

_PAIR_LOSS = (
    "# The Trainer has no loss of pairs: override compute_loss, or train with",
    "# sentence-transformers: SentenceTransformerTrainer, MultipleNegativesRankingLoss.",
)
"""Comments of a script that trains embeddings."""


def model_lines(model: ModelShape, workload: Workload, plan: Plan) -> list[str]:
    """Lines that load and adapt the model, if this differs from transformers' default."""
    arguments, auto = list[str](), _AUTO_CLASSES.get(workload.objective, "")
    if workload.attention in ATTENTION and workload.attention != "sdpa":
        arguments.append(f"attn_implementation={json.dumps(ATTENTION[workload.attention])}")
    quantized = _quantization(workload, plan)
    if OBJECTIVES[workload.objective].value_model:
        joined = [" ".join(map(str.strip, quantized)).replace("( ", "(")] if quantized else []
        return _ppo_model_lines(model, workload, plan, [*arguments, *joined])
    loads = f"model = {auto}.from_pretrained" if auto else "from_pretrained"
    source = _source(model, workload)
    lines = _call(loads, [source, *arguments]) if arguments or auto or source != "..." else []
    if quantized:
        head = f"{loads}({', '.join([source, *arguments, quantized[0]])}"
        lines = [head, *quantized[1:]]
        if len(head) > _COLUMNS:
            lines = [
                f"{loads}({', '.join([source, *arguments])},",
                *(f"    {line}" for line in _quantization(workload, plan, _COLUMNS - 5)),
            ]
        lines[-1] += ")"
    if workload.objective == "embedding" and workload.uses_trainer:
        lines += _PAIR_LOSS
    if workload.method != "full":
        targets = list(workload.lora_targets) if workload.lora_targets else "all-linear"
        fields = [f"r={workload.lora_rank}", f"lora_alpha={workload.lora_alpha}"]
        fields.append(f"target_modules={json.dumps(targets)}")
        fields += [f"lora_dropout={workload.lora_dropout:g}"] * bool(workload.lora_dropout)
        fields += ["use_dora=True"] * workload.dora
        if prefixes := frozen_prefixes(model):
            excluded = "|".join(prefix.replace(".", r"\.") + ".*" for prefix in prefixes)
            fields.append(f'exclude_modules=r"{excluded}"')
        if workload.modules_to_save:
            fields.append(f"modules_to_save={json.dumps(workload.modules_to_save)}")
        if OBJECTIVES[workload.objective].labels:
            fields.append('task_type="SEQ_CLS"')
        if workload.framework == "trl" or OBJECTIVES[workload.objective].trainer:
            return lines + _call("peft_config = LoraConfig", fields)
        arguments = ["model", f"LoraConfig({', '.join(fields)})"]
        is_sharded_first = plan.zero_stage == 3 and plan.sharding == "zero"
        initialized = workload.framework == "hf" and is_sharded_first and workload.method == "lora"
        if workload.modules_to_save or (initialized and not workload.software.fp32_adapters):
            # deepspeed 0.19.8 runtime/zero/stage3.py `defragment` asserts one type for all trained tensors, and the
            # engine casts nothing of a model that zero.Init built; copies keep their originals' type. In peft's fp32
            # adapters would cast every input of theirs. TRL's trainers pass it themselves.
            arguments.append("autocast_adapter_dtype=False")
        lines += _call("model = get_peft_model", arguments)
    elif prefixes := frozen_prefixes(model):
        frozen = ", ".join(map(json.dumps, prefixes))
        lines += [
            "for name, parameter in model.named_parameters():",
            f"    parameter.requires_grad_(not name.startswith(({frozen},)))",
        ]
    return lines


def _quantization(workload: Workload, plan: Plan, columns: int = _COLUMNS) -> list[str]:
    """Source of the argument that quantizes the weights; empty for others, and for a GPTQ checkpoint, which has its own
    quantization_config."""
    if workload.method != "qlora" or trains_gptq(workload):
        return []
    fields = ["load_in_8bit=True"]
    if workload.quantization == "nf4":
        dtype = f"torch.{TORCH_DTYPES[workload.precision]}"
        fields = ["load_in_4bit=True", 'bnb_4bit_quant_type="nf4"', "bnb_4bit_use_double_quant=True"]
        fields.append(f"bnb_4bit_compute_dtype={dtype}")
        # torch 2.13 distributed/fsdp/_flat_param.py flattens neither integers nor different types together.
        fields += [f"bnb_4bit_quant_storage={dtype}"] * plan.is_fsdp
    return _call("quantization_config=BitsAndBytesConfig", fields, columns)


def _ppo_model_lines(model: ModelShape, workload: Workload, plan: Plan, arguments: Sequence[str]) -> list[str]:
    """Lines for the four models of TRL's PPOTrainer, which does not enable checkpointing for any of them."""
    options = ", ".join((f"dtype=torch.{TORCH_DTYPES[workload.precision]}", *arguments))
    reward = workload.rollouts and workload.rollouts.reward_model
    lines = [f"options = dict({options})"]
    scores = json.dumps(reward.name) if reward else "..."
    for names, kind, path in (
        ("model, ref_model", "AutoModelForCausalLM", _source(model, workload)),
        ("reward_model, value_model", "AutoModelForSequenceClassification", f"{scores}, num_labels=1"),
    ):
        lines += [f"{names} = (", f"    {kind}.from_pretrained(", f"        {path}, **options)"]
        lines += ["    for _ in range(2))"]
    if plan.gradient_checkpointing:
        lines += [f"{name}.gradient_checkpointing_enable()" for name in ("model", "value_model")]
    return lines


def pageable_inputs(plan: Plan, workload: Workload) -> list[str]:
    """Lines that prevent transformers from page-locking layers' inputs on the host, which rounds each up to a power
    of two (transformers 5.23 modeling_utils.py `_activation_checkpointing_enable`); empty if the host has enough
    memory."""
    if not plan.cpu_checkpointing or workload.software.pinned_inputs:
        return []
    return [
        "import transformers.modeling_utils",
        "from torch.autograd.graph import save_on_cpu",
        'transformers.modeling_utils.save_on_cpu = lambda **options: save_on_cpu(**options | {"pin_memory": False})',
    ]


def _loss_lines(workload: Workload, name: str) -> list[str]:
    """Lines for DeepSpeed's chunked loss in the model called `name`. They patch peft's base model: its wrapper has no
    loss."""
    if workload.loss != "chunked-softmax":
        return []
    base = name if workload.method == "full" else f"{name}.get_base_model()"
    return [
        "from deepspeed.runtime.chunked_cross_entropy import (",
        "    install_chunked_causal_lm_loss)",
        f"install_chunked_causal_lm_loss({base})",
    ]


def _tiling_lines(model: ModelShape, plan: Plan, workload: Workload, name: str) -> list[str]:
    """Lines for tiled feed-forward and loss of the model called `name`; empty without tiles."""
    tiles = tile_sizes(model, workload, plan)
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
    """Lines for Ulysses sequence parallelism in a script without the Trainer. The loss is the mean over the ranks,
    which is exact if all have the same number of labels."""
    return [
        "from deepspeed.runtime.sequence_parallel.ulysses_sp import (",
        "    UlyssesSPAttentionHF, UlyssesSPDataLoaderAdapter)",
        "mpu = UlyssesSPAttentionHF.register_with_transformers(",
        f'    model, core_attn_implementation="{ATTENTION[workload.attention]}",',
        f"    sequence_parallel_size={plan.sequence_parallel_size}, micro_batch_size={plan.micro_batch_size})",
        "engine, *_ = deepspeed.initialize(model=model, config=config, mpu=mpu, ...)",
        "group = mpu.get_sequence_parallel_group()",
        "loader = UlyssesSPDataLoaderAdapter(",
        "    loader, sp_rank=mpu.get_sequence_parallel_rank(), sp_group=group,",
        f"    sp_world_size={plan.sequence_parallel_size}, device=engine.device)",
        'loss = engine(**batch, labels=batch["shift_labels"]).loss  # this rank\'s',
        "losses = torch.distributed.nn.functional.all_gather(loss, group=group)",
        "loss = torch.stack(losses).mean()",
    ]


def _splitting_lines(ranks: int) -> list[str]:
    """Lines for a sampler with the same samples on all GPUs that split layers; DeepSpeed compares their first
    batches."""
    return [
        "sampler = DistributedSampler(",
        f"    dataset, num_replicas=torch.distributed.get_world_size() // {ranks},",
        f"    rank=torch.distributed.get_rank() // {ranks})",
    ]
