"""Losses of small models with each of the modern features and without it, trained through `ds-advise launch`.

    python -m benchmarks.probes.feature_losses [NAME ...] [--steps 20] [--write]

Each training is started by `ds-advise launch ds_config.json --device cpu` on two ranks, with the configuration that is
written for a plan and a script that consists of the printed lines (`script_lines`, `trainer_lines`), a small model and
random tokens; only the number of steps, the learning rate and where the losses go are added. Pairs see the same samples
in every step. A feature whose difference is above its bound is an error (exit code 1): rounding of fp32 where sums are
in another order, of bf16 where the model or the states are in it.

NAME: only these features. --write: put the rows into the table in docs/how-true.md. AutoEP needs
transformers 5.0 to 5.22; with another version it is left out with a message.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ds_advise.ds_configs.emit import ds_config
from ds_advise.ds_configs.files import write_config
from ds_advise.ds_configs.presets import plan_for
from ds_advise.ds_configs.read import FIRST_WITHOUT_AUTOEP
from ds_advise.ds_configs.training_script import script_lines, trainer_lines
from ds_advise.estimators.gpu_catalogue import gpu_of_memory
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.plan import Strategy
from ds_advise.estimators.workload import Workload
from packaging.version import Version

from ..document import put, written

PAGE, SCRIPT = "how-true.md", "probes/feature_losses"
RANKS = 2
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = LLAMA | {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "moe_intermediate_size": 64,
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
}
UNPINNED = "empty = torch.empty\ntorch.empty = lambda *size, pin_memory=False, **options: empty(*size, **options)\n"
"""Without a GPU there is no pinned memory, in which transformers puts layers' inputs."""
IN_FP32, IN_BF16 = 1e-4, 0.03
"""Bounds of the relative difference of two losses."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One of the features, and the plan that it is switched on in."""

    name: str
    strategy: Strategy
    on: dict[str, Any]
    """Fields of the plan with it."""
    workload: dict[str, Any] = field(default_factory=dict)
    """Fields of the workload with it."""
    model: dict[str, Any] = field(default_factory=lambda: LLAMA)
    precision: str = "fp32"
    bound: float = IN_FP32
    seq_len: int = 32
    """A tile has as many tokens as the hidden size."""
    reads_weights: bool = False
    """Its random weights are read from a file: `from_config` under stage 3 leaves fused experts unset (transformers
    5.8)."""


_ROUTED: dict[str, Any] = {"on": {"autoep_size": 2}, "model": EXPERTS, "precision": "bf16", "bound": IN_BF16}
_STATES = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
_TILES = {"mlp": "tiled", "loss": "tiled"}
FEATURES = (
    Feature(name="Ulysses (sequence_parallel_size 2)", strategy="zero3", on={"sequence_parallel_size": 2}),
    Feature(name="AutoEP (autoep_size 2)", strategy="zero2", **_ROUTED),
    Feature(name="AutoEP at stage 3 (autoep_size 2)", strategy="zero3", reads_weights=True, **_ROUTED),
    Feature(name="states in bf16", strategy="zero2", on=_STATES, precision="bf16", bound=IN_BF16),
    Feature(name="layers' inputs on the host (cpu_checkpointing)", strategy="zero2", on={"cpu_checkpointing": True}),
    Feature(name="hpZ (zero_hpz_partition_size 2)", strategy="zero3", on={"zero_hpz_partition_size": 2}),
    Feature(name="AutoTP (autotp_size 2)", strategy="zero1", on={"autotp_size": 2}),
    Feature(name="feed-forward and loss in tiles", strategy="zero2", on={}, workload=_TILES, seq_len=256),
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="feature_losses", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    rows, failed = [], False
    for feature in FEATURES:
        if options.names and not any(name in feature.name for name in options.names):
            continue
        if "autoep_size" in feature.on and Version(version("transformers")).release >= FIRST_WITHOUT_AUTOEP:
            print(f"{feature.name}: not with transformers {version('transformers')}", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="ds-advise-") as folder:
            with_it, without = (
                losses(feature, Path(folder, name), on=name == "with", steps=options.steps)
                for name in ("with", "without")
            )
        worst = max(abs(one / other - 1) for one, other in zip(with_it, without, strict=True))
        failed |= worst > feature.bound or not with_it[-1] < with_it[0]
        cells = feature.name, feature.strategy, feature.precision, with_it[0], with_it[-1], without[-1], worst
        rows.append("| {} | {} | {} | {:.4f} | {:.4f} | {:.4f} | {:.1e} |".format(*cells))
        print(rows[-1], flush=True)
    if options.write:
        put(PAGE, SCRIPT, table(rows, options.steps))
    return int(failed)


def table(rows: Sequence[str], steps: int) -> str:
    """The table with these rows in place of its own; those of features that were not trained stay."""
    known = {row.split(" | ")[0]: row for row in [*written(PAGE, SCRIPT).splitlines()[2:], *rows]}
    ordered = [known[f"| {feature.name}"] for feature in FEATURES if f"| {feature.name}" in known]
    head = f"| feature | strategy | precision | first loss | loss {steps} | without it | largest difference |"
    return "\n".join([head, "|---|---|---|---|---|---|---|", *ordered, ""])


def losses(feature: Feature, folder: Path, *, on: bool, steps: int) -> list[float]:
    """The loss of every step of a training with the feature or without it. Raises RuntimeError where it failed."""
    folder.mkdir()
    model = shape_from_config(feature.model, name="small")
    workload = Workload(precision=feature.precision, seq_len=feature.seq_len, **(feature.workload if on else {}))  # type: ignore[arg-type]
    cluster = Cluster(nodes=1, gpus_per_node=RANKS, gpu=gpu_of_memory(24))
    plan = plan_for(
        feature.strategy,
        model,
        workload,
        cluster,
        micro_batch_size=2,
        gradient_accumulation_steps=1,
        gradient_checkpointing=True,
    )
    plan = replace(plan, **feature.on) if on else plan
    plan = replace(plan, micro_batch_size=2 * plan.ranks_per_sample)  # the same samples in every step
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(feature.model))
    if feature.reads_weights:
        subprocess.run([sys.executable, "-c", _SAVED], cwd=folder, check=True)
    write_config(ds_config(plan, model, workload, cluster, flavor="hf"), folder / "ds_config.json", force=False)
    lines = script_lines(model, workload, plan, cluster, "ds_config.json")
    (folder / "train.py").write_text(_script(lines, trainer_lines(model, workload, plan), feature, steps))
    command = [
        *(sys.executable, "-m", "ds_advise", "launch", "ds_config.json", "--device", "cpu", "--ranks", str(RANKS)),
        *("--no-check", "--", "train.py"),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        logs = "\n".join(log.read_text()[-3000:] for log in folder.glob("ds-advise-launch/*/*.log"))
        raise RuntimeError(f"{feature.name}: {ended.stdout}{ended.stderr}{logs}")
    return [float(loss) for loss in json.loads((folder / "losses.json").read_text())]


_SAVED = """import torch
from transformers import AutoConfig, AutoModelForCausalLM
torch.manual_seed(0)
AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("model")).save_pretrained("model")
"""


def _script(lines: Sequence[str], later: Sequence[str], feature: Feature, steps: int) -> str:
    """The printed lines, between what any script has."""
    printed = "\n".join(lines)
    added = (
        f"max_steps={steps}, learning_rate=1e-3, logging_steps=1, report_to='none', save_strategy='no', "
        "disable_tqdm=True, use_cpu=True, ddp_backend='gloo',"
    )
    made = 'from_config(AutoConfig.from_pretrained("model"), dtype=dtype)'
    if feature.reads_weights:
        made = 'from_pretrained("model", dtype=dtype)'
    printed = re.sub(r"^TrainingArguments\(", f"arguments = TrainingArguments({added}", printed, flags=re.MULTILINE)
    return f"""import json, torch, deepspeed
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
deepspeed.init_distributed("gloo")
{UNPINNED if "cpu_checkpointing" in feature.on else ""}{printed}
torch.manual_seed(0)
dtype = torch.{"float32" if feature.precision == "fp32" else "bfloat16"}
model = AutoModelForCausalLM.{made}
places = torch.arange({feature.seq_len})
tokens = torch.randint(0, 512, ({2 * RANKS}, {feature.seq_len}), generator=torch.Generator().manual_seed(1))
rows = [{{"input_ids": row, "labels": row, "position_ids": places}} for row in tokens] * {steps}
trainer = Trainer(model=model, args=arguments, train_dataset=rows)
{chr(10).join(later)}
trainer.train()
if arguments.process_index == 0:
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    open("losses.json", "w").write(json.dumps(losses))
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
