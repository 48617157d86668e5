"""Names that other tools have for an option, and for what is no option here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from ...estimators.errors import WorkloadError
from ...estimators.plan import PLANS, PlainPyTorch, Strategy

_LAYERS = (
    "leave it out: ZeRO keeps layers whole; ds-advise explain MODEL --strategy zero1 --set autotp_size={N} splits them"
)
_STAGES = "leave it out: pipeline parallelism is not predicted; every ZeRO strategy is compared"
_NO_COST = "leave it out: it changes neither memory nor speed"
_TRIED = "leave it out: every strategy is compared; ds-advise explain MODEL --strategy {STRATEGY} shows one"
_OFFLOADS = (
    "leave it out: strategies with offload are compared too; ds-advise explain MODEL --strategy {STRATEGY} shows one"
)
OF_STRATEGIES = (_TRIED, _OFFLOADS, _STAGES)
"""The advice that strategies are compared."""

OTHER_NAMES: Mapping[str, str] = {
    "--precision {TYPE}": "dtype torch_dtype mixed_precision",
    "--precision bf16": "bf16 bfloat16",
    "--precision fp16": "fp16 float16 half",
    "--precision fp32": "fp32 float32",
    "--micro-batch {N} (samples per GPU), or --global-batch {N} (per step)": "batch_size bs bsz batch",
    "--micro-batch {N}": "per_device_train_batch_size per_gpu_train_batch_size "
    "per_gpu_batch_size per_device_batch_size train_micro_batch_size_per_gpu micro_batch_size "
    "micro_train_batch_size mbs",
    "--global-batch {N}": "train_batch_size global_batch_size total_batch_size effective_batch_size gbs",
    "--global-batch N: micro batch x accumulation x GPUs": "gradient_accumulation_steps gradient_accumulation "
    "grad_accum grad_accumulation accumulation_steps accum",
    "--seq-len {N}": "seq max_length max_seq_length max_seq_len seq_length sequence_length sequence_len "
    "model_max_length cutoff_len context_length context_len context ctx block_size max_tokens",
    "--method {NAME}": "mode finetuning_type train_type training_type tuner_type",
    "--method lora": "lora use_lora peft use_peft",
    "--method qlora": "qlora use_qlora load_in_4bit load_4bit 4bit bits quantization_bit bnb_4bit_quant_type",
    "--method qlora --quantization int8": "load_in_8bit load_8bit 8bit int8",
    "--lora-rank {N}": "lora_r lora_dim rank r",
    "--lora-targets {NAMES}": "lora_target lora_target_modules target_modules",
    "--optimizer {NAME}": "optim",
    "--attention flash": "flash_attn flash_attention flash_attention_2 use_flash_attn use_flash_attention_2 fa2",
    "--attention {NAME}": "attn_implementation attn",
    "--kernels liger": "liger use_liger use_liger_kernel",
    "--gradient-checkpointing on": "activation_checkpointing activation_checkpoint gradient_checkpointing_enable "
    "grad_checkpointing checkpointing recompute",
    "--epochs {N}": "num_train_epochs num_epochs",
    "--data {FILE}": "dataset dataset_name dataset_path data_path train_file train_data",
    "--eval-batch {N}": "per_device_eval_batch_size eval_batch_size",
    "--model {MODEL}": "model_name_or_path model_name model_id model_path base_model m",
    "--gpus {SPEC}": "gpu g cards accelerator gpu_name vram gpu_memory gpu_type",
    "--gpus {GPUS}": "n num_gpus n_gpus n_gpu ngpu ngpus gpu_count gpus_per_node num_gpus_per_node nproc_per_node "
    "nproc devices",
    "--gpus {RANKS}": "world_size num_processes",
    "--gpus {NODES}": "node nodes num_nodes nnodes num_machines n_nodes",
    "--ram {SIZE}": "cpu_memory host_memory host_ram cpu_ram system_memory",
    "--nvme {PATH:SIZE}": "nvme_path offload_folder swap_dir",
    "--output {FILE}": "output_file out save",
    "--forget {ID}": "delete remove rm",
    "--forget all": "clear",
    "--details": "verbose v all_details",
    "--quiet": "q silent",
    "--json": "format output_format",
    "--html {FILE}": "report html_report html_file",
    "--budget {AMOUNT}": "max_price max_cost max_budget",
    "--deadline {TIME}": "hours max_hours time_limit max_time",
    "--price {RATE}": "cost hourly_price",
    "--interconnect {RATE}": "bandwidth network",
    "--lang {LANGUAGE}": "language locale",
    "--sharding fsdp": "fsdp fsdp2",
    "--objective next-token": "sft clm",
    "--zeropp": "zero++",
    "--threads {N}": "num_threads omp_num_threads",
    "--sequence-parallel-size {N}": "sp sp_size ulysses context_parallel_size cp",
}
"""What to write -> names that other tools have for it; {N} stands for the given value. Parts of --gpus are joined."""

ADVICE: Mapping[str, str] = {
    _TRIED: "zero_stage zero stage strategy deepspeed_stage stages zero_config",
    _OFFLOADS: "offload cpu_offload offload_optimizer optimizer_offload offload_optimizer_device offload_param "
    "param_offload offload_param_device nvme_offload",
    _LAYERS: "tp tp_size tensor_parallel tensor_parallel_size tensor_model_parallel_size autotp autotp_size "
    "model_parallel model_parallel_size mp mp_size",
    "leave it out: fp8 is not predicted; --precision bf16 is the nearest": "fp8",
    "leave it out: a training is predicted, not inference": "inference infer serving kv_cache",
    "name the model, or the folder with its config.json": "model_size num_params params hidden_size num_layers layers "
    "vocab_size num_heads",
    "write --samples N, which is steps x global batch": "steps max_steps num_steps",
    "write ds-advise dry-run MODEL": "dry_run simulate",
    "leave it out: nothing is asked; --force overwrites files": "yes y overwrite",
    "leave it out: set HF_TOKEN, HF_HOME for the hub": "token hf_token cache_dir trust_remote_code",
    "leave it out: NO_COLOR=1 turns colours off": "color colour no_color",
    _STAGES: "pp pp_size pipeline pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size",
    _NO_COST: "lora_alpha learning_rate lr weight_decay warmup_steps warmup_ratio lr_scheduler_type seed max_grad_norm "
    "gradient_clipping logging_steps save_steps output_dir logging_dir run_name report_to save_strategy "
    "save_total_limit eval_strategy evaluation_strategy eval_steps",
    "name the file: ds-advise lint {FILE}, compare {FILE} FILE or explain {FILE}": "deepspeed deepspeed_config "
    "ds_config config config_file",
}
"""An answer that is no option -> names."""


FSDP_PLAN: PlainPyTorch = "fsdp2"
"""The plan that `--sharding fsdp` of `advise` adds."""


def advice_for(name: str) -> str:
    """Return what to do in place of an option that is none here; "" for any other name."""
    return next((advice for advice, names in ADVICE.items() if name in names.split()), "")


def filled_advice(name: str, value: str, strategy: str) -> str:
    """Return what `advice_for` returns, with a strategy, a number and a file in its places; value: what was typed, of
    which a number or a JSON file is taken."""
    filled = advice_for(name).replace("{STRATEGY}", strategy).replace("{N}", value if value.isdigit() else "2")
    return filled.replace("{FILE}", shlex.quote(value[:80]) if value.endswith(".json") else "FILE")


def meant_choice(value: str, choices: Sequence[str]) -> str:
    """Return the choice that a value means: `fp16` for `torch.float16`, `flash` for `flash_attention_2`, `zero3` for
    `ZeRO-3`; "" for any other value, also one that is as near to several choices."""
    from difflib import SequenceMatcher  # imported here: only mistakes need it

    from ...validate.lint.rules_types import DTYPES

    known = DTYPES.get(value.lower()) or _CHOICES.get(value.lower(), "")
    if known in choices:
        return known
    plain = _plain(value[:100])  # the comparison takes quadratic time

    def likeness(choice: str) -> float:
        own = _plain(choice)
        return max(SequenceMatcher(None, plain, own).ratio(), _SIMILAR * plain.startswith(own))

    found = {choice: likeness(choice) for choice in choices}
    near = [choice for choice in choices if found[choice] == max(found.values()) >= _SIMILAR]
    return near[0] if len(near) == 1 else ""


def _plain(name: str) -> str:
    return re.sub("[-_ ]", "", name.lower())


_SIMILAR = 0.7
"""Share of equal characters from which a value is taken for a misspelled choice, and that of one that begins with a
choice."""


def plan_of_stage(name: str) -> str:
    """Return the strategy of a ZeRO stage in the words of other tools: `zero3` for `3`, `stage3` and `deepspeed_zero3`,
    `zero3-offload` for `ds_z3_offload_config.json`; "" for any other name, and without such a strategy."""
    if not (found := _STAGE.fullmatch(re.sub(r"[-_. ]|json$", "", name[:100].lower()))):
        return ""
    plan = "ddp" if found[1] == "0" else f"zero{found[1] or 3}"
    plan += next((f"-{ending}" for ending, words in _OFFLOADED.items() if found[2] in words), "")
    return plan if plan in PLANS else ""


_STAGE = re.compile(
    r"(?:deepspeed|ds)?(?:z|zero)?(?:optimization)?(?:stage)?([0-3]|(?=infinity))(?:cpu|with)?"
    r"(offload|offloadparam|nvme|infinity|)(?:config)?"
)
_OFFLOADED = {"offload": ("offload",), "offload-param": ("offloadparam",), "nvme": ("nvme", "infinity")}
"""End of the name of a strategy -> words for it."""


def meant_strategy(given: Mapping[str, str]) -> str:
    """Return the strategy that options of other tools mean; that of ZeRO-3 if they do not tell. given: the values of
    the typed options by name, "" for none; those without an advice about strategies do not count."""
    stages = [meant_plan(value) for name, value in given.items() if advice_for(name) == _TRIED]
    plans = (plan_of_stage(name) or (name if name in PLANS else "") for name in given if not name.isdigit())
    plan = next(filter(None, (*stages, *plans)), "")
    offloads = {name: value for name, value in given.items() if advice_for(name) == _OFFLOADS}
    if not offloads:
        return plan or "zero3"
    if any("nvme" in (value.lower(), name.partition("_")[0]) for name, value in offloads.items()):
        return "zero3-nvme"
    kinds = {kind for kind in ("optimizer", "param") if any(kind in name for name in offloads)}
    least = "zero2" if kinds == {"optimizer"} else "zero3"
    ending = "offload-param" if kinds == {"param"} else "offload"
    return next(each for each in (f"{plan}-{ending}", f"{least}-{ending}") if each in PLANS)


def meant_plan(name: str) -> str:
    """Return the plan that a misspelled name or one of another tool means; "" for any other name."""
    return plan_of_stage(name) or meant_choice(name, PLANS)


def known_plan(name: str) -> Strategy | PlainPyTorch:
    """Return the strategy or the plan of plain PyTorch with this name, in any case and with any hyphens (`ZeRO-3`).
    Raises WorkloadError for any other name."""
    for plan in PLANS:
        if _plain(plan) == _plain(name):
            return plan
    near = meant_plan(name)
    what = f"unknown strategy {name[:40]!r}" if name else "no strategy is named"
    raise WorkloadError(what, fix=f"write {near}" if near else f"pass one of {', '.join(PLANS)}")


_CHOICES = {
    **dict.fromkeys(("true", "yes", "1"), "on"),
    **dict.fromkeys(("false", "no", "0", "none"), "off"),
    **dict.fromkeys(("sft", "clm", "lm", "pretraining", "causal-lm"), "next-token"),
    **dict.fromkeys(("cn", "chinese", "zh-hans"), "zh"),
    **dict.fromkeys(("gpu", "nvidia"), "cuda"),
    **dict.fromkeys(("4", "4bit", "4-bit", "int4", "fp4", "load_in_4bit"), "nf4"),
    **dict.fromkeys(("8", "8bit", "8-bit", "llm.int8", "load_in_8bit"), "int8"),
}
"""Words that other tools have for a choice."""


def other_name(name: str) -> str:
    """Return what to write for a name of another tool, such as `--micro-batch {N}`; "" for any other name."""
    return next((written for written, names in OTHER_NAMES.items() if name in names.split()), "")
