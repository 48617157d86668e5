"""The dry run of a command against the dry run of a name: the same training by the Trainer's loop and by ours.

    python -m benchmarks.own_scripts.equality

Prints a Markdown table: the largest difference of a phase's peak and live bytes, and the time of both. Steps from the
second on are a column of their own: the Trainer's optimizer has two groups of parameters, the dry run of a name one,
so gradients of the second group live while the states of the first are made.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("trainer.py")
SIZES = {
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    "7B": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28},
    "14B": {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48, "num_attention_heads": 40},
}
_OFFLOAD = {"device": "cpu", "pin_memory": True}
CASES: dict[str, tuple[str, str, dict[str, Any], list[str]]] = {
    "ZeRO-1": ("0.5B", "4xA100-40GB", {"stage": 1}, []),
    "ZeRO-2": ("7B", "8xH100", {"stage": 2}, []),
    "ZeRO-2, no checkpointing": ("0.5B", "2x8xA100-80GB", {"stage": 2}, ["--gradient-checkpointing", "off"]),
    "ZeRO-2, optimizer on the host": ("7B", "2xA100-80GB", {"stage": 2, "offload_optimizer": _OFFLOAD}, []),
    "ZeRO-3": ("14B", "8xH100", {"stage": 3}, []),
    "ZeRO-3, two nodes, accumulation": ("7B", "2x8xA100-40GB", {"stage": 3}, ["--accumulation", "2"]),
    "ZeRO-3, everything on the host": (
        "7B",
        "4xRTX4090",
        {"stage": 3, "offload_optimizer": _OFFLOAD, "offload_param": _OFFLOAD},
        [],
    ),
    "ZeRO-2, LoRA": ("7B", "2xA100-40GB", {"stage": 2}, ["--method", "lora"]),
    "ZeRO-3, LoRA": ("7B", "4xRTX4090", {"stage": 3}, ["--method", "lora"]),
    "ZeRO-2, fp16": ("0.5B", "2xV100-32GB", {"stage": 2}, ["--precision", "fp16"]),
}
"""Name -> (size of the model, GPUs, zero_optimization, options of the dry run of a name)."""
SEQ_LEN, MICRO_BATCH, LORA_RANK = 1024, 2, 16


def main() -> None:
    heads = ("training", "phases", "largest difference", "from the second step on", "seconds by name", "by command")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, size in SIZES.items():
            write_model(folder / name, size)
        for name, case in CASES.items():
            by_name, by_command = (dry_run(folder, words) for words in commands(folder, *case))
            found = differences(by_name, by_command)
            where = max(found, key=lambda key: found[key])
            worst = f"{found[where]:.3%} ({' '.join(map(str, where))})"
            later = max(each for (iteration, *_), each in found.items() if iteration > 1)
            times = f"{by_name['seconds']:.1f} | {by_command['seconds']:.1f}"
            print(f"| {name} | {len(found)} | {worst} | {later:.3%} | {times} |", flush=True)


def write_model(folder: Path, size: dict[str, int]) -> None:
    folder.mkdir()
    config = {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "num_key_value_heads": 2,
        "vocab_size": 152064,
    }
    (folder / "config.json").write_text(json.dumps(config | size | {"max_window_layers": size["num_hidden_layers"]}))


def commands(folder: Path, size: str, gpus: str, zero: dict[str, Any], options: list[str]) -> list[list[str]]:
    """The words of both dry runs."""
    given = dict(zip(options[::2], options[1::2], strict=True))
    precision, accumulation = given.get("--precision", "bf16"), given.get("--accumulation", "1")
    auto = dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto")
    (folder / "ds.json").write_text(json.dumps({**auto, precision: {"enabled": "auto"}, "zero_optimization": zero}))
    model, lora = str(folder / size), str(LORA_RANK) if given.get("--method") == "lora" else "0"
    named = ["ds.json", "--model", model, "--seq-len", str(SEQ_LEN), "--micro-batch", str(MICRO_BATCH), *options]
    named += ["--lora-rank", lora] if lora != "0" else []
    trained = [
        str(SCRIPT),
        model,
        str(SEQ_LEN),
        lora,
        "--deepspeed",
        "ds.json",
        f"--{precision}",
        "--report_to",
        "none",
    ]
    trained += ["--per_device_train_batch_size", str(MICRO_BATCH), "--gradient_accumulation_steps", accumulation]
    if given.get("--gradient-checkpointing", "on") == "on":
        trained += ["--gradient_checkpointing"]
    return [[*named, "--gpus", gpus, "--json"], ["--gpus", gpus, "--json", "--", *trained]]


def dry_run(folder: Path, words: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "ds_advise", "dry-run", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if not done.stdout.startswith("{"):
        raise RuntimeError(done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def differences(first: dict[str, Any], second: dict[str, Any]) -> dict[tuple[int, str, str], float]:
    """Relative difference by (step, phase, figure) of the steps that both have."""

    def sizes(answer: dict[str, Any]) -> dict[tuple[int, str, str], int]:
        return {
            (phase["iteration"], phase["phase"], figure): phase[f"gpu_{figure}_bytes"]
            for phase in answer["phases"]
            for figure in ("peak", "live")
        }

    own, other = sizes(first), sizes(second)
    return {key: abs(other[key] / own[key] - 1) for key in own if key in other and own[key]}


if __name__ == "__main__":
    main()
