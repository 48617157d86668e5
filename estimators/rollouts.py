"""Reinforcement learning with TRL's GRPO, RLOO and PPO: what generates the completions that are trained on, how often.

A generation makes B n completions on each training GPU, B of a micro batch and n of `steps_per_generation`, and they
are trained on `num_iterations` times. A step is rollout, scoring and training:

    rollout   weights are handed to the engine that generates, and completions are generated
    scoring   the policy's log-probabilities of them, the reference's, a reward model's output
    training  the micro batches of the optimizer step

With `num_iterations` of 1 and `steps_per_generation` at its default, the accumulation steps, each step has one rollout.

Source: TRL 1.16 trainer/grpo_trainer.py `_prepare_inputs`, `_generate_and_score_completions`, grpo_config.py,
rloo_trainer.py, generation/vllm_generation.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any, Literal

Rollout = Literal["generate", "vllm-colocate", "vllm-server"]

PROMPT_LEN = 512
"""Tokens that are assumed of a prompt: TRL's `max_prompt_length` until it was removed."""

BATCH_SIZE = 1024
"""Completions of a step that are assumed, about: DeepSeekMath's batch (arXiv:2402.03300, 4.2)."""

SERVER_MEMORY_UTILIZATION = 0.9
"""`gpu_memory_utilization` of `trl vllm-serve` (TRL 1.16 scripts/vllm_serve.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """How completions are generated and scored. The names are those of TRL's GRPOConfig."""

    rollout: Rollout = "generate"
    """"generate": transformers' `generate` by the training processes; "vllm-colocate": vLLM in the same processes;
    "vllm-server": `trl vllm-serve` on GPUs of its own."""
    num_generations: int = 8
    """G, completions of a prompt."""
    max_completion_length: int = 512
    """C, tokens of a completion; the prompt has the rest of the sequence."""
    beta: float = 0.0
    """Weight of the divergence from the reference model; 0: there is none."""
    steps_per_generation: int | None = None
    """Micro batches of a generation; None: the gradient accumulation steps."""
    num_iterations: int = 1
    """Times that each generation is trained on."""
    scores_policy: bool | None = None
    """The policy's log-probabilities are computed before the training: always (RLOO), never (PPO, which keeps the
    scores of the generation) or, None, where they are needed."""
    local_rollout_forward_batch_size: int | None = None
    """Completions that a GPU generates and scores at a time (PPO); None: all, and a micro batch."""
    reward_model: Any = None
    """A `ModelShape`, which models' own modules keep from being imported here; None: a function gives the rewards."""
    server_gpus: int = 0
    """GPUs of the server, which are not among the cluster's."""
    server_has_node: bool = False
    """They are a node of their own."""
    vllm_gpu_memory_utilization: float = 0.3
    """Part of a GPU's memory that vLLM takes."""
    vllm_tensor_parallel_size: int = 1
    vllm_enable_sleep_mode: bool = False
    """A colocated vLLM gives its memory back during the training."""
    ds3_gather_for_generation: bool = True
    """At stage 3 `generate` has the whole model gathered, not each layer for each token."""

    def micro_batches(self, gradient_accumulation_steps: int) -> int:
        """n, micro batches of a generation."""
        return self.steps_per_generation or gradient_accumulation_steps

    def per_step(self, gradient_accumulation_steps: int) -> float:
        """Rollouts of an optimizer step."""
        return gradient_accumulation_steps / (self.micro_batches(gradient_accumulation_steps) * self.num_iterations)

    def policy_passes(self, gradient_accumulation_steps: int) -> int:
        """Forward passes of the policy that score a completion: with vLLM always, for the importance sampling, else
        where a generation outlives an optimizer step."""
        if self.scores_policy is not None:
            return int(self.scores_policy)
        generated_every = self.micro_batches(gradient_accumulation_steps) * self.num_iterations
        needs = self.rollout != "generate" or gradient_accumulation_steps % generated_every
        return 1 if needs else 0

    def at_once(self, completions: int) -> int:
        """Of `completions` on a GPU, those that are generated at a time."""
        return min(completions, self.local_rollout_forward_batch_size or completions)

    def breaks_traces(self, method: str, gradient_accumulation_steps: int) -> bool:
        """Whether no backward pass at stage 3 follows a trace that was recorded.

        A trace is recorded by one micro batch and followed by the next. `generate` with gathered weights drops it, and
        the policy's scoring passes record one without a backward pass, which the first micro batch drops (TRL 1.16
        models/utils.py `add_hooks`; deepspeed 0.19.8 runtime/zero/partitioned_param_coordinator.py `reset_step`).
        """
        trained = self.micro_batches(gradient_accumulation_steps) * self.num_iterations
        scores = self.policy_passes(gradient_accumulation_steps) > 0 or (method != "full" and self.beta > 0)
        if self.rollout == "generate" and self.ds3_gather_for_generation:
            return trained < (3 if scores else 2)
        return scores and trained < 2

    def group_of(self, ranks: int) -> int:
        """Completions of each GPU in a generation are a multiple of this: every group of G is complete."""
        return self.num_generations // gcd(self.num_generations, ranks)

    def of_weights(self) -> Rollouts:
        """The fields that decide what is held at every moment, for caches."""
        return replace(
            self,
            num_generations=2,
            max_completion_length=1,
            server_gpus=0,
            server_has_node=False,
            vllm_gpu_memory_utilization=0.3,
            vllm_tensor_parallel_size=1,
        )
