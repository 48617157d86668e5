"""The loss of an objective as TRL computes it: `compute_loss` of its trainer, on the engines of a run.

The trainer object is made without its `__init__`, which reads data and starts accelerate; it has only the attributes
that `compute_loss` reads. Metrics are of this rank alone. Every token counts, and no sequence is padded.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import MISSING, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from ...ds_configs.training_script import trl_requirement
from ...estimators.objectives import OBJECTIVES, ObjectiveSpec, has_reference_model
from ...estimators.rollouts import Rollouts
from ...estimators.workload import Workload
from ..recording.phases import PhaseRecorder
from ..run import Run
from .models import TrainableModel, imported, is_reentrant


def apply_objective(
    subject: TrainableModel, run: Run, config: dict[str, Any], device: str, build: Callable[[Run], TrainableModel]
) -> TrainableModel:
    """The model with the batches and the loss of the run's objective and, if the objective has one, a reference model.

    build: makes a model from a run. Raises UnusableModelError without TRL.
    """
    spec = OBJECTIVES[run.workload.objective]
    if not spec.trainer:
        return subject
    trl = imported(spec.module, run.workload.objective, trl_requirement(run.workload))
    if spec.value_model:
        return _ppo_models(subject, run, config, device, build)
    trainer_class, arguments = getattr(trl, spec.trainer), getattr(trl, spec.config)
    model: Any = subject.model
    options = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(arguments)
        if each.init
    }
    options |= dict(spec.arguments)
    # TRL switches checkpointing on again, with these, after a pass without gradients.
    options["gradient_checkpointing_kwargs"] = {"use_reentrant": is_reentrant(model)}
    # Without `__init__`, which tokenizes a dataset and starts accelerate.
    trainer = object.__new__(trainer_class)
    vars(trainer).update(
        options,
        args=SimpleNamespace(**{**options, "steps_per_generation": 1}, device=torch.device(device)),
        model=model,
        accelerator=_Accelerator(device, config),
        ref_model=None,
        aux_loss_enabled=False,
        loss_types=options.get("loss_type"),
        loss_weights=[1.0],
        epsilon_low=options.get("epsilon"),
        epsilon_high=options.get("epsilon_high") or options.get("epsilon"),
        beta=options.get("beta") if run.workload.rollouts is None else run.workload.rollouts.beta,
        use_vllm=False,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
        calculate_KL=True,
        precompute_ref_logps=run.workload.precompute_ref_log_probs,
        is_encoder_decoder=False,
        padding_value=0,
        pad_token_id=0,
        _peft_has_been_casted_to_bf16=False,
        _stored_metrics=defaultdict(lambda: defaultdict(list)),
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    if not spec.labels and spec.loss is None:
        more = () if spec.rollouts else ("mean_logits", "is_top1")
        _chunk_the_head(model, ("log_probs", "entropy", *more))
    model.register_forward_pre_hook(_unpadded, with_kwargs=True)

    def prepared(model: Any) -> Any:
        # Such an engine is made before the Trainer replaces `auto`, which DeepSpeed treats like a missing key.
        zero = {name: value for name, value in run.config.get("zero_optimization", {}).items() if value != "auto"}
        return _prepared(model, device, config | {"zero_optimization": zero})

    if run.workload.precompute_ref_log_probs:
        # TRL leaves the engine of that pass on the policy. At stage 3 its hooks partition every layer after its forward
        # pass, including those that the training's engine would keep for the backward pass. It knows the layer order
        # after the second batch.
        trainer._precompute_engine = prepared(model)
        for _ in range(2):
            trainer.compute_ref_log_probs(
                trainer._precompute_engine, _batch(spec, run, run.micro_batch_size or 1, device)
            )
        model.train()
    if has_reference_model(run.workload):
        reference: Any = build(replace(run, gradient_checkpointing=False, cpu_checkpointing=False)).model
        _chunk_the_head(reference, ("log_probs",))
        reference.register_forward_pre_hook(_unpadded, with_kwargs=True)
        trainer.ref_model = prepared(reference)
    if run.workload.rollouts is not None:
        return replace(
            subject,
            make_batch=lambda samples: completions(run.workload, samples, device),
            engine_loss=trainer._compute_loss,
            before_training=partial(before_training, trainer, run.workload),
        )
    return replace(
        subject,
        make_batch=lambda samples: _batch(spec, run, samples, device),
        engine_loss=lambda engine, batch: trainer.compute_loss(engine, batch),
    )


def _prepared(model: Any, device: str, config: dict[str, Any]) -> Any:
    return importlib.import_module("trl.models.utils").prepare_deepspeed(model, _Accelerator(device, config))


def _ppo_models(
    subject: TrainableModel, run: Run, config: dict[str, Any], device: str, build: Callable[[Run], TrainableModel]
) -> TrainableModel:
    """TRL's PPO: policy and value model as one module, and engines of a reference and a reward model. Its loop has no
    function for the loss, so this module implements it, including the tensors that the loop holds (trl 1.12
    experimental/ppo/ppo_trainer.py `train`)."""
    ppo, rollouts = importlib.import_module("trl.experimental.ppo.ppo_trainer"), run.workload.rollouts
    assert rollouts is not None and run.shape is not None
    rewards = replace(run.workload, objective="reward", rollouts=None)
    of_value = replace(run, workload=rewards, shape=run.shape.generator)
    plain: dict[str, Any] = {"gradient_checkpointing": False, "cpu_checkpointing": False}
    policy: Any = subject.model
    value, reference, reward = (
        build(each).model for each in (of_value, replace(run, **plain), replace(of_value, **plain))
    )
    # All four live on every rank; only policy and value are trained.
    models: list[Any] = [policy, value, reference, reward]
    for model in models:
        model.config.use_cache = True  # the default, which the loop does not change
        model.register_forward_pre_hook(_unpadded, with_kwargs=True)
        getattr(model, model.base_model_prefix).register_forward_pre_hook(_unpadded, with_kwargs=True)
    wrapper = ppo.PolicyAndValueWrapper(policy, value)
    wrapper.config = policy.config
    reference, reward = (_prepared(model, device, config) for model in (reference, reward))
    length, scores = run.workload.completion_len, dict[str, Any]()

    def batch(samples: int) -> dict[str, Any]:
        ids = torch.zeros((samples, run.workload.seq_len), dtype=torch.long, device=device)
        return {"ids": ids, "per_token": torch.zeros((samples, length), device=device)}

    def loss(engine: Any, batch: dict[str, Any]) -> Any:
        ids, per_token = batch["ids"], batch["per_token"]
        output, values = ppo.forward(engine, ids, -1)
        logits = output.logits[:, -length - 1 : -1]
        logits /= 0.7
        ratio = torch.exp(ppo.selective_log_softmax(logits, ids[:, -length:]) - per_token)
        off = torch.square(values[:, -length - 1 : -1].squeeze(-1) - per_token)
        batch["held"] = (output, logits)
        return torch.max(-per_token * ratio, -per_token * ratio.clamp(0.8, 1.2)).mean() + 0.05 * off.mean()

    def before(engine: Any, recorder: PhaseRecorder, *, iteration: int, micro: int, steps: int) -> None:
        if _trains_again(rollouts, iteration):
            return
        with recorder.phase(iteration, "rollout"):
            if _gathers(rollouts, engine):
                _gather(engine)
            count = micro * rollouts.micro_batches(steps)
            scores.clear()
            scores["held"] = torch.zeros((count, length, subject.vocab_size), device=device)
        with recorder.phase(iteration, "scoring"), torch.no_grad():
            some = rollouts.at_once(count)
            ids = batch(some)["ids"]
            output = ppo.forward(reference, ids, -1)
            logits = output.logits[:, -length - 1 : -1]
            logits /= 0.7
            ppo.selective_log_softmax(logits, ids[:, -length:])
            del output, logits
            for model in (engine.module.value_model, reward):
                ppo.get_reward(model, ids, -1, run.workload.seq_len - length)

    return replace(subject, model=wrapper, make_batch=batch, engine_loss=loss, before_training=before)


def _trains_again(rollouts: Rollouts, iteration: int) -> bool:
    """Whether an iteration trains on the completions of its predecessor. Two of the `num_iterations` are run: the first
    one and the others hold different weights."""
    return rollouts.num_iterations > 1 and iteration % 2 == 0


class _Accelerator:
    """The part of accelerate's Accelerator that losses use."""

    num_processes, is_main_process = 1, True

    def __init__(self, device: str, config: dict[str, Any]) -> None:
        self.device = torch.device(device)
        self.state = SimpleNamespace(deepspeed_plugin=SimpleNamespace(deepspeed_config=config))

    def gather(self, values: Any, **_: Any) -> Any:
        return values

    gather_for_metrics = unwrap_model = reduce = gather

    def autocast(self) -> Any:
        return nullcontext()


def _chunk_the_head(model: Any, outputs: tuple[str, ...]) -> None:
    utils = importlib.import_module("trl.trainer.utils")
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    utils.add_fused_lm_head(base, outputs=outputs)


def _unpadded(_module: Any, positional: Any, named: dict[str, Any]) -> Any:
    """The batch without a mask of ones, whose values transformers would read."""
    return positional, {name: value for name, value in named.items() if name != "attention_mask"}


def _batch(spec: ObjectiveSpec, run: Run, samples: int, device: str) -> dict[str, torch.Tensor]:
    shape = (spec.sequences * samples, run.workload.seq_len)
    ids, ones = (make(shape, dtype=torch.long, device=device) for make in (torch.zeros, torch.ones))
    batch = {"input_ids": ids, "attention_mask": ones}
    if spec.module != "trl":  # the experimental trainers concatenate each pair
        parts = {**batch, "labels": ids}
        kinds = zip(("chosen", "rejected"), (slice(samples), slice(samples, None)), strict=True)
        return {f"{kind}_{name}": value[part].clone() for kind, part in kinds for name, value in parts.items()}
    if not spec.labels:
        batch["completion_mask"] = ones
    if run.workload.objective == "kto":
        batch |= {f"KL_{name}": value for name, value in batch.items()}
        batch["label"] = torch.arange(samples, device=device) % 2 == 0
    if run.workload.precompute_ref_log_probs:
        names = ("ref_logps", "ref_KL_logps") if spec.sequences == 1 else ("ref_chosen_logps", "ref_rejected_logps")
        batch |= {name: torch.zeros(samples, device=device) for name in names}
    return batch


def completions(workload: Workload, count: int, device: str) -> dict[str, Any]:
    """A micro batch in the trainers' form, with completions of full length (trl 1.16 trainer/grpo_trainer.py
    `_generate_and_score_completions`, trainer/rloo_trainer.py)."""
    rollouts = workload.rollouts
    assert rollouts is not None
    lengths = {"prompt": workload.seq_len - workload.scored_len, "completion": workload.scored_len}
    batch: dict[str, Any] = {}
    for name, length in lengths.items():
        batch[f"{name}_ids"] = torch.zeros((count, length), dtype=torch.long, device=device)
        batch[f"{name}_mask"] = torch.ones((count, length), dtype=torch.long, device=device)
    per_token = torch.zeros((count, workload.scored_len), device=device)
    batch |= {"advantages": per_token[:, 0].clone(), "num_items_in_batch": per_token.sum()}
    if rollouts.scores_policy:
        batch["old_logps"] = per_token[:, 0].clone()
    elif rollouts.policy_passes(1):
        batch["old_per_token_logps"] = per_token.clone()
    if rollouts.beta:
        batch["ref_per_token_logps"] = per_token.clone()
    return batch


def before_training(
    trainer: Any, workload: Workload, engine: Any, recorder: PhaseRecorder, *, iteration: int, micro: int, steps: int
) -> None:
    """The phases "rollout" and "scoring" of an iteration, if it has them. steps: gradient accumulation steps."""
    rollouts = workload.rollouts
    assert rollouts is not None
    if _trains_again(rollouts, iteration):
        return
    if _gathers(rollouts, engine):
        with recorder.phase(iteration, "rollout"):
            _gather(engine)
    models = [(trainer.model, nullcontext())] * rollouts.policy_passes(steps)
    if rollouts.beta:
        without = nullcontext() if trainer.ref_model is not None else trainer.model.disable_adapter()
        models.append((trainer.model if trainer.ref_model is None else trainer.ref_model, without))
    if not models:
        return
    count = micro * rollouts.micro_batches(steps)
    with recorder.phase(iteration, "scoring"), torch.no_grad():
        batch = completions(workload, count, str(trainer.accelerator.device))
        ids, mask = (
            torch.cat([batch[f"prompt_{name}"], batch[f"completion_{name}"]], dim=1) for name in ("ids", "mask")
        )
        for model, context in models:
            with context:
                trainer._get_per_token_logps_and_entropies(model, ids, mask, workload.scored_len, batch_size=micro)


def _gathers(rollouts: Rollouts, engine: Any) -> bool:
    generates = rollouts.rollout == "generate" and rollouts.ds3_gather_for_generation
    return generates and engine.zero_optimization_stage() == 3


def _gather(engine: Any) -> None:
    """Gather the whole weights, and remove and restore DeepSpeed's hooks, as around `generate`."""
    utils = importlib.import_module("trl.models.utils")
    deepspeed = importlib.import_module("deepspeed")
    with deepspeed.zero.GatheredParameters(list(engine.parameters())):
        utils.remove_hooks(engine)
        utils.add_hooks(engine)
