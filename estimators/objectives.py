"""Training objectives (next-token loss, preferences, rewards, returns of completions), and the loss kernels over the
vocabulary with the backends that offer them.

Each is a row that memory, time and scripts look up. A row of an objective follows a trainer of TRL. With B samples in a
micro batch, a forward pass computes `sequences` B sequences, so activations and products are those of a micro batch of
that size (`in_sequences`). A reference model is a second DeepSpeed engine without optimizer: at stage 3 if the policy
is, otherwise at stage 0, whole on every GPU. With adapters there is no reference model: the policy runs again with its
adapters switched off. `precompute_ref_log_probs` avoids both.

Source: TRL 1.16 trainer/dpo_trainer.py, kto_trainer.py, reward_trainer.py (`_compute_loss`, `compute_loss`),
experimental/orpo/orpo_trainer.py, experimental/cpo/cpo_trainer.py (`concatenated_forward`), models/utils.py
`prepare_deepspeed`; TRL 1.12 experimental/ppo/ppo_trainer.py (1.13 removed it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from .errors import WorkloadError
from .hardware import Gpu
from .models.families import supports
from .models.heads import with_labels, without_head
from .models.model_shape import ModelShape, Tensor
from .plan import Plan
from .rollouts import Rollouts
from .workload import NEXT_TOKEN, Framework, LossKernel, Objective, Software, Workload


class LossSpec(NamedTuple):
    logit_bytes: tuple[int, int]
    """Bytes per logit that the forward and the backward pass move through GPU memory."""
    makes_logits: bool
    """Whether all logits exist at the same time. The model's output then holds them."""
    recomputes_head: bool = False
    """Whether the backward pass repeats the product of the output layer."""
    in_triton: bool = False
    """Whether it is a kernel in Triton, which old GPUs do not run."""
    switch: str = ""
    """The package it needs, or the function that turns it on, besides an argument; "" if it needs more than that."""


LOSSES: Mapping[LossKernel, LossSpec] = MappingProxyType(
    {
        # transformers' ForCausalLMLoss: upcast to fp32 (2 + 4), log-softmax (4 + 4); backward softmax gradient (4 + 4
        # + 4), back to 2 bytes (4 + 2), its read by the head's products (2 + 2).
        "standard": LossSpec((14, 22), True),
        # Liger's fused linear cross entropy: logits of a chunk in the compute dtype, overwritten by their gradient.
        "fused": LossSpec((4, 8), False, in_triton=True, switch="pip install liger-kernel"),
        # flash-attn, unsloth: the gradient is written over the logits.
        "in-place": LossSpec((4, 8), True, in_triton=True),
        # litgpt, torchtune: the passes of the standard loss, with an fp32 copy of a part at a time.
        "chunked": LossSpec((14, 22), True),
        # DeepSpeed's install_chunked_causal_lm_loss (0.19.8 runtime/chunked_cross_entropy.py): one kernel reads the
        # logits (2 + 2 with their write); backward one reads them and writes their gradient (2 + 2), which the head's
        # products read (2 + 2).
        "chunked-softmax": LossSpec((4, 8), True, in_triton=True, switch="install_chunked_causal_lm_loss"),
        # TRL's add_fused_lm_head (1.16 kernels/chunked_logprob.py): a tile of logits written and read (2 + 2);
        # backward written and read again, overwritten by its gradient, which the head's products read (4 + 2 + 4).
        "chunked-head": LossSpec((4, 10), False, recomputes_head=True),
        # TRL's selective_log_softmax (1.16 kernels/logprob_entropy.py) of the logits without the last token: read once;
        # backward read, their gradient written, put among zeros (2 + 2 + 2) and read by the head's products (2 + 2).
        "log-probs": LossSpec((4, 14), True),
        # The same, and the cross entropy of the chosen half in 16 bits (experimental/orpo): copied, log-softmax;
        # backward two gradients, put among zeros twice and added.
        "odds-ratio": LossSpec((8, 28), True),
        # LLaMA-Factory's reward models: logits and their fp32 copy, which nothing reads (2 + 2 + 4).
        "value-head": LossSpec((8, 0), False),
        # DeepSpeed's sequence_tiled_compute: the standard loss of a tile, with its forward pass again.
        "tiled": LossSpec((14, 36), False, recomputes_head=True),
    }
)
"""The kernels by the values of `Workload.loss`. Each is exact."""

UPCAST_HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
"""Classes with a loss through `loss_function`, which upcasts; others pass bf16 logits to CrossEntropyLoss."""

NATIVE_HEADS = frozenset(
    [
        "BertForMaskedLM",
        "DebertaForMaskedLM",
        "DebertaV2ForMaskedLM",
        "MT5ForConditionalGeneration",
        "RobertaForMaskedLM",
        "T5ForConditionalGeneration",
        "WhisperForConditionalGeneration",
    ]
)
"""Exceptions among `UPCAST_HEADS`."""

_CAUSAL_LOSSES: tuple[LossKernel, ...] = ("fused", "chunked-softmax", "chunked-head")

CHUNKS_THE_HEAD = (1, 7)
"""First TRL whose trainers compute log-probabilities through a chunked head (trl/trainer/utils.py
`add_fused_lm_head`)."""


LAST_TRL_WITH_PPO = (1, 12)
"""Version of TRL whose successor removed PPOTrainer (huggingface/trl pull request 7020)."""

LIGER_LAYERS_ALONE = (1, 15)
"""First TRL whose trainers take only the kernels of layers from `use_liger_kernel`, and keep their own loss (trl 1.15
trainer/sft_trainer.py, grpo_trainer.py `__init__`)."""


def upcasts(model: ModelShape) -> bool:
    """Return whether the standard loss makes an fp32 copy of the logits."""
    return model.architecture.endswith(UPCAST_HEADS) and model.architecture not in NATIVE_HEADS


def default_loss(framework: Framework, software: Software) -> LossKernel:
    """Return the trainer's loss kernel without an argument."""
    # transformers' Trainer and plain DeepSpeed compute the loss inside the model, which always makes the logits.
    return "chunked-head" if framework == "trl" and software.trl >= CHUNKS_THE_HEAD else "standard"


def offered_loss(model: ModelShape, workload: Workload, gpu: Gpu) -> LossKernel | None:
    """Return the loss that one argument or line turns on instead of the backend's standard one; None without one.

    The Trainer and TRL before 1.7: `use_liger_kernel`, for the families that Liger knows. deepspeed.initialize:
    `install_chunked_causal_lm_loss`.
    """
    if workload.objective != NEXT_TOKEN:
        return None
    offered: LossKernel = "fused" if workload.uses_trainer else "chunked-softmax"
    return offered if workload.loss == "standard" and unusable_loss(model, offered, gpu) is None else None


def unusable_loss(model: ModelShape, loss: LossKernel, gpu: Gpu) -> str | None:
    """Return why a model cannot train with a loss on a GPU; None if it can. Tiles:
    `memory.activations.loss.untileable`."""
    if LOSSES[loss].in_triton and gpu.obstacle_to_triton is not None:
        return gpu.obstacle_to_triton
    if loss not in _CAUSAL_LOSSES:
        return None
    if not model.vocab_size or model.num_labels:
        return f"{model.name} has no head over the vocabulary"
    if loss == "fused" and not supports(model, "liger"):
        return f"Liger does not patch {model.model_type} models"
    # Both replacements shift labels by one token and take an fp32 loss, as `ForCausalLMLoss` does.
    if loss != "fused" and (not upcasts(model) or model.architecture.endswith("ForMaskedLM")):
        return "it replaces the loss of causal language models only"
    return None


class ObjectiveSpec(NamedTuple):
    sequences: int = 1
    """Sequences of a sample: 2 for a pair of a chosen and a rejected answer."""
    sample: str = "sample"
    """Printed name of a sample."""
    least_samples: int = 1
    """Minimum samples of a micro batch. KTO needs two, because it pairs each with the answer of another."""
    policy_passes: int = 0
    """Forward passes of the policy without gradients (KTO's estimate of the divergence)."""
    reference_passes: int = 0
    """Forward passes of the reference model in a micro batch."""
    labels: int | None = None
    """Width of a head that replaces the vocabulary's; 0 without any head; None for a language model."""
    value_model: bool = False
    """Whether a separate model predicts a value for every token, and trains with the policy as one module."""
    loss: LossKernel | None = None
    """The trainer's loss; None for the framework's default."""
    module: str = "trl"
    trainer: str = ""
    """Class of the trainer; "" for the framework's own."""
    arguments: Mapping[str, Any] = MappingProxyType({})
    """Arguments of its configuration that select the objective."""
    rollouts: Rollouts | None = None
    """Defaults of the generation, for training on generated completions; None for other objectives. Passes without
    gradients then run before the training (`Rollouts`)."""
    lacks: frozenset[str] = frozenset()
    """Fields of `Rollouts` that the trainer's configuration does not have under any name."""

    @property
    def losses(self) -> tuple[LossKernel, ...]:
        """The losses that the objective supports. Preferences support those that compute log-probabilities ("standard":
        log-softmax of all logits in fp32, as in LLaMA-Factory's trainers)."""
        if not self.trainer:
            if self.labels is not None:
                return ("standard",)
            return tuple(loss for loss in LOSSES if loss not in ("log-probs", "odds-ratio", "value-head"))
        if self.rollouts:
            return ("chunked-head", "log-probs") if self.loss is None else (self.loss,)
        return ("standard", "value-head") if self.labels else ("standard", "chunked-head", "log-probs", "odds-ratio")

    @property
    def config(self) -> str:
        """The class of the trainer's arguments."""
        return self.trainer.replace("Trainer", "Config")


_PAIR = ObjectiveSpec(sequences=2, sample="pair")
_COMPLETION = ObjectiveSpec(sample="completion", lacks=frozenset({"local_rollout_forward_batch_size"}))

OBJECTIVES: Mapping[Objective, ObjectiveSpec] = MappingProxyType(
    {
        NEXT_TOKEN: ObjectiveSpec(),
        "classification": ObjectiveSpec(labels=2, loss="standard"),
        "embedding": _PAIR._replace(labels=0, loss="standard"),
        "dpo": _PAIR._replace(reference_passes=1, trainer="DPOTrainer"),
        # Policy and reference both process the micro batch, and its answers paired with other prompts.
        "kto": ObjectiveSpec(least_samples=2, policy_passes=1, reference_passes=2, trainer="KTOTrainer"),
        "orpo": _PAIR._replace(loss="odds-ratio", module="trl.experimental.orpo", trainer="ORPOTrainer"),
        "simpo": _PAIR._replace(
            loss="log-probs",
            module="trl.experimental.cpo",
            trainer="CPOTrainer",
            arguments=MappingProxyType({"loss_type": "simpo", "cpo_alpha": 0.0}),
        ),
        "reward": _PAIR._replace(labels=1, loss="standard", trainer="RewardTrainer"),
        "grpo": _COMPLETION._replace(trainer="GRPOTrainer", rollouts=Rollouts()),
        "rloo": _COMPLETION._replace(
            trainer="RLOOTrainer", rollouts=Rollouts(num_generations=2, beta=0.05, scores_policy=True)
        ),
        "ppo": _COMPLETION._replace(
            loss="log-probs",
            value_model=True,
            module="trl.experimental.ppo",
            trainer="PPOTrainer",
            rollouts=Rollouts(
                num_generations=1,
                max_completion_length=53,
                beta=0.05,
                num_iterations=4,
                scores_policy=False,
                local_rollout_forward_batch_size=64,
            ),
            lacks=frozenset({"rollout", "server_gpus", "num_generations", "steps_per_generation"})
            | {"vllm_gpu_memory_utilization", "vllm_tensor_parallel_size", "vllm_enable_sleep_mode"},
        ),
    }
)
"""The objectives by the values of `Workload.objective`."""


def framework_loss(objective: Objective, framework: Framework, software: Software) -> LossKernel:
    """Return the loss of an objective without an argument. TRL before 1.7 computes log-probabilities of preferences
    from all logits."""
    spec = OBJECTIVES[objective]
    if not spec.trainer:
        return spec.loss or default_loss(framework, software)
    default = spec.loss or default_loss("trl", software)
    return "log-probs" if default == "standard" and not spec.labels else default


def liger_loss(objective: Objective, framework: Framework, software: Software) -> LossKernel:
    """Return the loss of an objective under `use_liger_kernel`. Raises WorkloadError for the losses of preferences and
    completions that TRL before 1.15 takes from Liger."""
    spec, own = OBJECTIVES[objective], framework_loss(objective, framework, software)
    if spec.labels is not None or (framework == "trl" and software.trl >= LIGER_LAYERS_ALONE):
        return own
    if not spec.trainer:
        return "fused"
    raise WorkloadError(
        "not predicted: Liger's fused loss of preferences and completions",
        why=f"use_liger_kernel of TRL before 1.15 takes it for {spec.trainer}",
        fix="leave use_liger_kernel out, or use TRL 1.15 or newer",
    )


def in_sequences(plan: Plan, workload: Workload) -> Plan:
    """Return the plan with its micro batch size in sequences instead of samples, as the passes compute it."""
    sequences = OBJECTIVES[workload.objective].sequences
    # TRL concatenates chosen and rejected answers into one batch, so the model sees pairs as two sequences.
    return plan if sequences == 1 else plan.replace_fields(micro_batch_size=sequences * plan.micro_batch_size)


def reference_passes(workload: Workload) -> int:
    """Return the reference's forward passes in a micro batch, by a separate model or the policy without adapters.
    Completions are passed once per generation."""
    if workload.rollouts:
        # PPO computes the reference's log-probabilities even with a KL coefficient of 0.
        return 1 if workload.rollouts.beta > 0 or OBJECTIVES[workload.objective].value_model else 0
    return 0 if workload.precompute_ref_log_probs else OBJECTIVES[workload.objective].reference_passes


def policy_passes(workload: Workload) -> int:
    """Return the policy's forward passes without gradients in a micro batch."""
    return OBJECTIVES[workload.objective].policy_passes


def has_reference_model(workload: Workload) -> bool:
    """Return whether the GPUs hold a reference model in addition to the policy."""
    # With adapters the policy without them is the reference (`disable_adapter`), so no second model is loaded.
    return workload.method == "full" and reference_passes(workload) > 0


def breaks_traces(workload: Workload, plan: Plan) -> bool:
    """Return whether the policy also runs forward without gradients. Each forward pass begins a new trace of modules at
    stage 3 (deepspeed 0.19.8 runtime/zero/parameter_offload.py `_start_of_forward_hook`). Backward passes are then not
    part of any trace: they prefetch nothing, and no weight is kept for them."""
    if workload.rollouts:
        return workload.rollouts.breaks_traces(workload.method, plan.gradient_accumulation_steps)
    return policy_passes(workload) > 0 or (reference_passes(workload) > 0 and workload.method != "full")


def keeps_gathered(workload: Workload, plan: Plan) -> bool:
    """Return whether stage 3 keeps the frozen weights that a backward pass gathers. It does if a preference's reference
    is the policy without adapters, which runs between the policy's forward and backward pass (trl 1.16
    trainer/dpo_trainer.py, trainer/kto_trainer.py `_compute_loss`; `memory.gathered_parameters` rule 5). Before
    DeepSpeed 0.19 a recomputed layer releases them itself."""
    if plan.zero_stage < 3 or workload.method == "full" or workload.rollouts or not reference_passes(workload):
        return False
    return workload.software.deepspeed >= (0, 19) or not plan.gradient_checkpointing


def reference_plan(plan: Plan) -> Plan:
    """Return the plan of the reference model's engine: stage 3 with the policy's settings, or stage 0; no optimizer.

    Source: TRL 1.16 models/utils.py `prepare_deepspeed`.
    """
    if plan.zero_stage == 3:
        return plan.replace_fields(offload_optimizer="none", offload_optimizer_ratio=1.0, gradient_checkpointing=False)
    return plan.replace_fields(zero_stage=0, offload_optimizer="none", gradient_checkpointing=False)


@lru_cache(maxsize=64)
def reward_workload(workload: Workload) -> Workload:
    """Return the workload of the policy's reward model, which runs whole and frozen on all completions."""
    return Workload(
        objective="reward",
        framework="trl",
        seq_len=workload.seq_len,
        precision=workload.precision,
        attention=workload.attention,
        software=workload.software,
    )


@lru_cache(maxsize=64)
def trained_model(model: ModelShape, objective: Objective, loss: str = "auto") -> ModelShape:
    """Return the model with the head of the objective. For rewards, `score` with one number per token replaces the
    logits. With the loss "value-head" the logits are also computed, and dropped. With a value model, the result has the
    tensors and layers of both; the value model is a reward model of the policy's size.

    Source: transformers 5.23 modeling_layers.py GenericForSequenceClassification; TRL 1.12 experimental/ppo
    `PolicyAndValueWrapper`, `AutoModelForCausalLMWithValueHead`. Raises WorkloadError for a model that is not a causal
    language model.
    """
    spec = OBJECTIVES[objective]
    if spec.value_model and not model.policy:
        value = trained_model(model, "reward")
        blocks, outside = (*model.blocks, *value.blocks), (*model.outside, *value.outside)
        return replace(model, policy=model, blocks=blocks, outside=outside)
    if spec.labels is None or model.module:
        return model
    if spec.labels == 0:
        return without_head(model)
    if model.num_labels:
        return model
    if spec.trainer and not model.architecture.endswith(("ForCausalLM", "LMHeadModel")):
        raise WorkloadError(
            f"a {objective} model of {model.name} is not known",
            why="only causal language models have heads for rewards",
            fix="pass another model, or another --objective",
        )
    if loss == "value-head":
        # The language model's head stays in memory beside the value head, though nothing reads its logits.
        others = (each._replace(role="other") if each.role == "head" else each for each in model.outside)
        bias, width = Tensor("v_head.summary.bias", (spec.labels,), "other"), (spec.labels, model.hidden_size)
        head = Tensor("v_head.summary.weight", width, "head", linear=True)
        return replace(model, num_labels=spec.labels, tied=False, outside=(*others, bias, head))
    return with_labels(model, spec.labels)


def reward_model(model: ModelShape, workload: Workload) -> ModelShape | None:
    """Return the model that computes the rewards of completions: the named one, or one of the value model's size; None
    if a function computes them."""
    named: ModelShape | None = workload.rollouts.reward_model if workload.rollouts else None
    return named or (trained_model(model.policy, "reward") if model.policy else None)


def trained_config(config: Mapping[str, Any], shape: ModelShape | None, objective: Objective) -> dict[str, Any]:
    if OBJECTIVES[objective].labels is None or shape is None or shape.module:
        return dict(config)
    trained = trained_model(shape, objective)
    names = {str(index): f"LABEL_{index}" for index in range(trained.num_labels)}
    # transformers' classifiers find a sequence's last token by its padding, and refuse batches without such a token.
    padding = {"pad_token_id": config.get("pad_token_id") or 0}  # otherwise batches have one sequence
    return {**config, **padding, "architectures": [trained.architecture], **({"id2label": names} if names else {})}
