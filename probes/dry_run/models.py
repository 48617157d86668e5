"""The model and its batches, from a transformers configuration."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from packaging.version import Version

from ...ds_configs.tiled_compute import tile_feed_forward, tile_loss
from ...estimators.memory.activations.loss import loss_tiles, mlp_tiles
from ...estimators.models.families import shape_from_config
from ...estimators.models.vision_parts import frozen_pattern
from ...estimators.objectives import OBJECTIVES
from ...estimators.workload import Workload
from ..run import Run
from ..simulated_gpu.attention import FLASH
from ..simulated_gpu.weights import no_init_weights

_BUILD_IT = "give FILE.py:FUNCTION with a function that builds the model"


class UnusableModelError(ValueError):
    """The model cannot be built, or batches for it cannot be made."""

    def __init__(self, what: str, *, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


def imported(module: str, what: str, package: str, *, name: str = "") -> Any:
    """Import a module of an optional package; `name` must exist in it. Raises UnusableModelError if the package is
    missing or too old."""
    try:
        found = importlib.import_module(module)
    except ImportError:
        found = None
    if found is None or not hasattr(found, name or "__name__"):
        raise UnusableModelError(f"{what} needs {package}, which is not installed", fix=f'pip install "{package}"')
    return found


@dataclass(frozen=True)
class TrainableModel:
    """A model, its batches by number of samples, and its loss by output and batch."""

    model: torch.nn.Module
    make_batch: Callable[[int], Any]
    loss: Callable[[Any, Any], Any]
    vocab_size: int
    groups: Any = None
    """DeepSpeed's `mpu`; None without sequence parallelism."""
    engine_loss: Callable[[Any, Any], Any] | None = None
    """The loss by engine and batch, if it needs more than one output."""
    before_training: Callable[..., None] | None = None
    """A step before the micro batches of an iteration, by engine and recorder (`rollout_step`)."""

    def compute_loss(self, engine: Any, batch: Any, kept_output: list[Any] | None) -> Any:
        """The loss of a batch. kept_output: the list in which the loop keeps the output; None if the loop drops the
        output."""
        if self.engine_loss is not None:
            return self.engine_loss(engine, batch)
        output = engine(**batch) if isinstance(batch, dict) else engine(*batch)
        if kept_output is not None:
            kept_output[:] = [output]  # releases the output of the previous micro batch
        return self.loss(output, batch)


def hidden_size(model_config: Any) -> int | None:
    """The hidden size for the Trainer's `auto` values; None for a configuration without one and for a user's module."""
    for config in (model_config, getattr(model_config, "text_config", model_config)):
        if getattr(config, "hidden_size", None) is not None:
            return int(config.hidden_size)
        if getattr(config, "hidden_sizes", None):
            return int(max(config.hidden_sizes))
    return None


def transformers_config(description: Mapping[str, Any]) -> Any:
    """The transformers configuration object of a `config.json`. Raises UnusableModelError if the installed transformers
    has no class for the model type."""
    from transformers import CONFIG_MAPPING

    values = {key: value for key, value in description.items() if key not in ("dtype", "torch_dtype")}
    kind = values.pop("model_type", "")
    if kind not in CONFIG_MAPPING:
        import transformers

        raise UnusableModelError(
            f"transformers {transformers.__version__} has no model type {kind!r}, and the code of a model folder is "
            "not run",
            fix=_BUILD_IT,
        )
    config = CONFIG_MAPPING[kind].from_dict(values)
    config.use_cache = False
    return config


def from_config(
    run: Run,
    config: Any,
    dtype: torch.dtype,
    device: str,
    *,
    checkpoint: str | None = None,
    prepare_base: Callable[[Any], None] | None = None,
) -> TrainableModel:
    """A transformers model in training mode, with LoRA and checkpointing as requested, and its batches on `device`.

    checkpoint: folder of safetensors with the weights; None leaves them uninitialized.
    prepare_base: changes the model before LoRA; it may quantize it and replace its loss.

    Raises UnusableModelError for a quantized base without `prepare_base`: bitsandbytes' kernels have no fake tensors.
    """
    workload = run.workload
    unknown = _unknown_kernels(workload)
    if prepare_base is None and unknown:
        raise UnusableModelError(
            f"a dry run does not support {unknown}",
            fix="probe it on a GPU, or use the closed form",
        )
    chosen = model_class(config)
    # Labels are shifted to the right behind this token; some configurations leave it to `generate`.
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id or 0
    # Without a name transformers uses torch's attention where the model supports it.
    named = {"eager": {"attn_implementation": "eager"}, "flash": {"attn_implementation": FLASH}, "sdpa": {}}
    options: dict[str, Any] = {_dtype_option(): dtype, **named[workload.attention]}
    if checkpoint is not None:
        options |= {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
        model = chosen.from_pretrained(checkpoint, config=config, **options)
    else:
        with no_init_weights():
            model = chosen._from_config(config, **options)
            # `no_init_weights` replaces `init_weights`, which would tie them.
            model.tie_weights()
    model.train()
    _give_dimensions(model)
    if prepare_base is not None:
        prepare_base(model)
    # Before LoRA: peft's wrapper has no loss of its own.
    install_loss(model, workload)
    model = adapted(model, run)
    if run.gradient_checkpointing:
        stage = (run.config.get("zero_optimization") or {}).get("stage", 0)
        reentrant = stage == 3 and workload.checkpoints_reentrantly(stage)
        _checkpoint(model, offload=run.cpu_checkpointing, pins=workload.software.pinned_inputs, reentrant=reentrant)
        # The reentrant form with peft needs inputs that require gradients; TRL always calls it with adapters.
        if workload.method != "full" and (is_reentrant(model) or workload.framework == "trl"):
            model.enable_input_require_grads()
    vocab_size = int(getattr(config.get_text_config(), "vocab_size", 0) or 0)
    name = chosen.main_input_name
    seq_len = workload.seq_len
    per_sample = "Classification" in chosen.__name__ and "Token" not in chosen.__name__

    def make_batch(batch: int) -> dict[str, Any]:
        shape: tuple[int, ...] = (batch, seq_len)
        if name == "pixel_values":
            side = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
            shape = (batch, config.num_channels, side, side)
        elif name == "input_features":
            shape = (batch, config.num_mel_bins, 2 * config.max_source_positions)  # Whisper's convolutions halve them
        labels = torch.zeros(batch if per_sample else (batch, seq_len), dtype=torch.long, device=device)
        values = torch.zeros(shape, dtype=torch.long if len(shape) == 2 else dtype, device=device)
        return {name: values, "labels": labels}

    return TrainableModel(model, make_batch, lambda output, _batch: output.loss, vocab_size)


def _give_dimensions(model: torch.nn.Module) -> None:
    """Give scalar parameters one dimension: DeepSpeed cannot broadcast scalars.

    Source: deepspeed 0.19.8 runtime/engine.py `_broadcast_model` views them as bytes.
    """
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.dim() == 0:
                setattr(module, name, torch.nn.Parameter(parameter.data[None], requires_grad=parameter.requires_grad))


def _checkpoint(model: Any, *, offload: bool, pins: bool, reentrant: bool) -> None:
    """Enable checkpointing. Raises UnusableModelError if this transformers cannot offload the layers' inputs."""
    enable: Any = getattr(model, "activation_checkpointing_enable", None)
    if enable is None and offload:
        raise UnusableModelError(
            "this version of transformers cannot store the inputs of checkpointed layers on the host",
            fix="install transformers 5.23",
        )
    if offload:
        if not pins:  # like the emitted lines of a script
            modeling: Any = importlib.import_module("transformers.modeling_utils")
            save_on_cpu: Any = torch.autograd.graph.save_on_cpu
            modeling.save_on_cpu = lambda **options: save_on_cpu(**options | {"pin_memory": False})
        enable(offload=True)
    elif reentrant:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    else:
        (enable or model.gradient_checkpointing_enable)()


def _unknown_kernels(workload: Workload) -> str:
    """Description of the kernels that fake tensors cannot run; "" if they can run all."""
    if workload.method == "qlora":
        return "the kernels of quantized weights"
    if workload.loss in ("in-place", "chunked", "value-head"):
        return f"the {workload.loss} loss"
    if workload.kernels != "torch":
        return f"{workload.kernels}'s kernels"
    return "the Triton kernel of 2023" if workload.attention == "triton" else ""


def model_class(config: Any) -> Any:
    """The class of a transformers configuration's architecture, or the first suitable one."""
    import transformers
    from transformers.models.auto import modeling_auto

    for name in getattr(config, "architectures", None) or ():
        architecture = getattr(transformers, name, None)
        if architecture is not None and ("For" in name or "LMHead" in name):
            return architecture
    sequences = (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING, modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING)
    for mapping in (
        *(reversed(sequences) if config.is_encoder_decoder else sequences),
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
        modeling_auto.MODEL_FOR_MASKED_LM_MAPPING,
        modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    ):
        if type(config) in mapping:
            return mapping[type(config)]
    raise UnusableModelError(
        f"transformers {transformers.__version__} has no trainable class for {config.model_type!r}",
        fix=_BUILD_IT,
    )


def adapted(model: Any, run: Run) -> Any:
    """The model with peft's LoRA adapters, or with its frozen parts."""
    workload = run.workload
    if workload.method == "full":
        # Before the engine exists: DeepSpeed's optimizers take the trainable parameters once.
        for path, parameter in model.named_parameters() if workload.freeze else ():
            parameter.requires_grad_(not re.fullmatch(frozen_pattern(workload.freeze), path))
        return model
    peft = imported("peft", "LoRA", "peft")
    targets: Any = list(workload.lora_targets) if workload.lora_targets else "all-linear"
    adapters = peft.LoraConfig(
        r=workload.lora_rank,
        lora_alpha=2 * workload.lora_rank,
        target_modules=targets,
        lora_dropout=workload.lora_dropout,
        task_type="SEQ_CLS" if OBJECTIVES[workload.objective].labels else None,
        modules_to_save=list(workload.modules_to_save) or None,
        exclude_modules=frozen_pattern(workload.freeze) or None,
    )
    # The engine does not cast a model of zero.Init, and needs one dtype for all trained tensors: that of the copies.
    # TRL leaves adapters in the model's type at stage 3 (1.16 trainer/dpo_trainer.py `__init__`).
    fp32 = workload.software.fp32_adapters and workload.framework != "trl" and not workload.modules_to_save
    return peft.get_peft_model(model, adapters, autocast_adapter_dtype=fp32)


def is_reentrant(model: torch.nn.Module) -> bool:
    for module in model.modules():
        function = getattr(module, "_gradient_checkpointing_func", None)
        if function is not None:
            return bool(getattr(function, "keywords", {}).get("use_reentrant", True))
    return False


def _dtype_option() -> str:
    """The option of the weights' dtype: `torch_dtype` before transformers 4.56."""
    from transformers import __version__

    return "dtype" if Version(__version__) >= Version("4.56") else "torch_dtype"


def for_long_sequences(subject: TrainableModel, run: Run, config: dict[str, Any], device: str) -> TrainableModel:
    """The model with tiled feed-forward and loss, and with Ulysses' attention and batches; a user's own module is
    returned unchanged.

    This replaces accelerate and the Trainer for `sp_size`: accelerate registers Ulysses' attention with transformers
    and passes its groups to DeepSpeed (`Accelerator._prepare_deepspeed`); its loader gives each rank its part of the
    tokens, with positions and shifted labels (`UlyssesSPDataLoaderAdapter`); the Trainer averages the parts' losses
    (`deepspeed_sp_compute_loss`).

    Raises DeepSpeed's ValueError for heads or an attention kernel that cannot be split.
    """
    ranks = run.sequence_parallel_size
    if run.description is not None:
        install_tiles(subject.model, run, _micro_batch_size(config, run))
    if ranks == 1 or run.description is None:
        return subject
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    model: Any = subject.model
    # Before `deepspeed.initialize`, which gets the groups as its `mpu`.
    groups = UlyssesSPAttentionHF.register_with_transformers(
        model,
        core_attn_implementation=model.config._attn_implementation,
        sequence_parallel_size=ranks,
        micro_batch_size=_micro_batch_size(config, run),
        seq_length_is_variable=True,
    )
    group = groups.get_sequence_parallel_group()
    rank = groups.get_sequence_parallel_rank()
    tokens = run.workload.seq_len // ranks

    def make_batch(batch: int) -> dict[str, torch.Tensor]:
        positions = torch.arange(rank * tokens, (rank + 1) * tokens, device=device)
        ids = torch.zeros((batch, tokens), dtype=torch.long, device=device)
        labels = torch.zeros_like(ids)
        return {
            "input_ids": ids,
            "position_ids": positions.expand(batch, tokens).contiguous(),
            "labels": labels,
            "shift_labels": labels,
        }

    def loss(output: Any, _batch: Any) -> Any:
        """The mean of the loss over the ranks, which all have the same number of labels. Its derivative by a rank's own
        loss, summed over the ranks' copies, is 1, as with torch's differentiable all-gather, which gloo's subgroups do
        not support."""
        own = output.loss
        parts = [torch.empty_like(own) for _ in range(ranks)]
        torch.distributed.all_gather(parts, own.detach(), group=group)
        return own + (torch.stack(parts).mean() - own).detach()

    return replace(subject, make_batch=make_batch, loss=loss, groups=groups)


def _micro_batch_size(config: dict[str, Any], run: Run) -> int:
    """The micro batch size by DeepSpeed's rules. Ulysses needs it before the engine exists."""
    configured = config.get("train_micro_batch_size_per_gpu")
    if configured is not None:
        return int(configured)
    replicas = run.cluster.world_size // run.sequence_parallel_size
    samples = int(config.get("train_batch_size", replicas))
    return samples // int(config.get("gradient_accumulation_steps", 1)) // replicas


_LOGGED = ("log_probs", "entropy", "is_top1")
"""Quantities that TRL's SFTTrainer computes in addition to the loss (trl 1.16 trainer/sft_trainer.py)."""


def install_loss(model: Any, workload: Workload) -> None:
    """Install the loss of next tokens in a causal language model without adapters. Tiles are left to `install_tiles`.
    Raises UnusableModelError if TRL, DeepSpeed or Liger does not provide it."""
    if workload.loss == "chunked-head" and not OBJECTIVES[workload.objective].trainer:
        utils = imported("trl.trainer.utils", "the loss", "trl>=1.16", name="add_fused_lm_head")
        utils.add_fused_lm_head(model, outputs=_LOGGED)
        model.forward = partial(model.forward, fused_lm_head=True)
    elif workload.loss == "chunked-softmax":
        chunked = imported("deepspeed.runtime.chunked_cross_entropy", "the loss", "deepspeed>=0.19.8")
        chunked.install_chunked_causal_lm_loss(model)
    if workload.loss == "fused" or workload.kernels == "liger":
        liger = imported("liger_kernel.transformers", "the loss or the kernels of layers", "liger-kernel")
        liger._apply_liger_kernel_to_instance(model=model, fused_linear_cross_entropy=workload.loss == "fused")


def install_tiles(model: Any, run: Run, micro_batch_size: int) -> None:
    """Tile feed-forward and loss, like the emitted lines."""
    workload = run.workload.rank_share(run.sequence_parallel_size)
    if workload.mlp == "whole" and workload.loss != "tiled":
        return
    shape = shape_from_config(run.description or {}, name="")
    if workload.mlp == "tiled":
        tile_feed_forward(model, mlp_tiles(shape, workload))
    if workload.loss == "tiled":
        tile_loss(model, loss_tiles(shape, workload, micro_batch_size))
