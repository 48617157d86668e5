"""The advice for a command against the advice for the same model by name, and the dry run of its winner.

    python -m benchmarks.own_scripts.advice DIR [NAME...]

DIR is prepared by `python -m benchmarks.own_scripts --prepare DIR`. Writes DIR/results/NAME.advice.json and prints a
Markdown table of all results that DIR holds: the recommended plan, whether its dry run proves it, its speed over
today's, and the differences from the same plan by name in memory and time of a step, of the answer and of its dry run.
The small data of DIR may end within a step, which is then shorter. `ASKED` has the question by name, where one can be
asked; lengths that only the data tell, and the software, are those that were observed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.own_scripts.__main__ import (
    PACKAGE,
    environment_of,
    last_error,
    load_scripts,
    run_limited,
    words_of,
    working_folder,
)

ASKED: dict[str, str] = {
    "transformers run_clm": "Qwen2.5-7B --seq-len 2048 --global-batch 32 --eval-batch 2 --loss standard",
    "transformers run_image_classification": "vit-large-patch16-224 --global-batch 32 --eval-batch 8",
    "trl sft.py": "Qwen2.5-7B --framework trl --seq-len 2048 --global-batch 128 --eval-batch 8",
    "trl sft console script, LoRA": "Qwen2.5-1.5B --framework trl --method lora --lora-rank 32 --lora-dropout 0.05 "
    "--lora-targets q_proj,v_proj --global-batch 16",
    "trl dpo.py": "Qwen2.5-7B --objective dpo --global-batch 64 --eval-batch 8",
    "trl kto.py": "Qwen2.5-7B --objective kto --global-batch 32",
    "trl reward.py": "Qwen2.5-1.5B --objective reward --global-batch 32 --eval-batch 8",
    "accelerate deepspeed_with_config_support": "gpt2-xl --seq-len 1024 --global-batch 32 --loss standard "
    "--precision fp16",
    "peft sft train.py": "Llama-2-7b --framework trl --method lora --lora-rank 8 --lora-dropout 0.1 --global-batch 256 "
    "--eval-batch 8",
    "LLaMA-Factory full": "Qwen3-8B --global-batch 16 --loss standard",
    "LLaMA-Factory LoRA": "Qwen3-8B --method lora --lora-rank 8 --global-batch 4 --loss standard",
    "ms-swift sft, full": "Qwen2.5-7B --global-batch 32 --loss standard",
    "stanford_alpaca train.py": "Llama-2-7b --global-batch 128 --loss standard",
    "FastChat train.py": "vicuna-7b --seq-len 2048 --global-batch 256 --loss standard",
    "DeepSpeed-Chat step 1": "opt-1.3b --seq-len 512 --global-batch 64 --loss standard --framework deepspeed "
    "--precision fp16 --optimizer adam",
    "accelerate nlp_example": "",
    "transformers run_glue": "",
    "DeepSpeedExamples cifar": "",
    "nanoGPT, moved": "",
    "sentence-transformers training_nli_v2": "",
}
"""Script -> the question by name; "" where none can be asked: other heads, own modules and loops."""


def advise(words: list[str], folder: Path, variables: dict[str, str], log: Path, limit: float) -> dict[str, Any]:
    """The JSON of an answer with the seconds that it took, or the sentence with which it failed."""
    begin = time.monotonic()
    tool = [sys.executable, "-m", "ds_advise", "advise", *words]
    status, printed = run_limited(tool, folder, variables | {"PYTHONPATH": str(PACKAGE.parent)}, log, limit)
    seconds = round(time.monotonic() - begin, 1)
    try:
        return {"seconds": seconds, "answer": json.loads(printed)}
    except json.JSONDecodeError:
        said = "time limit" if status is None else last_error(log.read_text("utf-8") + printed)
        return {"seconds": seconds, "error": said}


def advise_one(script: dict[str, Any], root: Path, limit: float) -> dict[str, Any]:
    """The advice for the command, and, if it has a name, for the name."""
    folder = working_folder(script, root, check=False)
    log = root / "results" / f"{folder.name}.advice.log"
    output = ["--gpus", script["gpus"], "--json", "--no-write", "--all"]
    variables = environment_of(script, root, check=False)
    words = [*output[:-1], "--", *words_of(script, root, check=False)]
    result = advise(words, folder, variables, log, limit)
    asked, answer = ASKED[script["name"]], result.get("answer")
    if asked and answer is not None:
        name, *options = shlex.split(asked)
        if "--seq-len" not in options and not name.startswith("vit"):
            options += ["--seq-len", str(answer["workload"]["seq_len"])]
        options += ["--software", ",".join(_software(answer["workload"]["software"]))]
        question = [str(root / "models" / name), *options, *output, "--no-deepspeed-estimate"]
        result["by_name"] = advise(question, folder, dict(os.environ), log, limit)
    return result


def _software(observed: dict[str, Any]) -> Iterator[str]:
    """What no name tells: versions, padding, the implementation of the optimizer's step."""
    for name, value in observed.items():
        text = ".".join(map(str, value)) if isinstance(value, list) else {True: "yes", False: "no"}.get(value, value)
        yield f"{name}={text}"


def same_plan(plan: dict[str, Any], others: list[dict[str, Any]]) -> dict[str, Any] | None:
    keys = ["strategy", "micro_batch_size", "gradient_accumulation_steps", "gradient_checkpointing"]
    return next((other for other in others if all(other[key] == plan[key] for key in keys)), None)


def row(name: str, gpus: str, result: dict[str, Any]) -> list[str]:
    """Script, GPUs, seconds, plan, proof, speed, and the differences from the answer by name."""
    opening = [name, gpus, f"{result['seconds']:.0f}"]
    if "error" in result:
        return [*opening, result["error"], "", "", "", ""]
    answer = result["answer"]
    plan = answer["recommended"]
    if plan is None:
        tried = "; ".join(proof["problem"] for proof in answer["proofs"])
        return [*opening, "none", tried or "nothing fits", "", "", ""]
    shown = f"{plan['strategy']}, {plan['micro_batch_size']} x {plan['gradient_accumulation_steps']}"
    shown += ", checkpointing" if plan["gradient_checkpointing"] else ""
    lines = len(answer["changed"]["lines"])
    proved = f"proved{f', {lines} lines by hand' if lines else ''}"
    speed = "" if answer["speedup"] is None else f"{answer['speedup']:.2f}"
    if "by_name" not in result:
        return [*opening, shown, proved, speed, "", ""]
    by_name = result["by_name"]
    if "error" in by_name:
        return [*opening, shown, proved, speed, by_name["error"], ""]
    other = same_plan(plan, by_name["answer"]["candidates"])
    if other is None:
        return [*opening, shown, proved, speed, "no such plan", ""]
    proof = answer["verifications"][-1]
    dry_run = {"allocated_bytes_per_gpu": proof["peak"]["allocated_bytes_per_gpu"], "step_seconds": proof["step_s"]}
    own, named = (each["model"]["parameters"] for each in (answer, by_name["answer"]))
    if abs(own - named) > 0.001 * named:
        return [*opening, shown, proved, speed, "the script resizes the vocabulary to its tokenizer's", ""]
    differences = [
        " / ".join(f"{100 * (own[key] / other[key] - 1):+.1f} %" for own in (plan, dry_run)) for key in dry_run
    ]
    return [*opening, shown, proved, speed, *differences]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", metavar="DIR", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for each answer")
    parser.add_argument("--table", action="store_true", help="only print the table")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    (root / "results").mkdir(exist_ok=True)
    listed = {script["name"]: script for script in load_scripts(arguments.names)[1]}
    rows = []
    for name in ASKED:
        if name not in listed:
            continue
        path = root / "results" / f"{name.replace(' ', '_')}.advice.json"
        if not arguments.table:
            result = advise_one(listed[name], root, arguments.limit)
            path.write_text(json.dumps(result, indent=2), encoding="utf-8")
            print(f"{name}: {' | '.join(row(name, '', result)[2:])}", file=sys.stderr, flush=True)
        if path.exists():
            rows.append(row(name, listed[name]["gpus"], json.loads(path.read_text(encoding="utf-8"))))
    heads = ["script", "GPUs", "time, s", "advised", "dry run", "speedup", "memory", "step"]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    print(
        "\n".join([*lines, *("| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |" for cells in rows)])
    )


if __name__ == "__main__":
    main()
