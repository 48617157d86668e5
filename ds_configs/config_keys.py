"""The keys of a ds_config that are explained, compared or checked: those of a plan and others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..estimators.plan import PLAN_FIELDS, ConfigKey, key_stages


def _key(path: str, meaning: str = "", **properties: Any) -> ConfigKey:
    return ConfigKey(**{"path": path, "meaning": meaning, "stages": key_stages(path), **properties})


_ORDER: tuple[ConfigKey | str, ...] = (
    _key("train_batch_size", "samples of all GPUs in one optimizer step", filled=True),
    "micro_batch_size",
    "gradient_accumulation_steps",
    _key(
        "gradient_clipping",
        "maximum norm of the gradient; 0: no clipping",
        filled=True,
        argument="max_grad_norm",
    ),
    _key("bf16.enabled", "weights and gradients of 2 bytes, the range of fp32; needs Ampere or newer", filled=True),
    _key("fp16.enabled", "weights and gradients of 2 bytes, with loss scaling", filled=True),
    _key("fp16.loss_scale", "0: dynamic loss scaling"),
    _key("optimizer.type", "determines the states per parameter, and whether they can be in host RAM"),
    _key("optimizer.params.lr", "learning rate", filled=True, argument="learning_rate"),
    _key("optimizer.params.betas", filled=True),
    _key("optimizer.params.eps", filled=True),
    _key("optimizer.params.weight_decay", filled=True, argument="weight_decay"),
    _key("scheduler.type", "learning rate schedule"),
    _key("scheduler.params.warmup_min_lr", filled=True),
    _key("scheduler.params.warmup_max_lr", filled=True, argument="learning_rate"),
    _key("scheduler.params.warmup_num_steps", filled=True),
    _key("scheduler.params.total_num_steps", filled=True),
    "zero_stage",
    "offload_optimizer",
    "offload_param",
    _key("zero_optimization.offload_optimizer.nvme_path", "location of the states between steps", nvme_only=True),
    _key("zero_optimization.offload_param.nvme_path", "location of the weights between uses", nvme_only=True),
    "pin_memory",
    _key("zero_optimization.offload_param.pin_memory", PLAN_FIELDS["pin_memory"].meaning),
    "optimizer_buffer_count",
    "param_buffer_count",
    "param_buffer_size",
    "param_max_in_cpu",
    "offload_optimizer_ratio",
    _key("zero_optimization.offload_optimizer.pipeline_read", nvme_only=True),
    _key("zero_optimization.offload_optimizer.pipeline_write", nvme_only=True),
    _key("zero_optimization.offload_optimizer.fast_init", nvme_only=True),
    "overlap_comm",
    "reduce_bucket_size",
    _key(
        "zero_optimization.allgather_bucket_size",
        "elements gathered at a time; current torch gathers all in place",
        stages=(),  # runtime/utils.py all_gather_dp_groups gathers in place (0.19.8)
    ),
    _key("zero_optimization.contiguous_gradients", "gradients copied into one buffer: less fragmentation"),
    _key("zero_optimization.reduce_scatter", "each rank receives only its own partition"),
    _key(
        "zero_optimization.round_robin_gradients", "distributes the copies to host RAM among the ranks", stages=(1, 2)
    ),
    _key("zero_optimization.parameter_alignment", stages=(1, 2)),
    _key("zero_optimization.allgather_partitions", stages=(1, 2)),
    _key("zero_optimization.use_multi_rank_bucket_allreduce", stages=(1, 2)),
    "sub_group_size",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    _key(
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
        "saves a whole model, not only shards; rank 0 gathers it",
    ),
    _key("zero_optimization.stage3_model_persistence_threshold"),
    _key("zero_optimization.stage3_module_granularity_threshold"),
    _key("zero_optimization.stage3_use_all_reduce_for_fetch_params"),
    _key("zero_optimization.stage3_allgather_sequential"),
    _key("zero_optimization.memory_efficient_linear", stages=(3,)),
    "zero_hpz_partition_size",
    "zero_quantized_weights",
    "zero_quantized_gradients",
    _key("zero_optimization.zero_quantized_nontrainable_weights", stages=(3,)),
    _key("aio.block_size", "bytes of a request to the drive"),
    _key("aio.queue_depth", "requests in flight per thread"),
    _key("aio.intra_op_parallelism", "threads that read and write one tensor"),
    _key("aio.single_submit", "requests submitted one by one"),
    _key("aio.overlap_events", "requests submitted while others finish"),
    _key("zero_allow_untested_optimizer", "allows an optimizer that ZeRO was not tested with"),
    _key("wall_clock_breakdown", "times every part of a step, and synchronizes with the GPU for it"),
    _key("steps_per_print", "steps between two lines of the log", filled=True),
)
"""Keys in descending order of effect; a string is a field of `Plan`. Other fields have no rank."""


def _keys() -> Iterator[ConfigKey]:
    rest = dict(PLAN_FIELDS)
    for entry in _ORDER:
        yield rest.pop(entry) if isinstance(entry, str) else entry
    yield from (known for known in rest.values() if known.path)


CONFIG_KEYS: Mapping[str, ConfigKey] = {known.path: known for known in _keys()}
"""Path -> key."""

_RANKED = tuple(path for path, known in list(CONFIG_KEYS.items())[: len(_ORDER)] if known.meaning)
_BLOCKS = tuple(dict.fromkeys(path.partition(".")[0] for path in _RANKED))


def meaning(path: str) -> str:
    """The effect of a key; "" if only DeepSpeed's class describes it."""
    known = CONFIG_KEYS.get(path)
    return (known.meaning if known is not None else "") or MEANINGS.get(path, "")


def acts_at(path: str, stage: int) -> bool:
    """Whether DeepSpeed uses the key at a ZeRO stage."""
    known = CONFIG_KEYS.get(path)
    return stage in (key_stages(path) if known is None else known.stages)


def rank(path: str) -> tuple[int, str, int, str]:
    """Sort key of keys by effect: first the blocks, then the keys of a block."""
    block = path.partition(".")[0]
    first = _BLOCKS.index(block) if block in _BLOCKS else len(_BLOCKS)
    return first, block, _RANKED.index(path) if path in _RANKED else len(_RANKED), path


_WITHOUT_DESCRIPTION: Mapping[str, Mapping[str, str]] = {
    "": {
        "allgather_size": "allgather_bucket_size of the old form `zero_optimization: true`",
        "data_parallel_size": "ranks of data parallelism in the device mesh; read together with sequence_parallel_size",
        "dataloader_drop_last": "DeepSpeed's data loader leaves out the last, incomplete batch",
        "disable_allgather": "no effect: nothing reads it after the file",
        "disable_python_gc": "turns Python's garbage collector off, so that it does not interrupt steps",
        "dump_state": "prints the engine's attributes when it is built",
        "gradient_allreduce_op": "gradients of the ranks are averaged (mean) or summed (sum)",
        "gradient_predivide_factor": "gradients are divided by it before they are reduced, the rest afterwards",
        "log_level": "least severity of DeepSpeed's messages",
        "managed_gradient_accumulation": "false: the script, not the engine, decides at which micro batch to step",
        "memory_breakdown": "prints the GPU's memory at stages of a step",
        "prescale_gradients": "gradients are divided by the number of ranks before they are reduced",
        "seq_parallel_communication_data_type": "type of gradients while they are reduced under sequence parallelism",
        "use_data_before_expert_parallelism": "order of ranks: data-parallel neighbours first, expert-parallel second",
        "vocabulary_size": "only checked: a warning where 8 does not divide it",
        "zero_force_ds_cpu_optimizer": "refuses an offloaded optimizer of the script that is not DeepSpeed's own",
        "activation_checkpointing": "options of deepspeed.checkpointing, which transformers' models do not call",
        "aio": "requests to the drive; only offload to NVMe reads them",
        "autotuning": "settings of the launcher's --autotuning",
        "bf16": "training in bfloat16",
        "bfloat16": "old name of bf16, read where bf16 is missing",
        "checkpoint": "how checkpoints are written and loaded",
        "comet": "logs to Comet",
        "comms_logger": "logs every collective",
        "compile": "DeepCompile and engine.compile()",
        "csv_monitor": "logs to CSV files",
        "data_efficiency": "curriculum learning and random token dropping",
        "data_types": "types of parameters, buffers and accumulated gradients",
        "datastates_ckpt": "checkpoints by the DataStates engine",
        "expert_parallel": "AutoEP: experts spread over ranks",
        "flops_profiler": "counts FLOPs of every module at one step",
        "fp16": "training in float16 with loss scaling",
        "hybrid_engine": "inference kernels within a training, for RLHF",
        "optimizer": "DeepSpeed's or torch's optimizer; without it the script makes one",
        "optimizer.params": "arguments of the optimizer's class",
        "pipeline": "options of pipeline parallelism",
        "scheduler": "learning rate schedule; without it the script makes one",
        "scheduler.params": "arguments of the scheduler's class",
        "tensor_parallel": "AutoTP: layers split among ranks",
        "tensorboard": "logs to TensorBoard",
        "timers": "timers of the throughput",
        "torch_autocast": "torch.autocast in place of weights in 16 bits",
        "wandb": "logs to Weights & Biases",
        "weight_quantization": "frozen weights quantized while the model is built",
        "zero_optimization": "ZeRO: what the ranks share, and what is kept in host RAM or on NVMe",
    },
    "activation_checkpointing": {
        "partition_activations": "checkpointed inputs are split among tensor-parallel ranks",
        "contiguous_memory_optimization": "checkpointed inputs in one buffer; needs partition_activations",
        "cpu_checkpointing": "partitioned checkpoints in host RAM",
        "number_checkpoints": "number of checkpoints, for the buffer of contiguous_memory_optimization",
        "synchronize_checkpoint_boundary": "waits for the GPU at each checkpoint",
        "profile": "times the passes of each checkpoint",
    },
    "aio": {"use_gds": "GPUDirect Storage: the drive transfers to and from GPU memory"},
    "autotuning": {
        "enabled": "the launcher may tune this configuration",
        "fast": "tunes ZeRO stage and micro batch only",
        "metric": "what is maximized: throughput, latency or FLOPS",
        "metric_path": "file that the metric is written to",
        "start_profile_step": "first step that is measured",
        "end_profile_step": "last step that is measured",
        "results_dir": "folder of the results",
        "exps_dir": "folder of the experiments' configurations",
        "overwrite": "experiments with a result run again",
        "tuner_type": "order of experiments: gridsearch, random or model_based",
        "tuner_early_stopping": "experiments without improvement before tuning stops",
        "tuner_num_trials": "most experiments of a tuning space",
        "model_info_path": "file with the model's number of parameters and activation memory",
        "model_info": "the model's number of parameters and activation memory",
        "mp_size": "ranks of model parallelism",
        "max_train_batch_size": "largest global batch that is tried",
        "min_train_batch_size": "smallest global batch that is tried",
        "max_train_micro_batch_size_per_gpu": "largest micro batch that is tried",
        "min_train_micro_batch_size_per_gpu": "smallest micro batch that is tried",
        "num_tuning_micro_batch_sizes": "number of micro batches that are tried",
        "arg_mappings": "the script's argument for each key that is tuned",
    },
    "checkpoint": {
        "tag_validation": "ranks with different checkpoint tags: Ignore, Warn or Fail",
        "load_universal": "loads universal checkpoints, which any number of ranks can",
        "use_node_local_storage": "each node writes its part into a folder of its own",
        "checkpoint_serialization": "torch.save's zip format",
        "parallel_write": "which ranks write in parallel",
        "writer": "DeepSpeed's writer in place of torch.save",
    },
    "checkpoint.parallel_write": {"pipeline_stage": "pipeline stages write their layers in parallel"},
    "checkpoint.writer": {
        "type": "MOCK (writes nothing), PYTHON (torch.save) or FAST",
        "data_parallel": "ranks that share the writing: REPLICA, SOCKET or MACHINE",
        "decoupled": "writes while the next steps run",
        "io_buffer_size": "bytes of the pinned write buffer",
        "io_buffer_double": "two buffers, one filled while the other is written",
        "io_multiplier": "parallel writers per rank",
        "show_statistics": "prints sizes and speeds of writes",
    },
    "comms_logger": {
        "enabled": "collectives are logged",
        "prof_all": "all of them",
        "prof_ops": "names of the collectives to log, where prof_all is off",
        "verbose": "prints each one",
        "debug": "adds the calling function to its name",
    },
    "data_types": {
        "param_dtype": "type of the model's parameters; it must agree with bf16 and fp16",
        "grad_accum_dtype": "type in which gradients are accumulated",
        "buffer_dtype": "type of the model's buffers; null keeps them as loaded",
        "keep_in_fp32_modules": "modules whose parameters stay in fp32: auto, or name patterns",
    },
    "flops_profiler": {
        "enabled": "the profiler runs once",
        "profile_step": "step that is profiled",
        "module_depth": "depth of modules in the table; -1: the innermost",
        "top_modules": "modules listed per depth",
        "detailed": "prints every module",
        "output_file": "file in place of the screen",
        "recompute_fwd_factor": "forward passes that activation checkpointing repeats, for the FLOPs of a step",
    },
    "hybrid_engine": {
        "enabled": "generation runs with inference kernels",
        "max_out_tokens": "longest prompt and answer, which size the cache",
        "inference_tp_size": "ranks that share a layer during generation",
        "release_inference_cache": "frees the cache after each generation",
        "pin_parameters": "keeps the pointers of inference weights",
        "tp_gather_partition_size": "layers gathered at a time for tensor parallelism",
        "enable_cuda_graph": "generation as a CUDA graph",
    },
    "optimizer": {"legacy_fusion": "the older step of the fp16 optimizer around FusedAdam, at stage 0"},
    "tensor_parallel": {"injection_policy_tuple": "an object that only Python can pass"},
    "tensor_parallel.tp": {"tp_group": "an object that only Python can pass"},
    "timers": {"throughput": "timer of samples per second"},
    "torch_autocast": {
        "enabled": "forward passes run under torch.autocast",
        "dtype": "type of autocast: bfloat16 or float16",
        "lower_precision_safe_modules": "classes whose parameters may be gathered and reduced in that type",
    },
    "weight_quantization": {
        "enabled": "no effect in training",
        "quantized_initialization": "weights of linear layers are quantized while the model is built under ZeRO-3",
        "post_init_quant": "weights are quantized by module name after the model is built",
        "num_bits": "bits of a weight",
        "q_type": "symmetric or asymmetric",
        "q_groups": "groups with a scale each",
    },
    "zero_optimization": {"pipeline_loading_checkpoint": "ranks load a checkpoint one after the other"},
    "zero_optimization.leaf_module": {
        "classes": "class names of modules that are gathered whole",
        "names": "names of modules that are gathered whole",
        "name_suffixes": "ends of names of modules that are gathered whole",
    },
}
"""Meanings of keys that no plan has and DeepSpeed's classes do not describe (from the code of 0.19.8)."""

MEANINGS: Mapping[str, str] = {
    f"{block}.{name}".lstrip("."): text for block, keys in _WITHOUT_DESCRIPTION.items() for name, text in keys.items()
}
"""Path -> meaning."""
