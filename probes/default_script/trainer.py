"""Train a transformers model with the Hugging Face Trainer and DeepSpeed.

    torchrun --nproc_per_node 8 train.py --model_name_or_path MODEL --train_file train.arrow --max_length 2048
        --output_dir output --deepspeed ds_config.json ...

The options are those of `ScriptArguments` and of transformers' TrainingArguments. Without `--train_file` the rows are
random. `--per_device_eval_batch_size 0` selects the batch size of the training. No code from the model's folder is
executed: weights are safetensors only, without remote code.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
import transformers
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments, set_seed

PADDED_TO = 8
"""Lengths of batches are multiples of it, for the tensor cores."""
IGNORED = -100
"""Label of a token that does not count."""
PEFT_TASKS = {"ForCausalLM": "CAUSAL_LM", "ForSequenceClassification": "SEQ_CLS"}
"""peft's tasks by the end of a class name. With "SEQ_CLS" it trains the head whole."""
RANDOM_STEPS = 20
"""Optimizer steps for which there are random rows."""
RANDOM_EVALUATION = 3
"""Batches of an evaluation on random rows, unless logits of more are kept."""


@dataclass
class ScriptArguments:
    model_name_or_path: str
    train_file: str | None = None
    """Arrow file of samples with `input_ids` and `labels`; packed samples also have `position_ids`. Embeddings are
    trained on random rows alone."""
    eval_file: str | None = None
    tokenizer_name: str | None = None
    """Folder of the tokenizer, which is saved with the model."""
    max_length: int = 2048
    """Maximum tokens of a sample."""
    objective: str = "next-token"
    """What is trained: "next-token", "classification" (labels of a text) or "embedding" (pairs of similar texts)."""
    random_weights: bool = False
    """Build the model from its configuration; no weights are read."""
    dtype: str = "bfloat16"
    attn_implementation: str | None = None
    freeze: str | None = None
    """Regular expression for the names of parameters that are not trained."""
    lora_r: int = 0
    """Rank of LoRA adapters; 0 trains all weights."""
    lora_alpha: int = 0
    lora_dropout: float = 0.0
    lora_dora: bool = False
    """Train the norms of the weights too (DoRA)."""
    lora_target_modules: list[str] = field(default_factory=lambda: ["all-linear"])
    lora_modules_to_save: list[str] = field(default_factory=list)
    lora_in_fp32: bool = False
    """Keep the adapters in fp32."""
    load_in_4bit: bool = False
    sequence_parallel_size: int = 1
    """Ranks that share each sample (Ulysses)."""
    chunked_softmax: bool = False
    """Compute the loss by DeepSpeed's `install_chunked_causal_lm_loss`."""
    mlp_tiles: int = 0
    """Number of tiles of the feed-forward layers; 0 for no tiling."""
    loss_tiles: int = 0
    pageable_inputs: bool = False
    """Do not page-lock the inputs of checkpointed layers on the host, which rounds each up to a power of two."""


class Collator:
    """Collator that pads on the right to the longest sample of a batch, rounded up to `PADDED_TO` within `seq_len`.

    Packed samples have `position_ids`, and the batch no attention mask: transformers keeps attention within each piece,
    and padding forms pieces of its own. Otherwise the batch has the mask, and the model derives the positions.

    shared_by: ranks that share each sample. The length is then a multiple of their number, and the batch has
        `position_ids` and no mask, which Ulysses drops: padding comes last, so no token attends to it.
    """

    def __init__(self, *, pad_id: int, seq_len: int, shared_by: int = 1) -> None:
        self._padding = {"input_ids": pad_id, "labels": IGNORED, "position_ids": 0}
        self._seq_len = seq_len
        self._shared_by = shared_by

    def __call__(self, samples: Sequence[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        multiple = math.lcm(PADDED_TO, self._shared_by)
        lengths = [len(sample["input_ids"]) for sample in samples]
        length = min(-(-max(lengths) // multiple) * multiple, self._seq_len)
        batch = {
            name: torch.tensor([sample[name] + [value] * (length - len(sample[name])) for sample in samples])
            for name, value in self._padding.items()
            if isinstance(samples[0].get(name), list)
        }
        if "labels" not in batch:  # one of each text
            batch["labels"] = torch.tensor([sample["labels"] for sample in samples])
        if self._shared_by > 1:
            batch["position_ids"] = torch.arange(length).repeat(len(samples), 1)
        elif "position_ids" not in batch:
            batch["attention_mask"] = (torch.arange(length) < torch.tensor(lengths)[:, None]).long()
        return batch


class RandomRows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows of the model's inputs with random values: tokens, an image, or the features of a sound."""

    def __init__(self, model: Any, options: ScriptArguments, rows: int) -> None:
        self._name, config, length = model.main_input_name, model.config, options.max_length
        self._rows, self._length = rows, length
        self._vocab_size = getattr(config.get_text_config(), "vocab_size", None) or 2
        self._has_positions = options.sequence_parallel_size > 1
        self._classifies = bool(re.search("(Sequence|Image|Audio|Video)Classification", type(model).__name__))
        self._labels = config.num_labels if self._classifies else self._vocab_size
        self._embeds = embeds(model)
        self._shape: tuple[int, ...] = (2, length) if self._embeds else (length,)
        if self._name == "pixel_values":
            side = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
            self._shape = (config.num_channels, side, side)
        elif self._name == "input_features":
            self._shape = (config.num_mel_bins, 2 * config.max_source_positions)  # Whisper's convolutions halve them

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, _index: int) -> dict[str, torch.Tensor]:
        has_tokens = self._embeds or len(self._shape) == 1
        values = torch.randint(self._vocab_size, self._shape) if has_tokens else torch.rand(self._shape)
        if self._embeds:
            return {self._name: values}
        labels = torch.randint(self._labels, () if self._classifies else (self._length,))
        positions = {"position_ids": torch.arange(self._length)} if self._has_positions else {}
        return {self._name: values, "labels": labels, **positions}


def embeds(model: Any) -> bool:
    """Whether the model of a text has no head, so that its output is trained as an embedding."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return (
        "For" not in type(base).__name__ and "LMHead" not in type(base).__name__ and base.main_input_name == "input_ids"
    )


def pair_loss(model: Any, pairs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The cross entropy of a pair's similarity among those of its first text with all second texts of the batch, as
    sentence-transformers' MultipleNegativesRankingLoss. An embedding is the mean of the last hidden states."""
    (texts,) = (value.flatten(0, 1) for name, value in pairs.items() if name == "input_ids")
    hidden = model(input_ids=texts).last_hidden_state
    first, second = torch.nn.functional.normalize(hidden.mean(1), dim=-1).view(-1, 2, hidden.shape[-1]).unbind(1)
    similarities = 20 * first @ second.T
    return torch.nn.functional.cross_entropy(similarities.float(), torch.arange(len(first), device=similarities.device))


class EmbeddingTrainer(Trainer):
    """Trainer of a model without a head, on pairs of texts."""

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,  # noqa: ARG002
    ) -> Any:
        loss = pair_loss(model, inputs)
        return (loss, {}) if return_outputs else loss


def main() -> None:
    # TrainingArguments come before the model, so that transformers knows of ZeRO-3 and shards the model while it loads.
    parser = HfArgumentParser([ScriptArguments, TrainingArguments])  # type: ignore[list-item]
    options, arguments = parser.parse_args_into_dataclasses()
    arguments.per_device_eval_batch_size = arguments.per_device_eval_batch_size or arguments.per_device_train_batch_size
    arguments.remove_unused_columns = False  # every column of the rows is an input of the model
    if options.sequence_parallel_size > 1:
        arguments.parallelism_config = _sharing(options, arguments.world_size)
    if options.pageable_inputs:
        _do_not_pin()
    set_seed(arguments.seed)
    checkpointing = arguments.gradient_checkpointing_kwargs or {}
    is_zero3 = _is_zero3(arguments)
    model = load_model(
        options,
        checkpointing=checkpointing if arguments.gradient_checkpointing else None,
        gpu=None if is_zero3 else arguments.local_process_index,
    )
    uses_cache = getattr(model.config, "use_cache", None)
    kind = EmbeddingTrainer if embeds(model) else Trainer
    trainer = kind(model=model, args=arguments, callbacks=[EndsAtLastStep()], **_data(model, options, arguments))
    change_loss(trainer.model, options)
    swanlab = start_swanlab() if "swanlab" in arguments.report_to and trainer.is_world_process_zero() else None
    with contextlib.suppress(AllStepsMadeError):
        trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    state = trainer.state
    if state.global_step >= state.max_steps:
        evaluated = [log["step"] for log in state.log_history if "eval_loss" in log]
        if trainer.eval_dataset is not None and state.max_steps not in evaluated:
            trainer.evaluate()
        if arguments.save_strategy != "no":
            if uses_cache is not None:  # the Trainer turns it off, and the saved model would generate without a cache
                model.config.use_cache = uses_cache
            gathers = "zero_optimization.stage3_gather_16bit_weights_on_model_save"
            if not is_zero3 or arguments.hf_deepspeed_config.is_true(gathers):
                trainer.save_model()
            trainer.save_state()
    if swanlab is not None:
        swanlab.finish()
    trainer.accelerator.end_training()


def _data(model: Any, options: ScriptArguments, arguments: TrainingArguments) -> dict[str, Any]:
    """Data sets, collator and tokenizer, as arguments of the Trainer."""
    if options.train_file is None:
        ranks, steps = arguments.world_size, arguments.gradient_accumulation_steps
        batches = max(arguments.max_steps, RANDOM_STEPS) * steps
        found: dict[str, Any] = {
            "train_dataset": RandomRows(model, options, arguments.train_batch_size * ranks * batches)
        }
        if arguments.eval_strategy != "no":
            kept = arguments.eval_accumulation_steps or 0
            evaluated = arguments.per_device_eval_batch_size * ranks * max(RANDOM_EVALUATION, kept)
            found["eval_dataset"] = RandomRows(model, options, evaluated)
            if not arguments.prediction_loss_only:
                found["compute_metrics"] = lambda _predictions: {}  # with a function the Trainer keeps the logits
        return found
    from datasets import Dataset

    tokenizer = transformers.AutoTokenizer.from_pretrained(
        options.tokenizer_name or options.model_name_or_path, trust_remote_code=False
    )
    pad_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return {
        "train_dataset": Dataset.from_file(options.train_file),
        "eval_dataset": Dataset.from_file(options.eval_file) if options.eval_file else None,
        "data_collator": Collator(pad_id=pad_id, seq_len=options.max_length, shared_by=options.sequence_parallel_size),
        "processing_class": tokenizer,
    }


def _is_zero3(arguments: TrainingArguments) -> bool:
    config = arguments.hf_deepspeed_config
    return config is not None and bool(config.is_zero3())


def model_class(config: Any, objective: str = "next-token") -> Any:
    """The class for the objective; without one that of the configuration's architecture, or the first suitable one.
    Classes with a head for labels, and those without a head, are found by the type of the configuration."""
    for name in config.architectures or ():
        is_bare = name.endswith("Model") and "LMHead" not in name and not config.is_encoder_decoder
        kind = "ForSequenceClassification" if name.endswith("ForSequenceClassification") else "" if is_bare else None
        kind = {"classification": "ForSequenceClassification", "embedding": ""}.get(objective, kind)
        mapping = {} if kind is None else getattr(transformers, f"AutoModel{kind}")._model_mapping
        if type(config) in mapping:
            return mapping[type(config)]
        if hasattr(transformers, name) and ("For" in name or "LMHead" in name):
            return getattr(transformers, name)
    kinds = ["CausalLM", "Seq2SeqLM", "ImageTextToText", "SpeechSeq2Seq", "MaskedLM", "ImageClassification"]
    if config.is_encoder_decoder:
        kinds.insert(0, "Seq2SeqLM")
    for kind in kinds:
        mapping = getattr(transformers, f"AutoModelFor{kind}")._model_mapping
        if type(config) in mapping:
            return mapping[type(config)]
    raise ValueError(f"transformers {transformers.__version__} has no trainable class for {config.model_type!r}")


def load_model(options: ScriptArguments, *, checkpointing: dict[str, Any] | None, gpu: int | None = None) -> Any:
    """The model with its adapters.

    checkpointing: arguments of gradient checkpointing, which the caller enables; None without it.
    gpu: the GPU of weights in 4 bits. Under ZeRO-3 transformers takes no device_map; bitsandbytes' quantizer then takes
        the rank's own GPU.
    """
    dtype, path = getattr(torch, options.dtype), options.model_name_or_path
    config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
    # Labels are shifted to the right behind this token; some configurations leave it to `generate`.
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id or 0
    chosen = model_class(config, options.objective)
    if options.objective == "classification":  # such a model finds a text's last token by its padding
        config.pad_token_id = config.pad_token_id or 0
    more: dict[str, Any] = {"attn_implementation": options.attn_implementation} if options.attn_implementation else {}
    if options.random_weights:
        model = chosen._from_config(config, dtype=dtype, **more)
    else:
        if options.load_in_4bit:
            more["quantization_config"] = transformers.BitsAndBytesConfig(  # type: ignore[no-untyped-call]
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=dtype,
            )
            more |= {} if gpu is None else {"device_map": {"": gpu}}
        model = chosen.from_pretrained(
            path, config=config, dtype=dtype, trust_remote_code=False, use_safetensors=True, **more
        )
    _give_dimensions(model)
    return adapted(model, options, checkpointing)


def adapted(model: Any, options: ScriptArguments, checkpointing: dict[str, Any] | None) -> Any:
    """The model with its adapters, or with its frozen parts. checkpointing: as in `load_model`."""
    if not options.lora_r:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not (options.freeze and re.fullmatch(options.freeze, name)))
        return model
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if options.load_in_4bit:
        model = prepare_model_for_kbit_training(  # type: ignore[no-untyped-call]
            model, use_gradient_checkpointing=checkpointing is not None, gradient_checkpointing_kwargs=checkpointing
        )
    elif (checkpointing or {}).get("use_reentrant"):
        model.enable_input_require_grads()
    targets = options.lora_target_modules
    adapters = LoraConfig(
        r=options.lora_r,
        lora_alpha=options.lora_alpha,
        lora_dropout=options.lora_dropout,
        use_dora=options.lora_dora,
        task_type=next((task for end, task in PEFT_TASKS.items() if type(model).__name__.endswith(end)), None),
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        modules_to_save=options.lora_modules_to_save or None,
        exclude_modules=options.freeze,
    )
    return get_peft_model(model, adapters, autocast_adapter_dtype=options.lora_in_fp32)


def _give_dimensions(model: Any) -> None:
    """Give scalar parameters one dimension: DeepSpeed cannot broadcast scalars (0.19.8 runtime/engine.py
    `_broadcast_model` views them as bytes)."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.dim() == 0:
                setattr(module, name, torch.nn.Parameter(parameter.data[None], requires_grad=parameter.requires_grad))


def change_loss(model: Any, options: ScriptArguments) -> None:
    """Install another loss, and tiles. The Trainer installs Liger's kernels when it is created, so before this."""
    if options.chunked_softmax:
        chunked = import_module("deepspeed.runtime.chunked_cross_entropy")
        # peft's wrapper has no loss of its own.
        chunked.install_chunked_causal_lm_loss(model.get_base_model() if options.lora_r else model)
    if options.mlp_tiles or options.loss_tiles:
        tiled = import_module("ds_advise.ds_configs.tiled_compute")
        if options.mlp_tiles:
            tiled.tile_feed_forward(model, options.mlp_tiles)
        if options.loss_tiles:
            tiled.tile_loss(model, options.loss_tiles)


def _do_not_pin() -> None:
    """transformers page-locks the inputs of checkpointed layers (5.23 modeling_utils.py
    `_activation_checkpointing_enable`)."""
    modeling: Any = import_module("transformers.modeling_utils")
    save_on_cpu: Any = torch.autograd.graph.save_on_cpu
    modeling.save_on_cpu = lambda **options: save_on_cpu(**options | {"pin_memory": False})


def _sharing(options: ScriptArguments, world_size: int) -> Any:
    """accelerate's ParallelismConfig of Ulysses. DeepSpeed's loader is restarted in every epoch: the Trainer takes
    exactly as many batches as an epoch has, but the loader detects the end of an epoch only beyond its last batch, and
    every second epoch would be empty (deepspeed 0.19.8 ulysses_sp.py `UlyssesSPDataLoaderAdapter`)."""
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import DeepSpeedSequenceParallelConfig

    loader: Any = import_module("deepspeed.runtime.sequence_parallel.ulysses_sp").UlyssesSPDataLoaderAdapter

    def begin(self: Any) -> Any:
        self.iter = iter(self.dl)
        self.micro_batches.clear()
        return self

    loader.__iter__ = begin
    return ParallelismConfig(
        sp_backend="deepspeed",
        sp_size=options.sequence_parallel_size,
        dp_shard_size=world_size // options.sequence_parallel_size,
        sp_handler=DeepSpeedSequenceParallelConfig(
            sp_seq_length_is_variable=True, sp_attn_implementation=options.attn_implementation or "sdpa"
        ),
    )


class AllStepsMadeError(Exception):
    """Raised if the checkpoint to resume from is that of the last step."""


class EndsAtLastStep(TrainerCallback):
    """Callback that prevents a step beyond the last, which the Trainer would make after a resumption unless an epoch
    ends there."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if state.global_step >= state.max_steps:
            raise AllStepsMadeError


def start_swanlab() -> Any:
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


if __name__ == "__main__":
    main()
