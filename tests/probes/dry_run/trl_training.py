"""A training by TRL's own trainer, in the phases of a dry run: two ranks, random weights, pairs of one length."""

import contextlib
import functools
import json
import os
from pathlib import Path

import deepspeed
import torch
from datasets import Dataset
from ds_advise.estimators.objectives import OBJECTIVES
from ds_advise.probes.dry_run import models
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast


def train_by_trl(request, recorder):
    """Train `request.iterations` steps with the trainer of the objective. The engine's forward, backward and step are
    the phases."""
    import trl

    run = request.run
    workload, spec = run.workload, OBJECTIVES[run.workload.objective]
    if spec.value_model:
        train_by_ppo(request, recorder)
        return
    os.environ |= {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_TORCH_DEVICE": "cpu",
        "LOCAL_WORLD_SIZE": str(run.cluster.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",  # the ranks have met already
    }
    words = [f"w{number}" for number in range(3, 3 + workload.seq_len)]
    answer = " " + " ".join(words[: workload.seq_len - 2])  # and the prompt and the end
    if workload.rollouts is not None:
        prompt = " ".join(words[: workload.seq_len - workload.scored_len])
        if request.rank == 0:
            Dataset.from_list([{"prompt": prompt}] * 32).save_to_disk("rows")
    elif request.rank == 0:
        Dataset.from_list([{"prompt": "w1", "chosen": answer, "rejected": answer}] * 32).save_to_disk("rows")
    folder, tokenizer = _saved(run, "model", writes=request.rank == 0)
    config = dict(run.config)
    stage = config["zero_optimization"]["stage"]
    arguments = {"precompute_ref_log_probs": True} if workload.precompute_ref_log_probs else {}
    trained = {}
    if workload.rollouts is None:
        arguments |= {"max_length": workload.seq_len, "dataset_num_proc": None}
    else:
        trained = {"reward_funcs": lambda completions, **_: [float(len(set(text))) for text in completions]}
        arguments |= {"num_generations": workload.rollouts.num_generations, "beta": workload.rollouts.beta}
        arguments |= {"max_completion_length": workload.scored_len}
        arguments |= {"generation_kwargs": {"min_new_tokens": workload.scored_len}}
    arguments = getattr(trl, spec.config)(
        output_dir="out",
        per_device_train_batch_size=run.micro_batch_size,
        max_steps=request.iterations,
        bf16=True,
        use_cpu=True,
        report_to=[],
        deepspeed=config,
        gradient_checkpointing=run.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": workload.checkpoints_reentrantly(stage)},
        save_strategy="no",
        learning_rate=1e-4,
        model_init_kwargs={"dtype": "bfloat16", "attn_implementation": "eager"},
        **arguments,
    )
    adapters = None
    if workload.method == "lora":
        from peft import LoraConfig

        kind = {"task_type": "SEQ_CLS" if spec.labels else "CAUSAL_LM"}
        adapters = LoraConfig(r=workload.lora_rank, target_modules="all-linear", **kind)
    iteration = 0
    with recorder.phase(0, "load"):
        trainer = getattr(trl, spec.trainer)(
            model=folder,
            args=arguments,
            train_dataset=Dataset.load_from_disk("rows"),
            processing_class=tokenizer,
            peft_config=adapters,
            **trained,
        )
    forward = trainer.compute_loss

    @functools.wraps(forward)
    def compute_loss(model, inputs, **options):
        nonlocal iteration
        iteration += 1
        with recorder.phase(iteration, "forward"):
            return forward(model, inputs, **options)

    trainer.compute_loss = compute_loss
    if workload.rollouts is not None:
        log_probabilities = trainer._get_per_token_logps_and_entropies

        def scored(*given, **options):
            scores = not torch.is_grad_enabled()
            with recorder.phase(iteration + 1, "scoring") if scores else contextlib.nullcontext():
                return log_probabilities(*given, **options)

        trainer._get_per_token_logps_and_entropies = scored
    for name in ("backward", "step"):
        setattr(deepspeed.DeepSpeedEngine, name, _in_phase(name, recorder, lambda: iteration))
    trainer.train()


def train_by_ppo(request, recorder):
    """PPOTrainer's own loop for four steps, two on each generation, configured as accelerate's launcher does it."""
    from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

    run = request.run
    workload, rollouts = run.workload, run.workload.rollouts
    folder, tokenizer = _saved(run, "model", writes=request.rank == 0)
    batch = {"train_micro_batch_size_per_gpu": run.micro_batch_size, "gradient_accumulation_steps": 1}
    config = {name: value for name, value in run.config.items() if name != "optimizer"} | batch
    Path("ds_config.json").write_text(json.dumps(config | {"bf16": {"enabled": True}}))
    os.environ |= {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": "ds_config.json",
        "ACCELERATE_TORCH_DEVICE": "cpu",
        "LOCAL_WORLD_SIZE": str(run.cluster.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",  # the ranks have met already
    }
    arguments = PPOConfig(
        output_dir="out",
        per_device_train_batch_size=run.micro_batch_size,
        num_ppo_epochs=2,
        total_episodes=2 * run.micro_batch_size * run.cluster.world_size,
        response_length=workload.completion_len,
        local_rollout_forward_batch_size=rollouts.local_rollout_forward_batch_size,
        num_sample_generations=0,
        bf16=True,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
    )
    options = {"dtype": "bfloat16", "attn_implementation": "eager"}
    prompt = list(range(3, 3 + workload.seq_len - workload.completion_len))
    iteration = 0
    with recorder.phase(0, "load"):
        policy, reference = (AutoModelForCausalLM.from_pretrained(folder, **options) for _ in range(2))
        reward, value = (
            AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, **options) for _ in range(2)
        )
        for model in (policy, reference, reward, value):
            model.config.use_cache = True  # as it is by default
        for model in (policy, value) if run.gradient_checkpointing else ():
            model.gradient_checkpointing_enable()
        trainer = PPOTrainer(
            args=arguments,
            processing_class=tokenizer,
            model=policy,
            ref_model=reference,
            reward_model=reward,
            value_model=value,
            train_dataset=Dataset.from_list([{"input_ids": prompt}] * 32),
            optimizers=(torch.optim.AdamW([*policy.parameters(), *value.parameters()], fused=True), None),
        )

    def recorded(function):
        @functools.wraps(function)
        def run(*given, **options):
            nonlocal iteration
            trains = torch.is_grad_enabled()
            iteration += trains and function is forward
            with recorder.phase(iteration + (not trains), "forward" if trains else "scoring"):
                return function(*given, **options)

        return run

    forward = ppo_trainer.forward
    for name in ("forward", "selective_log_softmax", "get_reward"):
        setattr(ppo_trainer, name, recorded(getattr(ppo_trainer, name)))
    for name in ("backward", "step"):
        setattr(deepspeed.DeepSpeedEngine, name, _in_phase(name, recorder, lambda: iteration))
    trainer.train()


def _in_phase(name, recorder, iteration):
    method = getattr(deepspeed.DeepSpeedEngine, name)

    @functools.wraps(method)
    def run(engine, *given, **options):
        with recorder.phase(iteration(), name):
            return method(engine, *given, **options)

    return run


def _saved(run, name, *, writes):
    """A model of random weights, which one rank writes, and a tokenizer of single words."""
    folder = Path(name).resolve()
    vocabulary = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{f"w{number}": number for number in range(3, 400)}}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    described = models.transformers_config(run.model | {"pad_token_id": 0, "eos_token_id": 1})
    if writes:
        AutoModelForCausalLM.from_config(described).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    torch.distributed.barrier()
    return str(folder), tokenizer
