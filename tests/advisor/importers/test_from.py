"""`ds-advise from FILE`: figures, what is wrong, the difference, what is written, and one sentence for bad input."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import ds_advise
import pytest
import yaml
from ds_advise.advisor.answer.facts import training_subject
from ds_advise.advisor.cli.config_files import IMPORT_FORMATS
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.importers.answer import NAMES, import_file
from ds_advise.advisor.importers.shipped_configs import axolotl_config

EXAMPLES = Path(__file__).parent / "examples"
LORA = "examples/train_lora/qwen3_lora_sft_ds3.yaml"
CONFIG = {
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "cpu_ofload": True},
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working folder: a checkout of LLaMA-Factory, and a configuration of DeepSpeed."""
    shutil.copytree(EXAMPLES / "LLaMA-Factory", tmp_path, dirs_exist_ok=True)
    Path("ds_z3.json").write_text(json.dumps(CONFIG))
    return tmp_path


def _imported(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, str]:
    code = run(["from", *words, "--offline", "--json"])
    out, error = capsys.readouterr()
    return code, json.loads(out) if out else None, error


def test_the_formats_of_the_option_are_those_that_are_read() -> None:
    assert IMPORT_FORMATS == NAMES


@pytest.mark.usefixtures("folder")
def test_a_better_plan_is_shown_as_changed_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """LoRA of a small model is faster without ZeRO-3; nothing is written, and lines before the changes are short."""
    monkeypatch.setenv("COLUMNS", "40")
    before = sorted(Path("examples").rglob("*"))
    assert run(["from", LORA, "--gpus", "4xA100-40GB", "--offline"]) == 0
    printed = capsys.readouterr().out
    text = " ".join(printed.split())
    for words in ("a LLaMA-Factory configuration: ZeRO-3", "Better:", "x as fast", "LoRA r=8"):
        assert words in text
    assert all(len(line) <= 40 for line in printed.partition("Change in")[0].splitlines() if LORA not in line)
    assert (
        "deepspeed:examples/deepspeed/ds_z3_config.json->" in "".join(printed.split())
        and "disable_gradient_checkpointing: true" in text
    )
    assert sorted(Path("examples").rglob("*")) == before
    proposed = shlex.split(printed.partition("existing file):")[2].replace("\\\n", " "))
    assert run(proposed[1:]) == 0 and Path("better.yaml").exists()


@pytest.mark.usefixtures("folder")
def test_the_written_file_has_the_better_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """Read again, nothing is better, and the global batch is what it was."""
    code, first, _ = _imported(capsys, LORA, "--gpus", "4xA100-80GB", "-o", "better.yaml")
    assert code == 0 and first["files"] == ["better.yaml", "better.ds_config.json"]
    assert "# choices:" in Path("better.yaml").read_text()
    code, again, _ = _imported(capsys, "better.yaml", "--gpus", "4xA100-80GB")
    assert code == 0 and not again["is_better"] and again["changes"] == []
    named = ("strategy", "micro_batch_size", "gradient_accumulation_steps", "gradient_checkpointing")
    assert [again["as_is"][name] for name in named] == [first["recommended"][name] for name in named]
    assert again["as_is"]["tokens_per_second"] == pytest.approx(first["recommended"]["tokens_per_second"], rel=0.02)


@pytest.mark.usefixtures("folder")
def test_a_file_of_the_user_is_only_overwritten_by_force(capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(LORA).read_text()
    code, answer, error = _imported(capsys, LORA, "--gpus", "4xA100-80GB", "-o", LORA)
    assert code == 2 and "--force" in error and answer["files"] == [] and Path(LORA).read_text() == text
    code, answer, _ = _imported(capsys, LORA, "--gpus", "4xA100-80GB", "-o", LORA, "--force")
    assert code == 0 and answer["files"][0] == LORA and Path(LORA).read_text() != text


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("extension", [{}, {"dataset_mixer": {"d": 1.0}}], ids=["trl", "alignment-handbook"])
def test_a_key_that_trl_renamed_counts_under_its_present_name(
    extension: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    """`max_seq_length` became `max_length` (TRL 0.16), and `torch_dtype` `dtype`, whose default is float32. The answer
    says so, and the changed file has the present names where the tool stops at the former ones. The file of a script
    that extends TRL keeps what its version may have."""
    trl = {"model_name_or_path": "Qwen/Qwen2.5-7B", "dataset_name": "d", "bf16": True} | extension
    found = []
    for length, dtype in (("max_seq_length", "torch_dtype"), ("max_length", "dtype")):
        Path("sft.yaml").write_text(yaml.safe_dump(trl | {length: 4096, dtype: "bfloat16"}))
        words = ["--gpus", "8xA100-80GB", "--no-run", "-o", "b.yaml", "--force"]
        _, answer, _ = _imported(capsys, "sft.yaml", *words)
        found.append((answer, yaml.safe_load(Path("b.yaml").read_text())))
    (old, old_file), (new, new_file) = found
    assert old["run"]["training"]["seq_len"] == 4096 and old["as_is"] == new["as_is"]
    assert "the figures take max_seq_length as max_length, torch_dtype as dtype" in old["remarks"]
    stops = ["max_seq_length (now max_length)", "torch_dtype (now dtype)"]
    assert old["unknown"] == ([] if extension else stops) and not new["faults"]
    assert (old_file == new_file) is not bool(extension)
    assert ({"max_seq_length", "torch_dtype"} <= old_file.keys()) is bool(extension)


@pytest.mark.usefixtures("folder")
def test_a_renamed_key_is_not_another_trainers(capsys: pytest.CaptureFixture[str]) -> None:
    """GRPO has no `max_length`."""
    keys = {"model_name_or_path": "Qwen/Qwen2.5-1.5B", "dataset_name": "d", "num_generations": 8}
    Path("grpo.yaml").write_text(json.dumps(keys | {"max_seq_length": 4096}))
    _, answer, _ = _imported(capsys, "grpo.yaml", "--gpus", "A100-80GB", "--no-run")
    assert not any("now max_length" in each for each in answer["unknown"])
    assert not any("max_seq_length as" in each for each in answer["remarks"])


@pytest.mark.usefixtures("folder")
def test_axolotl_refuses_a_batch_that_its_keys_leave_open(capsys: pytest.CaptureFixture[str]) -> None:
    """It needs two of three keys, and divides the samples per GPU by the micro batch. A key of a block inside the
    configuration is none of the configuration itself."""
    named = {"base_model": "Qwen/Qwen2.5-1.5B", "bf16": True}

    def imported(**keys: object) -> tuple[int, dict[str, Any]]:
        Path("axo.yaml").write_text(json.dumps(named | keys))
        return _imported(capsys, "axo.yaml", "--gpus", "4xA100-80GB", "--no-run")[:2]

    code, typed = imported(micro_batchsize=2, sequence_length=8192)
    least = "at least two of micro_batch_size, gradient_accumulation_steps and batch_size must be set"
    assert code == 1 and typed["faults"] == [least] and typed["uncounted"] == []
    meant = ("micro_batchsize (did you mean micro_batch_size?)", "sequence_length (did you mean sequence_len?)")
    assert tuple(typed["unknown"]) == meant
    code, divided = imported(micro_batch_size=2, batch_size=8)
    assert (code, divided["faults"], divided["as_is"]["gradient_accumulation_steps"]) == (0, [], 4)


@pytest.mark.usefixtures("folder")
def test_the_keys_of_trl_are_those_of_its_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    """`max_prompt_length` is left in experimental trainers alone; supervised training has no `beta`."""
    trl = {"model_name_or_path": "Qwen/Qwen2.5-1.5B", "dataset_name": "d"}
    for keys, unknown in (
        ({"precompute_ref_log_probs": True, "max_prompt_length": 512, "beta": 0.1}, ["max_prompt_length"]),
        ({"packing": True, "num_iterations": 2}, ["num_iterations"]),
    ):
        Path("trl.yaml").write_text(json.dumps(trl | keys))
        code, answer, _ = _imported(capsys, "trl.yaml", "--gpus", "4xA100-80GB", "--no-run")
        assert (code, answer["unknown"]) == (int(bool(unknown)), unknown)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "command",
    [
        "FORCE_TORCHRUN=1 llamafactory-cli train conf/x.yaml --model_name_or_path $M",
        "axolotl train conf/x.yaml",
        "NPROC_PER_NODE=4 swift sft conf/x.yaml",
        "trl sft --config conf/x.yaml",
    ],
)
def test_a_script_that_runs_a_tool_leads_to_the_tools_file(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Which needs no tool; a file that is not there is left to a dry run."""
    Path("run.sh").write_text(f"M=Qwen/Qwen2.5-1.5B\n{command}\n")
    words = ["from", "run.sh", "--gpus", "4xA100-80GB"]
    assert run(words) == 2 and "ds-advise --gpus 4xA100-80GB -- " in capsys.readouterr().err
    Path("conf").mkdir()
    Path("conf/x.yaml").write_text("{}")
    assert run(words) == 2
    error = capsys.readouterr().err
    assert error.endswith("what else the command sets is left out; ds-advise from conf/x.yaml --gpus 4xA100-80GB\n")


@pytest.mark.usefixtures("folder")
def test_the_command_that_writes_the_change_is_not_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("axo.yaml").write_text("base_model: Qwen/Qwen2.5-7B\nbf16: true\nmicro_batch_size: 1\nbatch_size: 1\n")
    words = ["from", "axo.yaml", "--gpus", "8xA100-80GB", "--offline", "--no-run", "--no-write"]
    run(words)
    printed = " ".join(capsys.readouterr().out.replace("\\\n", "").split())
    assert printed.endswith("ds-advise from axo.yaml --gpus 8xA100-80GB --offline --no-run -o better.yaml")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("objective", ["next-token", "grpo", "dpo", "classification"])
def test_liger_leaves_the_loss_to_trl_and_to_classifiers(objective: str, capsys: pytest.CaptureFixture[str]) -> None:
    """TRL 1.16 sets `fused_linear_cross_entropy` to False; a classifier has no head over the vocabulary."""
    keys: dict[str, dict[str, Any]] = {
        "next-token": {"dataset_text_field": "t"},
        "grpo": {"num_generations": 8},
        "dpo": {"max_prompt_length": 64},
        "classification": {"task_name": "mnli", "output_dir": "o", "per_device_train_batch_size": 8},
    }
    named = {"model_name_or_path": "Qwen/Qwen2.5-1.5B", "learning_rate": 1e-6, "use_liger_kernel": True}
    Path("run.yaml").write_text(json.dumps(named | keys[objective] | {"bf16": True}))
    _, answer, _ = _imported(capsys, "run.yaml", "--gpus", "8xA100-80GB")
    assert (answer["run"]["objective"], answer["run"]["training"]["kernels"]) == (objective, "liger")
    assert answer["loss"] == ("standard" if objective == "classification" else "chunked-head")


ULYSSES = """distributed_type: DEEPSPEED
num_processes: 8
deepspeed_config: {deepspeed_config_file: plain.json}
parallelism_config:
  parallelism_config_dp_shard_size: SHARDS
  parallelism_config_sp_size: 4
  parallelism_config_sp_backend: deepspeed
  parallelism_config_sp_seq_length_is_variable: false
  parallelism_config_sp_seq_length: 16384
  parallelism_config_sp_attn_implementation: flash_attention_2
"""


@pytest.mark.usefixtures("folder")
def test_groups_of_gpus_share_samples_by_accelerate_s_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Ulysses; DeepSpeed asserts that the batch is that of the groups, which is corrected."""
    where = ("--model", "Qwen2.5-1.5B", "--gpus", "A100-80GB")
    Path("plain.json").write_text(json.dumps(CONFIG | {"zero_optimization": {"stage": 3}}))
    Path("sp.yaml").write_text(ULYSSES.replace("SHARDS", "2"))
    code, answer, _ = _imported(capsys, "sp.yaml", *where)
    assert code == 0 and answer["faults"] == [] and answer["as_is"]["sequence_parallel_size"] == 4
    training = answer["run"]["training"]
    assert (training["seq_len"], training["attention"]) == (16384, "flash")
    Path("sp.yaml").write_text(ULYSSES.replace("SHARDS", "1"))
    code, answer, _ = _imported(capsys, "sp.yaml", *where, "-o", "new.yaml")
    assert code == 1 and "multiply to 4, not to the 8" in answer["faults"][0]
    code, answer, _ = _imported(capsys, "new.yaml", *where)
    assert code == 0 and answer["as_is"]["sequence_parallel_size"] == 4
    assert answer["run"]["deepspeed_config"]["sequence_parallel_size"] == 4


COMPLETIONS: dict[str, dict[str, Any]] = {
    "ms-swift": {
        "model": "Qwen2.5-1.5B",
        "tuner_type": "full",
        "rlhf_type": "grpo",
        "vllm_gpu_memory_utilization": 0.25,
        "sleep_level": 1,
        **(shared := {"use_vllm": True, "vllm_mode": "colocate", "num_generations": 4, "max_completion_length": 256}),
    },
    "axolotl": {
        "base_model": "Qwen2.5-1.5B",
        "rl": "grpo",
        "rl_beta": 0.04,
        "trl": {**shared, "vllm_enable_sleep_mode": True},
        "vllm": {"gpu_memory_utilization": 0.25},
    },
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("tool", COMPLETIONS)
def test_grpo_of_the_tools_has_its_completions(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    """axolotl's chunked head is that of TRL 1.8; ms-swift divides whole logits, as TRL 1.0 does, and has a reference
    model by default."""
    Path("run.yaml").write_text(json.dumps(COMPLETIONS[tool] | {"bf16": True, "deepspeed": "ds_z3.json"}))
    _, answer, _ = _imported(capsys, "run.yaml", "--gpus", "8xA100-80GB")
    training = answer["run"]["training"]
    given = {name: shared[name] for name in ("num_generations", "max_completion_length")} | {"beta": 0.04}
    given |= {"objective": "grpo", "rollout": "vllm-colocate", "vllm_enable_sleep_mode": "on"}
    given |= {"vllm_gpu_memory_utilization": 0.25, "seq_len": 512 + 256}
    assert {name: training.get(name) for name in given} == given
    assert answer["loss"] == {"axolotl": "chunked-head", "ms-swift": "log-probs"}[tool]
    assert answer["as_is"]["strategy"] == "zero3-offload" and answer["unknown"] == []


@pytest.mark.usefixtures("folder")
def test_a_file_that_stays_as_it_is_shows_no_change(capsys: pytest.CaptureFixture[str]) -> None:
    """The better plan differs in what only the script sets."""
    Path("fsdp.yaml").write_text("distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n")
    words = ("fsdp.yaml", "--model", "Qwen2.5-7B", "--gpus", "A100-40GB", "--seq-len", "4096", "--micro-batch", "2")
    code, answer, _ = _imported(capsys, *words)
    assert (code, answer["is_better"], answer["recommended"]["strategy"]) == (1, True, "fsdp")
    assert answer["changes"] == [] and run(["from", *words, "--offline"]) == 1
    printed = capsys.readouterr().out
    assert "gradient_checkpointing=True" in printed and "Change in" not in printed


HYBRID = {"fsdp_config": {"fsdp_sharding_strategy": "HYBRID_SHARD"}}
GROUPS = {"parallelism_config_dp_replicate_size": 4, "parallelism_config_dp_shard_size": 4}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("keys", "nodes", "shards"),
    [
        (HYBRID, 1, 8),
        (HYBRID, 2, 8),
        ({"fsdp_config": {"fsdp_version": 2}, "parallelism_config": GROUPS}, 2, 4),
        ({"fsdp_config": {"fsdp_version": 2, "fsdp_sharding_strategy": "HYBRID_SHARD"}}, 2, 16),
    ],
)
def test_hybrid_sharding_keeps_a_copy_in_each_group(keys: dict[str, Any], nodes: int, shards: int) -> None:
    """A GPU holds what it would if the group were all GPUs, and no weight leaves the group. FSDP2 has no
    `sharding_strategy`."""
    version = keys["fsdp_config"].get("fsdp_version", 1)
    written = {"distributed_type": "FSDP", "mixed_precision": "bf16", "fsdp_config": {"fsdp_version": version}}

    def figures(name: str, machine: str, **further: Any) -> Any:
        Path(name).write_text(json.dumps(written | further))
        options: dict[str, Any] = {"model": "Qwen2.5-7B", "seq_len": 2048, "gradient_checkpointing": "on"}
        found = import_file(Path(name), gpus=machine, interconnect="25Gb/s", offline=True, **options).figures
        assert found is not None and found.as_is is not None
        return found.as_is

    processes = {"num_processes": 8 * nodes, "num_machines": nodes}
    hybrid = figures("a.yaml", "A100-80GB", **keys, **processes)
    alone = figures("b.yaml", f"{shards}xA100-80GB" if shards < 16 else "2x8xA100-80GB")
    allocated = hybrid.memory.allocated_bytes_per_gpu
    assert allocated == alone.memory.allocated_bytes_per_gpu
    if 8 * nodes > shards:
        whole = figures("c.yaml", "2x8xA100-80GB")
        assert allocated > whole.memory.allocated_bytes_per_gpu + 2**30
        assert hybrid.tokens_per_s > 1.5 * whole.tokens_per_s
        between = [term for term in hybrid.time.terms if term.name == "gradient reduction between groups"]
        assert len(between) == 1 and between[0].resource == "network"


@pytest.mark.usefixtures("folder")
def test_llama_factory_does_not_quantize_without_a_number_of_bits(capsys: pytest.CaptureFixture[str]) -> None:
    named = {"model_name_or_path": "Qwen2.5-1.5B", "stage": "sft", "do_train": True, "template": "qwen", "bf16": True}
    for bits, method in (({}, "lora"), ({"quantization_bit": 4}, "qlora")):
        Path("lora.yaml").write_text(json.dumps(named | {"quantization_method": "bnb", **bits}))
        _, answer, _ = _imported(capsys, "lora.yaml", "--gpus", "A100-80GB")
        assert answer["run"]["training"]["method"] == method
        assert ("nothing is quantized" in " ".join(answer["remarks"])) == (method == "lora")


@pytest.mark.usefixtures("folder")
def test_a_run_has_its_gpus_and_its_faults(capsys: pytest.CaptureFixture[str]) -> None:
    """The number of GPUs is the file's, the kind the user's; unknown options and keys are listed."""
    trl = {"model_name_or_path": "Qwen/Qwen2.5-7B", "dataset_text_field": "t", "num_processes": 16, "num_machines": 2}
    Path("sft.yaml").write_text(json.dumps(trl | {"max_length": 4096, "deepspeed": "ds_z3.json", "my_own_option": 3}))
    code, answer, _ = _imported(capsys, "sft.yaml", "--gpus", "A100-80GB")
    assert code == 1 and (answer["run"]["nodes"], answer["run"]["gpus_per_node"]) == (2, 8)
    assert answer["as_is"]["strategy"] == "zero3-offload" and answer["is_better"]
    assert answer["unknown"] == ["my_own_option"]  # TRL refuses it on its command line
    assert any("cpu_ofload" in finding["path"] for finding in answer["findings"])
    config = json.loads(answer["changes"][1]["text"])
    assert "gradient_clipping" not in config  # the run goes on without it
    code, answer, error = _imported(capsys, "sft.yaml")  # findings without figures
    assert (code, answer["as_is"], error.count("\n")) == (2, None, 1) and "--gpus" in error and answer["findings"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("place", [".", "/", ""])
def test_a_folder_is_refused_as_output(capsys: pytest.CaptureFixture[str], place: str) -> None:
    code, answer, error = _imported(capsys, LORA, "--gpus", "4xA100-80GB", "-o", place)
    assert (code, answer) == (2, None) and f"; write --output {Path(place, 'better.yaml')}\n" in error


@pytest.mark.usefixtures("folder")
def test_where_nothing_can_be_written_or_predicted_the_reason_is_first(capsys: pytest.CaptureFixture[str]) -> None:
    """And a command that was typed with -o has it once."""
    assert run(["from", LORA, "--gpus", "4xA100-80GB", "--offline", "-o", "no/new.yaml"]) == 2
    out, error = capsys.readouterr()
    assert not out and "there is no folder no; write --output new.yaml, or create it" in error
    Path("new.yaml").write_text("mine: 1\n")
    assert run(["from", LORA, "--gpus", "4xA100-80GB", "--offline", "--no-run", "-o", "new.yaml"]) == 2
    printed = " ".join(capsys.readouterr().out.replace("\\\n", "").split())
    assert printed.endswith("-o new.yaml --force") and printed.count("-o new.yaml") == 1
    Path("acc.yaml").write_text(ACCELERATE)
    assert run(["from", "acc.yaml", "--gpus", "80GB"]) == 2
    assert (
        capsys.readouterr().out.splitlines()[1]
        == " There are no figures: acc.yaml does not name a model; pass --model."
    )


@pytest.mark.usefixtures("folder")
def test_a_fault_that_accelerate_refuses_is_removed_in_the_new_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("acc.yaml").write_text(
        "distributed_type: DEEPSPEED\nmixed_precision: bf16  # mine\nnum_processes: 2\n"
        "deepspeed_config:\n  deepspeed_config_file: ds_z3.json\n  zero_stage: 2\n"
    )
    where = ("--model", "Qwen2.5-1.5B", "--gpus", "24GB")
    code, answer, _ = _imported(capsys, "acc.yaml", *where, "-o", "new.yaml")
    assert code == 1 and "zero_stage, mixed_precision" in answer["faults"][0]
    for variable in answer["variables"]:
        monkeypatch.setenv(*variable.split("="))
    code, again, _ = _imported(capsys, "new.yaml", *where, "--loss", answer["loss"])  # which the script sets
    assert code == 0 and again["faults"] == []
    config = again["run"]["deepspeed_config"]
    assert config["bf16"] == {"enabled": True} and "optimizer" not in config


@pytest.mark.usefixtures("folder")
def test_a_configuration_within_the_file_stays_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {"output_dir": "o", "per_device_train_batch_size": 2, "learning_rate": 1e-4, "bf16": True}
    Path("args.json").write_text(json.dumps(arguments | {"deepspeed": CONFIG}, indent=2))
    code, answer, _ = _imported(
        capsys, "args.json", "--model", "Qwen2.5-1.5B", "--gpus", "2x80GB", "-o", "new.json"
    )  # cpu_ofload
    assert code == 1 and answer["files"] == ["new.json"]
    assert json.loads(Path("new.json").read_text())["deepspeed"]["zero_optimization"]["stage"] < 3


BAD = {
    "there is no such file": ("missing.yaml", None, "no such file"),
    "it is empty": ("x.yaml", "", "empty"),
    "it is not JSON": ("x.json", '{"a": ', "not JSON"),
    "it is not text": ("x.yaml", "a\0b", "not text"),
    "its keys are of no tool": ("x.yaml", "services: 1\nversion: 2", "services, version"),
    "it is a ds_config": ("x.json", json.dumps(CONFIG), "DeepSpeed configuration, not a file of a tool"),
    "it is a shell script": (
        "x.sh",
        "export A=1\npip install trl\nsrun --ntasks 2 torchrun \\\n  train.py --lr $LR > log 2>&1\n",
        "once you have replaced $LR, which the script gives no literal value; "
        "ds-advise --gpus 2x80GB --offline -- env A=1 srun --ntasks 2 torchrun train.py --lr $LR\n",
    ),
    "it is a shell script with variables": (
        "x.sh",
        "export A=1\nM=org/model; OUT=out/$M\nDATA=$(pwd)\nexport OUT\n"
        "torchrun t.py --model $M --out \"${OUT}\" --lr ${LR:-1e-5} --data '$M' --n $((1 + 2)) --dir $DATA\n",
        "$DATA, which the script gives no literal value; ds-advise --gpus 2x80GB --offline -- env A=1 OUT=out/org/model"
        " torchrun t.py --model org/model --out \"out/org/model\" --lr 1e-5 --data '$M' --n $((1 + 2)) --dir $DATA\n",
    ),
    "its command has a pipe": (
        "x.sh",
        'cd a && torchrun t.py --a "x|y" --b $(echo 1; echo 2) | tee log; echo done\n',
        'ds-advise --gpus 2x80GB --offline -- torchrun t.py --a "x|y" --b $(echo 1; echo 2)\n',
    ),
    "its command runs in the background": (
        "x.sh",
        "(torchrun t.py > log 2>&1 &)\n",
        "ds-advise --gpus 2x80GB --offline -- torchrun t.py\n",
    ),
    "its options are in an array": (
        "x.sh",
        'B=4\nARGS=(\n  --bf16 True  # fast\n  --name "a b" --b $B\n)\nARGS+=(--c 1)\n'
        'torchrun t.py "${ARGS[@]}" --d ${E[0]}\nARGS=()\n',
        "once you have replaced $E, which the script gives no literal value; ds-advise --gpus 2x80GB --offline -- "
        'torchrun t.py --bf16 True --name "a b" --b 4 --c 1 --d ${E[0]}\n',
    ),
    "its options are in a text": (
        "x.sh",
        'N=2\nDS="--bf16 True --deepspeed ds.json"\nRUN="\n  --nproc_per_node $N \\\n  --nnodes 1\n"\n'
        'torchrun $RUN t.py $DS --name "$DS"\n',
        "not a configuration: a dry run of its command answers in its place; ds-advise --gpus 2x80GB --offline -- "
        "torchrun --nproc_per_node 2 --nnodes 1 t.py --bf16 True --deepspeed ds.json "
        '--name "--bf16 True --deepspeed ds.json"\n',
    ),
    "it has several commands": (
        "x.sh",
        "# one\ntorchrun a.py\n\ntorchrun b.py \\\n  --c 1\npython d.py\n",
        "a dry run of its first command answers in its place, and so may those of lines 4 and 6; "
        "ds-advise --gpus 2x80GB --offline -- torchrun a.py\n",
    ),
    "its command is in a variable": ("x", "#!/bin/sh\nsrun $RUN\n", "ds-advise --gpus 2x80GB --offline -- COMMAND"),
    "it is a Python script": (
        "x.py",
        "import torch\n",
        "ds-advise --gpus 2x80GB --offline -- torchrun --nproc_per_node 2 x.py",
    ),
    "it does not name a model": ("x.yaml", "output_dir: o\nlearning_rate: 1", "does not name a model"),
    "its DeepSpeed file is not here": (
        "x.yaml",
        "base_model: Qwen2.5-1.5B\ndeepspeed: no.json",
        "no.json is not on this machine",
    ),
    "its batch sizes contradict": (
        "x.yaml",
        "base_model: Qwen2.5-1.5B\ndeepspeed:\n  train_batch_size: 7\n  zero_optimization: {stage: 2}\n",
        "train_batch_size is 7",
    ),
    "a count is none": ("x.yaml", "distributed_type: MULTI_GPU\nnum_processes: many", "num_processes"),
    "a block is none": ("x.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config: 3", "deepspeed_config"),
    "DeepSpeed stops at its optimizer": (
        "x.yaml",
        "model_name_or_path: gpt2\nstage: sft\ndo_train: true\nfinetuning_type: full\nuse_muon: true\n",
        "not predicted: LLaMA-Factory's own Muon",
    ),
    "its script is DeepSpeed-Chat's": (
        "x.yaml",
        "model_name_or_path: gpt2\noutput_dir: o\nlearning_rate: 1\nzero_stage: 2\n",
        "option zero_stage",
    ),
    "LLaVA trains its projector alone": (
        "x.yaml",
        "output_dir: o\nlearning_rate: 1\ndeepspeed: z.json\ntune_mm_mlp_adapter: true\n",
        "partial training by LLaVA",
    ),
    "it only tokenizes": (
        "x.yaml",
        "model_name_or_path: gpt2\nstage: sft\ndo_train: true\ntokenized_path: t\noutput_dir: o\n",
        "only tokenizes",
    ),
    "accelerate's FSDP offloads": (
        "x.yaml",
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_offload_params: true}\nnum_processes: 4\n",
        "not predicted: fsdp_offload_params: true",
    ),
    "the Trainer's FSDP2 has no hybrid sharding": (
        "x.yaml",
        "model_name_or_path: gpt2\noutput_dir: o\nlearning_rate: 1\nfsdp: hybrid_shard\n",
        "the Trainer refuses hybrid_shard with FSDP2: set version to 1 in fsdp_config",
    ),
    "only the states are shared in a group": (
        "x.yaml",
        "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD_ZERO2}\nnum_processes: 4\n",
        "not predicted: fsdp_sharding_strategy: hybrid_shard_zero2",
    ),
    "accelerate's context parallelism": (
        "x.yaml",
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\nparallelism_config: {parallelism_config_cp_size: 4}\n",
        "not predicted: parallelism_config_cp_size: 4",
    ),
    "ms-swift has a trainer of its own": (
        "x.yaml",
        "model: gpt2\ntrain_type: lora\nrlhf_type: gkd\n",
        "GKD by ms-swift",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_sentence(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No figure and no change, and no remark on figures."""
    name, text, message = BAD[what]
    Path("bad.json").write_text("{")
    if text is not None:
        Path(name).write_text(text)
    code = run(["from", name, "--gpus", "2x80GB", "--offline"])
    out, error = capsys.readouterr()
    assert (code, error.count("\n")) == (2, 1) and message in error and "error of ds-advise itself" not in error
    assert not [word for word in ("as it is", "Better", "Change in", "assumed") if word in out]


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["trl sft --model_name_or_path m --bf16"], "trl sft --model_name_or_path m --bf16"),
        (["trl", "sft", "--model_name_or_path", "m", "--gpus", "8xH100"], "trl sft --model_name_or_path m"),
        (["torchrun t.py --lr 1", "--gpus=8xH100"], "torchrun t.py --lr 1"),
        (["accelerate launch t.py"], "accelerate launch t.py"),
        (["torchrun t.py --gpus 8xH100 --name 8xH100"], "torchrun t.py --name 8xH100"),
        (["torchrun t.py --gpus=8xH100 --name 8xH100"], "torchrun t.py --name 8xH100"),
    ],
)
def test_a_command_in_place_of_a_file_is_run(
    words: list[str], instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["from", *words]) == 2
    gpus = "8xH100" if any("gpus" in word for word in words) else "2x24GB"
    assert capsys.readouterr().err.endswith(f"; write ds-advise --gpus {gpus} -- {instead}\n")


def test_gpus_that_are_the_command_s_stay_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A number alone describes no GPUs."""
    assert run(["from", "torchrun train.py --gpus 8 --bs 8"]) == 2
    assert capsys.readouterr().err.endswith("; write ds-advise --gpus 2x24GB -- torchrun train.py --gpus 8 --bs 8\n")


@pytest.mark.usefixtures("folder")
def test_two_precisions_are_a_fault_that_the_new_file_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    """TrainingArguments stop at bf16 and fp16 at once; tf32 counts in fp32 alone."""
    arguments = {"model_name_or_path": "Qwen/Qwen2.5-7B", "output_dir": "o", "learning_rate": 1e-5, "tf32": True}
    for precision, software in (("fp32", {"tf32": True}), ("bf16", None)):
        Path("tf32.json").write_text(json.dumps(arguments | {"bf16": precision == "bf16"}))
        training = _imported(capsys, "tf32.json", "--gpus", "8xA100-80GB")[1]["run"]["training"]
        assert (training["precision"], training.get("software")) == (precision, software)
    both = arguments | {"deepspeed": "ds_z3.json", "bf16": True, "fp16": True}
    Path("both.json").write_text(json.dumps(both))
    code, answer, _ = _imported(capsys, "both.json", "--gpus", "8xA100-80GB", "-o", "new.json")
    assert code == 1 and answer["faults"] == ["the Trainer refuses bf16 and fp16 together: bf16 is assumed"]
    assert json.loads(Path("new.json").read_text())["fp16"] is False


def test_options_of_from_override_the_file(folder: Path) -> None:
    """Also its format, and a configuration that is elsewhere."""
    given = {"format": "llama-factory", "ds_config": folder / "ds_z3.json", "seq_len": 512, "method": "full"}
    answer = import_file(folder / LORA, gpus="4xA100-80GB", offline=True, micro_batch=3, **given)
    assert answer.run.deepspeed is not None and answer.run.deepspeed.path == folder / "ds_z3.json"
    assert answer.figures is not None
    workload, plan = answer.figures.question.workload, answer.figures.plan
    assert (workload.seq_len, workload.method, plan.micro_batch_size) == (512, "full", 3)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("tool", "keys", "peak", "gib_on_host"),
    [
        ("llama-factory", {"bf16": True}, 4 * 32.76 + 2 * 0.78, 2 * 0.78),
        ("llama-factory", {"bf16": True, "pure_bf16": True}, None, 2 * 0.78),
        ("axolotl", {"bf16": True}, None, 2 * 0.78),
        ("ms-swift", {}, None, 2 * 0.78),
        ("trl", {}, None, 4 * 32.76),
    ],
)
def test_what_each_tool_holds_before_the_engine(
    tool: str, keys: dict[str, Any], peak: float | None, gib_on_host: float
) -> None:
    """Billions of bytes: LLaMA-Factory casts what trains to fp32 on the GPU without `pure_bf16`; TRL loads fp32 on the
    host, the others on the GPU. `--framework` says the same of the tools."""
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    Path("z2.json").write_text(json.dumps({"zero_optimization": zero, "bf16": {"enabled": True}}))
    named = {
        "llama-factory": {"model_name_or_path": "Qwen2.5-32B", "stage": "sft", "do_train": True, "template": "qwen"},
        "axolotl": {"base_model": "Qwen2.5-32B", "sequence_len": 2048},
        "ms-swift": {"model": "Qwen2.5-32B", "tuner_type": "full", "max_length": 2048},
        "trl": {"model_name_or_path": "Qwen2.5-32B", "dataset_name": "d", "learning_rate": 1e-5},
    }[tool]
    values = {**named, "finetuning_type": "full"} if tool == "llama-factory" else named
    Path("run.yaml").write_text(json.dumps({**values, "deepspeed": "z2.json", **keys}))
    figures = import_file(Path("run.yaml"), gpus="8xH100").figures
    assert figures is not None and figures.as_is is not None
    memory, said = figures.as_is.memory, " ".join(figures.remarks)
    subject = " ".join(training_subject(figures.own))
    assert "fp32 adapters" not in subject
    assert ("trained weights cast to fp32 on the GPU" in subject) == (peak is not None)
    load = {phase.name: phase.allocated_bytes / 1e9 for phase in memory.phases}.get("load")
    assert ("pure_bf16: true avoids it" in said) == (memory.peak.name == "load") == (peak is not None)
    if peak is not None:
        assert load == pytest.approx(peak, rel=0.01) and not figures.as_is.fit.fits
    process = 2 * 2**30
    on_host = (memory.host_loading_bytes_per_node / 8 - process) / 1e9
    flattened = 2 * 2 * 32.76  # on the host: the GPUs have no room for a second copy
    assert on_host == pytest.approx(max(gib_on_host, flattened), rel=0.01)
    if tool != "trl":
        asked = ds_advise.estimate("Qwen2.5-32B", gpus="8xH100", strategy="zero2", framework=tool)
        assert ("load" in {phase.name for phase in asked.memory.phases}) == (tool == "llama-factory")


ACCELERATE = """\
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 3
  gradient_accumulation_steps: 1
mixed_precision: bf16
num_processes: 4
"""


@pytest.mark.usefixtures("folder")
def test_findings_in_a_configuration_within_the_file_have_their_place_in_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They stay in an answer that leaves out details. None advises an "auto" that stops a plain `Accelerator()`, and a
    number of accumulation steps stays one in the better configuration."""
    Path("acc.yaml").write_text(ACCELERATE)
    words = ["from", "acc.yaml", "--model", "Qwen2.5-1.5B", "--gpus", "80GB", "--offline", "--no-run"]
    assert run([*words, "-o", "better.yaml"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "DS316 advice acc.yaml:2 deepspeed_config: Weights are not gathered" in printed and "DS154" not in printed
    assert "(for accelerate deepspeed_config.zero3_save_16bit_model)." in printed
    _, found, _ = _imported(capsys, *words[1:-2], "--no-run")
    places = {each["code"]: (each["line"], each["column"], each["path"]) for each in found["findings"]}
    assert places["DS316"] == (2, 1, "deepspeed_config")
    assert json.loads(Path("better.ds_config.json").read_text())["gradient_accumulation_steps"] == 1


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_findings_are_on_what_a_file_says(stage: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither on keys that accelerate adds, nor on those that TRL's own files have."""
    Path("acc.yaml").write_text(
        f"distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: {stage}\n"
    )
    Path("trl.yaml").write_text(
        f"model_name_or_path: Qwen/Qwen2.5-7B\ndataset_text_field: t\naccelerate_config: zero{stage}\n"
    )
    _, found, _ = _imported(capsys, "acc.yaml", "--model", "Qwen2.5-7B", "--gpus", "H100")
    assert {each["code"] for each in found["findings"]} == ({"DS316"} if stage == 3 else set())
    _, found, _ = _imported(capsys, "trl.yaml", "--gpus", "H100")
    assert f"accelerate_config zero{stage} is TRL 1.16's own, " in " ".join(found["remarks"])
    assert found["findings"] == []


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("written", "named"), [("4", 4), ("auto", "auto"), (None, "auto")])
def test_accumulation_of_accelerates_file_stays_what_it_is(
    written: str | None, named: int | str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the number of the plan replaces a number. "auto" stops a plain `Accelerator()`, which the answer says."""
    line = "" if written is None else f"  gradient_accumulation_steps: {written}\n"
    Path("acc.yaml").write_text(ACCELERATE.replace("  gradient_accumulation_steps: 1\n", line))
    words = ["acc.yaml", "--model", "Qwen2.5-1.5B", "--gpus", "80GB", "--offline", "--no-run", "-o", "better.yaml"]
    _, found, _ = _imported(capsys, *words)
    steps = found["recommended"]["gradient_accumulation_steps"]
    config = json.loads(Path("better.ds_config.json").read_text())
    assert config["gradient_accumulation_steps"] == (named if named == "auto" else steps)
    assert any("stops a script with a plain Accelerator()" in each for each in found["remarks"]) == (written == "auto")


@pytest.mark.usefixtures("folder")
def test_a_named_file_without_accumulation_stays_without(capsys: pytest.CaptureFixture[str]) -> None:
    """accelerate takes 1 for the missing key, and the script's number for "auto"; a Trainer compares a number."""
    Path("own.json").write_text(json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}))
    Path("acc.yaml").write_text(
        "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: own.json}\nnum_processes: 4\n"
    )
    _imported(capsys, "acc.yaml", "--model", "Qwen2.5-1.5B", "--gpus", "80GB", "--offline", "-o", "better.yaml")
    assert "gradient_accumulation_steps" not in json.loads(Path("better.ds_config.json").read_text())


@pytest.mark.usefixtures("folder")
def test_a_plan_of_stage_0_is_one_of_deepspeed(capsys: pytest.CaptureFixture[str]) -> None:
    """It writes a DeepSpeed configuration, so it is not called DDP."""
    Path("acc.yaml").write_text(ACCELERATE.replace("num_processes: 4", "num_processes: 1"))
    run(["from", "acc.yaml", "--model", "Qwen2.5-0.5B", "--gpus", "80GB", "--offline"])
    out = capsys.readouterr().out
    assert "Better: DeepSpeed, stage 0 fits." in out and "ddp" not in out.lower()


@pytest.mark.usefixtures("folder")
def test_threads_name_the_cores_that_they_use(capsys: pytest.CaptureFixture[str]) -> None:
    Path("acc.yaml").write_text(ACCELERATE.replace("mixed", "  offload_optimizer_device: cpu\nmixed"))
    words = ["acc.yaml", "--model", "Qwen2.5-7B", "--gpus", "80GB", "--offline"]
    _, found, _ = _imported(capsys, *words)
    assert any("on a node with 32 CPU cores, which are assumed (--host)" in each for each in found["remarks"])
    _, found, _ = _imported(capsys, *words, "--host", "16cores")
    assert any(each.endswith("as fast on a node with 16 CPU cores") for each in found["remarks"])


def test_an_example_of_llama_factory_needs_no_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its figures are those of the file itself. Another file that is not here has no figures, and no remark of a run
    that was not tried."""
    monkeypatch.chdir(tmp_path)
    name = "examples/deepspeed/ds_z3_config.json"
    keys = {"model_name_or_path": "Qwen/Qwen2.5-1.5B", "stage": "sft", "do_train": True, "finetuning_type": "full"}
    Path("a.json").write_text(json.dumps({**keys, "deepspeed": name}))
    words = ["a.json", "--gpus", "4xA100-80GB", "--offline"]
    _, shipped, _ = _imported(capsys, *words)
    assert f"{name} is not here: LLaMA-Factory's own of 2026-08 (ff6d4d1) is counted" in shipped["remarks"]
    fixes = [each["fix"] for each in shipped["findings"] if each["code"] == "DS307"]
    assert all(each.startswith(f"in {name}, `zero_optimization.sub_group_size`: write ") for each in fixes)
    Path(name).parent.mkdir(parents=True)
    Path(name).write_text((EXAMPLES / "LLaMA-Factory" / name).read_text())
    _, own, _ = _imported(capsys, *words)
    assert own["as_is"] == shipped["as_is"] and not any("ff6d4d1" in each for each in own["remarks"])
    Path("a.json").write_text(json.dumps({**keys, "deepspeed": "examples/deepspeed/mine.json"}))
    assert run(["from", *words]) == 2
    out, error = capsys.readouterr()
    assert "mine.json is not on this machine" in error and "Read, not run" not in out and "is not here" not in out


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("keys", "title", "refused"),
    [
        ({"stage": "sft", "do_train": True, "finetuning_type": "full", "cutof_len": 9}, "LLaMA-Factory", True),
        ({"tuner_type": "full", "train_type": "full", "max_lenth": 9}, "ms-swift", True),
        ({"tuner_type": "full", "train_type": "full", "max_lenth": 9, "ignore_args_error": True}, "ms-swift", False),
    ],
)
def test_a_key_at_which_the_tool_stops_is_in_the_headline(
    keys: dict[str, Any], title: str, refused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "model_name_or_path" if title == "LLaMA-Factory" else "model"
    Path("a.json").write_text(json.dumps({name: "Qwen/Qwen2.5-1.5B", **keys}))
    form = "llama-factory" if title == "LLaMA-Factory" else "ms-swift"
    code = run(["from", "a.json", "--gpus", "4xA100-80GB", "--offline", "--no-run", "--format", form])
    printed = " ".join(capsys.readouterr().out.split())
    assert code == int(refused)
    assert (f"{title} refuses it. Apart from that, " in printed) == refused
    assert (f"Keys that {title} does not know, at which it stops: " in printed) == refused
    assert ("Unknown to" in printed) != refused


@pytest.mark.usefixtures("folder")
def test_a_file_has_its_changed_keys_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Also a DeepSpeed configuration; a mirror of a model is named beside the model that is counted."""
    Path("one.json").write_text(json.dumps({**CONFIG, "steps_per_print": 100, "wall_clock_breakdown": False}))
    keys = {"stage": "sft", "do_train": True, "finetuning_type": "full", "learning_rate": 1e-5, "cutoff_len": 1024}
    name = {"model_name_or_path": "unsloth/Qwen2.5-1.5B", "deepspeed": "one.json"}
    Path("a.json").write_text(json.dumps(name | keys))
    assert run(["from", "a.json", "--gpus", "4xA100-80GB", "--offline", "--no-run"]) == 1
    out = capsys.readouterr().out
    printed = " ".join(out.split())
    assert "unsloth/Qwen2.5-1.5B is counted as Qwen/Qwen2.5-1.5B" in printed.replace("Unsloth", "unsloth")
    assert "Change in a.json deepspeed: one.json -> a.ds_config.json" in printed and "@@" not in out


AXOLOTL_NAMES = (
    *("zero1.json", "zero1_torch_compile.json", "zero2.json", "zero2_torch_compile.json", "zero3.json"),
    *("zero3_bf16.json", "zero3_bf16_cpuoffload_all.json", "zero3_bf16_cpuoffload_params.json"),
)
AXOLOTL_FILES = sorted((EXAMPLES / "axolotl" / "deepspeed_configs").glob("*.json"))


@pytest.mark.parametrize("file", AXOLOTL_FILES, ids=lambda file: file.name)
def test_a_configuration_of_axolotl_needs_no_checkout(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its figures are those of the file itself."""
    name = f"deepspeed_configs/{file.name}"
    Path("a.json").write_text(json.dumps({"base_model": "Qwen/Qwen2.5-1.5B", "bf16": True, "deepspeed": name}))
    words = ["a.json", "--gpus", "4xA100-80GB"]
    _, shipped, _ = _imported(capsys, *words)
    assert f"{name} is not here: axolotl's own of 2026-07 (067b021) is counted" in shipped["remarks"]
    Path(name).parent.mkdir()
    Path(name).write_text(file.read_text())
    _, own, _ = _imported(capsys, *words)
    assert own["as_is"] == shipped["as_is"] and own["recommended"] == shipped["recommended"]
    assert not any("067b021" in each for each in own["remarks"])


def test_the_names_of_axolotls_configurations_say_what_they_are() -> None:
    """In its checkout, or in a copy of the folder; elsewhere a file of the same name is another one."""
    for name in AXOLOTL_NAMES:
        config = axolotl_config(f"axolotl/deepspeed_configs/{name}")
        assert config is not None and axolotl_config(f"configs/{name}") is None
        zero = config["zero_optimization"]
        assert f"zero{zero['stage']}" in name and ("bf16" in name) == (config["bf16"] == {"enabled": True})
        assert ("offload_param" in zero) == ("cpuoffload" in name) and ("compile" in config) == ("compile" in name)
    assert axolotl_config("deepspeed_configs/zero9.json") is None


def test_the_number_of_processes_follows_the_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    """Of accelerate's file; a memory size alone keeps the file's number."""
    Path("acc.yaml").write_text(ACCELERATE)
    words = ["acc.yaml", "--model", "Qwen2.5-1.5B", "-o", "new.yaml", "--force"]
    for gpus, count in (("2x80GB", 2), ("80GB", 4), ("2x8xH100", 16)):
        _, answer, _ = _imported(capsys, *words, "--gpus", gpus)
        assert f"num_processes: {count}\n" in Path("new.yaml").read_text()
        assert ("num_machines: 2" in Path("new.yaml").read_text()) == (count == 16)
        remark = f"the file starts 4 processes, but the figures are those of {count} GPUs"
        assert (remark in answer["remarks"]) == (count != 4)


def test_a_configuration_that_deepspeed_refuses_is_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    """In the first line; nothing to write is said."""
    zero = {"stage": 1, "no_such_key": 3}
    config = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
    Path("ds.json").write_text(json.dumps({**config, "bf16": {"enabled": "auto"}, "zero_optimization": zero}))
    keys = {"base_model": "gpt2", "sequence_len": 512, "bf16": True, "micro_batch_size": 1, "batch_size": 1}
    Path("a.json").write_text(json.dumps({**keys, "deepspeed": "ds.json"}))
    code = run(["from", "a.json", "--gpus", "80GB", "--offline", "--no-run", "-o", "b.json"])
    out, error = capsys.readouterr()
    assert code == 1
    assert "a.json, an axolotl configuration: DeepSpeed refuses it. Apart from that, " in " ".join(out.split())
    assert ("b.json is not written: there is no change to write" in error) != Path("b.json").exists()


def test_an_unknown_key_that_stays_in_the_changed_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    keys = {"model_name_or_path": "Qwen/Qwen2.5-1.5B", "stage": "sft", "do_train": True, "finetuning_type": "full"}
    more = {"num_train_epoch": 3.0, "bf16": True, "deepspeed": "examples/deepspeed/ds_z3_config.json"}
    Path("a.json").write_text(json.dumps({**keys, **more}))
    run(["from", "a.json", "--gpus", "4x80GB", "--offline", "--no-run", "-o", "b.json"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "The changed file keeps num_train_epoch (did you mean num_train_epochs?): correct it by hand." in printed
    assert "num_train_epoch" in json.loads(Path("b.json").read_text())


def test_a_plan_that_cannot_run_names_the_key_that_stops_it(capsys: pytest.CaptureFixture[str]) -> None:
    """In the file that has it; another optimizer also ends it."""
    zero = {"stage": 2, "overlap_comm": True, "offload_optimizer": {"device": "cpu"}}
    Path("zero2.json").write_text(json.dumps({"zero_optimization": zero, "bf16": {"enabled": True}}))
    keys = {"base_model": "Qwen/Qwen2.5-1.5B", "datasets": [{"path": "a", "type": "alpaca"}], "deepspeed": "zero2.json"}
    Path("a.yml").write_text(json.dumps({**keys, "optimizer": "adamw_bnb_8bit", "micro_batch_size": 1, "bf16": True}))
    assert run(["from", "a.yml", "--format", "axolotl", "--gpus", "4xA100-80GB", "--offline", "--no-run"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "it cannot run, because adamw_8bit does not run on the host; it can without "
        "zero_optimization.offload_optimizer of zero2.json or with adamw as the optimizer." in out
    )


def test_a_better_plan_of_the_same_kind_says_what_changes(capsys: pytest.CaptureFixture[str]) -> None:
    """And frozen weights that are loaded in fp32 have their cost."""
    keys = {"model_name_or_path": "Qwen/Qwen2.5-7B", "dataset_name": "a", "use_peft": True, "bf16": True}
    batch = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "max_length": 2048}
    Path("a.yaml").write_text(json.dumps({**keys, **batch}))
    assert run(["from", "a.yaml", "--format", "trl", "--gpus", "1xA100-80GB", "--offline", "--no-run"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Better: Plain PyTorch with micro batch \d.* and no gradient checkpointing fits\. It is", out)
    assert (
        "in which dtype: bfloat16 loads them; without dtype in the file TRL loads them in fp32, which takes 14." in out
    )


def test_the_command_for_a_script_keeps_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """And a command that sets variables of its own is started by env."""
    Path("swift.sh").write_text("#!/bin/sh\nNPROC_PER_NODE=4 swift sft --model Qwen/Qwen2.5-7B\n")
    machine = ["--gpus", "4xA100-80GB", "--ram", "512GB", "--nvme", "/nvme:4TB"]
    assert run(["from", "swift.sh", *machine, "--offline"]) == 2
    error = capsys.readouterr().err
    assert "ds-advise --gpus 4xA100-80GB --ram 512GB --nvme /nvme:4TB --offline -- env NPROC_PER_NODE=4 swift" in error
