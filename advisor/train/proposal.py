"""From settings, data and a question to a training that is ready for the check: samples, recommendation, steps, the
arguments of the training script."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from datasets import disable_progress_bars

from ...ds_configs.training_script import packages
from ...ds_configs.unquantized_copy import has_copy, quantized_remark
from ...estimators.errors import ClusterError, ModelConfigError, WorkloadError
from ...estimators.estimate import Estimate
from ...estimators.models.model_shape import ModelShape
from ...estimators.time.job import job_duration
from ...estimators.time.step_time import assumptions
from ...estimators.workload import Method, Workload
from ...probes.default_script import words
from ...probes.installed_packages import installed_version
from ...probes.run import Device, Run
from ..advise import answer as answer_question
from ..advise import build_question
from ..answer.recommendation import Recommendation
from ..data.counting import EPOCHS, check_causal, samples_job, sequence_length
from ..data.prepare import DataFile, Samples, cut, prepare
from ..data.tokenizing import load_tokenizer
from ..importers.script_arguments import ScriptArguments
from ..launch.request import LaunchRequest
from ..question.file_question import read_file_question
from ..question.question import Question
from ..question.run import read_ds_config
from ..question.workload import configured_workload
from ..search.candidate import LEAST, Candidate, LadderStep, predict
from ..search.open_batch import filled_batch
from .folder import TrainingFolder, TrainingJob
from .settings import FIXED_ARGUMENTS, WARMUP, TrainingSettings

LEARNING_RATES: dict[Method, float] = {"full": 2e-5, "lora": 2e-4, "qlora": 2e-4}
"""Peak learning rates of AdamW. full: Stanford Alpaca's for LLaMA 7B. LoRA: QLoRA's for 7B and 13B (arXiv:2305.14314,
appendix B)."""


def default_save_steps(steps: int) -> int:
    """Steps between checkpoints: ten checkpoints per training, at least 10 and at most 500 steps apart (save_steps of
    TrainingArguments). The Trainer also saves after the last step."""
    return max(10, min(500, steps // 10))


def check_packages(workload: Workload, *, report_to: str, device: Device) -> None:
    """Raise WorkloadError for the first library that an option needs and that is not installed, and for transformers
    before 5, whose TrainingArguments have other names."""
    transformers = installed_version("transformers")
    if int(transformers.partition(".")[0]) < 5:
        raise WorkloadError(
            "train needs transformers 5 or newer",
            why=f"{transformers} is installed",
            fix='pip install "ds-advise[train]"',
        )
    if workload.method == "qlora" and device == "cpu":
        raise WorkloadError(
            "--method qlora needs a GPU", why="bitsandbytes' kernels are for GPUs", fix="pass --method lora"
        )
    reports = {name: f"--report-to {name}" for name in ("swanlab", "wandb", "tensorboard") if report_to == name}
    for name, option in (packages(workload) | reports).items():
        if find_spec(name.replace("-", "_")) is None:
            raise WorkloadError(
                f"{option} needs {name}",
                why="it is not installed",
                fix=f"pip install {name}",
            )


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A training before it starts."""

    settings: TrainingSettings
    folder: TrainingFolder
    data: DataFile
    evaluation: DataFile | None
    samples: Samples
    answer: Recommendation
    steps: int
    """Optimizer steps of the whole training."""
    learning_rate: float

    @property
    def chosen(self) -> Candidate:
        assert self.answer.recommended is not None
        return self.answer.recommended

    @property
    def epochs(self) -> float:
        workload, job = self.answer.question.workload, samples_job(self.samples, epochs=1.0)
        return self.steps / job.steps_per_epoch(workload.global_batch_size or 1, self.samples.seq_len)

    @property
    def training_s(self) -> float:
        """Predicted seconds of all steps, with the padding of samples that the ranks apply."""
        question, job = self.answer.question, samples_job(self.samples, epochs=1.0)
        duration = job_duration(
            question.model, question.workload, question.cluster, self.chosen.plan, self.chosen.time, job
        )
        return self.steps * duration.step_s

    @property
    def run(self) -> Run:
        question, file = self.answer.question, self.settings.config_file
        run = Run.from_plan(self.chosen.plan, question.model, question.workload, question.cluster)
        return run if file is None else replace(run, config=read_ds_config(file))


def propose(
    settings: TrainingSettings,
    shape: ModelShape,
    question: Mapping[str, Any],
    folder: TrainingFolder,
) -> Proposal:
    """Prepare the data in `folder.records`, and search for the fastest plan for them.

    question: keyword arguments of `build_question` except the model. `seq_len` and `global_batch` of None follow from
        the data.

    Raises DsAdviseError for data, a model or options that do not allow a training.
    """
    disable_progress_bars()  # the caller shows that it reads
    check_causal(shape, fix="use ds-advise launch with a script of yours")
    if question.get("experts") == "autoep":
        raise WorkloadError(
            "train does not spread experts over GPUs",
            why="under AutoEP transformers saves the experts of rank 0 alone",
            fix="leave --experts out, or use ds-advise launch with a script that saves DeepSpeed's checkpoints",
        )
    tokenizer = load_tokenizer(settings.model, shape, offline=settings.offline)

    def tokenized(path: Path, name: str) -> DataFile:
        into = folder.records / name
        return prepare(path, tokenizer, into, row_format=settings.format, system=settings.system)

    data = tokenized(settings.data, "tokens")
    evaluation = tokenized(settings.eval_data, "evaluation_tokens") if settings.eval_data else None
    tokenizer.save_pretrained(str(folder.records / "tokenizer"))
    if data.highest_id >= shape.vocab_size:
        raise ModelConfigError(
            f"the tokenizer makes token {data.highest_id}, but the model has {shape.vocab_size} embeddings",
            why="they do not belong together",
            fix="put the model's own tokenizer into the folder of its config.json",
        )
    samples = cut(
        data,
        folder.records,
        seq_len=question["seq_len"] or sequence_length(data, evaluation, shape, packing=settings.packing),
        packing=settings.packing,
        seed=settings.seed,
        evaluation_share=settings.eval_split,
        evaluation=evaluation,
    )
    answer = _answer(settings, shape, {**question, "seq_len": samples.seq_len}, samples)
    workload = answer.question.workload
    assert workload.global_batch_size is not None, "the question has one"
    job = samples_job(samples, settings.epochs or EPOCHS)
    return Proposal(
        settings=settings,
        folder=folder,
        data=data,
        evaluation=evaluation,
        samples=samples,
        answer=answer,
        steps=settings.max_steps or job.steps(workload.global_batch_size, samples.seq_len),
        learning_rate=settings.learning_rate or LEARNING_RATES[workload.method],
    )


def _answer(
    settings: TrainingSettings, shape: ModelShape, question: dict[str, Any], samples: Samples
) -> Recommendation:
    cluster = question["gpus"]
    fewer, rest = divmod(cluster.world_size, question["global_batch"] or cluster.world_size)
    if question["sequence_parallel_size"] is None and fewer > 1 and not rest:
        question["sequence_parallel_size"] = fewer  # AutoTP may be unable to save its split layers whole
    if settings.packing and question["attention"] != "flash":
        question["sequence_parallel_size"] = 1  # Ulysses drops the mask that keeps packed samples apart
    if question["loss"] == "auto" and find_spec("liger_kernel") is None:
        question["loss"] = "standard"  # the Trainer offers only Liger's fused loss
    built = build_question(shape, **question)
    if remark := quantized_remark(shape, built.workload):
        if not has_copy(shape):
            raise WorkloadError(
                f"train does not load the weights of {shape.name}",
                why=f"they are quantized ({shape.quantized})",
                fix="pass an unquantized checkpoint as --model",
            )
        raise WorkloadError(
            remark,
            fix="make it with the lines that ds-advise prints for this model, and pass its folder as --model",
        )
    if built.free_batch:  # it is smaller for few samples
        built = replace(replace(built, job=samples_job(samples, epochs=1.0)).with_default_batch(), job=None)
    if settings.config_file is None:
        answer = answer_question(built)
    else:
        answer = _answer_of_file(settings.config_file, built, question)
    if cluster.nodes > 1:
        raise ClusterError(
            "train runs on one machine",
            why="it starts the ranks here",
            fix="on several, use ds-advise launch with a script of yours",
        )
    check_packages(answer.question.workload, report_to=settings.report_to, device=settings.device)
    if settings.strategy is None:
        return answer if answer.try_first is None else replace(answer, recommended=answer.try_first, try_first=None)
    [step] = [step for step in answer.ladder if step.strategy == settings.strategy]
    if step.candidate is None:
        raise WorkloadError(f"{step.strategy} cannot run here", why=step.reason, fix="pass another --strategy, or none")
    return replace(answer, ladder=(step,), recommended=step.candidate if step.taken else None, try_first=None)


def script_arguments(proposal: Proposal, model: str) -> tuple[str, ...]:
    """The arguments of the training script under the recommended plan, as in `TrainingJob`. model: the folder
    of the weights."""
    settings, samples, run = proposal.settings, proposal.samples, proposal.run
    workload = run.workload
    # launch passes the configuration, `build_request` knows the folder, and the script the data
    left_out = ("deepspeed", "output_dir", "eval_strategy", "eval_steps")
    arguments = {name: value for name, value in words.script_arguments(run).items() if name not in left_out}
    save_steps = settings.save_steps or default_save_steps(proposal.steps)
    report = settings.report_to
    if report == "auto":
        report = "tensorboard" if find_spec("tensorboard") is not None else "none"
    arguments |= {
        "model_name_or_path": model,
        "max_length": samples.seq_len,
        "max_steps": proposal.steps,
        "learning_rate": proposal.learning_rate,
        "warmup_steps": math.ceil(WARMUP * proposal.steps),
        "seed": settings.seed,
        "save_steps": save_steps,
        "report_to": report,
        **FIXED_ARGUMENTS,
    }
    if samples.evaluation_samples:
        arguments |= {
            "eval_strategy": "steps",
            "eval_steps": save_steps,
            "prediction_loss_only": True,
            "per_device_eval_batch_size": workload.eval_batch or 0,  # 0 for that of the training
        }
    if workload.method != "full":
        arguments["lora_alpha"] = settings.lora_alpha or workload.lora_alpha
    return words.option_words(arguments)


def build_request(run: Run, prediction: Estimate | None, job: TrainingJob, folder: TrainingFolder) -> LaunchRequest:
    """The launch of the training script with the folder's own files."""
    paths = ScriptArguments.from_values(folder.script_paths(evaluates=job.evaluates))
    return LaunchRequest(
        words=(sys.executable, str(folder.script), *paths.words, *job.arguments),
        is_users=False,
        run=run,
        config_path=folder.ds_config,
        folder=folder.new_launch(),
        device=job.device,
        estimate=prediction,
    )


def proposal_request(proposal: Proposal, model: str, folder: TrainingFolder | None = None) -> LaunchRequest:
    """The launch request of the recommended plan, in the proposal's folder or another."""
    folder, run = folder or proposal.folder, proposal.run
    job = TrainingJob(
        arguments=script_arguments(proposal, model),
        workload=run.workload,
        device=proposal.settings.device,
        ranks=run.cluster.world_size,
    )
    return build_request(run, proposal.chosen.estimate, job, folder)


def _answer_of_file(file: Path, question: Question, options: Mapping[str, Any]) -> Recommendation:
    """The plan of a configuration file as the recommended one, or as the closest if it does not fit. options: those of
    the question. Raises ConfigFileError for a file that DeepSpeed refuses."""
    if options["global_batch"] is not None:
        raise WorkloadError(
            f"--global-batch and {file.name} contradict each other",
            why="the file's micro batch and accumulation decide the samples per step",
            fix="leave one of them out",
        )
    given = {name: options[name] for name in ("micro_batch", "gradient_checkpointing")}
    given = {name: value for name, value in given.items() if value not in (None, "auto")}
    own, model, cluster = read_file_question(file, given), question.model, question.cluster
    workload = configured_workload(own.config, options, model, cluster.gpu)
    batch = filled_batch(own.config, model, workload, cluster, **own.batch)
    plan = batch.plan(own.config, model, cluster, workload.software)
    samples = plan.micro_batch_size * plan.gradient_accumulation_steps * cluster.world_size
    workload = replace(workload, global_batch_size=samples // plan.sequence_parallel_size)
    candidate = predict(model, workload, cluster, plan)
    strategy: Any = plan.strategy  # of DeepSpeed, like the plan of every configuration
    step = LadderStep.from_candidate(strategy, candidate, LEAST[question.risk])
    return Recommendation(
        question=replace(question, workload=workload),
        candidates=(candidate,),
        ladder=(step,),
        recommended=candidate if step.taken else None,
        assumptions=model.assumptions + assumptions(candidate.node(cluster), candidate.time),
    )
