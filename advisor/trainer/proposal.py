"""From data and a question to a training that is ready to be checked: samples, recommendation, steps, the ranks'
job."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...ds_configs.emit import ds_config
from ...ds_configs.training_arguments import training_arguments
from ...estimators.errors import ClusterError, ModelConfigError, WorkloadError
from ...estimators.models.model_shape import ModelShape
from ...estimators.workload import Workload
from ..advise import advise
from ..recommend.recommendation import Recommendation
from . import choices
from .check import KEPT_CHECKPOINTS, missing_package
from .data.prepare import DataFile, Samples, cut, prepare
from .job import Job
from .model_files import load_tokenizer
from .output import Output
from .settings import Settings


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A training before it starts. steps: optimizer steps in all."""

    settings: Settings
    output: Output
    data: DataFile
    evaluation: DataFile | None
    samples: Samples
    answer: Recommendation
    steps: int
    learning_rate: float

    @property
    def seconds(self) -> float:
        """Predicted duration, with every sample as long as the average one."""
        assert self.answer.recommended is not None
        return self.steps * self.answer.recommended.estimate.time.step_s * self.samples.fill


def propose(
    settings: Settings, shape: ModelShape, question: Mapping[str, Any], output: Output, say: Callable[[str], None]
) -> Proposal:
    """Prepare the data in `output.records`, and ask for the fastest plan that trains on them.

    question: keyword arguments of `advise` besides the model; `seq_len` and `global_batch` of None follow from the
        data.

    Raises DsAdviseError for data, a model or options that cannot be trained with.
    """
    _check_model(shape)
    tokenizer = load_tokenizer(settings.model, shape, offline=settings.offline)

    def prepared(path: Path, name: str) -> DataFile:
        return prepare(
            path,
            tokenizer,
            output.records / name,
            shape=settings.shape,
            system=settings.system,
            on_rows=lambda rows: say(f"{path.name}: {rows:,} rows ...") if rows % 100_000 == 0 else None,
        )

    data = prepared(settings.data, "tokens")
    evaluation = prepared(settings.evaluation_data, "evaluation_tokens") if settings.evaluation_data else None
    tokenizer.save_pretrained(str(output.records / "tokenizer"))
    _check_vocabulary(data, shape)
    wanted = question["seq_len"]
    seq_len = wanted or choices.sequence_length(data, evaluation, shape, packing=settings.packing)
    samples = cut(
        data,
        output.records,
        seq_len=seq_len,
        packing=settings.packing,
        seed=settings.seed,
        evaluation_share=settings.evaluation_share,
        evaluation=evaluation,
    )
    answer = _answer(settings, shape, {**question, "seq_len": seq_len}, samples)
    if settings.rung is not None:
        answer = _on_rung(answer, settings.rung)
    batch = _global_batch(answer)
    workload = answer.question.workload
    return Proposal(
        settings=settings,
        output=output,
        data=data,
        evaluation=evaluation,
        samples=samples,
        answer=answer,
        steps=choices.total_steps(
            samples.train_samples,
            batch,
            max_steps=settings.max_steps,
            epochs=settings.epochs if settings.epochs is not None else choices.EPOCHS,
        ),
        learning_rate=settings.learning_rate or choices.LEARNING_RATES[workload.method],
    )


def _answer(settings: Settings, shape: ModelShape, question: dict[str, Any], samples: Samples) -> Recommendation:
    cluster = question["gpus"]
    if question["global_batch"] is None:
        question["global_batch"] = choices.global_batch(
            samples.train_samples, ranks=cluster.world_size, micro_batch=question["micro_batch"]
        )
    answer = advise(shape, **question, deepspeed_estimate=False)
    if cluster.nodes > 1:
        raise ClusterError(
            "train runs on one machine",
            why="it starts the ranks here",
            fix="on several, use ds-advise launch with a script of yours",
        )
    missing = missing_package(answer.question.workload, report_to=settings.report_to, device=settings.device)
    if missing is not None:
        raise missing
    return answer


def _on_rung(answer: Recommendation, rung: str) -> Recommendation:
    """The answer with nothing but this rung on its ladder. Raises WorkloadError where no plan can stand on it."""
    [step] = [step for step in answer.ladder if step.rung == rung]
    if step.candidate is None:
        raise WorkloadError(f"{rung} cannot run here", why=step.reason, fix="pass another --rung, or none")
    return replace(answer, ladder=(step,), recommended=step.candidate if step.fits else None)


def _global_batch(answer: Recommendation) -> int:
    batch = answer.question.workload.global_batch_size
    assert batch is not None, "it was asked for"
    return batch


def _check_model(shape: ModelShape) -> None:
    """It predicts the next token of one text."""
    if (
        shape.fixed_len is not None
        or not shape.vocab_size
        or shape.num_labels
        or any(
            block.stack == "encoder" or not block.attention.causal or block.cross_attention for block in shape.blocks
        )
    ):
        raise ModelConfigError(
            f"{shape.name} ({shape.architecture}) is no causal language model",
            why="the built-in trainer knows only these",
            fix="use ds-advise launch with a script of yours",
        )


def _check_vocabulary(data: DataFile, shape: ModelShape) -> None:
    highest = int(data.opened().ids.max())
    if highest >= shape.vocab_size:
        raise ModelConfigError(
            f"the tokenizer makes token {highest}, but the model has {shape.vocab_size} embeddings",
            why="they do not belong together",
            fix="put the model's own tokenizer beside its config.json",
        )


def job_of(proposal: Proposal, weights: Path) -> Job:
    """What the ranks are told."""
    settings, output, samples = proposal.settings, proposal.output, proposal.samples
    workload, recommended = proposal.answer.question.workload, proposal.answer.recommended
    assert recommended is not None
    config = config_of(proposal)
    held_out = proposal.evaluation or proposal.data
    return Job(
        model=str(weights),
        tokenizer=str(output.records / "tokenizer"),
        workload=workload,
        lora_alpha=settings.lora_alpha or 2 * workload.lora_rank,
        device=settings.device,
        ranks=proposal.answer.question.cluster.world_size,
        tokens=str(proposal.data.folder),
        samples=str(samples.train),
        evaluation_tokens=str(held_out.folder) if samples.evaluation else None,
        evaluation_samples=str(samples.evaluation) if samples.evaluation else None,
        packing=samples.packing,
        arguments=_arguments(proposal, workload),
        gathers=config["zero_optimization"].get("stage3_gather_16bit_weights_on_model_save", True),
    )


def config_of(proposal: Proposal) -> dict[str, Any]:
    """The DeepSpeed configuration of the recommended plan."""
    question, recommended = proposal.answer.question, proposal.answer.recommended
    assert recommended is not None
    return ds_config(recommended.estimate.plan, question.model, question.workload, question.cluster, flavor="hf")


def _arguments(proposal: Proposal, workload: Workload) -> dict[str, Any]:
    """Of TrainingArguments. Every step's loss is told, and a loss that is not a number is not replaced."""
    settings, recommended = proposal.settings, proposal.answer.recommended
    assert recommended is not None
    plan, every = recommended.estimate.plan, settings.save_steps or choices.save_steps(proposal.steps)
    report = settings.report_to
    if report == "auto":
        report = "tensorboard" if find_spec("tensorboard") is not None else "none"
    evaluation: dict[str, Any] = {}
    if proposal.samples.evaluation is not None:
        evaluation = {
            "eval_strategy": "steps",
            "eval_steps": every,
            "prediction_loss_only": True,
            "per_device_eval_batch_size": plan.micro_batch_size,
        }
    return {
        **training_arguments(plan, workload, config_path=str(proposal.output.ds_config)),
        "output_dir": str(proposal.output.path),
        "max_steps": proposal.steps,
        "learning_rate": proposal.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": math.ceil(choices.WARMUP * proposal.steps),
        "seed": settings.seed,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "save_steps": every,
        "save_total_limit": KEPT_CHECKPOINTS,
        "report_to": report,
        "remove_unused_columns": False,
        "disable_tqdm": True,
        **evaluation,
    }
