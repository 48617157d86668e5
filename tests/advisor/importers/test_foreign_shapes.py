"""Files in the shapes of public repositories: read, or named as not read; no plan on a guess."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.importers import removed_arguments
from ds_advise.advisor.importers.answer import ImportAnswer, import_file
from ds_advise.advisor.importers.imported_run import known_names
from ds_advise.advisor.importers.trainer_tables import OF_EXAMPLES, OF_TRL
from ds_advise.estimators.errors import ConfigFileError

TRAINER = {
    "model_name_or_path": "Qwen/Qwen2.5-7B",
    "output_dir": "o",
    "learning_rate": 1e-5,
    "per_device_train_batch_size": 2,
}


def _imported(folder: Path, values: dict[str, object], gpus: str) -> ImportAnswer:
    (folder / "a.yaml").write_text(yaml.safe_dump(values))
    return import_file(folder / "a.yaml", gpus=gpus, offline=True)


TRL = {"model_name_or_path": "Qwen/Qwen2.5-7B", "dataset_text_field": "t", "output_dir": "o"}


def test_trl_files_are_read_with_its_defaults(tmp_path: Path) -> None:
    """TRL 1.16: bf16, checkpointing, 1,024 tokens, and the accelerate configurations that it ships."""
    values = TRL | {"model_name_or_path": "Qwen/Qwen2.5-1.5B", "num_processes": 4}
    answer = _imported(tmp_path, values | {"accelerate_config": "zero2"}, "A100-80GB")
    assert answer.form.name == "trl" and answer.figures is not None
    plan, workload = answer.figures.plan, answer.figures.question.workload
    assert (plan.zero_stage, plan.micro_batch_size, plan.gradient_checkpointing) == (2, 8, True)
    assert (answer.figures.question.cluster.world_size, workload.precision, workload.seq_len) == (4, "bf16", 1024)
    assert (workload.framework, workload.loss) == ("trl", "chunked-head")
    assert answer.run.objective == "next-token" and answer.run.uncounted == ()
    full = _imported(tmp_path, values | {"bf16": False}, "A100-80GB")
    assert full.figures is not None and full.figures.question.workload.precision == "fp32"


@pytest.mark.parametrize(
    "keys", [{"dataset_name": "d"}, {"datasets": [{"path": "d"}]}, {"dataset_train_split": "train"}]
)
@pytest.mark.parametrize("output", [{}, {"output_dir": "o"}])
def test_the_options_of_trls_script_are_enough_to_know_it(
    keys: dict[str, object], output: dict[str, object], tmp_path: Path
) -> None:
    """Without the learning rate, or with a misspelled one, and with the length that TRL renamed."""
    values = {"model_name_or_path": "Qwen/Qwen2.5-1.5B", "learnin_rate": 1e-4, "max_seq_length": 16384}
    answer = _imported(tmp_path, values | keys | output | {"accelerate_config": "zero3"}, "4xA100-80GB")
    assert answer.form.name == "trl" and answer.figures is not None and answer.run.uncounted == ()
    assert (answer.figures.plan.strategy, answer.figures.question.workload.seq_len) == ("zero3", 16384)
    assert answer.run.unknown == ("learnin_rate (did you mean learning_rate?)", "max_seq_length (now max_length)")
    without = _imported(tmp_path, values | keys | {"output_dir": "o", "num_train_epochs": 1}, "4xA100-80GB")
    assert without.form.name == "trl"


def test_the_options_of_an_example_of_transformers_are_not_trls(tmp_path: Path) -> None:
    values = {"model_name_or_path": "gpt2", "dataset_name": "d", "learning_rate": 1e-4, "output_dir": "o"}
    answer = _imported(tmp_path, values | {"block_size": 512}, "A100-80GB")
    assert answer.form.name == "training-arguments" and answer.run.training["seq_len"] == 512


def test_the_keys_that_tell_trl_are_in_its_table_alone() -> None:
    shared = known_names("training-arguments", "transformers-4")
    assert known_names("trl") >= OF_TRL and not shared & OF_TRL
    assert not OF_EXAMPLES & (shared | known_names("trl"))


AXOLOTL = "base_model: Qwen2.5-1.5B\nsequence_len: 1024\nbf16: true\nmicro_batch_size: 2\n"
SWIFT = "model: Qwen2.5-1.5B\ntuner_type: full\nmax_length: 1024\nper_device_train_batch_size: 2\nrlhf_type: "
FACTORY = "model_name_or_path: gpt2\ncutoff_len: 512\ndo_train: true\npref_beta: 0.1\nstage: "
GENERATES = "model_name_or_path: gpt2\ndataset_name: d\nnum_generations: 4\nlearning_rate: 1e-6\n"
PAIRS = "model_name_or_path: gpt2\nuse_peft: true\nbeta: 0.1\nmax_prompt_length: 512\n"
TASK = SWIFT.replace("rlhf_type: ", "task_type: ")
GLUE = "model_name_or_path: roberta-large\nlearning_rate: 2e-5\nnum_train_epochs: 3\noutput_dir: o\n"
OBJECTIVES: tuple[tuple[str, str, str | None, str], ...] = (
    ("a.yaml", PAIRS, "dpo", "chunked-head"),
    ("orpo/a.yaml", PAIRS, "orpo", "odds-ratio"),
    ("a.yaml", f"{GENERATES}beta: 0.1\nuse_vllm: true\n", "grpo", "chunked-head"),
    ("a.yaml", f"{FACTORY}dpo", "dpo", "standard"),
    ("a.yaml", f"{FACTORY}dpo\npref_loss: simpo", "simpo", "standard"),
    ("a.yaml", f"{FACTORY}dpo\nref_model: gpt2-xl", None, ""),
    ("a.yaml", f"{FACTORY}rm", "reward", "value-head"),
    ("a.yaml", f"{AXOLOTL}rl: ipo", "dpo", "chunked-head"),
    ("a.yaml", f"{AXOLOTL}rl: simpo", "simpo", "odds-ratio"),
    ("a.yaml", f"{AXOLOTL}rl: simpo\ncpo_alpha: 0.0", "simpo", "log-probs"),
    ("a.yaml", f"{AXOLOTL}rl: grpo", "grpo", "chunked-head"),
    ("a.yaml", f"{SWIFT}kto", "kto", "log-probs"),
    ("a.yaml", f"{SWIFT}orpo", "orpo", "odds-ratio"),
    ("a.yaml", f"{SWIFT}grpo", "grpo", "log-probs"),
    ("a.yaml", f"{SWIFT}grpo\noffload_model: true", None, ""),
    ("a.yaml", f"{TASK}seq_cls\nnum_labels: 2", "classification", "standard"),
    ("a.yaml", f"{TASK}reranker", "classification", "standard"),
    ("a.yaml", f"{TASK}embedding", "embedding", "standard"),
    ("a.yaml", f"{TASK}generative_reranker", None, ""),
    ("a.yaml", f"{GLUE}task_name: mrpc", "classification", "standard"),
    ("a.yaml", f"{GLUE}text_column_names: sentence", "classification", "standard"),
)


@pytest.mark.parametrize(("name", "text", "objective", "loss"), OBJECTIVES)
def test_objectives_are_read_with_the_loss_that_their_tool_takes(
    name: str, text: str, objective: str | None, loss: str, tmp_path: Path
) -> None:
    """By the file's path, or options that only they have. LLaMA-Factory takes all logits in fp32, and computes them
    beside a value head. No figures where a reference model has adapters, or the trainer is another."""
    (tmp_path / "orpo").mkdir()
    (tmp_path / name).write_text(text)
    figures = import_file(tmp_path / name, gpus="8xH100", offline=True).figures
    assert (figures is None) == (objective is None)
    if figures is not None:
        workload = figures.question.workload
        assert (workload.objective, workload.loss) == (objective, loss)
        if "use_vllm" in text:
            settings = workload.rollouts
            assert settings is not None
            assert (settings.rollout, settings.num_generations, settings.beta) == ("vllm-colocate", 4, 0.1)


MIXTURES = {
    "llama-factory": FACTORY.replace("gpt2", "Qwen/Qwen3-30B-A3B") + "sft\nlora_target: all\nlora_rank: 8",
    "ms-swift": "model: Qwen/Qwen3-30B-A3B\ntuner_type: lora\nmax_length: 1024",
    "axolotl": AXOLOTL.replace("Qwen2.5-1.5B", "Qwen/Qwen3-30B-A3B")
    + "adapter: lora\nlora_r: 8\nlora_target_linear: true",
}


@pytest.mark.parametrize("tool", MIXTURES)
def test_tools_adapt_the_linear_modules_of_a_mixture_of_experts(tool: str, tmp_path: Path) -> None:
    """6.685 M parameters on attention: fused experts are no modules that the tools could list. peft's own "all-linear"
    adapts them."""
    (tmp_path / "a.yaml").write_text(
        MIXTURES[tool] + "\n" + ("peft_" if tool == "axolotl" else "") + "use_dora: true\n"
    )
    answer = import_file(tmp_path / "a.yaml", gpus="8xH100", offline=True)
    assert answer.form.name == tool and answer.figures is not None
    question = answer.figures.question
    assert question.workload.dora and question.workload.lora_targets == ("q_proj", "k_proj", "v_proj", "o_proj")
    magnitudes = 48 * (4096 + 512 + 512 + 2048)
    assert question.trainable_parameters == 6_684_672 + magnitudes
    assert "--dora --" in answer.figures.command or answer.figures.command.endswith("--dora")
    assert "linear-modules" not in answer.figures.command


@pytest.mark.parametrize(
    ("gpus", "counts"), [("4xA100-80GB", (4, 1)), ("2x8xA100-80GB", (16, 2)), ("8xA100-80GB", None)]
)
@pytest.mark.parametrize("tool", ["trl", "accelerate"])
def test_the_file_gets_the_number_of_gpus_that_is_predicted(
    gpus: str, counts: tuple[int, int] | None, tool: str, tmp_path: Path
) -> None:
    """`--gpus` goes before the 8 of TRL's zero3 and of a file's own num_processes."""
    accelerate = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}, "num_processes": 8}
    values = TRL | {"accelerate_config": "zero3"} if tool == "trl" else accelerate
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(values))
    answer = import_file(tmp_path / "a.yaml", gpus=gpus, model="Qwen/Qwen2.5-1.5B", offline=True)
    assert answer.figures is not None
    new = yaml.safe_load(answer.files[0].new_text)
    assert (new["num_processes"], new.get("num_machines", 1)) == (counts or (8, 1))


def test_a_configuration_that_accelerate_holds_is_not_named_twice(tmp_path: Path) -> None:
    """accelerate 1.15 stops where its own file and the training's arguments both configure DeepSpeed: one of TRL's is
    replaced, one of the user's is named."""
    answer = _imported(tmp_path, TRL | {"accelerate_config": "zero3", "num_processes": 4}, "A100-80GB")
    assert answer.figures is not None and answer.figures.is_better
    text = answer.files[0].new_text
    assert "accelerate_config" not in text and "num_processes: 4" in text and "/a.ds_config.json" in text
    acc = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}, "num_processes": 4}
    (tmp_path / "acc.yaml").write_text(yaml.safe_dump(acc))
    answer = _imported(tmp_path, TRL | {"accelerate_config": "acc.yaml"}, "A100-80GB")
    assert answer.files == () and answer.unwritable is not None and "accelerate's acc.yaml" in answer.unwritable.what


@pytest.mark.parametrize(("method", "strategy"), [({}, "fsdp2"), ({"use_peft": True, "load_in_4bit": True}, "fsdp")])
def test_fsdp2_is_predicted_as_such_where_it_can_be(method: dict[str, object], strategy: str, tmp_path: Path) -> None:
    """TRL's own fsdp2 file; quantized weights are predicted as FSDP 1 holds them."""
    answer = _imported(tmp_path, TRL | method | {"accelerate_config": "fsdp2"}, "A100-80GB")
    assert answer.run.sharding == "fsdp2" and answer.figures is not None and answer.figures.plan.strategy == strategy


@pytest.mark.parametrize(
    ("fsdp", "config", "sharding", "lacks"),
    [
        (True, {}, "fsdp2", ""),
        (True, {"version": 1}, "fsdp", ""),
        ("full_shard offload", {}, "fsdp2", "not predicted: cpu_offload: true"),
        (True, {"reshard_after_forward": False}, "fsdp2", "reshard_after_forward: false"),
        ("hybrid_shard", {}, "fsdp2", "the Trainer refuses hybrid_shard with FSDP2"),
        ("hybrid_shard", {"version": 1}, "fsdp", ""),
        (True, {"activation_checkpointing": True}, "fsdp2", ""),
    ],
)
def test_the_trainers_fsdp_settings_are_followed_or_named(
    fsdp: object, config: dict[str, object], sharding: str, lacks: str, tmp_path: Path
) -> None:
    """Version 2 where none is given; no figures where weights go to the host or are not all sharded."""
    answer = _imported(tmp_path, TRAINER | {"bf16": True, "fsdp": fsdp, "fsdp_config": config}, "4xA100-80GB")
    assert answer.run.sharding == sharding and lacks in str(answer.obstacle or "")
    assert (answer.figures is None) == bool(lacks)
    assert answer.run.gradient_checkpointing is ("activation_checkpointing" in config)


def test_assumptions_about_an_imported_run_are_named(tmp_path: Path) -> None:
    """The number of GPUs, and the length that is really assumed: GPT-2 takes 1,024 tokens."""
    answer = _imported(tmp_path, TRAINER | {"model_name_or_path": "gpt2"}, "A100-80GB")
    message = " ".join(answer.remarks)
    assert "1,024 tokens are assumed" in message and "the number of GPUs is not given: 1 is assumed" in message


@pytest.mark.parametrize(
    ("values", "how"),
    [
        (TRAINER | {"bf16": True}, "torchrun --nproc_per_node 1"),
        ({**TRAINER, "stage": "sft", "do_train": True, "finetuning_type": "full"}, "FORCE_TORCHRUN=1"),
    ],
)
def test_deepspeed_in_one_process_needs_a_launcher(values: dict[str, object], how: str, tmp_path: Path) -> None:
    """Without a process group DeepSpeed 0.19.8 imports mpi4py, and stops."""
    answer = _imported(tmp_path, values | {"bf16": True}, "1xRTX4090")
    assert answer.figures is not None and answer.figures.recommended is not None
    assert answer.figures.recommended.plan.sharding == "zero"
    message = [remark.rpartition("start it with ")[2] for remark in answer.remarks if "needs a launcher" in remark]
    assert message == [how]


def test_where_nothing_fits_the_missing_memory_and_a_command_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """RAM, and a command that can be copied: it stands alone, and asks about the same machines and training."""
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(TRAINER))
    assert run(["from", str(tmp_path / "a.yaml"), "--gpus", "2xRTX4090", "--ram", "32GB", "--offline"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "GiB of RAM per node" in " ".join(" ".join(lines).split())
    start = next(index for index, line in enumerate(lines) if line.strip().startswith("ds-advise Qwen/Qwen2.5-7B"))
    command = " ".join(line.strip().removesuffix("\\").strip() for line in lines[start : start + 3])
    for words in ("--gpus 2xRTX-4090", "--ram ", "--global-batch 4", "--seq-len 2048", "--precision fp32"):
        assert words in command
    assert not lines[start].endswith(".")


def test_a_slower_plan_names_the_better_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = TRAINER | {"model_name_or_path": "Qwen/Qwen2.5-1.5B", "bf16": True, "block_size": 4096}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(values))
    assert run(["from", str(tmp_path / "a.yaml"), "--gpus", "2xRTX4090", "--offline"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "does not fit. Better: " in text and "as fast as the file's plan would be." in text


def test_no_write_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = TRAINER | {"model_name_or_path": "Qwen/Qwen2.5-1.5B", "bf16": True}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(values))
    words = ["from", str(tmp_path / "a.yaml"), "--gpus", "2x80GB", "--offline", "--no-write"]
    assert run(words) == 0
    assert run([*words, "-o", str(tmp_path / "b.yaml")]) == 2
    assert "contradict" in capsys.readouterr().err


ACCELERATE: dict[str, object] = {"distributed_type": "DEEPSPEED", "num_processes": 2, "mixed_precision": "no"}


@pytest.mark.parametrize(
    ("numbers", "batch"),
    [
        ({"gradient_accumulation_steps": 4}, (1, 4)),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}, (2, 4)),
        ({"train_batch_size": 16, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2}, (4, 2)),
        ({"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}, (1, 1)),
    ],
)
def test_the_numbers_of_accelerates_deepspeed_file_are_the_batch(
    numbers: dict[str, object], batch: tuple[int, int], tmp_path: Path
) -> None:
    """accelerate uses them in place of the script's; the user's micro batch replaces that of the file."""
    config = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(config | numbers))
    (tmp_path / "a.yaml").write_text(
        yaml.safe_dump(ACCELERATE | {"deepspeed_config": {"deepspeed_config_file": str(tmp_path / "ds.json")}})
    )
    for micro in (None, 3):
        answer = import_file(
            tmp_path / "a.yaml", model="Qwen2.5-0.5B", gpus="2xA100-80GB", offline=True, micro_batch=micro
        )
        assert answer.obstacle is None and answer.figures is not None
        plan = answer.figures.plan
        assert (plan.micro_batch_size, plan.gradient_accumulation_steps) == (micro or batch[0], batch[1])
        assumes = any("micro batch 1 (--micro-batch)" in each for each in answer.remarks)
        assert assumes == (micro is None and batch[0] == 1)


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ({}, False),
        ({"fsdp_activation_checkpointing": True}, True),
        ({"fsdp_activation_checkpointing": "true", "fsdp_version": 2}, True),
        ({"fsdp_activation_checkpointing": True, "fsdp_activation_checkpointing_offload": True}, True),
        (
            {"fsdp_activation_checkpointing": True, "fsdp_activation_checkpointing_offload": True, "fsdp_version": 2},
            "offload",
        ),
    ],
)
def test_the_checkpointing_of_accelerates_fsdp_counts(keys: dict[str, object], kept: object, tmp_path: Path) -> None:
    """It is not assumed of the script, and a plan with DeepSpeed, which drops FSDP's settings, asks the script for
    its own."""
    values = ACCELERATE | {"distributed_type": "FSDP", "mixed_precision": "bf16", "fsdp_config": keys}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(values))
    answer = import_file(tmp_path / "a.yaml", model="Qwen2.5-7B", gpus="2xA100-80GB", offline=True)
    assert answer.run.gradient_checkpointing == kept
    assert any("no checkpointing" in each for each in answer.remarks) == (not kept)


def test_the_trainer_checkpoints_once_fsdp_does_no_longer(tmp_path: Path) -> None:
    """FSDP's settings do not stay beside DeepSpeed's file."""
    fsdp = {"fsdp": True, "fsdp_config": {"activation_checkpointing": True}, "bf16": True}
    answer = _imported(tmp_path, TRAINER | fsdp, "2xA100-40GB")
    assert answer.figures is not None and answer.figures.recommended is not None
    plan = answer.figures.recommended.plan
    assert plan.sharding == "zero" and plan.gradient_checkpointing
    assert answer.unwritable is None and "gradient_checkpointing: true" in answer.files[0].new_text


@pytest.mark.parametrize("values", [TRAINER, TRL])
def test_two_checkpointings_stop_the_trainer(values: dict[str, object], tmp_path: Path) -> None:
    """TRL's is on by default, and FSDP's settings are in accelerate's file."""
    settings = {"fsdp_version": 2, "fsdp_activation_checkpointing": True}
    launch = {"distributed_type": "FSDP", "num_processes": 2, "fsdp_config": settings}
    (tmp_path / "acc.yaml").write_text(yaml.safe_dump(launch))
    fsdp = {"fsdp": True, "fsdp_config": {"activation_checkpointing": True}, "bf16": True}
    with_fsdp = fsdp if values is TRAINER else {"accelerate_config": "acc.yaml"}
    for given, count in ((True, 1), (False, 0)):
        run_ = _imported(tmp_path, values | with_fsdp | {"gradient_checkpointing": given}, "2xA100-80GB").run
        assert run_.sharding == "fsdp2" and run_.gradient_checkpointing is True
        assert len([each for each in run_.faults if "the Trainer refuses activation_checkpointing" in each]) == count


def test_a_misspelled_key_is_read_as_the_one_that_is_meant(tmp_path: Path) -> None:
    """The tools stop at it. A script may have options of its own, at which nothing stops."""
    factory = {"stage": "sft", "do_train": True, "finetuning_type": "lora", "model_name_or_path": "gpt2"}
    answer = _imported(tmp_path, factory | {"cuttoff_len": 512}, "A100-80GB")
    assert answer.run.training["seq_len"] == 512 and "the figures take cuttoff_len as cutoff_len" in answer.remarks
    assert answer.refused_by == ("LLaMA-Factory",)
    given = _imported(tmp_path, factory | {"cuttoff_len": 512, "cutoff_len": 256}, "A100-80GB")
    assert given.run.training["seq_len"] == 256
    wrong = {"per_device_train_batch_sise": 3, "data_path": "x"}
    trainer = _imported(
        tmp_path, {k: v for k, v in TRAINER.items() if k != "per_device_train_batch_size"} | wrong, "A100-80GB"
    )
    assert trainer.run.micro_batch_size == 3
    assert trainer.run.unknown == ("per_device_train_batch_sise (did you mean per_device_train_batch_size?)",)
    assert trainer.refused_by == ()
    launch = _imported(tmp_path, {"distributed_type": "NO", "mixed_precison": "bf16"}, "A100-80GB")
    assert launch.run.training["precision"] == "bf16" and launch.refused_by == ("accelerate",)


@pytest.mark.parametrize("values", [TRAINER, TRL])
def test_arguments_that_transformers_5_removed_are_named(
    values: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault where that transformers is installed, else a remark: an older one takes them."""
    old = {"evaluation_strategy": "no", "no_cuda": False, "save_safetensors": True}
    expected = (
        "transformers 5 has no evaluation_strategy (now eval_strategy), no_cuda (now use_cpu), save_safetensors: "
        "TrainingArguments refuse them"
    )
    for release, is_fault in (("5.24.0", True), ("4.57.0", False), ("", False)):
        monkeypatch.setattr(removed_arguments, "installed_version", lambda _, release=release: release)
        run_ = _imported(tmp_path, values | old, "A100-80GB").run
        assert run_.faults == ((expected,) if is_fault else ()) and (expected in run_.remarks) != is_fault


def test_the_same_plan_is_not_called_another_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Read again, the written file lacks a variable alone."""
    (tmp_path / "a.json").write_text(
        json.dumps(
            TRAINER
            | {"bf16": True, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
            | {"gradient_checkpointing": False}
        )
    )
    words = ["--gpus", "8xA100-40GB", "--offline", "--no-run"]
    written = str(tmp_path / "b.json")
    assert run(["from", str(tmp_path / "a.json"), *words, "-o", written]) == 1
    capsys.readouterr()
    run(["from", written, *words])
    printed = " ".join(capsys.readouterr().out.split())
    assert "Better: the same plan with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True fits. as it is" in printed


TORCHTUNE: dict[str, object] = {
    "model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b"},
    "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": 4096},
    "optimizer": {"_component_": "torch.optim.AdamW", "lr": 2e-5},
    "batch_size": 2,
    "gradient_accumulation_steps": 8,
    "enable_activation_checkpointing": True,
    "dtype": "bf16",
}


@pytest.mark.parametrize("format", [None, "axolotl"])
def test_torchtune_is_named_with_the_question_about_its_training(format: str | None, tmp_path: Path) -> None:
    """Also if another format is named, whose reader would take its keys for that tool's."""
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(TORCHTUNE))
    with pytest.raises(ConfigFileError) as caught:
        import_file(tmp_path / "a.yaml", gpus="8xH100", offline=True, format=format)
    assert "is a configuration of torchtune, which is not read" in caught.value.what
    assert caught.value.fix == (
        "ask about its model: ds-advise MODEL --gpus 8xH100 --seq-len 4096 --micro-batch 2 --global-batch 128 "
        "--gradient-checkpointing on --precision bf16 --offline"
    )


def test_a_new_configuration_is_shown_as_json_and_a_reason_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the answer on a terminal no line has its reason again; elsewhere stderr has every error."""
    values = ACCELERATE | {"mixed_precision": "bf16", "deepspeed_config": {"zero_stage": 2}}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(values))
    words = ["from", str(tmp_path / "a.yaml"), "--gpus", "A100-40GB", "--offline"]
    new = tmp_path / "b.yaml"
    assert run([*words, "--model", "Qwen2.5-7B", "-o", str(new)]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    shown = "{" + printed.partition("b.ds_config.json: {")[2].partition("} In the script")[0] + "}"
    assert json.loads(shown) == json.loads((tmp_path / "b.ds_config.json").read_text())
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert run(words) == 2
    shown = re.sub(r"\x1b\[[\d;]*m", "", "".join(capsys.readouterr()))
    assert " ".join(shown.split()).count("does not name a model") == 1, "wherever the path breaks the line"
