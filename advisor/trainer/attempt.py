"""One run of the ranks, and the one that follows it where memory ran out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...ds_configs.emit import ds_config
from ...ds_configs.training_arguments import training_arguments
from ...estimators.estimate import Estimate
from ...probes.run import Run
from ..launch.other_plans import next_plan
from ..launch.request import Outcome
from ..question.question import Question
from .checkpoints import newest_whole
from .job import Job
from .output import Output

ATTEMPTS = 4
"""Plans that are tried one after the other, as many as `launch` tries."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What the ranks run: their job, the DeepSpeed configuration, and what is predicted for its plan."""

    job: Job
    config: Mapping[str, Any]
    estimate: Estimate

    def with_less_memory(self, question: Question, outcome: Outcome, output: Output) -> Attempt | None:
        """The fastest plan that needs less of what ran out, with the same global batch, from the last whole checkpoint.

        None where it was not memory that failed, or where no such plan fits. Once there is a checkpoint, only plans
        that can read it count: nothing that was trained is dropped in silence.
        """
        if outcome.failure is None:
            return None
        checkpoint, plan = newest_whole(output.path), self.estimate.plan
        run = Run.of_plan(plan, question.model, question.workload, question.cluster)
        candidate = next_plan(
            run, self.estimate, outcome.failure.kind, reads_checkpoint_of=plan if checkpoint else None
        )
        if candidate is None:
            return None
        new = candidate.estimate.plan
        config = ds_config(new, question.model, question.workload, question.cluster, flavor="hf")
        arguments = training_arguments(new, question.workload, config_path=str(output.ds_config))
        del arguments["output_dir"]
        if "per_device_eval_batch_size" in self.job.arguments:
            arguments["per_device_eval_batch_size"] = new.micro_batch_size
        gathers = config["zero_optimization"].get("stage3_gather_16bit_weights_on_model_save", True)
        return Attempt(
            config=config,
            estimate=candidate.estimate,
            job=replace(
                self.job,
                arguments={**self.job.arguments, **arguments},
                gathers=gathers,
                checkpoint=str(checkpoint) if checkpoint else None,
            ),
        )
