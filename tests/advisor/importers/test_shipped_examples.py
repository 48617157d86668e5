"""The configurations that four tools ship as examples are read, and the same once a plan was written into them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_advise.advisor.importers.answer import detect_format
from ds_advise.advisor.importers.figures import ImportFigures, import_figures
from ds_advise.advisor.importers.imported_run import ImportedRun
from ds_advise.advisor.importers.rewrite import plan_files, write_files
from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.advisor.question.model_source import load_model
from ds_advise.ds_configs.emit import ds_config
from ds_advise.ds_configs.files import config_text
from ds_advise.ds_configs.read import plan_from_ds_config
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.workload import Workload

from tests.helpers import preset

EXAMPLES = Path(__file__).parent / "examples"
FILES = sorted(
    str(path.relative_to(EXAMPLES))
    for path in EXAMPLES.rglob("*")
    if path.suffix in (".yaml", ".yml") or path.name == "sft.json"
)
FORMATS = {"LLaMA-Factory": "llama-factory", "axolotl": "axolotl", "accelerate": "accelerate", "ms-swift": "ms-swift"}
MODEL, CLUSTER = load_model("Qwen2.5-1.5B", offline=True), parse_cluster("2xA100-80GB")
WORKLOAD = Workload()


@pytest.mark.parametrize("name", FILES)
def test_a_plan_that_is_written_is_read_again(name: str) -> None:
    """Every setting of it, in the tool's own form; what the tool leaves to its script is not in the file."""
    plan = preset("zero2" if len(name) % 2 else "zero3-offload", MODEL, WORKLOAD, CLUSTER, micro=3, steps=5)
    source, form = detect_format(EXAMPLES / name)
    assert form.name == _format(name)
    run = form.read(source)
    assert run.model is not None or form.name == "accelerate"
    config = config_text(ds_config(plan, MODEL, WORKLOAD, CLUSTER, flavor="hf"))
    if form.name == "accelerate":
        config = config.replace('"gradient_accumulation_steps": "auto"', '"gradient_accumulation_steps": 5')
    destination = Path(f"new{source.path.suffix}")
    write_files(plan_files(source, form, run, plan, config, destination=destination), force=False)
    again, same_form = detect_format(destination)
    assert same_form.name == form.name
    read = same_form.read(again)
    assert _plan(read) == plan
    assert read.model == run.model
    assert read.training == ({} if form.name == "accelerate" else run.training)  # its configuration has the precision
    assert (set(read.uncounted), set(read.unknown)) == (set(run.uncounted), set(run.unknown))


def _format(name: str) -> str:
    """By the folder, where the file is not one of accelerate that another tool brings."""
    return "accelerate" if "examples/accelerate/" in name else FORMATS[name.split("/")[0]]


def _plan(run: ImportedRun) -> Plan:
    """What accelerate leaves to the script is that of the test."""
    assert run.deepspeed is not None and run.deepspeed.config is not None
    is_open = run.leaves_batch_to_script
    return plan_from_ds_config(
        run.deepspeed.config,
        MODEL,
        CLUSTER,
        micro_batch_size=3 if is_open else run.micro_batch_size,
        gradient_accumulation_steps=None if is_open else run.gradient_accumulation_steps,
        gradient_checkpointing=is_open or bool(run.gradient_checkpointing),
    )


PLANS = {
    "LLaMA-Factory/examples/train_lora/qwen3_lora_sft_ds3.yaml": ("zero3", 1, 2, True, "lora", 8, "bf16", "adamw"),
    "LLaMA-Factory/examples/train_qlora/qwen3_lora_sft_otfq.yaml": ("torch", 1, 8, True, "qlora", 8, "bf16", "adamw"),
    "axolotl/examples/llama-3/fft-8b-liger-fsdp.yaml": ("fsdp", 2, 4, True, "full", 8, "bf16", "adamw"),
    "axolotl/examples/mistral/mixtral/mixtral.yml": ("zero2-offload", 1, 2, True, "qlora", 32, "bf16", "adamw_8bit"),
    "accelerate/examples/config_yaml_templates/deepspeed.yaml": ("zero1", 1, 1, False, "full", 8, "fp16", "adamw"),
    "ms-swift/examples/yaml/deepspeed/sft.yaml": ("zero2", 1, 8, True, "lora", 8, "bf16", "adamw"),
}


@pytest.mark.parametrize("name", PLANS)
def test_an_example_has_the_plan_of_its_manual(name: str) -> None:
    """The plan and the training, as a reader of the tool's manual would put them."""
    source, form = detect_format(EXAMPLES / name)
    run = form.read(source)
    found: ImportFigures = import_figures(run, MODEL, CLUSTER, risk="safe", offloads_checkpoints=True)
    plan, workload = found.plan, found.question.workload
    batch = (plan.micro_batch_size, plan.gradient_accumulation_steps, plan.gradient_checkpointing)
    training = (workload.method, workload.lora_rank, workload.precision, workload.optimizer)
    assert (str(plan.strategy), *batch, *training) == PLANS[name]
