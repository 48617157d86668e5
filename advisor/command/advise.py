"""`advise_command`: the advice for the training of a command.

A dry run of the command shows what it trains, on the longest batch where lengths differ. Every strategy is searched for
that training as for a named model. The winner is proved by a dry run of the changed command; if that does not fit, the
next best plan is tried, and if it fails, the best one of the ZeRO stage for which the script was written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...ds_configs.files import CONFIG_NAME, differs, numbered
from ...ds_configs.read import precision_in
from ...estimators.errors import DsAdviseError, WorkloadError
from ...estimators.plan import Plan
from ...probes.command.request import CommandRequest
from ...probes.command.run import CommandFailedError, NoEngineError
from ...probes.command.training_command import read_command
from ...probes.command.words import check_script
from ...probes.run import Run
from ...probes.worker_process import OnProgress
from ..advise import predicted
from ..answer.command_answer import CommandAnswer
from ..answer.recommendation import Recommendation
from ..question.cluster import build_cluster
from ..question.options import CpuOptions, MachineOptions, ModuleOptions, names_in
from ..question.question import Question
from ..search.candidate import LEAST, Candidate
from ..text.units import capitalised, counted_noun, ended
from ..verification.command import command_answer
from ..verification.verify import by_speed, judged_answer
from .advice import RAN_OTHERWISE, RUN_FAILED, SCRIPT_FAILED, CommandAdvice, Proof, observed_candidate
from .changes import ChangedCommand, changed_command
from .question import command_question

MOST_PROOFS = 3
"""Most dry runs of a changed command."""

CARRIED = frozenset(
    {*names_in(MachineOptions), "global_batch", "micro_batch", "gradient_checkpointing", "risk", "offline", "price"}
)
"""Options that the changed command carries out, or that change no training."""

Change = Callable[[CommandAdvice, Candidate], ChangedCommand]

_REFUSED = frozenset({*names_in(CpuOptions), *names_in(ModuleOptions)})

_FIRST_CONFIG = {
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 2},
}
"""The configuration under which a script is observed that names none."""


def advise_command(
    words: Sequence[str],
    given: Mapping[str, Any],
    *,
    folder: Path | None = None,
    config_file: Path | None = None,
    destination: str = "",
    change: Change | None = None,
    offloads_checkpoints: bool = False,
    timeout_s: float = 1800.0,
    say: Callable[[str], None] = lambda _: None,
    on_progress: OnProgress = lambda _phase: None,
    on_task: Callable[[str], None] = lambda _title: None,
    **settings: Any,
) -> CommandAdvice:
    """The fastest DeepSpeed configuration that fits the training of a command, and what to change in the command.

    given: options of a question that replace what the command does (`gpus` among them).
    folder: the command's working folder, by default this process's.
    config_file: DeepSpeed's configuration for a command that names none, or an equal one.
    destination: path of the new configuration from the folder; by default `ds_config.json`, with a number if that is
        another configuration.
    change: makes the command under a plan, in place of `changed_command`.
    offloads_checkpoints: whether `change` can keep the inputs of layers in host RAM, as `changed_command` does not.
    on_task: is called with the title of each dry run after the first.
    settings: further fields of `CommandRequest` (`rows`, `longest`).

    Raises CommandFailedError if the command fails, DryRunError if it cannot be simulated, and the errors of
    `build_question` for options that are impossible for its training.
    """
    if refused := sorted(_REFUSED & given.keys()):
        name = f"--{refused[0].replace('_', '-')}"
        raise WorkloadError(f"{name} does not apply to a command", why="it is simulated on the GPUs of --gpus")
    if given.get("gradient_checkpointing") == "offload" and not offloads_checkpoints:
        raise WorkloadError(
            "--gradient-checkpointing offload does not apply to a command",
            why="the changed command enables checkpointing, and does not move the inputs of layers to the host",
            fix="pass on, off or auto",
        )
    folder = (folder or Path.cwd()).absolute()
    check_script(words, folder)  # before the machine is looked for
    cluster = build_cluster(given)
    typed, command = tuple(words), read_command(words)
    words = command.replace_counts(cluster.nodes, cluster.gpus_per_node)
    request = CommandRequest(
        words=words,
        folder=folder,
        cluster=cluster,
        config_file=config_file and config_file.absolute(),
        offline=bool(given.get("offline", False)),
        **settings,
    )
    remarks = list[str]()
    was, now = command.ranks, read_command(words).ranks
    if was and now and was != now:
        remarks.append(
            f"The command starts {counted_noun(was, 'rank')}, and --gpus has {now}: the answer is for {now}, "
            f"whose step has {now / was:.3g} x the samples."
        )
    dry_run = partial(command_answer, timeout_s=timeout_s, on_progress=on_progress)
    try:
        today, request = _observed(request, dry_run)
    except NoEngineError:
        if config_file is not None:
            raise
        remarks.append("The command trains without DeepSpeed: it was observed under zero2.")
        on_task("dry run under zero2, since the command trains without DeepSpeed")
        first = folder / _free_name(folder)
        request = replace(request, config_file=first, files={str(first): json.dumps(_FIRST_CONFIG)})
        today = dry_run(request)
    lengths = set(today.observed.batch_lengths)
    if len(lengths) > 1 and not request.longest:
        # Only equal batches can be compared, and the longest decides whether a plan fits.
        on_task(f"dry run of the longest batch of {min(lengths)} to {max(lengths)} tokens")
        request = replace(request, longest=True, rows=request.data_rows)
        today = dry_run(request)
    others = [name for name in given if name not in CARRIED]

    def ask(seen: CommandAnswer) -> CommandAdvice:
        question = command_question(seen.found, given, offloads_checkpoints=offloads_checkpoints)
        answer = predicted(question)
        return CommandAdvice(
            **{field.name: getattr(answer, field.name) for field in fields_of(Recommendation)},
            words=words,
            typed_words=typed,
            today=today,
            remarks=(*remarks, *_differences(question, seen)),
            runs_deepspeed=not request.files,
            given_config=config_file if request.config_file is not None else None,
        )

    found = ask(today)
    if others:
        listed = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        say(f"{listed}: the advice is for another training than the command's, and is not proved by a dry run")
    change = change or partial(_changed, request=request, destination=destination)
    return _proved(found, ask, request, change, proves=not others, on_task=on_task, dry_run=dry_run)


def _observed(
    request: CommandRequest, dry_run: Callable[[CommandRequest], CommandAnswer]
) -> tuple[CommandAnswer, CommandRequest]:
    """The dry run of the command; and the request, without the configuration in front of the command if that names an
    equal one itself, and would not heed another one in front of it."""
    given = request.config_file
    if given is None or not given.is_file():
        return dry_run(request), request
    with TemporaryDirectory() as folder:
        copy = Path(folder) / given.name  # its path tells the two apart
        copy.write_bytes(given.read_bytes())
        seen = dry_run(replace(request, config_file=copy))
    arguments = seen.arguments
    if Path(arguments.ds_config) != copy:
        return seen, replace(request, config_file=None)
    trainer = {name: str(given) if value == str(copy) else value for name, value in arguments.trainer.items()}
    return replace(seen, arguments=replace(arguments, ds_config=str(given), trainer=trainer)), request


def _free_name(folder: Path) -> str:
    """The name of a configuration that exists only while the script is observed."""
    return str(next(path for path in numbered(Path(CONFIG_NAME)) if not (folder / path).exists()))


def _differences(question: Question, today: CommandAnswer) -> list[str]:
    """What the dry run remarks, and what the question does not describe of the training."""
    engine, remarks = today.engine, [ended(capitalised(remark)) for remark in today.observed.remarks]
    trained = question.trainable_parameters
    if abs(trained - engine.trainable_parameters) > 0.001 * engine.trainable_parameters:
        remarks.append(
            f"The prediction is for {trained:,} trained parameters; the script trains {engine.trainable_parameters:,}."
        )
    return remarks


def _proved(
    found: CommandAdvice,
    ask: Callable[[CommandAnswer], CommandAdvice],
    request: CommandRequest,
    change: Change,
    *,
    proves: bool,
    on_task: Callable[[str], None],
    dry_run: Callable[[CommandRequest], CommandAnswer],
) -> CommandAdvice:
    """The advice after dry runs of the changed command: the fastest plan that also fits there.

    ask: the advice for another observation. A script may build another model under another stage: run_clm compares the
        size of the tokenizer with that of a weight, which is 0 while ZeRO-3 holds it.
    """
    least = LEAST[found.question.risk]
    proofs, judged = list[Proof](), dict[Plan, Candidate]()
    chosen: Candidate | None = None
    kept: dict[str, Any] = {}
    parameters = found.today.engine.parameters
    while len(proofs) < MOST_PROOFS and (candidate := _next(found, [*(each.candidate for each in proofs)], kept)):
        changed = change(found, candidate)
        if not proves:
            proofs.append(Proof(candidate=candidate, changed=changed, answer=None, problem=""))
            return replace(found, recommended=candidate, proofs=tuple(proofs))
        on_task(f"dry run under {candidate.strategy}, plan {len(proofs) + 1} of at most {MOST_PROOFS}")
        files = {str(request.folder / path): text for path, text in changed.files.items()}
        proving = replace(
            request,
            words=changed.words,
            config_file=request.folder / next(iter(changed.files)) if changed.gives_config else None,
            files=files,
            forced=changed.forced,
        )
        try:
            answer = dry_run(proving)
        except DsAdviseError as error:
            problem = f"{error.what}, {error.why}" if error.why else error.what
            reason = SCRIPT_FAILED if isinstance(error, CommandFailedError) else RUN_FAILED
            checked = judged[candidate.plan] = candidate.refused(reason)
            proofs.append(Proof(candidate=checked, changed=changed, answer=None, problem=problem))
            continue
        overtaken = ""
        if (now := answer.engine.parameters) != parameters:
            remark = f"Under {candidate.strategy} the script's model has {now:,} parameters, not {parameters:,}."
            asked, parameters = ask(answer), now
            found = replace(asked, remarks=(*asked.remarks, remark))
            candidate = next((each for each in found.candidates if each.plan == candidate.plan), candidate)
            if found.recommended is not None and found.recommended.plan != candidate.plan:
                overtaken = "another plan is faster for that model"
        answer = _compared(answer, found.question, candidate)
        checked = observed_candidate(candidate, answer)
        differing = _differing(answer, found.today, candidate.plan)
        kept |= differing
        problem = f"the changed command still has {_listed(differing)}" if differing else overtaken
        own, new = (precision_in(each.engine.config) for each in (found.today, answer))
        if new != own:
            problem = f"the changed command trains in {new} in place of {own}"
        elif not differing and checked.fit.probability < least:
            problem = f"its dry run {checked.fit.reason}"
        if differing or new != own:
            checked = candidate.refused(RAN_OTHERWISE)
        judged[candidate.plan] = checked
        proofs.append(Proof(candidate=checked, changed=changed, answer=answer, problem=problem))
        if not problem:
            chosen = checked
            break
    runs = tuple(proof.answer for proof in proofs if proof.answer is not None)
    done = judged_answer(found, judged, chosen, dry_runs=runs)
    assert isinstance(done, CommandAdvice)
    return replace(done, proofs=tuple(proofs))


def _changed(
    found: CommandAdvice, candidate: Candidate, *, request: CommandRequest, destination: str
) -> ChangedCommand:
    """The command under a plan. Without a destination, the configuration gets the first name at which there is no other
    one, so that the same answer names the same file."""
    question, folder = found.question, request.folder

    def named(path: str) -> ChangedCommand:
        return changed_command(
            request.words,
            folder,
            found.today.found,
            candidate.plan,
            shape=question.model,
            workload=question.workload,
            cluster=question.cluster,
            given_config=request.config_file,
            is_own_config=str(request.config_file) not in request.files,
            destination=path,
        )

    if destination:
        return named(destination)
    changes = map(named, map(str, numbered(Path(CONFIG_NAME))))
    return next(each for each in changes if not any(differs(text, folder / path) for path, text in each.files.items()))


def _compared(answer: CommandAnswer, question: Question, candidate: Candidate) -> CommandAnswer:
    """The dry run with the closed form of its plan."""
    run = Run(
        config=answer.run.config,
        model={},
        cluster=question.cluster,
        workload=question.workload,
        shape=question.model,
        model_name=question.model.name,
        micro_batch_size=answer.engine.micro_batch_size,
        gradient_accumulation_steps=answer.engine.gradient_accumulation_steps,
        gradient_checkpointing=candidate.plan.gradient_checkpointing,
    )
    return replace(answer, run=run, analytic=candidate.memory, analytic_time=candidate.time)


def _next(found: CommandAdvice, tried: Sequence[Candidate], kept: Mapping[str, Any]) -> Candidate | None:
    """The next plan to prove: the fastest of the strategies not tried; after a failure, first of those with the ZeRO
    stage under which the script runs. kept: fields that the command does not change; then the fastest of all plans with
    them."""
    ranked = by_speed(found)
    if kept:
        fitting = [each for each in found.candidates if each.fit.probability >= LEAST[found.question.risk]]
        ranked = sorted(fitting, key=lambda each: -each.tokens_per_s)
    if any(each.fit.reason in (SCRIPT_FAILED, RUN_FAILED) for each in tried):
        ranked = sorted(ranked, key=lambda each: each.plan.zero_stage != found.today.engine.zero_stage)
    plans = {each.plan for each in tried}
    possible = (each for each in ranked if all(getattr(each.plan, name) == value for name, value in kept.items()))
    return next((each for each in possible if each.plan not in plans), None)


_WORDS = {
    "zero_stage": "ZeRO stage {}",
    "micro_batch_size": "micro batch {}",
    "gradient_accumulation_steps": "{} accumulation steps",
    "gradient_checkpointing": "gradient checkpointing {}",
}


def _differing(answer: CommandAnswer, today: CommandAnswer, plan: Plan) -> dict[str, Any]:
    """The fields of the plan with another value in the dry run, with that value. The batch is what goes into the model,
    which a script may set beside DeepSpeed's configuration."""
    engine, micro = answer.engine, answer.engine.micro_batch_size
    before, now = today.training, answer.training
    if now.rows * today.engine.micro_batch_size != before.rows * micro:
        micro = today.engine.micro_batch_size
    ran = {
        "zero_stage": engine.zero_stage,
        "micro_batch_size": micro,
        "gradient_accumulation_steps": engine.gradient_accumulation_steps,
        "gradient_checkpointing": answer.observed.recomputes,
    }
    return {name: value for name, value in ran.items() if getattr(plan, name) != value}


def _listed(fields: Mapping[str, Any]) -> str:
    shown = {True: "on", False: "off"}
    return " and ".join(
        _WORDS[name].format(shown[value] if isinstance(value, bool) else value) for name, value in fields.items()
    )
