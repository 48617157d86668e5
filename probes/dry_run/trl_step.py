"""The loss of an objective as TRL computes it: `compute_loss` of its trainer, on the engines of a run.

The trainer object is made without its `__init__`, which reads data and starts accelerate; it has what `compute_loss`
reads. Metrics are of this rank alone. Every token counts, and no sequence is padded.
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

from ...estimators.objectives import OBJECTIVES, ObjectiveSpec, has_reference_model
from ...estimators.workload import Workload
from ..recording.phases import PhaseRecorder
from ..run import Run
from .models import TrainableModel, imported, is_reentrant


def with_objective(
    subject: TrainableModel, run: Run, config: dict[str, Any], device: str, build: Callable[[Run], TrainableModel]
) -> TrainableModel:
    """The model with the batches and the loss of the run's objective, and with a reference model where there is one.

    build: makes a model of a run. Raises UnusableModelError without TRL.
    """
    spec = OBJECTIVES[run.workload.objective]
    if not spec.trainer:
        return subject
    trl = imported(spec.module, run.workload.objective, "trl")
    trainer_class, arguments = getattr(trl, spec.trainer), getattr(trl, spec.config)
    model: Any = subject.model
    given = {each.name: _default(each) for each in fields(arguments) if each.init} | dict(spec.arguments)
    # TRL switches checkpointing on again, with these, after a pass without gradients.
    given["gradient_checkpointing_kwargs"] = {"use_reentrant": is_reentrant(model)}
    trainer = object.__new__(trainer_class)
    vars(trainer).update(
        given,
        args=SimpleNamespace(**{**given, "steps_per_generation": 1}, device=torch.device(device)),
        model=model,
        accelerator=_Accelerator(device, config),
        ref_model=None,
        aux_loss_enabled=False,
        loss_types=given.get("loss_type"),
        loss_weights=[1.0],
        epsilon_low=given.get("epsilon"),
        epsilon_high=given.get("epsilon_high") or given.get("epsilon"),
        beta=given.get("beta") if run.workload.rollouts is None else run.workload.rollouts.beta,
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
        prepare = importlib.import_module("trl.models").prepare_deepspeed
        # Such an engine is made before the Trainer replaces `auto`, which DeepSpeed takes for a key left out.
        zero = {name: value for name, value in run.config.get("zero_optimization", {}).items() if value != "auto"}
        return prepare(model, _Accelerator(device, config | {"zero_optimization": zero}))

    if run.workload.precompute_ref_log_probs:
        # TRL leaves the engine of that pass on the policy. At stage 3 its hooks partition every layer after its forward
        # pass, also those that the training's engine would keep for the backward pass. It knows the order of the layers
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


def _default(field: Any) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


class _Accelerator:
    """accelerate's Accelerator as far as losses use it."""

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
    """Without a mask that says nothing, whose values transformers would read."""
    return positional, {name: value for name, value in named.items() if name != "attention_mask"}


def _batch(spec: ObjectiveSpec, run: Run, samples: int, device: str) -> dict[str, torch.Tensor]:
    shape = (spec.sequences * samples, run.workload.seq_len)
    ids, ones = (make(shape, dtype=torch.long, device=device) for make in (torch.zeros, torch.ones))
    batch = {"input_ids": ids, "attention_mask": ones}
    if spec.module != "trl":  # the experimental trainers put each pair together
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
    """A micro batch as the trainers keep it, each completion of full length (trl 1.16 trainer/grpo_trainer.py
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
    """The phases "rollout" and "scoring" of an iteration, where there are any. steps: gradient accumulation steps."""
    rollouts = workload.rollouts
    assert rollouts is not None
    generates = rollouts.rollout == "generate" and rollouts.ds3_gather_for_generation
    if generates and engine.zero_optimization_stage() == 3:
        utils = importlib.import_module("trl.models.utils")
        deepspeed = importlib.import_module("deepspeed")
        with recorder.phase(iteration, "rollout"), deepspeed.zero.GatheredParameters(list(engine.parameters())):
            utils.remove_hooks(engine)
            utils.add_hooks(engine)
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
