"""Probes of every plan of some small models on this machine's CPU, for the benchmarks that compare with them.

    python -m benchmarks.probes.cpu_probes ANSWERS [--models NAME ...] [--rounds N]

ANSWERS is a file of JSON lines, one a run; what is in it is not run again, so an interrupted run goes on. Two ranks,
all plans that `ds-advise --device cpu` considers at a global batch of 4, about 12 s a run. Times are wall times, so run
it on a machine that does nothing else; every line has the load. The same plan can take a third longer in one process
than in another all the same, so in each round every plan runs once, and its steps of all rounds are taken together.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ds_advise.advisor.advise import answer
from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.question.question import Question
from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.advisor.search.candidate import Candidate
from ds_advise.advisor.verification.verify import runnable
from ds_advise.estimators.json_form import from_json
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.workload import Workload
from ds_advise.probes.real_run.result import ProbeResult
from ds_advise.probes.real_run.run import probe
from ds_advise.probes.run import Run

from ..document import show

RANKS, GLOBAL_BATCH = 2, 4
STEPS = 10
"""Optimizer steps of a run: the process takes so long to start that more of them cost little."""

ROUNDS = 3

_QWEN = {
    "model_type": "qwen2",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "balanced": (
        {**_QWEN, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "vocab_size": 4096},
        128,
    ),
    "wide": ({**_QWEN, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 3, "vocab_size": 2048}, 128),
    "vocabulary": (
        {"model_type": "gpt2", "n_embd": 256, "n_layer": 2, "n_head": 4, "n_positions": 256, "vocab_size": 32000},
        256,
    ),
}
"""Name -> the model's config.json, tokens a sample: layers, few wide layers, a large head."""

LARGER: dict[str, tuple[dict[str, Any], int]] = {
    "larger": (
        {
            **_QWEN,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "hidden_size": 768,
            "intermediate_size": 2048,
            "num_hidden_layers": 6,
            "vocab_size": 32000,
        },
        512,
    ),
    "deep": (
        {
            **_QWEN,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "hidden_size": 512,
            "intermediate_size": 1536,
            "num_hidden_layers": 20,
            "vocab_size": 1000,
        },
        512,
    ),
}
"""Two whose steps take seconds, for their memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProbe:
    """One probe: model, plan, and the limit of each rank's memory."""

    model: str
    plan: Plan
    limit_bytes: int | None
    result: ProbeResult


def ask(model: str, limit_bytes: int | None = None) -> Recommendation:
    """The question of the benchmarks, answered by prediction."""
    description, seq_len = (MODELS | LARGER)[model]
    return answer(
        Question(
            model=shape_from_config(description, name=model),
            cluster=cpu_cluster(RANKS, limit_bytes),
            workload=Workload(seq_len=seq_len, global_batch_size=GLOBAL_BATCH, framework="deepspeed"),
        )
    )


def candidates(prediction: Recommendation) -> list[Candidate]:
    """What the probe order would consider."""
    return list(runnable(prediction))


def publish(table: str, text: str, arguments: Sequence[str]) -> None:
    """Print a table, and put it into its document with --write."""
    show("probe.md", f"probes/{table}", text, writes="--write" in arguments)


class Runs:
    """The runs of a file; those that are missing are made and added."""

    def __init__(self, file: Path, steps: int = STEPS) -> None:
        self._file, self._steps = file, steps
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        self.all = [_read(json.loads(line)) for line in lines]

    def get(
        self, prediction: Recommendation, plan: Plan, limit_bytes: int | None = None, *, at_least: int = 1
    ) -> ProbeResult:
        """All runs of a plan as one, made now where the file has fewer than `at_least`."""
        name = prediction.question.model.name
        known = [run.result for run in self.all if (run.model, run.plan, run.limit_bytes) == (name, plan, limit_bytes)]
        while len(known) < at_least:
            known.append(self._make(prediction, plan, limit_bytes))
        return _together(known)

    def _make(self, prediction: Recommendation, plan: Plan, limit_bytes: int | None) -> ProbeResult:
        question = prediction.question
        model = (MODELS | LARGER)[question.model.name][0]
        result = probe(
            Run.from_plan(plan, question.model, question.workload, question.cluster, description=model),
            device="cpu",
            steps=self._steps,
            memory_limit_bytes=limit_bytes,
        )
        run = MeasuredProbe(model=question.model.name, plan=plan, limit_bytes=limit_bytes, result=result)
        self.all.append(run)
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(run)) + "\n")
        print(_line(run), flush=True)
        return result


def _together(results: Sequence[ProbeResult]) -> ProbeResult:
    """The first result with the steps of all; the highest load. A failure stands for all."""
    failed = next((result for result in results if result.failure is not None), None)
    if failed is not None:
        return failed
    ranks = zip(*(result.ranks for result in results), strict=True)
    return replace(
        results[0],
        load=max(result.load for result in results),
        ranks=tuple(replace(runs[0], steps=tuple(step for run in runs for step in run.steps)) for runs in ranks),
    )


def _read(values: dict[str, Any]) -> MeasuredProbe:
    result = from_json(ProbeResult, values["result"])
    return MeasuredProbe(**{**values, "plan": Plan(**values["plan"]), "result": result})


def _line(run: MeasuredProbe) -> str:
    plan, result = run.plan, run.result
    outcome = (
        f"{result.step_s:.3f} s a step, {result.highest('host_tensor_bytes'):,} bytes"
        if result.failure is None
        else f"{result.failure.kind}: {result.failure.message}"
    )
    return (
        f"{run.model} {plan.strategy} {plan.micro_batch_size}x{plan.gradient_accumulation_steps} "
        f"{'on' if plan.gradient_checkpointing else 'off'}: {outcome}; {result.seconds:.0f} s, load {result.load:.1f}"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="cpu_probes", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("answers", type=Path, metavar="ANSWERS")
    parser.add_argument("--models", nargs="*", default=list(MODELS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N")
    options = parser.parse_args(arguments)
    runs = Runs(options.answers)
    for number in range(1, options.rounds + 1):
        for model in options.models:
            prediction = ask(model)
            for candidate in candidates(prediction):
                runs.get(prediction, candidate.estimate.plan, at_least=number)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
