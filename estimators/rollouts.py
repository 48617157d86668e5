"""Reinforcement learning with TRL's GRPO, RLOO and PPO: how, and how often, completions are generated.

A generation yields B n completions per training GPU, with B the micro batch size and n `steps_per_generation`. Each is
trained on `num_iterations` times. A step consists of rollout, scoring and training:

    rollout   weights are sent to the generation engine, which generates completions
    scoring   log-probabilities of the completions by policy and reference, a reward model's output
    training  the micro batches of the optimizer step

With `num_iterations` of 1 and `steps_per_generation` at its default, the accumulation steps, each step has one rollout.
With a k-th of the accumulation steps it has k, and the same completions, which are still those of the step's policy.

Source: TRL 1.16 trainer/grpo_trainer.py `_prepare_inputs`, `_generate_and_score_completions`, grpo_config.py,
rloo_trainer.py, generation/vllm_generation.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any, Literal

Rollout = Literal["generate", "vllm-colocate", "vllm-server"]

PROMPT_LEN = 512
"""Assumed tokens of a prompt: TRL's default of `max_prompt_length` until it was removed."""

BATCH_SIZE = 1024
"""Assumed approximate completions of a step: DeepSeekMath's batch (arXiv:2402.03300, 4.2). If it does not fit, half of
it, a quarter, and so on."""

SERVER_MEMORY_UTILIZATION = 0.9
"""`gpu_memory_utilization` of `trl vllm-serve` (TRL 1.16 scripts/vllm_serve.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """Settings for generating and scoring completions. The names are those of TRL's GRPOConfig."""

    rollout: Rollout = "generate"
    """"generate": transformers' `generate` by the training processes; "vllm-colocate": vLLM in the same processes;
    "vllm-server": `trl vllm-serve` on separate GPUs."""
    num_generations: int = 8
    """G, completions of a prompt."""
    max_completion_length: int = 512
    """C, tokens of a completion. The prompt takes the rest of the sequence."""
    beta: float = 0.0
    """Weight of the KL divergence from the reference model; 0 for no reference model."""
    steps_per_generation: int | None = None
    """Micro batches of a generation; None for the gradient accumulation steps / `generations_per_step`."""
    generations_per_step: int = 1
    """Equal parts in which the completions of an optimizer step are generated; divides the accumulation steps."""
    num_iterations: int = 1
    """Number of times that each generation is trained on."""
    scores_policy: bool | None = None
    """Whether the policy's log-probabilities are computed before the training: True in RLOO, False in PPO, which keeps
    the scores of the generation. None if only where they are needed."""
    local_rollout_forward_batch_size: int | None = None
    """Completions that a GPU generates and scores at a time (PPO). None to generate all, and score a micro batch."""
    reward_model: Any = None
    """The reward model, a `ModelShape` (importing the type would be circular); None if a function gives the rewards."""
    server_gpus: int = 0
    """GPUs of the server, in addition to the cluster's."""
    server_has_node: bool = False
    """Whether the server's GPUs are a separate node."""
    vllm_gpu_memory_utilization: float = 0.3
    """Share of a GPU's memory that vLLM takes."""
    vllm_tensor_parallel_size: int = 1
    vllm_enable_sleep_mode: bool = False
    """Whether a colocated vLLM releases its memory during the training."""
    ds3_gather_for_generation: bool = True
    """Whether `generate` at stage 3 gathers the whole model once, instead of each layer for each token."""

    def micro_batches(self, gradient_accumulation_steps: int) -> int:
        return self.steps_per_generation or max(1, gradient_accumulation_steps // self.generations_per_step)

    def as_in_trl(self, gradient_accumulation_steps: int) -> Rollouts:
        """Return the same settings without `generations_per_step`, which TRL takes as `steps_per_generation`."""
        if self.generations_per_step == 1:
            return self
        steps = self.micro_batches(gradient_accumulation_steps)
        return replace(self, steps_per_generation=steps, generations_per_step=1)

    def per_step(self, gradient_accumulation_steps: int) -> float:
        return gradient_accumulation_steps / (self.micro_batches(gradient_accumulation_steps) * self.num_iterations)

    def policy_passes(self, gradient_accumulation_steps: int) -> int:
        """Return the policy's forward passes that score a completion: one with vLLM, for importance sampling, or if a
        generation spans several optimizer steps."""
        if self.scores_policy is not None:
            return int(self.scores_policy)
        generated_every = self.micro_batches(gradient_accumulation_steps) * self.num_iterations
        # Otherwise the policy is still that of the generation, and the training pass gives the old log-probabilities.
        needs = self.rollout != "generate" or gradient_accumulation_steps % generated_every
        return 1 if needs else 0

    def at_once(self, completions: int) -> int:
        """Return how many of a GPU's `completions` are generated at a time."""
        return min(completions, self.local_rollout_forward_batch_size or completions)

    def breaks_traces(self, method: str, gradient_accumulation_steps: int) -> bool:
        """Return whether stage 3 runs its backward passes without a recorded trace.

        A trace is recorded by one micro batch and followed by the next. `generate` with gathered weights drops it, and
        the policy's scoring passes record one without a backward pass, which the first micro batch drops (TRL 1.16
        models/utils.py `add_hooks`; deepspeed 0.19.8 runtime/zero/partitioned_param_coordinator.py `reset_step`).
        """
        trained = self.micro_batches(gradient_accumulation_steps) * self.num_iterations
        scores = self.policy_passes(gradient_accumulation_steps) > 0 or (method != "full" and self.beta > 0)
        if self.rollout == "generate" and self.ds3_gather_for_generation:
            # One micro batch records the trace and the next ones follow it; scoring passes spoil one more.
            return trained < (3 if scores else 2)
        return scores and trained < 2

    def group_size(self, ranks: int) -> int:
        """Return the number that a GPU's completions in a generation must be a multiple of, to complete groups of G."""
        return self.num_generations // gcd(self.num_generations, ranks)

    def weights_cache_key(self) -> Rollouts:
        """Return a cache key: the fields that determine what is held at every moment."""
        return replace(
            self,
            num_generations=2,
            max_completion_length=1,
            server_gpus=0,
            server_has_node=False,
            vllm_gpu_memory_utilization=0.3,
            vllm_tensor_parallel_size=1,
        )
