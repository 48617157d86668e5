"""Keys of a configuration from which nothing is concluded: harmless ones, ones that the estimators do not use, and ones
that the tool does not have, most often typing errors.

known_keys.json holds the names in the tools' sources (`benchmarks/tool_keys.py`: LLaMA-Factory ff6d4d1, axolotl
067b021, ms-swift 3602360, the TrainingArguments of transformers 5.23) and, written by hand, accelerate's and those that
only transformers 4 has; a key of another version is unknown.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("known_keys.json")

_OWN_SCHEMA = ("accelerate", "axolotl")
"""Tools that do not take all TrainingArguments."""

_HARMLESS_TOPICS = """
adam batch_eval chat comet data dataloader dataset datasets ddp debug do early_stopping eval eval_data evaluation
generate generation greater hub ignore include jit label length_column load_best log logging lr metric mlflow
neftune num_generation output overwrite packing past_index predict preprocessing push_to_hub remove report restore
resume save skip special swanlab test tokenizer torch_empty_cache tpu trackio train_data validation wandb warmup
"""
"""NAME, and all keys that begin with NAME_, change neither the memory nor the time of a step."""

_HARMLESS = """
acc_strategy accelerator_config adapter_folder add_* added_tokens_overrides additional_special_tokens agent_template
aligner_lr append_concat_token asft_alpha attention_dropout auto_find_batch_size_start auto_resume_from_checkpoints
average_tokens_across_devices base_model_config base_model_ignore_patterns bnb_4bit_* bnb_config_kwargs buffer_size
cache_dir cached_* callbacks check_model cls_model_config columns compute_accuracy config_name cosine_*
create_checkpoint_symlink create_new_adapter curriculum_sampling custom_* default_system default_system_message
device_groups device_map disable_* double_quantization download_mode dp_replicate_size dp_shard_size eaft_*
enable_channel_loss enable_dft_loss enable_jit_checkpoint enable_thinking eot_tokens epochs eta_min evals_per_epoch
excess_length_strategy experimental_skip_move_to_device export_* external_plugins field_* fsdp_version
full_determinism gc_collect_steps gc_steps gptq_* gradient_accumulation_kwargs group_by_length hf_* image_* infer_*
init_weights interleave_prob interleave_probs is_*_derived_model is_binary_loss_scale lazy_preprocess lazy_tokenize
learning_rate liger_rms_norm_gated load_* local_rank lora_alpha lora_bias lora_dtype lora_fan_in_fan_out
lora_model_dir lora_modules lora_task_type lorap_lr_ratio loraplus_* loss_scale loss_watchdog_* low_cpu_mem_usage
mask_history master_addr master_port max_epochs max_eval_samples max_grad_norm max_length max_memory max_new_tokens
max_packed_sequence_len max_samples max_shard_size max_steps max_train_samples mean_resizing_embeddings media_dir
merge_* min_sample_len mix_strategy model_author model_config model_kwargs model_name model_revision model_type
moe_aux_loss_coef mp_parameters neat_packing no_cuda noisy_embedding_alpha norm_bbox num_epochs num_train_epochs
num_workers offload_folder optim_args otel_* overrides_of_model_* pad_to_* padding_free padding_side peft_use_rslora
per_device_eval_batch_size per_gpu_eval_batch_size pissa_* placement_strategy plot_loss pose_* prediction_loss_only
preserve_thinking pretraining_dataset print_param_status problem_type processor_kwargs processor_type profiler_*
project quantization_type ray_* reinit_weights resize_token_embeddings_to_32x resources_per_worker response_prefix
revision_of_model roles_to_train rope_* router_aux_loss_coef run_name safe_serialization sample_packing*
saves_per_epoch seed shuffle* split_dataset_ratio split_special_tokens splits stopping_strategy streaming strict
system task task_type temperature template* text_column tf32 token tokenized_path tokens tool_format top_k top_p
torch_dtype torchdistx_path total_num_tokens train_file train_on_* train_sampling_strategy truncation_strategy
trust_remote_code tuner_backend use_auth_token use_cache use_chat_template use_cpu use_dft_loss use_eaft
use_eaft_loss use_fast_tokenizer use_flash_ckpt use_hf use_legacy_prediction_loop use_logits_to_keep
use_nested_quant use_otel_metrics use_peft use_pose use_ray use_rslora use_swanlab use_tensorboard use_wandb
val_dataset* val_set_size val_size video_* vit_lr weight_decay with_tracking xformers_attention
"""
"""Further keys that change neither; * stands for any letters."""


class Keys(NamedTuple):
    """The keys of a configuration from which nothing is concluded, without harmless ones."""

    uncounted: tuple[str, ...]
    """Keys of the tool that the estimators do not use."""
    unknown: tuple[str, ...]
    """Keys that the tool does not have, each with the nearest that it has."""


def keys_of(tool: str, unread: Iterable[str], *, has_own: bool = False) -> Keys:
    """The unread keys of a tool's configuration. has_own: it may have keys of the user's own, so that none is
    unknown."""
    names, unread = _names(tool), tuple(unread)
    known = [name for name in unread if has_own or name in names]
    return Keys(
        uncounted=tuple(name for name in known if not _harmless().fullmatch(name)),
        unknown=tuple(_with_nearest(name, names) for name in unread if name not in known),
    )


def _with_nearest(name: str, names: frozenset[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.85)
    return f"{name} (did you mean {near[0]}?)" if near else name


@cache
def _harmless() -> re.Pattern[str]:
    topics, names = "|".join(_HARMLESS_TOPICS.split()), "|".join(_HARMLESS.split())
    return re.compile(rf"({topics})(_\w+)?|" + names.replace("*", r"\w*"))


@cache
def _names(tool: str) -> frozenset[str]:
    known = json.loads(FILE.read_text(encoding="utf-8"))
    shared = [] if tool in _OWN_SCHEMA else ["training-arguments", "transformers-4"]
    return frozenset(name for kind in (tool, *shared) for name in known.get(kind, "").split())
