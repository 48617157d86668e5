"""What other estimators answer for the published memory runs, each only where it claims to answer.

python -m benchmarks.accuracy.peers --python VENV/bin/python      # ask them again, and write benchmarks/data/peers.csv

VENV has fitcheck-llm, llm-analysis, accelerate and what they import (`pip install --no-deps llm-analysis fitcheck-llm`,
`pip install accelerate torch transformers huggingface-hub fire click rich`), and nothing of it is needed to read the
answers. Models are given by their sizes: no peer goes to a hub. `CLAIMS` says what each answers.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from ds_advise.advisor.search.candidate import fit_verdict
from ds_advise.estimators.workload import NEXT_TOKEN

from ..numbers import printed, spaced
from . import peer_runs
from .between_sources import Error, mean_of_sources
from .predicted_memory import error_of, results
from .report import Table, percent
from .rows import DATA, Run

FILE = DATA / "peers.csv"
HEADER = ("peer", "version", "row", "run", "tensors_bytes", "need_bytes")
ANSWER = Path(__file__).with_name("peers_answer.py")

LLAMA_LIKE = ("llama", "mistral", "granite", "qwen2")
"""Model types whose sizes are all that fitcheck-llm and llm-analysis take."""

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

CLAIMS = {
    "DeepSpeed": "`estimate_zero2_model_states_mem_needs` and `estimate_zero3_...` of deepspeed 0.19.8: weights, "
    "gradients and Adam's states of full training under ZeRO-2 and ZeRO-3, with offload too; no activations",
    "accelerate": '`accelerate estimate-memory`, "Training using Adam": weights, gradients and states of full training '
    "on one device, batch 1; no activations. The command asks the hub for the model, so its function "
    "`estimate_training_usage` is given four bytes a parameter",
    "fitcheck-llm": "weights, adapters, states, gradients, activations and overheads of LoRA, QLoRA (NF4) "
    "and full training on one GPU, Llama-like models; no fused loss, no GPTQ",
    "llm-analysis": "a lower bound of weights, states, gradients and activations of full training, plain, under ZeRO "
    "or FSDP; no adapters, no offload, no fused loss",
}
"""What each peer counts, and for which runs."""

NOT_ASKED = (
    "hf-mem 0.5.6 estimates the memory of inference from the hub's safetensors headers; it claims nothing of training "
    "and insists on the hub, so it is left out."
)


class Answer(NamedTuple):
    peer: str
    version: str
    tensors_bytes: int
    """What the peak of allocated memory is held against."""
    need_bytes: int
    """What the memory of the card is held against."""


def claims(run: Run) -> list[str]:
    """The peers, DeepSpeed's estimators apart, that claim to answer for this run. What fitcheck-llm states of its
    own runs is in `peer_runs`."""
    if run.workload.objective != NEXT_TOKEN:
        return []
    dense = run.model.model_type in LLAMA_LIKE and run.workload.loss == "standard"
    one, full = run.cluster.world_size == 1, run.workload.method == "full"
    foreign = not run.source.startswith("fitcheck-llm")
    stays = not run.plan.offloads
    gptq = run.workload.method == "qlora" and run.workload.quantization != "nf4"
    return [
        *["accelerate"] * (full and one and stays),
        *["fitcheck-llm"] * (dense and one and stays and foreign and not gptq),
        *["llm-analysis"] * (dense and full and stays),
    ]


def question(run: Run) -> dict[str, Any]:
    block, workload, plan = run.model.blocks[0], run.workload, run.plan
    return {
        "row": run.row,
        "peers": claims(run),
        "model": run.model.name,
        "parameters": run.model.parameters,
        "hidden_size": run.model.hidden_size,
        "num_layers": run.model.num_layers,
        "heads": block.attention.heads,
        "kv_heads": block.attention.kv_heads,
        "head_dim": block.attention.head_dim,
        "intermediate_size": block.feed_forward.hidden,
        "gated": block.feed_forward.gated,
        "vocab_size": run.model.vocab_size,
        "tied": run.model.tied,
        "method": workload.method,
        "lora_rank": workload.lora_rank,
        "lora_targets": list(workload.lora_targets or ALL_LINEAR),
        # A row with fp32 between 4-bit layers computes in 16 bits in them, which is what fitcheck-llm asks for.
        "precision": "bf16" if workload.method == "qlora" else workload.precision,
        "optimizer": workload.optimizer,
        "attention": workload.attention,
        "seq_len": workload.seq_len,
        "micro_batch": plan.micro_batch_size,
        "checkpointing": plan.gradient_checkpointing,
        "stage": plan.zero_stage,
        "ranks": run.cluster.world_size,
        "masters": plan.sharding == "zero" or workload.software.autocast,
        "card_bytes": run.cluster.gpu.memory_bytes,
    }


@cache
def answers() -> dict[str, dict[int, Answer]]:
    """By peer and row, from `FILE`."""
    found: dict[str, dict[int, Answer]] = {}
    with FILE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            answer = Answer(row["peer"], row["version"], int(row["tensors_bytes"]), int(row["need_bytes"]))
            found.setdefault(row["peer"], {})[int(row["row"])] = answer
    return found


def asked_again(python: str) -> str:
    """`FILE` as the peers of that interpreter answer now."""
    by_row = {result.run.row: result.run for result in results()}
    questions = [question(run) for run in by_row.values() if claims(run)]
    # -I: this folder has a time.py, which the peers are not to import.
    command = [python, "-I", str(ANSWER)]
    done = subprocess.run(command, input=json.dumps(questions), stdout=subprocess.PIPE, text=True, check=True)
    lines = [HEADER]
    for each in json.loads(done.stdout):
        label = by_row[each["row"]].label.replace(", ", "; ")
        lines.append((each["peer"], each["version"], str(each["row"]), label, str(each["tensors"]), str(each["need"])))
    return "".join(",".join(line) + "\n" for line in lines)


def _given() -> dict[str, dict[int, Answer]]:
    """With DeepSpeed's estimators, whose formulas `predicted_memory` writes out."""
    deepspeed = {
        result.run.row: Answer("DeepSpeed", "0.19.8", result.deepspeed_bytes, result.deepspeed_bytes)
        for result in results()
        if result.run.plan.sharding == "zero"
        and result.run.plan.zero_stage >= 2
        and result.run.workload.method == "full"
    }
    return {"DeepSpeed": deepspeed, **answers()}


def peaks() -> Table:
    """Errors of the peak of allocated memory, on each peer's own runs."""
    return Table(
        title="The peak of allocated memory by other estimators, on the runs that each claims to answer",
        header=(
            "estimator",
            " n",
            " sources",
            " theirs, mean",
            " each source once",
            " median, signed",
            " more than 10 % low",
            " ours, mean",
            " each source once",
            "what it counts",
        ),
        rows=tuple(_peak(peer, given) for peer, given in _given().items()),
    )


def fits(probabilities: Mapping[int, float]) -> Table:
    """Verdicts on the same runs and on those that ran out of memory. probabilities: ours, by row."""
    return Table(
        title="Does it fit? By other estimators, on the runs that each claims to answer",
        header=(
            "estimator",
            " ran",
            " of these predicted not to fit",
            " ours",
            " ran out of memory",
            " of these predicted to fit",
            " ours",
        ),
        rows=tuple(_fit(peer, given, probabilities) for peer, given in _given().items()),
    )


def _peak(peer: str, given: dict[int, Answer]) -> tuple[str, ...]:
    exact = [each for each in results() if each.run.row in given and each.kind == "exact" and each.run.measured_bytes]
    theirs = [error_of(given[each.run.row].tensors_bytes, each.run) or 0.0 for each in exact]
    ours = [each.error or 0.0 for each in exact]

    def sizes(errors: Sequence[float]) -> tuple[str, str]:
        once = mean_of_sources([Error(each.run.origin, abs(error)) for each, error in zip(exact, errors, strict=True)])
        return f"{mean(map(abs, errors)):.1%}", f"{once:.1%}"

    low = sum(error < -0.1 for error in theirs) / len(theirs)
    return (
        f"{peer} {next(iter(given.values())).version}",
        str(len(exact)),
        str(len({each.run.origin for each in exact})),
        *sizes(theirs),
        percent(median(theirs)),
        f"{low:.0%}",
        *sizes(ours),
        CLAIMS[peer],
    )


def _fit(peer: str, given: dict[int, Answer], probabilities: Mapping[int, float]) -> tuple[str, ...]:
    found = [each.run for each in results() if each.run.row in given]

    def count(ended: bool, predicate: Callable[[Run], bool]) -> str:
        return str(sum(predicate(run) for run in found if run.fitted == ended))

    def theirs(run: Run) -> bool:
        return given[run.row].need_bytes <= run.cluster.gpu.memory_bytes

    return (
        peer,
        str(sum(run.fitted for run in found)),
        count(True, lambda run: not theirs(run)),
        count(True, lambda run: fit_verdict(probabilities[run.row]) == "does not fit"),
        str(sum(not run.fitted for run in found)),
        count(False, theirs),
        count(False, lambda run: fit_verdict(probabilities[run.row]) == "fits"),
    )


def figures() -> dict[str, dict[str, str]]:
    """The groups of docs/numbers.json on other estimators: mean errors of the peak, theirs and ours."""
    found = {
        _key(row[0].split()[0]): {"runs": row[1], "theirs": spaced(row[3]), "ours": spaced(row[7])}
        for row in peaks().rows
    }
    own = {
        f"{_key(name)}_own": {"runs": str(count), "theirs": printed(theirs, 1), "ours": printed(ours, 1)}
        for name, count, theirs, ours in peer_runs.mean_errors()
    }
    return found | own


def _key(name: str) -> str:
    return f"peer_{name.lower().replace('-', '_')}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, metavar="PATH", help="an interpreter that has the peers")
    FILE.write_text(asked_again(parser.parse_args().python), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
