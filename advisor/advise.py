"""From the options of a question to a `Question` (`build_question`) and to its answer, and `estimate()`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, get_args

from ..ds_configs.unquantized_copy import quantized_remark, weights_assumption
from ..estimators.errors import WorkloadError, check_kind
from ..estimators.models.model_shape import ModelShape
from ..estimators.objectives import OBJECTIVES
from ..estimators.plan import PLAN_FIELDS, PLANS, PlainPyTorch, Plan
from ..estimators.time.step_time import assumptions
from ..probes.gc_pause import gc_paused
from ..probes.store_path import store_exists
from .answer.recommendation import Recommendation
from .answer.what_if import changes, use_pytorch
from .documented import documented
from .plan_estimate import PlanEstimate
from .question.cluster import build_cluster, cluster_here, is_described, memory_limit_bytes
from .question.model_source import guessed_name, is_user_module, load_model, module_options
from .question.options import (
    OPTIONS,
    JobOptions,
    QuestionOptions,
    fill_defaults,
    names_in,
    plan_options,
)
from .question.other_names import known_plan
from .question.python_words import in_python
from .question.question import Question
from .question.rollouts import free_settings, is_generation_free, rollout_assumptions, training_cluster
from .question.workload import (
    absent_parts,
    apply_model_options,
    build_workload,
    named_settings,
    plan_settings,
    resolve_precision,
    trains_projector_alone,
)
from .search.candidate import LEAST, Candidate
from .search.choice import best_of_strategy, fastest_that_fits, worth_trying_first
from .search.max_fit import STEP, largest_micro_batch_question, longest_sequence_question
from .search.rollouts import choose_rollout
from .search.search import best_over_losses, fastest, predict_all, strategy_candidates
from .search.search_space import SHAPE_FIELDS

if TYPE_CHECKING:
    from .answer.comparison import ComparisonContext
    from .question.file_question import FileQuestion
    from .text.output import Output


def build_question(
    model: str | ModelShape | Any,
    *,
    example_inputs: Any = None,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    say: Callable[[str], None] = lambda _: None,
    strategy: str = "",
    **options: Unpack[QuestionOptions],
) -> Question:
    """The question for the arguments of `advise`.

    Only one of `micro_batch` and `seq_len` can be "max": the largest value with which a plan fits, one of `strategy` if
    it is given.

    say: receives progress of recording a model, and warnings about quantized weights and parts to freeze that the model
        does not have.

    Raises `DsAdviseError` for unknown, impossible or contradictory options.
    """
    options = fill_defaults(options)
    if isinstance(model, Path):
        model = str(model)
    given = {name: value for name, value in options.items() if value != OPTIONS[name].default}
    can_record = isinstance(model, str) and isinstance(options["gpus"], str)  # not the objects of Python
    asked = {"model": model, **given} if can_record else None
    if options["seq_len"] == "max" and options["micro_batch"] == "max":
        raise WorkloadError(
            "--seq-len max and --micro-batch max contradict each other",
            why="only one value can be searched",
            fix="pass a number for the other",
        )
    if options["seq_len"] == "max" and options["data"] is not None:
        raise WorkloadError(
            "--seq-len max and --data contradict each other",
            why="the data decide the sequence length",
            fix="pass the number of samples with --samples",
        )
    if not isinstance(model, str | ModelShape) or (isinstance(model, str) and is_user_module(model)):
        # Imported here: it records with torch.
        from .question.model_source import shape_from_file, shape_from_object

        if isinstance(model, str):
            say(f"recording {model} ...")
            model = shape_from_file(model, options)
        else:
            model = shape_from_object(model, example_inputs, loss_fn)
    if isinstance(model, ModelShape) and model.module:
        options = cast("QuestionOptions", {**options, **module_options(model, options)})
    # This machine is looked for when the words are known to be right.
    cluster = build_cluster(options) if is_described(options) else None
    name = model if isinstance(model, str) else model.name
    if not isinstance(model, ModelShape):
        model = load_model(model, offline=options["offline"], with_image=trains_projector_alone(options))
        if guess := guessed_name(name, model):
            say(guess)
    shape = apply_model_options(model, options)
    micro_batch: Any = None if options["micro_batch"] == "max" else options["micro_batch"]
    # `options` stay as the user gave them: `free_loss` and others ask what was left open.
    batch: Any = options["global_batch"]
    chosen: dict[str, Any] = {**options, "global_batch": None if batch == "no-accumulation" else batch}
    is_open = batch is None and OBJECTIVES[options["objective"]].rollouts is None
    if options["seq_len"] == "max":  # the starting length of the search for the longest
        is_limited = shape.fixed_len or shape.has_learned_positions
        chosen["seq_len"] = None if is_limited else STEP * (1 + (chosen["document_len"] or 0) // STEP)
    job: dict[str, Any] = {}
    if any(options[name] != OPTIONS[name].default for name in names_in(JobOptions)):  # type: ignore[literal-required]
        # Imported here: few questions are about a whole job.
        from .question.job import build_job, parse_price

        built = build_job(options, name, shape, seq_len=chosen["seq_len"])
        job["price"] = None if options["price"] is None else parse_price(options["price"])
        if built is not None:
            job |= {"job": built.job, "job_basis": built.basis, "job_is_packed": options["packing"]}
            chosen["seq_len"] = built.seq_len or chosen["seq_len"]
            if options["eval_logits"]:
                chosen["eval_samples"] = options["eval_samples"] or built.job.evaluation_samples or None
            if options["packing"] and options["attention"] != "flash":
                chosen["sequence_parallel_size"] = 1  # Ulysses drops the mask that separates packed samples
    workload = build_workload(chosen, shape, None)
    cluster = cluster or build_cluster(options)
    question = Question(
        model=shape,
        workload=replace(workload, precision=resolve_precision(options["precision"], cluster.gpu)),
        cluster=cluster,
        micro_batch_size=micro_batch,
        free_loss=options["loss"] == "auto",
        free_precision=options["precision"] == "auto",
        free_rollouts=free_settings(options),
        free_generation=is_generation_free(options),
        options=plan_options(chosen),
        risk=options["risk"],
        asked=asked,
        **job,
    )
    # The largest micro batch is found with one per step.
    question = question.with_default_batch() if is_open and options["micro_batch"] != "max" else question
    if remark := quantized_remark(shape, question.workload):
        say(remark)
    if absent := absent_parts(shape, options):
        say(f"--freeze {','.join(absent)} has no effect: {shape.name} has no such part")
    if question.options["zeropp"] and question.obstacle_to_zeropp is not None:
        raise WorkloadError("ZeRO++ is not possible here", why=question.obstacle_to_zeropp, fix="leave --zeropp out")
    only = known_plan(strategy) if strategy else None
    if options["micro_batch"] == "max":
        return largest_micro_batch_question(question, only)
    if options["seq_len"] == "max":
        question = longest_sequence_question(question, only)
        return question.with_default_batch() if question.free_batch else question
    return question


@documented
def estimate(
    model: str | ModelShape | Any,
    *,
    strategy: str = "",
    settings: str | Mapping[str, Any] | None = None,
    example_inputs: Any = None,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    **options: Unpack[QuestionOptions],
) -> PlanEstimate:
    """Predict memory and time of one plan, whether it fits or not.

        >>> plan = ds_advise.estimate("Qwen2.5-14B", gpus="8xA100-80GB", strategy="zero2", micro_batch=1)
        >>> plan.fits, plan.device_bytes_per_gpu, plan.tokens_per_second

    With `micro_batch` and `gradient_checkpointing` the plan has no sequence parallelism and no hpZ, unless
    `sequence_parallel_size` or the settings ask for them. Otherwise it is the best plan of the strategy, as in the
    advice.

    model: as for `advise`.
    strategy: one of the eight strategies, or plain PyTorch: "fsdp2" (as accelerate starts it), "fsdp" (FSDP 1 in the
        training precision) or "torch".
    settings: fields of `Plan` that replace the strategy's presets: {"reduce_bucket_size": 200_000_000}, or the same as
        text, "reduce_bucket_size=2e8,overlap_comm=no". A warning of Python names those on which the figures do not
        depend, such as one of another ZeRO stage.

    Raises `DsAdviseError` for a question that cannot be answered, and for a plan that cannot run.
    """
    check_kind(strategy, str, "strategy", f"pass one of {', '.join(PLANS)}")
    check_kind(settings or {}, (str, Mapping), "settings", 'pass a dictionary, or text such as "overlap_comm=no"')
    question = build_question(model, example_inputs=example_inputs, loss_fn=loss_fn, strategy=strategy, **options)
    candidate = strategy_candidate(question, strategy, settings)
    if settings and candidate.plan.sharding == "zero":
        from .answer.explained_key import split_settings  # imported here: they read the facts of DeepSpeed
        from .answer.key_costs import without_costs

        named = named_settings(settings) if isinstance(settings, str) else settings
        for words in without_costs(split_settings(named)[1], candidate.plan):
            warnings.warn(in_python(words), stacklevel=3)  # of the caller of `checked`
    return PlanEstimate.of(candidate, question)


def strategy_candidate(question: Question, strategy: str, settings: str | Mapping[str, Any] | None = None) -> Candidate:
    """The best shape of a strategy, or of plain PyTorch, with these settings. Raises the errors of `estimate`."""
    plan = known_plan(strategy)
    question, _ = choose_rollout(question)
    chosen = plan_settings(Plan, settings or {}, option="--set", without=SHAPE_FIELDS)
    _refuse_other_keys(plan, chosen)
    if question.micro_batch_size is not None and question.options["gradient_checkpointing"] != "auto":
        question = question.replace_options(sequence_parallel_size=question.options["sequence_parallel_size"] or 1)
        # A shape that is given completely is one plan, so the search must not add a dimension.
        chosen = {"zero_hpz_partition_size": 1} | chosen
    candidates, obstacle = strategy_candidates(plan, question, settings=chosen)
    best = best_of_strategy(candidates, LEAST[question.risk])
    if best is None:
        raise WorkloadError(f"{plan} cannot run here", why=obstacle, fix="pass another --strategy")
    return best


_OF_FSDP = ("offload_optimizer", "offload_param")
"""Keys of DeepSpeed whose effect FSDP has, too (CPUOffload); `unsupported` says with which values."""


def _refuse_other_keys(strategy: str, settings: Mapping[str, Any]) -> None:
    """Raise WorkloadError for plain PyTorch with a setting that is a key of DeepSpeed."""
    keys = [name for name in settings if PLAN_FIELDS[name].path and name not in _OF_FSDP]
    if strategy in get_args(PlainPyTorch) and keys:
        has = "is a key of DeepSpeed's configuration" if len(keys) == 1 else "are keys of DeepSpeed's configuration"
        raise WorkloadError(
            f"{strategy} cannot run so: {', '.join(keys)} {has}",
            fix=f"leave {'it' if len(keys) == 1 else 'them'} out of --set, or name a --strategy of ZeRO",
        )


def plain_pytorch(question: Question) -> Candidate:
    """The best shape of plain PyTorch: torch's optimizer alone on one GPU; on several FSDP2, or FSDP 1 if FSDP2 is not
    predicted."""
    if question.cluster.world_size == 1:
        return strategy_candidate(question, "torch")
    candidates, _ = strategy_candidates("fsdp2", question)
    return best_of_strategy(candidates, LEAST[question.risk]) or strategy_candidate(question, "fsdp")


def comparison_context(
    model: str,
    *,
    accumulation: int | None = None,
    say: Callable[[str], None] = lambda _: None,
    **options: Unpack[QuestionOptions],
) -> ComparisonContext:
    """The context in which configurations are compared (`answer.comparison`). Raises the errors of `build_question`."""
    from .answer.comparison import ComparisonContext  # imported here: it reads the facts of DeepSpeed

    offline = options.get("offline", False)
    question = build_question(load_model(model, offline=offline), say=say, **options)
    known = {**options, "global_batch": None, "seq_len": question.workload.seq_len}
    known |= {} if accumulation is None else {"accumulation": accumulation}
    question = replace(question, cluster=training_cluster(options), free_rollouts=())
    passed = {**options, "accumulation": accumulation}
    given = frozenset(name for name, value in passed.items() if value not in (None, "auto"))
    return ComparisonContext(question=question, options=known, given=given)


def files_context(
    files: Sequence[FileQuestion], given: Mapping[str, Any], *, say: Callable[[str], None]
) -> ComparisonContext | None:
    """The context of configuration files: the question of the options that the user gave, completed by the first file
    that records one. None if no model is known. Raises the errors of `build_question`."""
    known = dict(given)
    for file in files:
        file.tell(say)
    if asked := next((file for file in files if file.recorded is not None), None):
        # A strategy that is compared with the file has its samples per step.
        samples = asked.samples_per_step(training_cluster(asked.asked).world_size)
        known = {**asked.asked, "global_batch": samples, **known, "model": asked.model}
        if asked.plan is not None and asked.plan.sequence_parallel_size > 1:  # the script's data loader shares samples
            known.setdefault("sequence_parallel_size", asked.plan.sequence_parallel_size)
    model = known.pop("model", None)
    if model is None:
        return None
    context = comparison_context(model, say=say, **known)
    return replace(context, options={**context.options, "global_batch": given.get("global_batch")})


@gc_paused()
def answer(question: Question, *, sharding: Literal["zero", "fsdp"] = "zero") -> Recommendation:
    """The recommendation for a question, corrected by past probes if it is about this machine. sharding: "fsdp" adds
    the baseline of plain PyTorch, which is also there if it fits and no DeepSpeed plan does."""
    recommendation = predicted(question)
    question = recommendation.question  # with the loss and the rollouts that the search chose
    if question.cluster.is_this_machine and store_exists():
        # Imported here: few questions are about this machine.
        from .verification.verify import apply_past_probes

        recommendation = apply_past_probes(recommendation)
    if sharding == "fsdp":
        return replace(recommendation, pytorch_baseline=plain_pytorch(question), sharding=sharding)
    if recommendation.recommended is None:
        with suppress(WorkloadError):  # plain PyTorch cannot run such a training
            plain = plain_pytorch(question)
            if plain.fit.fits:
                found = recommendation.changes.after(use_pytorch(question, plain))
                return replace(recommendation, pytorch_baseline=plain, changes=found)
    return recommendation


def predicted(question: Question) -> Recommendation:
    """The recommendation by prediction alone. It has the loss that one argument turns on
    (`Question.offered_loss_question`) if no plan fits without, or if the plan is then faster by `LEAST_GAIN`."""
    if question.free_rollouts:
        decided, others = choose_rollout(question)
        found = predicted(decided)
        return replace(
            found, other_rollouts=others, assumptions=found.assumptions + rollout_assumptions(question, decided)
        )
    offered = question.offered_loss_question
    if offered is not None:
        own = fastest(question)
        if own is not None and best_over_losses(question, own)[1] is not own:
            # `offered` offers no further loss, so the recursion ends here.
            return replace(predicted(offered), without_loss=own)
    ladder, candidates = predict_all(question)
    recommended = fastest_that_fits(ladder)
    node = question.cluster if recommended is None else recommended.node(question.cluster)
    found = Recommendation(
        question=question,
        candidates=candidates,
        ladder=ladder,
        recommended=recommended,
        try_first=worth_trying_first(candidates, recommended, question.risk),
        changes=changes(question, ladder, recommended),
        assumptions=(
            *question.model.assumptions,
            *weights_assumption(question.model, question.workload),
            *assumptions(node, recommended.time if recommended else None),
        ),
    )
    if offered is not None and recommended is None:
        other = predicted(offered)
        if other.recommended is not None or _shortage(other) < _shortage(found):
            return replace(other, without_loss=found.closest)
    return found


def _shortage(answer: Recommendation) -> tuple[float, float]:
    """How far an answer is from a plan that fits, then from the speed of one with more RAM or NVMe, for comparison."""
    missed = answer.closest
    plans = (step.candidate for step in answer.ladder if step.candidate is not None)
    speeds = [plan.tokens_per_s for plan in plans if plan.fit.limit != "gpu"]
    return (0.0 if missed is None else missed.fit.utilization), -max(speeds, default=0.0)


def checked_answer(
    model: str,
    *,
    sharding: Literal["zero", "fsdp"],
    deepspeed_estimate: bool,
    verify: bool,
    probe: bool,
    budget: str,
    output: Output,
    **options: Unpack[QuestionOptions],
) -> Recommendation:
    """The recommendation after the dry runs (`verify`) and probes that the command line asks for."""
    if probe:
        cluster_here(options)  # raises ClusterError before anything is predicted
    recommendation = answer(build_question(model, say=output.say, **options), sharding=sharding)
    # Imported where needed: an answer without checks must not wait for these.
    if verify:
        from .verification.verify import verify as verified

        recommendation = verified(
            recommendation,
            offline=options["offline"],
            output=output,
        )
    if probe:
        from .verification.verify import probe_candidates

        recommendation = probe_candidates(
            recommendation,
            device=options["device"],
            memory_limit_bytes=memory_limit_bytes(options),
            budget=budget,
            offline=options["offline"],
            output=output,
        )
    return replace(recommendation, shows_deepspeed_estimate=deepspeed_estimate)
