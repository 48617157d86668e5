"""Launch lines and files in the shapes of public repositories: read, or named as not read; no plan on a guess."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.importers.answer import ImportAnswer, import_file

TRAINER = "--model_name_or_path Qwen/Qwen2.5-1.5B --output_dir o --learning_rate 1e-5 --per_device_train_batch_size 2"
NOT_READ = {
    "OpenRLHF's PPO": ("python3 -m openrlhf.cli.train_ppo_ray --ds.zero_stage 3", "PPO training"),
    "verl by a default": (
        'ENTRY=${ENTRY:-"-m verl.trainer.fsdp_sft_trainer"}\ntorchrun --nproc_per_node=8 ${ENTRY} model.lora_rank=0',
        "precision; ds-advise MODEL --objective grpo predicts TRL's GRPO instead",
    ),
    "a plain deepspeed.initialize": ("deepspeed train_bert_ds.py --checkpoint_dir x $@", "train_bert_ds.py gets"),
    "its configuration as the first argument": ("deepspeed t.py --deepspeed_config=ds.json -p 2", "pass ds.json"),
    "DeepSpeed-Chat": (f"deepspeed main.py {TRAINER} --zero_stage 2 --deepspeed", "no option zero_stage"),
    "a script for rewards": (f"torchrun examples/reward_modeling/reward.py {TRAINER}", "REWARD training"),
    "LLaVA's projector alone": (
        f"deepspeed train_mem.py {TRAINER} --deepspeed z.json --tune_mm_mlp_adapter True",
        "partial training by LLaVA",
    ),
    "a file that only tokenizes": (
        "model_name_or_path: gpt2\nstage: sft\ndo_train: true\ntokenized_path: t\noutput_dir: o\n",
        "only tokenizes",
    ),
    "a configuration that the shell names": ("accelerate launch t.py --config r/$TASK/c.yaml", "at run time"),
    "a script with a YAML file of its own keys": (
        "torchrun train.py olmo.yaml",
        "olmo.yaml: no known tool has its keys (run_name, model)",
    ),
    "accelerate's FSDP with offload": (
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_offload_params: true}\nnum_processes: 4\n",
        "not predicted: fsdp_offload_params: true",
    ),
    "ms-swift's rlhf": ("swift rlhf --rlhf_type gkd --model gpt2 --train_type lora", "GKD by ms-swift"),
}


@pytest.mark.parametrize("what", NOT_READ)
def test_unsupported_files_are_named_as_such(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No figure and no change, also with a model from the command line, and no remark on figures."""
    text, words = NOT_READ[what]
    name = "a.yaml" if text.endswith("\n") and ": " in text else "a.sh"
    Path(name).write_text(text)
    Path("olmo.yaml").write_text("run_name: r\nmodel: {d_model: 768}\n")
    assert run(["from", name, "--gpus", "2xA100-80GB", "--model", "gpt2", "--offline"]) == 2
    message = capsys.readouterr()
    assert words in message.err and message.err.count("\n") == 1
    assert not [word for word in ("as it is", "Better", "What would change", "assumed") if word in message.out]


def _imported(folder: Path, text: str, gpus: str, **options: str) -> ImportAnswer:
    (folder / "a.sh").write_text(text)
    return import_file(folder / "a.sh", gpus=gpus, offline=True, **options)  # type: ignore[arg-type]


def test_trl_commands_are_read_with_its_defaults(tmp_path: Path) -> None:
    """TRL 1.16: bf16, checkpointing, 1,024 tokens, and the accelerate configurations that it ships."""
    text = "trl sft --model_name_or_path Qwen/Qwen2.5-1.5B --output_dir o --accelerate_config zero2 --num_processes 4\n"
    answer = _imported(tmp_path, text, "A100-80GB")
    assert answer.form.name == "trl" and answer.figures is not None
    plan, workload = answer.figures.plan, answer.figures.question.workload
    assert (plan.zero_stage, plan.micro_batch_size, plan.gradient_checkpointing) == (2, 8, True)
    assert (answer.figures.question.cluster.world_size, workload.precision, workload.seq_len) == (4, "bf16", 1024)
    assert (workload.framework, workload.loss) == ("trl", "chunked-head")
    assert answer.run.objective == "next-token" and answer.run.uncounted == ()
    full = _imported(tmp_path, text.replace("--accelerate_config zero2", "--bf16 false"), "A100-80GB")
    assert full.figures is not None and full.figures.question.workload.precision == "fp32"


def test_the_configuration_that_a_script_names_is_recognised_by_its_keys(tmp_path: Path) -> None:
    """alignment-handbook's scripts take a YAML file as their first argument, as LLaMA-Factory's do."""
    keys = "model_name_or_path: gpt2\ndataset_mixer: {d: 1.0}\nlearning_rate: 1e-6\nbeta: 2.0\n"
    (tmp_path / "c.yaml").write_text(keys)
    answer = _imported(tmp_path, "accelerate launch run_simpo.py c.yaml", "A100-80GB")
    assert (answer.form.name, answer.run.objective) == ("trl", "simpo")


AXOLOTL = "base_model: Qwen2.5-1.5B\nsequence_len: 1024\nbf16: true\nmicro_batch_size: 2\n"
SWIFT = "model: Qwen2.5-1.5B\ntuner_type: full\nmax_length: 1024\nper_device_train_batch_size: 2\nrlhf_type: "
FACTORY = "model_name_or_path: gpt2\ncutoff_len: 512\ndo_train: true\npref_beta: 0.1\nstage: "
OF_TRL = "model_name_or_path: gpt2\nuse_peft: true\nbeta: 0.1\nmax_prompt_length: 512\n"
OBJECTIVES: tuple[tuple[str, str, str | None, str], ...] = (
    ("a.sh", f"trl dpo {TRAINER} --beta 0.1", "dpo", "chunked-head"),
    ("orpo/a.yaml", OF_TRL, "orpo", "odds-ratio"),
    (
        "a.yaml",
        "model_name_or_path: gpt2\ndataset_name: d\nnum_generations: 16\nlearning_rate: 1e-6\n",
        "grpo",
        "chunked-head",
    ),
    ("a.yaml", f"{FACTORY}dpo", "dpo", "standard"),
    ("a.yaml", f"{FACTORY}dpo\npref_loss: simpo", "simpo", "standard"),
    ("a.yaml", f"{FACTORY}dpo\nref_model: gpt2-xl", None, ""),
    ("a.yaml", f"{FACTORY}rm", "reward", "value-head"),
    ("a.yaml", f"{AXOLOTL}rl: ipo", "dpo", "chunked-head"),
    ("a.yaml", f"{AXOLOTL}rl: simpo", "simpo", "odds-ratio"),
    ("a.yaml", f"{AXOLOTL}rl: simpo\ncpo_alpha: 0.0", "simpo", "log-probs"),
    ("a.yaml", f"{AXOLOTL}rl: grpo", None, ""),
    ("a.sh", f"trl grpo {TRAINER} --use_vllm --num_generations 4 --beta 0.1", "grpo", "chunked-head"),
    ("a.yaml", f"{SWIFT}kto", "kto", "log-probs"),
    ("a.yaml", f"{SWIFT}orpo", "orpo", "odds-ratio"),
    ("a.yaml", f"{SWIFT}grpo", None, ""),
)


@pytest.mark.parametrize(("name", "text", "objective", "loss"), OBJECTIVES)
def test_objectives_are_read_with_the_loss_that_their_tool_takes(
    name: str, text: str, objective: str | None, loss: str, tmp_path: Path
) -> None:
    """By the subcommand, the script's name, or options that only they have. LLaMA-Factory takes all logits in fp32,
    and computes them beside a value head. No figures where a reference model has adapters, or the trainer is
    another."""
    (tmp_path / "orpo").mkdir()
    (tmp_path / name).write_text(text)
    figures = import_file(tmp_path / name, gpus="8xH100", offline=True).figures
    assert (figures is None) == (objective is None)
    if figures is not None:
        workload = figures.question.workload
        assert (workload.objective, workload.loss) == (objective, loss)
        if "--use_vllm" in text:
            settings = workload.rollouts
            assert settings is not None
            assert (settings.rollout, settings.num_generations, settings.beta) == ("vllm-colocate", 4, 0.1)


def test_a_configuration_that_accelerate_holds_is_not_named_twice(tmp_path: Path) -> None:
    """accelerate 1.15 stops where its own file and the training's arguments both configure DeepSpeed."""
    (tmp_path / "a.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2.5-7B\ndataset_text_field: t\nlearning_rate: 1e-5\n"
    )
    text = "trl sft --config a.yaml --accelerate_config zero3 --num_processes 4"
    answer = _imported(tmp_path, text, "A100-80GB")
    assert answer.source.path.name == "a.yaml" and answer.figures is not None and answer.figures.is_better
    assert answer.files == () and answer.unwritable is not None and "accelerate launch" in answer.unwritable.what


@pytest.mark.parametrize(("method", "strategy"), [("", "fsdp2"), ("--use_peft --load_in_4bit", "fsdp")])
def test_fsdp2_is_predicted_as_such_where_it_can_be(method: str, strategy: str, tmp_path: Path) -> None:
    """TRL's own fsdp2 file; quantized weights are predicted as FSDP 1 holds them."""
    text = f"trl sft --model_name_or_path Qwen/Qwen2.5-7B {method} --accelerate_config fsdp2 --num_processes 8"
    answer = _imported(tmp_path, text, "A100-80GB")
    assert answer.run.sharding == "fsdp2" and answer.figures is not None and answer.figures.plan.strategy == strategy


@pytest.mark.parametrize(
    ("options", "sharding", "lacks"),
    [
        ("--fsdp", "fsdp2", ""),
        ("--fsdp --fsdp_config '{\"version\": 1}'", "fsdp", ""),
        ("--fsdp 'full_shard offload'", "fsdp2", "not predicted: cpu_offload: true"),
        ("--fsdp --fsdp_config '{\"reshard_after_forward\": false}'", "fsdp2", "reshard_after_forward: false"),
        ("--fsdp hybrid_shard", "fsdp2", "sharding_strategy: hybrid_shard"),
        ("--fsdp --fsdp_config '{\"activation_checkpointing\": true}'", "fsdp2", ""),
    ],
)
def test_the_trainers_fsdp_settings_are_followed_or_named(
    options: str, sharding: str, lacks: str, tmp_path: Path
) -> None:
    """Version 2 where none is given; no figures where weights go to the host or are not all sharded."""
    text = f"torchrun --nproc_per_node 4 t.py {TRAINER} --model_name_or_path Qwen/Qwen2.5-7B --bf16 {options}"
    answer = _imported(tmp_path, text, "A100-80GB")
    assert answer.run.sharding == sharding and lacks in str(answer.obstacle or "")
    assert (answer.figures is None) == bool(lacks)
    assert answer.run.gradient_checkpointing is ("activation_checkpointing" in options)


def test_assumptions_about_an_imported_run_are_named(tmp_path: Path) -> None:
    """The launcher, the number of GPUs, and the length that is really assumed: GPT-2 takes 1,024 tokens."""
    answer = _imported(tmp_path, f"python run_glue.py {TRAINER} --model_name_or_path gpt2", "8xA100-80GB")
    message = " ".join(answer.remarks)
    assert "for torchrun --nproc_per_node 8" in message and "1,024 tokens are assumed" in message
    answer = _imported(tmp_path, f"torchrun run_clm.py {TRAINER}", "A100-80GB")
    assert "the number of GPUs is not given: 1 is assumed" in " ".join(answer.remarks)


@pytest.mark.parametrize(
    ("start", "how"),
    [
        ("python t.py", "torchrun --nproc_per_node 1"),
        ("torchrun --nproc_per_node 1 t.py", None),
        ("accelerate launch --num_processes 1 t.py", "torchrun --nproc_per_node 1"),
        ("llamafactory-cli train --stage sft --do_train --finetuning_type full", "FORCE_TORCHRUN=1"),
    ],
)
def test_deepspeed_in_one_process_needs_a_launcher(start: str, how: str | None, tmp_path: Path) -> None:
    """Without a process group DeepSpeed 0.19.8 imports mpi4py, and stops."""
    answer = _imported(tmp_path, f"{start} {TRAINER} --bf16 true --model_name_or_path Qwen/Qwen2.5-7B", "1xRTX4090")
    assert answer.figures is not None and answer.figures.recommended is not None
    assert answer.figures.recommended.plan.sharding == "zero"
    message = [remark.rpartition("start it with ")[2] for remark in answer.remarks if "needs a launcher" in remark]
    assert message == ([] if how is None else [how])


def test_where_nothing_fits_the_missing_memory_and_a_command_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """RAM, and a command that can be copied: it stands alone, and asks about the same machines and training."""
    (tmp_path / "a.sh").write_text(f"torchrun --nproc_per_node 2 t.py {TRAINER} --model_name_or_path Qwen/Qwen2.5-7B")
    assert run(["from", str(tmp_path / "a.sh"), "--gpus", "RTX4090", "--ram", "32GB", "--offline"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "GiB of RAM per node" in " ".join(" ".join(lines).split())
    start = next(index for index, line in enumerate(lines) if line.strip().startswith("ds-advise Qwen/Qwen2.5-7B"))
    command = " ".join(line.strip().removesuffix("\\").strip() for line in lines[start : start + 3])
    for words in ("--gpus 2xRTX-4090", "--ram ", "--global-batch 4", "--seq-len 2048", "--precision fp32"):
        assert words in command
    assert not lines[start].endswith(".")


def test_a_slower_plan_names_the_better_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.sh").write_text(f"torchrun --nproc_per_node 2 t.py {TRAINER} --bf16 true --block_size 4096")
    assert run(["from", str(tmp_path / "a.sh"), "--gpus", "RTX4090", "--offline"]) == 1
    assert "It is better because it fits" in " ".join(capsys.readouterr().out.split())


def test_no_write_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.sh").write_text(f"torchrun --nproc_per_node 2 t.py {TRAINER} --bf16 true")
    assert run(["from", str(tmp_path / "a.sh"), "--gpus", "80GB", "--offline", "--no-write"]) == 0
    assert run(["from", str(tmp_path / "a.sh"), "--gpus", "80GB", "--no-write", "-o", str(tmp_path / "b.sh")]) == 2
    assert "contradict" in capsys.readouterr().err


def test_openrlhf_is_read_by_its_options_of_either_age(tmp_path: Path) -> None:
    """DPO in a here-document with dotted names, and a reward model with the older ones. No plan is written."""
    text = (
        "read -r -d '' training_commands <<EOF\nopenrlhf.cli.train_dpo \\\n  --train.batch_size 256 \\\n"
        "  --train.micro_batch_size 1 \\\n  --model.model_name_or_path meta-llama/Meta-Llama-3-8B \\\n"
        "  --data.max_len 4096 \\\n  --ds.zero_stage 3 --ds.adam_offload --model.gradient_checkpointing_enable\nEOF\n"
        "deepspeed --module $training_commands\n"
    )
    answer = _imported(tmp_path, text, "8xA100-80GB")
    assert answer.figures is not None and answer.run.uncounted == answer.run.unknown == ()
    plan, workload = answer.figures.plan, answer.figures.question.workload
    assert (plan.zero_stage, plan.offload_optimizer, plan.micro_batch_size) == (3, "cpu", 1)
    assert (plan.gradient_accumulation_steps, plan.gradient_checkpointing, plan.reduce_bucket_size) == (32, True, 5e8)
    assert (workload.objective, workload.seq_len, workload.precision, workload.loss) == (
        "dpo",
        4096,
        "bf16",
        "standard",
    )
    older = "--pretrain gpt2 --zero_stage 2 --max_len 512 --micro_train_batch_size 2 --train_batch_size 16 --bf16"
    answer = _imported(tmp_path, f"deepspeed --module openrlhf.cli.train_rm {older} --flash_attn", "8xA100-80GB")
    assert answer.figures is not None and answer.figures.question.workload.objective == "reward"
    assert (answer.figures.plan.zero_stage, answer.figures.plan.gradient_accumulation_steps) == (2, 1)
    assert answer.files == ()
