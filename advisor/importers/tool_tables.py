"""The tools on the Hugging Face Trainer: axolotl, LLaMA-Factory and ms-swift.

Keys and defaults are those of LLaMA-Factory ff6d4d1, axolotl 067b021 and ms-swift 3602360.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...estimators.objectives import OBJECTIVES
from ..question.workload import TOOL_SOFTWARE, TOOL_TRL
from ..text.units import listed
from .imported_run import DeepSpeedPart, ImportedRun, Value
from .script_arguments import ScriptArguments
from .shipped_configs import axolotl_config, llama_factory_config, ms_swift_config
from .source import Source
from .tool_format import ToolFormat, deepspeed_part

_LLAMA_FACTORY_KEYS = {"finetuning_type", "stage", "cutoff_len", "template", "quantization_bit", "dataset_dir"}

_PREFERENCES = [name for name, spec in OBJECTIVES.items() if spec.trainer and spec.rollouts is None]

_OWN_REFERENCE = "a reference model of its own with adapters"

_SCHEDULE = {"per_device_train_batch_size", "learning_rate", "num_train_epochs", "max_steps"}

_LLAMA_FACTORY_V1 = ("dist_config", "model_class")
"""Keys of LLaMA-Factory's examples/v1."""


def _frozen(arguments: ScriptArguments, tower: str, projector: str, language_model: str) -> str | None:
    """Record the frozen parts of a vision-language model, by the names of their switches. By default the language model
    trains."""
    parts = {
        "vision-tower": arguments.flag(tower) is not False,
        "projector": arguments.flag(projector) is not False,
        "language-model": bool(arguments.flag(language_model)),
    }
    return ",".join(part for part, frozen in parts.items() if frozen) or None


def _llama_factory_details(run: ImportedRun, arguments: ScriptArguments, _: Source) -> None:
    training = run.training
    if arguments.flag("use_muon"):
        run.lacks("LLaMA-Factory's own Muon, which stops under DeepSpeed in its first step")
    in_16_bits = bool(arguments.flag("pure_bf16"))
    if in_16_bits:
        training["precision"] = "bf16"
    training["software"] = {**TOOL_SOFTWARE["llama-factory"]}
    run.use_software(reentrant=arguments.flag("use_reentrant_gc") is not False)
    if in_16_bits:
        run.use_software(autocast=False, fp32_adapters=False, loading="gpu")
    method, bits = arguments.text("finetuning_type") or "lora", arguments.number("quantization_bit")
    # hparams/finetuning_args.py
    training["freeze"] = _frozen(
        arguments, "freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model"
    )
    stage = arguments.text("stage")
    if stage in ("dpo", "kto", "rm"):
        # train/dpo/trainer.py, train/kto/trainer.py: TRL's trainers with log-softmax of all logits in fp32.
        # train/rm/trainer.py: trl's AutoModelForCausalLMWithValueHead.
        training |= {"framework": "trl", "loss": "value-head" if stage == "rm" else "standard"}
        arguments.switched("pref_beta pref_ftx simpo_gamma dpo_label_smoothing")  # these change no figure
        if method == "lora" and arguments.text("ref_model") is not None:
            run.lacks(_OWN_REFERENCE)
    if method == "lora":
        training |= {"method": "lora", **arguments.lora}
        if arguments.flag("resize_vocab"):
            training.setdefault("modules_to_save", "embed_tokens,lm_head")  # model/adapter.py then trains both
        if "modules_to_save" in training and run.deepspeed is None and not in_16_bits:
            run.remarks.append("trained embeddings are counted in 16 bits; without DeepSpeed they are in fp32")
        quantizer = arguments.text("quantization_method")
        run.use_quantization(bits, bitsandbytes=quantizer in (None, "bnb", "bitsandbytes"))
        if quantizer is not None and bits is None:  # model/model_utils/quantization.py
            run.remarks.append("nothing is quantized: quantization_method has no effect without quantization_bit")
    if arguments.text(*_LLAMA_FACTORY_V1) is not None:
        run.lacks("the configurations of LLaMA-Factory's v1")
    elif not arguments.flag("do_train"):
        run.add_obstacle("it does not train: do_train is not set")
    elif arguments.text("tokenized_path") is not None and not _SCHEDULE & set(arguments.by_name):
        run.add_obstacle("it only tokenizes: it sets tokenized_path, but neither batch nor learning rate")
    elif method not in ("full", "lora"):
        run.lacks(f"finetuning_type {method[:20]}")


def _or_shipped(
    find: Callable[[str], dict[str, Any] | None], version: str
) -> Callable[[ScriptArguments, Path], DeepSpeedPart | None]:
    """A reader of the DeepSpeed configuration that the file names; the tool's own of this version where its checkout is
    absent."""

    def read(arguments: ScriptArguments, folder: Path) -> DeepSpeedPart | None:
        part = deepspeed_part(arguments, folder)
        shipped = None if part is None or part.config is not None else find(part.name)
        if part is None or shipped is None:
            return part
        return replace(part, config=shipped, remark=f"{part.name} is not here: {version} is counted")

    return read


LLAMA_FACTORY = ToolFormat(
    name="llama-factory",
    title="a LLaMA-Factory configuration",
    tool="LLaMA-Factory",
    command="FORCE_TORCHRUN=1 llamafactory-cli train {file}",
    matches=lambda source: (
        any(name in source.values for name in _LLAMA_FACTORY_V1)
        or ("model_name_or_path" in source.values and bool(_LLAMA_FACTORY_KEYS & set(source.values)))
    ),
    details=_llama_factory_details,
    deepspeed=_or_shipped(llama_factory_config, "LLaMA-Factory's own of 2026-08 (ff6d4d1)"),
    lists_modules=True,
    other_versions=frozenset({"model", *_LLAMA_FACTORY_V1}),
    # hparams/parser.py `_parse_args`, unless ALLOW_EXTRA_ARGS is in the environment
    stops_at_unknown="at which it stops",
    # launcher.py, OPTIM_TORCH; hparams/parser.py stops without FORCE_TORCHRUN
    defaults={"launcher": "torchrun", "expandable_segments": True, "one_process": "FORCE_TORCHRUN=1"},
    seq_len=("cutoff_len",),
    default_seq_len=2048,  # hparams/data_args.py
    attention=("flash_attn",),
    liger="enable_liger_kernel",
    reentrant="use_reentrant_gc",
    default_micro_batch=8,
    disables_checkpointing="disable_gradient_checkpointing",
    not_modelled={
        "GaLore's projected states": "use_galore",
        "APOLLO's projected states": "use_apollo",
        "BAdam's blocks": "use_badam",
        "Adam-mini's states": "use_adam_mini",
        "LLaMA Pro's added layers": "use_llama_pro",
        "unsloth's own layers": "use_unsloth",
        "KTransformers": "use_kt",
        "Megatron's layers": "use_mca use_megatron_bridge",
        "its hyper-parallel mode": "use_hyper_parallel",
        "mixture of depths": "mixture_of_depths",
        "LongLoRA's shifted attention": "shift_attn",
        "a second, frozen pass of the model": "use_asft_loss",
        "training in fp8": "fp8",
    },
    approximated={
        "unsloth's checkpointing, which keeps layers' inputs in host RAM, is counted as ordinary": "use_unsloth_gc",
    },
)


def _ms_swift_deepspeed(arguments: ScriptArguments, folder: Path) -> DeepSpeedPart | None:
    """The DeepSpeed configuration with the options that ms-swift copies into it (swift/arguments/sft_args.py
    `_init_deepspeed`)."""
    name = arguments.text("deepspeed") or ""
    hpz, autotp = arguments.number("zero_hpz_partition_size"), arguments.number("deepspeed_autotp_size")
    shipped = ms_swift_config(name)
    part = deepspeed_part(arguments, folder) if shipped is None else DeepSpeedPart(name=name, config=shipped)
    if part is None or part.config is None:
        return part
    config = dict(part.config)
    if hpz:
        config["zero_optimization"] = {**config.get("zero_optimization", {}), "zero_hpz_partition_size": hpz}
    if autotp:
        config["tensor_parallel"] = {**config.get("tensor_parallel", {}), "autotp_size": autotp}
    return replace(part, config=config)


def _ms_swift_details(run: ImportedRun, arguments: ScriptArguments, _: Source) -> None:
    training = run.training
    kind, bits = arguments.text("tuner_type", "train_type", "sft_type") or "lora", arguments.number("quant_bits")
    # swift/arguments/tuner_args.py
    training["freeze"] = _frozen(arguments, "freeze_vit", "freeze_aligner", "freeze_llm")
    bitsandbytes = arguments.text("quant_method") in (None, "bnb")
    if kind == "lora":
        training |= {"method": "lora", "lora_rank": 8, "lora_dropout": 0.05, **arguments.lora}
        run.use_quantization(bits, bitsandbytes=bitsandbytes)
    elif kind != "full":
        run.lacks(f"tuner_type {kind[:20]}")
    _ms_swift_preferences(run, arguments)


def _adds_cross_entropy(run: ImportedRun, arguments: ScriptArguments) -> bool:
    """Whether SimPO includes the cross entropy of the chosen answers. It does by default, because cpo_alpha of
    CPOConfig is 1."""
    return run.objective == "simpo" and arguments.text("cpo_alpha") not in ("0", "0.0")


def _ms_swift_preferences(run: ImportedRun, arguments: ScriptArguments) -> None:
    """ms-swift's objectives (swift/rlhf_trainers): TRL's trainers (before 1.0) with ms-swift's forward passes, which
    compute log-probabilities from whole logits. GKD and PPO have ms-swift's own generation and training."""
    training, objective = run.training, run.objective
    if objective == "gkd":
        run.lacks("GKD by ms-swift's own trainer, which is not TRL's")
    elif objective == "ppo":
        run.lacks("PPO by ms-swift's own trainer; ds-advise MODEL --objective ppo predicts TRL's")
    elif objective == "grpo":
        _ms_swift_grpo(run, arguments)
    if objective not in _PREFERENCES:
        return
    loss = "odds-ratio" if objective == "orpo" or _adds_cross_entropy(run, arguments) else "log-probs"
    training |= {"framework": "trl", "loss": None if objective == "reward" else loss}
    run.use_software(trl=TOOL_TRL["ms-swift"])
    arguments.switched("beta simpo_gamma rpo_alpha desirable_weight undesirable_weight center_rewards_coefficient")
    if "method" in training and arguments.text("ref_model", "ref_adapters") is not None:
        run.lacks(_OWN_REFERENCE)


def _ms_swift_grpo(run: ImportedRun, arguments: ScriptArguments) -> None:
    """ms-swift's GRPO (swift/rlhf_trainers/grpo_trainer.py, args_mixin.py; swift/arguments/rlhf_args.py): TRL's with
    whole logits, which are divided in place as in TRL 1.0."""
    run.training |= {"framework": "trl", "loss": "log-probs", "beta": 0.04, "vllm_gpu_memory_utilization": 0.9}
    run.use_software(trl=(1, 0))
    run.remarks.append("GRPO is counted as TRL's trainer, which ms-swift extends")
    for name in arguments.switched("offload_model offload_optimizer async_generate dynamic_sample teacher_model"):
        run.lacks(f"{name} of ms-swift's GRPO")


def _is_ms_swift(source: Source) -> bool:
    keys = {"tuner_type", "train_type", "sft_type", "torch_dtype", "attn_impl", "quant_bits", "split_dataset_ratio"}
    return "model" in source.values and bool(keys & set(source.values))


MS_SWIFT = ToolFormat(
    name="ms-swift",
    title="an ms-swift configuration",
    tool="ms-swift",
    command="NPROC_PER_NODE={gpus} swift {swift} {file}",
    matches=_is_ms_swift,
    details=_ms_swift_details,
    lists_modules=True,
    other_versions=frozenset({"model_id_or_path", "train_type", "sft_type"}),
    stops_at_unknown="at which it stops",  # pipelines/base.py `_parse_args`
    ignores_unknown="ignore_args_error",
    # swift/trainers/arguments.py: it accumulates up to 16 samples where the steps are not given. swift/cli/main.py
    defaults={"launcher": "torchrun", "least_global_batch": 16, "one_process": "NPROC_PER_NODE=1"},
    default_accumulation=None,
    model=("model", "model_id_or_path"),
    seq_len=("max_length",),
    attention=("attn_impl",),
    default_precision="auto",
    software=TOOL_SOFTWARE["ms-swift"],
    liger="use_liger_kernel",
    default_micro_batch=1,
    checkpoints=True,
    deepspeed=_ms_swift_deepspeed,
    not_modelled={
        "GaLore's projected states": "use_galore",
        "LISA": "lisa_activated_layers",
        "partial training": "freeze_parameters freeze_parameters_ratio freeze_parameters_regex trainable_parameters",
        "adapters on parameters that are not modules": "target_parameters",
        "an optimizer of ms-swift's own": "optimizer",
        "samples shared over GPUs by ms-swift's own attention": "sequence_parallel_size",
    },
    approximated={
        "the pattern of target_regex is counted as all linear layers": "target_regex",
    },
)


_LIGER_PLUGIN, _LIGER_LOSS = "axolotl.integrations.liger.LigerPlugin", "liger_fused_linear_cross_entropy"


def _axolotl_details(run: ImportedRun, arguments: ScriptArguments, source: Source) -> None:
    training = run.training
    _axolotl_adapter(run, arguments)
    _axolotl_kernels(run, arguments)
    if arguments.text("bf16") == "auto":
        training["precision"] = "auto"
    elif arguments.text("bf16", "fp16") is None:
        training["precision"] = arguments.precision or "auto"
    for name, precision in (("float16", "fp16"), ("bfloat16", "bf16")):
        if arguments.flag(name):
            training["precision"] = precision
    checkpointing, offloading = arguments.text("gradient_checkpointing") or "", arguments.text("activation_offloading")
    if run.gradient_checkpointing and (checkpointing.startswith("offload") or offloading not in (None, "false")):
        run.gradient_checkpointing = "offload"
    batch = ("micro_batch_size", "gradient_accumulation_steps", "batch_size")
    micro, accumulation, samples = (arguments.number(name) for name in batch)
    if samples and micro and not accumulation:  # utils/config/__init__.py `normalize_config`
        run.gradient_accumulation_steps = max(1, samples // micro)
    if sum(map(bool, (micro, accumulation, samples))) < 2:  # utils/schemas/validation.py `check_batch_size_fields`
        run.faults += (f"at least two of {listed(batch)} must be set",)
    if offloading == "disk" or checkpointing.endswith("_disk"):
        run.remarks.append("activations on the disk are counted as in host RAM")
    if arguments.flag("tiled_mlp"):
        training["mlp"] = "tiled"
    _axolotl_objectives(run, arguments, source)


def _axolotl_completions(arguments: ScriptArguments, source: Source) -> ScriptArguments:
    """The options of completions by TRL's names: the keys in `trl`, and vLLM's in `vllm` (utils/schemas/vllm.py)."""
    arguments.text("trl", "vllm", "rl_beta")
    blocks = {name: block for name in ("trl", "vllm") if isinstance(block := source.values.get(name), Mapping)}
    vllm = {f"vllm_{name}": value for name, value in blocks.get("vllm", {}).items()}
    return ScriptArguments.from_values({"beta": source.values.get("rl_beta"), **vllm, **blocks.get("trl", {})})


def _axolotl_objectives(run: ImportedRun, arguments: ScriptArguments, source: Source) -> None:
    """axolotl's objectives (core/builders/rl.py): subclasses of TRL's trainers with their own losses."""
    training, objective = run.training, run.objective
    if objective == "grpo":  # core/trainers/grpo/__init__.py
        training |= {"framework": "trl", "loss": None, "vllm_gpu_memory_utilization": 0.9}
        run.use_software(trl=TOOL_TRL["axolotl"])
        completions = _axolotl_completions(arguments, source)
        for name in completions.switched("use_liger_loss use_data_producer async_prefetch"):
            run.lacks(f"trl.{name} of axolotl's GRPO")
    if objective not in _PREFERENCES:
        return
    training |= {"framework": "trl", "loss": None}
    run.use_software(trl=TOOL_TRL["axolotl"])
    if _adds_cross_entropy(run, arguments):
        training["loss"] = "odds-ratio"
    training["precompute_ref_log_probs"] = arguments.flag("precompute_ref_log_probs") or None
    arguments.switched("rl_beta dpo_beta simpo_gamma orpo_alpha kto_desirable_weight kto_undesirable_weight")
    if arguments.flag("dpo_use_liger_kernel"):
        run.lacks("Liger's fused loss of preferences")
    if arguments.flag("rl_adapter_ref_model"):
        run.lacks(_OWN_REFERENCE)


def _axolotl_adapter(run: ImportedRun, arguments: ScriptArguments) -> None:
    training = run.training
    adapter, all_layers = arguments.text("adapter"), arguments.flag("lora_target_linear")
    lora, gptq, eight_bits = arguments.lora, arguments.flag("gptq"), arguments.flag("load_in_8bit")
    four_bits = arguments.flag("load_in_4bit")
    if re.search(r"[\\(|*]", arguments.text("lora_target_modules") or ""):
        run.remarks.append("the pattern of lora_target_modules is counted as all linear layers")
        all_layers = True
    if adapter not in (None, "lora", "qlora"):
        run.lacks(f"the adapter {adapter[:20]}")
    elif adapter is not None:
        training |= {"method": "lora", **lora}
        if four_bits or gptq:
            training["method"] = "qlora"
        if eight_bits and not four_bits:
            run.use_quantization(8)
        if gptq:
            training["quantization"] = "gptq"
        if all_layers:
            training["lora_targets"] = None


def _axolotl_kernels(run: ImportedRun, arguments: ScriptArguments) -> None:
    training = run.training
    switches = {"flash_attention": "flash", "sdp_attention": "sdpa", "eager_attention": "eager"}
    chosen = [switches[name] for name in arguments.switched(" ".join(switches))]
    training["attention"] = training["attention"] or next(iter(chosen), None)
    plugins = " ".join(arguments.texts("plugins"))
    if (
        arguments.switched("liger_rms_norm liger_rope liger_layer_norm liger_glu_activation liger_swiglu")
        and "Liger" in plugins
    ):
        training["kernels"] = "liger"
    if arguments.flag(_LIGER_LOSS) and "Liger" in plugins:
        training["loss"] = "fused"
    elif "CutCrossEntropy" in plugins:
        training["loss"] = "fused"
        run.remarks.append("cut cross entropy is counted as Liger's fused loss")
    elif arguments.flag("flash_attn_cross_entropy"):
        training["loss"] = "in-place"
    elif arguments.flag("chunked_cross_entropy"):
        training["loss"] = "chunked"


def _axolotl_fused_loss(values: Mapping[str, Any]) -> dict[str, Value]:
    plugins = values.get("plugins") or []
    plugins = [plugins] if isinstance(plugins, str) else list(plugins)
    added = {} if _LIGER_PLUGIN in plugins else {"plugins": [*plugins, _LIGER_PLUGIN]}
    return {**added, _LIGER_LOSS: True}


AXOLOTL = ToolFormat(
    name="axolotl",
    title="an axolotl configuration",
    tool="axolotl",
    command="axolotl train {file}",
    matches=lambda source: "base_model" in source.values,
    details=_axolotl_details,
    lists_modules=True,
    # utils/__init__.py `set_pytorch_cuda_alloc_conf`; utils/schemas/config.py and training.py for the defaults.
    defaults={"launcher": "accelerate", "expandable_segments": True},
    model=("base_model",),
    seq_len=("sequence_len",),
    default_seq_len=512,
    optimizer="optimizer",
    attention=("attn_implementation",),
    loss_keys=(_LIGER_LOSS, "cut_cross_entropy"),
    fused_loss=_axolotl_fused_loss,
    software=TOOL_SOFTWARE["axolotl"],
    micro_batch=("micro_batch_size",),
    default_micro_batch=1,
    offload=("activation_offloading", True),
    deepspeed=_or_shipped(axolotl_config, "axolotl's own of 2026-07 (067b021)"),
    completions=_axolotl_completions,
    fsdp=("fsdp", "fsdp_config"),
    fsdp_version=1,
    refuses_two_precisions=False,
    not_modelled={
        "partial training": "unfrozen_parameters",
        "LISA": "lisa_n_layers",
        "ReLoRA": "relora",
        "quantization-aware training": "qat",
        "training in fp8": "fp8",
        "quantized experts": "quantize_moe_experts",
        "EBFT": "ebft",
        "diffusion training": "diffusion",
        "adapters on parameters that are not modules": "lora_target_parameters",
        "layers split over GPUs by PyTorch": "tensor_parallel_size",
        "expert parallelism": "expert_parallel_size",
        "samples shared over GPUs by ring attention": "context_parallel_size sequence_parallel_degree",
    },
    approximated={
        "it is predicted without compilation": "torch_compile",
        "adapters in fused kernels are predicted as ordinary ones": "lora_mlp_kernel lora_qkv_kernel lora_o_kernel",
    },
)
