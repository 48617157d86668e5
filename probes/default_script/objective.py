"""Train with a trainer of TRL: SFT, DPO, KTO, ORPO, SimPO, a reward model, GRPO, RLOO or PPO.

    torchrun --nproc_per_node 8 objective.py --objective dpo --model_name_or_path MODEL --dataset pairs.jsonl \\
        --max_length 2048 --output_dir output --deepspeed ds_config.json

Arguments are those of the trainer's own class (`DPOConfig` and so on), of TRL's `ModelConfig` (the model, its dtype,
LoRA) and of `ScriptArguments`. Without `--dataset` it trains on rows of the longest length, to measure memory and time.
"""

import importlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset, load_dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

TRAINERS = {
    "sft": ("trl", "SFT"),
    "dpo": ("trl", "DPO"),
    "kto": ("trl", "KTO"),
    "orpo": ("trl.experimental.orpo", "ORPO"),
    "simpo": ("trl.experimental.cpo", "CPO"),
    "reward": ("trl", "Reward"),
    "grpo": ("trl", "GRPO"),
    "rloo": ("trl", "RLOO"),
    "ppo": ("trl.experimental.ppo", "PPO"),  # TRL before 1.13
}

MOST_ROWS = 4096
"""Rows that are made for a training without a data file, unless a step needs more."""


@dataclass
class ScriptArguments:
    objective: str = field(metadata={"choices": list(TRAINERS)})
    dataset: str | None = None
    """JSON lines: "text" or "messages" (SFT), "prompt", "chosen" and "rejected" (preferences), "prompt" (GRPO, RLOO,
    PPO), or any other form that the trainer reads."""
    eval_dataset: str | None = None
    reward_model: str | None = None
    """Model that rewards completions; without it the function `reward` does."""
    prompt_length: int = 512
    """Tokens of a prompt in GRPO, RLOO and PPO without `--dataset`."""
    freeze: str | None = None
    """Regular expression for the names of parameters that are not trained."""
    deepspeed_config_file: str | None = None
    """DeepSpeed's configuration for PPO, whose trainer does not read `--deepspeed`."""
    random_weights: bool = False
    """Build the models from their configuration; no weights are read."""


def reward(completions: list[Any], **_: Any) -> list[float]:
    """Reward each completion of GRPO and RLOO: replace it by your own."""
    return [float(len(set(str(completion)))) for completion in completions]


def main() -> None:
    own = TrlParser([ScriptArguments], allow_abbrev=False)
    options = own.parse_args_into_dataclasses(return_remaining_strings=True)[0]
    objective = options.objective
    module, name = TRAINERS[objective]
    trl: Any = importlib.import_module(module)
    if options.deepspeed_config_file:
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
        os.environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = options.deepspeed_config_file
    # The arguments come before the model: at ZeRO-3 they let transformers shard it while it loads.
    classes = [ScriptArguments, getattr(trl, f"{name}Config"), ModelConfig]
    options, arguments, model_options = TrlParser(classes, allow_abbrev=False).parse_args_and_config()
    if options.random_weights:
        transformers_model: Any = PreTrainedModel
        transformers_model.from_pretrained = classmethod(from_configuration)
    if options.dataset:
        dataset = load_dataset("json", data_files=options.dataset, split="train")
        tokenizer = AutoTokenizer.from_pretrained(model_options.model_name_or_path)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    else:
        dataset, tokenizer = longest_rows(options, arguments), word_tokenizer()
    held_out = dataset if arguments.eval_strategy != "no" else None
    if options.eval_dataset:
        held_out = load_dataset("json", data_files=options.eval_dataset, split="train")
    if objective == "simpo":
        arguments.loss_type, arguments.cpo_alpha = "simpo", 0.0
    if objective == "ppo":
        dataset = dataset.map(lambda row: {"input_ids": tokenizer(row["prompt"])["input_ids"]}, remove_columns="prompt")
    if objective == "reward":
        model_options.lora_task_type = "SEQ_CLS"
    peft_config = get_peft_config(model_options)
    if peft_config is not None:
        peft_config.exclude_modules = options.freeze
    trainer = getattr(trl, f"{name}Trainer")(
        **models(options, arguments, model_options),
        args=arguments,
        train_dataset=dataset,
        eval_dataset=held_out,
        processing_class=tokenizer,
        peft_config=peft_config,
    )
    if options.freeze and peft_config is None:
        for parameter_name, parameter in trainer.model.named_parameters():
            parameter.requires_grad_(not re.fullmatch(options.freeze, parameter_name))
    trainer.train()
    if arguments.save_strategy != "no":
        trainer.save_model(arguments.output_dir)


def from_configuration(
    cls: Any,
    /,
    path: str,
    *_: Any,
    config: Any = None,
    dtype: Any = "float32",
    attn_implementation: str | None = None,
    num_labels: int | None = None,
    **__: Any,
) -> Any:
    """`from_pretrained` with new weights."""
    config = config or AutoConfig.from_pretrained(path)
    config.num_labels = num_labels or config.num_labels
    dtype = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)
    model = cls._from_config(config, dtype=dtype, attn_implementation=attn_implementation)
    model.name_or_path = model.config._name_or_path = path
    return model.eval()


def models(options: ScriptArguments, arguments: Any, model_options: Any) -> dict[str, Any]:
    """The trainer's arguments with models. Most trainers load them; those of `trl.experimental` get them loaded."""
    path = model_options.model_name_or_path
    loading: dict[str, Any] = {"dtype": model_options.dtype, "attn_implementation": model_options.attn_implementation}
    quantization = get_quantization_config(model_options)
    if quantization is not None:
        loading["quantization_config"] = quantization
    if options.objective == "ppo":
        policy, reference = (AutoModelForCausalLM.from_pretrained(path, **loading) for _ in range(2))
        rewards, values = (
            AutoModelForSequenceClassification.from_pretrained(options.reward_model or path, num_labels=1, **loading)
            for _ in range(2)
        )
        for model in (policy, values) if arguments.gradient_checkpointing else ():  # the trainer leaves it off
            model.gradient_checkpointing_enable(arguments.gradient_checkpointing_kwargs)
        return {"model": policy, "ref_model": reference, "reward_model": rewards, "value_model": values}
    if options.objective in ("orpo", "simpo"):
        return {"model": AutoModelForCausalLM.from_pretrained(path, **loading)}
    arguments.model_init_kwargs = loading | (arguments.model_init_kwargs or {})
    if options.objective in ("grpo", "rloo"):
        return {"model": path, "reward_funcs": options.reward_model or reward}
    return {"model": path}


def word_tokenizer() -> Any:
    """A tokenizer for which every word is a token."""
    words = Tokenizer(WordLevel({"<pad>": 0, "<end>": 1, "word": 2}, unk_token="word"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer_class: Any = PreTrainedTokenizerFast
    return tokenizer_class(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")


def longest_rows(options: ScriptArguments, arguments: Any) -> Any:
    """Rows of `--max_length` tokens, or prompts of `--prompt_length`, for several steps. Completions are then generated
    to their full length."""
    rows = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    rows *= int(os.environ.get("WORLD_SIZE", "1"))
    rows *= max(1, min(arguments.max_steps, MOST_ROWS // rows))
    if options.objective in ("grpo", "rloo", "ppo"):
        row = {"prompt": " ".join(["word"] * options.prompt_length)}
        if options.objective != "ppo":
            least = "min_tokens" if arguments.use_vllm else "min_new_tokens"
            arguments.generation_kwargs = {least: arguments.max_completion_length}
    elif options.objective == "sft":
        row = {"text": " ".join(["word"] * (arguments.max_length - 1) + ["<end>"])}
    else:
        answer = " word" * (arguments.max_length - 2) + " <end>"
        row = {"prompt": "word", "chosen": answer, "rejected": answer}
    # In a file: ranks that precompute log-probabilities share its folder.
    return Dataset.from_generator(repeated, gen_kwargs={"row": row, "times": rows})


def repeated(row: dict[str, str], times: int) -> Iterator[dict[str, str]]:
    yield from (row for _ in range(times))


if __name__ == "__main__":
    main()
