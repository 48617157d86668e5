"""The options of objectives that generate completions (GRPO, RLOO, PPO)."""

# Without `from __future__ import annotations`: the annotations are read when this module is imported.

from typing import Annotated, Literal, TypedDict

from ...estimators.rollouts import Rollout
from .option import KIBI, Count, Option


class RolloutOptions(TypedDict, total=False):
    """Completions of grpo, rloo and ppo; the names are those of TRL's GRPOConfig."""

    rollout: Annotated[
        Literal["auto", Rollout],
        Option(
            "Generation by transformers' generate, vLLM on the training GPUs, or a vLLM server on other GPUs of "
            "--gpus; auto: the fastest that fits.",
            "auto",
            title="Generation",
        ),
    ]
    server_gpus: Annotated[
        Count | None,
        Option(
            "Number of GPUs of --gpus for the vLLM server.",
            default_text="the fastest split",
            title="vLLM server's GPUs",
        ),
    ]
    num_generations: Annotated[
        Count | None, Option("Completions of each prompt.", default_text="8; rloo: 2", title="Completions per prompt")
    ]
    max_completion_length: Annotated[
        Count | None,
        Option(
            "Tokens of a completion; the prompt has the rest of --seq-len.",
            default_text="512; ppo: 53",
            kilo=KIBI,
            title="Completion length",
        ),
    ]
    beta: Annotated[
        float | None,
        Option(
            "Weight of the KL divergence from a reference model; 0: no reference model.",
            metavar="X",
            default_text="0; rloo and ppo: 0.05",
            title="KL weight (beta)",
        ),
    ]
    steps_per_generation: Annotated[
        Count | None, Option("Micro batches of a generation.", default_text="the accumulation steps, or fewer that fit")
    ]
    num_iterations: Annotated[
        Count | None,
        Option("Number of training passes over a generation.", default_text="1; ppo: 4", title="Training passes"),
    ]
    local_rollout_forward_batch_size: Annotated[
        Count | None,
        Option(
            "Completions per GPU that ppo generates and scores at a time.",
            default_text="64, or fewer that fit",
            title="Completions at a time",
        ),
    ]
    reward_model: Annotated[
        str | None,
        Option(
            "Model that gives the rewards.",
            metavar="MODEL",
            default_text="a function; ppo: a model of the policy's size",
        ),
    ]
    vllm_gpu_memory_utilization: Annotated[
        float | None,
        Option(
            "Fraction of a training GPU's memory for vLLM.",
            metavar="SHARE",
            default_text="0.3",
            title="vLLM memory share",
        ),
    ]
    vllm_tensor_parallel_size: Annotated[
        Count | None,
        Option(
            "Number of GPUs of a vLLM engine.",
            default_text="the fewest that fit the model",
            title="vLLM GPUs per engine",
        ),
    ]
    vllm_enable_sleep_mode: Annotated[
        Literal["auto", "on", "off"],
        Option(
            "Free the memory of a colocated vLLM during training (sleep mode); auto: if that is faster.",
            "auto",
            title="vLLM sleep mode",
        ),
    ]
    ds3_gather_for_generation: Annotated[
        Literal["on", "off"],
        Option(
            "At stage 3, gather all weights for generate; off: one layer at a time.", "on", title="Gathered weights"
        ),
    ]
