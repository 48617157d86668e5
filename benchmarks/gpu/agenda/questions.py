"""Eight questions whose strategies are all really run: is the recommended plan the fastest?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ds_advise.advisor.question.question import Question
from ds_advise.advisor.search.candidate import LadderStep
from ds_advise.advisor.search.choice import fastest_that_fits
from ds_advise.advisor.search.search import predict_all
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.workload import LossKernel, Method

from ..configuration import Configuration

STEPS = 5
"""Optimizer steps of a run; the first is not timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question about one GPU."""

    model: str
    method: Method = "full"
    seq_len: int = 2048
    loss: LossKernel = "standard"

    @property
    def name(self) -> str:
        fused = ", fused loss" * (self.loss == "fused")
        return f"{self.model} {self.method}, {self.seq_len} tokens{fused}"

    def question(self, cluster: Cluster) -> Question:
        model = self.configuration
        return Question(model=model.shape, workload=model.workload, cluster=cluster)

    @property
    def configuration(self) -> Configuration:
        """Without a plan that matters."""
        return Configuration(
            model=self.model,
            strategy="ddp",
            method=self.method,
            seq_len=self.seq_len,
            loss=self.loss,
            steps=STEPS,
        )

    def of_step(self, step: LadderStep) -> Configuration | None:
        """The run of a strategy's best plan; None where the strategy has none."""
        if step.candidate is None:
            return None
        plan = step.candidate.plan
        return replace(
            self.configuration,
            strategy=step.strategy,
            micro_batch_size=plan.micro_batch_size,
            gradient_accumulation_steps=plan.gradient_accumulation_steps,
            gradient_checkpointing=plan.gradient_checkpointing,
        )


QUESTIONS = (
    Asked(model="Qwen2.5-0.5B"),
    Asked(model="Llama-3.2-1B", seq_len=4096),
    Asked(model="Qwen2.5-7B", method="lora"),
    Asked(model="Qwen2.5-3B"),
    Asked(model="gemma-2-2b", seq_len=1024),
    Asked(model="Qwen2.5-1.5B", seq_len=8192, loss="fused"),
    Asked(model="Qwen2.5-14B", method="lora", seq_len=1024),
    Asked(model="Llama-3.2-3B", seq_len=512),
)


def in_order(cluster: Cluster, asked: Iterable[Asked] = QUESTIONS) -> list[Configuration]:
    """Every question's recommended plan, then every question's next fastest by prediction, and so on; what is said not
    to fit comes last, so that the prediction can be wrong in this way too."""
    by_place: list[list[Configuration]] = []
    for one in asked:
        ladder, _ = predict_all(one.question(cluster))
        recommended = fastest_that_fits(ladder)
        steps = sorted(
            (step for step in ladder if step.candidate is not None),
            key=lambda step: (step.candidate is not recommended, not step.taken, -step.candidate.tokens_per_s),  # type: ignore[union-attr]
        )
        runs = dict.fromkeys(filter(None, (one.of_step(step) for step in steps)))
        for place, run in enumerate(runs):
            by_place += [[]] * (place + 1 - len(by_place))
            by_place[place] = [*by_place[place], run]
    return [run for runs in by_place for run in runs]
