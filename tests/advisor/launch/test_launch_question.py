"""From the command line to a launch: the script's arguments, contradicting options, and the configuration file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.importers.script_arguments import ScriptArguments
from ds_advise.advisor.launch.question import launch_question
from ds_advise.advisor.launch.request import LaunchRequest
from ds_advise.advisor.launch.script_source import ScriptSource
from ds_advise.advisor.question.options import fill_defaults
from ds_advise.estimators.errors import ClusterError, WorkloadError

PLACE = {
    "gpus": "2x24GB",
    "device": "cuda",
    "ranks": None,
    "nodes": None,
    "node_rank": 0,
    "master": None,
    "hostfile": None,
    "slurm": False,
    "starts": False,
}
OPTIONS = {name: value for name, value in fill_defaults({}).items() if name not in PLACE} | {
    "config_file": Path("ds_config.json"),
    "model": "Qwen2.5-0.5B",
    "accumulation": None,
    "offline": True,
}

Request = Callable[..., tuple[LaunchRequest, list[str]]]


@pytest.fixture
def request_of() -> Request:
    """The launch of a script with these arguments, and the remarks on it."""
    Path("ds_config.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    Path("train.py").write_text("from transformers import Trainer\n")

    def ask(*words: str, passed: tuple[str, ...] = (), **changes: object) -> tuple[LaunchRequest, list[str]]:
        options = OPTIONS | {name: value for name, value in changes.items() if name in OPTIONS}
        place = PLACE | {name: value for name, value in changes.items() if name in PLACE}
        return launch_question(
            options,
            ("train.py", *words),
            passed=passed,
            is_module=False,
            launcher=None,
            pass_config=None,
            log_dir=None,
            stall_s=None,
            **place,
        )

    return ask


@pytest.mark.parametrize(
    ("words", "rank", "targets"),
    [
        # peft's examples/sft/train.py, TRL's ModelConfig, LLaMA-Factory, ms-swift, LLaVA
        ("--use_peft_lora True --lora_r 16 --lora_target_modules all-linear", 16, None),
        ("--use_peft --lora_r=32 --lora_target_modules q_proj v_proj", 32, ("q_proj", "v_proj")),
        ("--finetuning_type lora --lora_target q_proj,v_proj", 8, ("q_proj", "v_proj")),
        ("--lora_enable True --lora_r 128 --bits 4", 128, None),
    ],
)
def test_adapters_are_seen_in_the_scripts_arguments(
    request_of: Request, words: str, rank: int, targets: tuple[str, ...] | None
) -> None:
    """By the option names of common scripts; a remark names the method."""
    request, remarks = request_of(*words.split())
    workload = request.run.workload
    assert (workload.method, workload.lora_rank, workload.lora_targets) == ("lora", rank, targets)
    assert f"counted as LoRA of rank {rank}" in " ".join(remarks)
    assert ("4-bit weights are counted as 16-bit" in " ".join(remarks)) == ("--bits 4" in words)


@pytest.mark.parametrize("words", [[], ["--use_peft_lora", "False"], ["--finetuning_type", "full"]])
def test_full_fine_tuning_is_assumed_with_a_remark(request_of: Request, words: list[str]) -> None:
    """Unless the user names the method; the remark differs where the script names adapters."""
    request, remarks = request_of(*words)
    assert request.run.workload.method == "full"
    assert "counted as full fine-tuning" in remarks[-1]
    assert "full fine-tuning" not in " ".join(request_of(*words, passed=("method",))[1])
    Path("train.py").write_text("from transformers import Trainer\nget_peft_model(model, LoraConfig())\n")
    assert "although the script names adapters" in request_of(*words)[1][-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": "8xH100", "hostfile": Path("hosts")}, "--gpus has 8 GPUs a node, hostfile hosts 4"),
        ({"gpus": "H100", "hostfile": Path("hosts"), "nodes": 4}, "--nodes has 4 nodes, hostfile hosts 2"),
        ({"gpus": "4x8xH100", "master": "n0", "nodes": 2}, "--gpus has 4 nodes, --nodes 2"),
        ({"gpus": "4x8xH100", "slurm": True}, "--gpus has 4 nodes, this Slurm allocation 2"),
    ],
)
def test_counts_that_contradict_each_other_are_refused(
    request_of: Request, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], message: str
) -> None:
    """The plan must be checked on the GPUs that train."""
    for name, value in (("ID", "7"), ("NUM_NODES", "2"), ("NODELIST", "n[1-2]")):
        monkeypatch.setenv(f"SLURM_JOB_{name}", value)
    Path("hosts").write_text("n0 slots=4\nn1 slots=4\n")
    with pytest.raises(ClusterError) as refused:
        request_of(**changes)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": "8xH100", "master": "n0", "nodes": 999_999_999}, "999999999 nodes of 8 ranks are too many"),
        ({"gpus": "H100", "hostfile": Path("hosts")}, "1 nodes of 999999999 ranks are too many"),
    ],
)
def test_absurd_counts_are_refused(request_of: Request, changes: dict[str, object], message: str) -> None:
    """They would fill this machine's memory."""
    Path("hosts").write_text("n0 slots=999999999\n")
    with pytest.raises(ClusterError, match=message):
        request_of(**changes)


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("", None),
        ("--max_steps 2000", 4),
        ("--max_steps 2100 --save_steps 100 --save_total_limit 2", 3),
        ("--max_steps 10 --save_steps 10 --save_total_limit 5", 1),
        ("--save_strategy no", 0),
        ("--save_strategy epoch", 3),
        ("--save_strategy epoch --num_train_epochs 1.5", 2),
        ("--save_strategy epoch --max_steps 100", None),
        ("--save_steps 0.1", 10),
        ("--save_strategy best", None),
    ],
)
def test_checkpoints_are_counted_as_the_trainer_keeps_them(words: str, count: int | None) -> None:
    """All of them without a limit; unknown where the length of the data decides."""
    assert ScriptArguments(words.split()).checkpoints == count


def test_quantized_collectives_are_not_launched_on_the_cpu(request_of: Request) -> None:
    zero = {"stage": 3, "zero_quantized_weights": True}
    Path("ds_config.json").write_text(json.dumps({"zero_optimization": zero}))
    with pytest.raises(WorkloadError, match="do not run on the CPU"):
        request_of(device="cpu", gpus="auto", ranks=2)
    Path("ds_config.json").write_text(json.dumps({"zero_optimization": zero | {"stage": 2}}))
    request_of(device="cpu", gpus="auto", ranks=2)  # stage 2 ignores it


FILE = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 4}
PARSER = "import argparse, deepspeed\nparser = argparse.ArgumentParser()\n"
ADDED = f"{PARSER}parser = deepspeed.add_config_arguments(parser)\nargs = parser.parse_args()\n"

Launched = Callable[..., tuple[int, str, str]]
"""A script's text and the words of a launch -> (exit code, the script's words in the command, stderr)."""


@pytest.fixture
def launched(capsys: pytest.CaptureFixture[str]) -> Launched:
    """Shows the launch of a script with this text."""
    Path("ds_config.json").write_text(json.dumps(FILE))
    Path("same.json").write_text(json.dumps(FILE, indent=4))
    Path("other.json").write_text(json.dumps(FILE | {"zero_optimization": {"stage": 3}}))

    def show(text: str, *script: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
        Path("train.py").write_text(text)
        words = ["--gpus", "2x24GB", "--dry", "--json", *options, "--", "train.py", *script]
        code = run(["launch", "ds_config.json", *words])
        out, err = capsys.readouterr()
        return code, json.loads(out)[0]["command"].partition("train.py")[2].strip() if out else "", err

    return show


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        # As DeepSpeedExamples' training/cifar: DeepSpeed refuses a file in addition to a dictionary.
        (f"{ADDED}deepspeed.initialize(args=args, model=net, config=get_ds_config(args))", ""),
        (f"{PARSER}import deepspeed as ds\nds.initialize(model=net, config='ds_config.json')", ""),
        # As its training/bf16_master_weight: the dictionary comes from the file.
        (
            f"{ADDED}deepspeed.initialize(model=net, config=args.deepspeed_config)",
            "--deepspeed --deepspeed_config ds_config.json",
        ),
        (f"{ADDED}deepspeed.initialize(args=args, config=None)", "--deepspeed --deepspeed_config ds_config.json"),
        # argparse takes `--deepspeed` for an abbreviation where a parser knows the longer option alone.
        (
            f"{PARSER}parser.add_argument('--deepspeed_config')\ndeepspeed.initialize(args=parser.parse_args())",
            "--deepspeed_config ds_config.json",
        ),
        ("from transformers import TrainingArguments\nTrainingArguments('out', deepspeed=settings())", ""),
        ("import deepspeed\ndef broken(:\n", "--deepspeed --deepspeed_config ds_config.json"),
    ],
)
def test_a_script_with_its_own_configuration_gets_no_other(launched: Launched, text: str, passed: str) -> None:
    """A remark names it, unless it is the very file; --pass-config and --no-pass-config take precedence."""
    code, words, err = launched(text)
    assert (code, words) == (0, passed)
    assert ("configuration of its own" in err) == (not passed and "'ds_config.json'" not in text)
    assert launched(text, options=("--no-pass-config",))[1] == ""
    assert launched(text, options=("--pass-config",))[1].endswith("ds_config.json")


@pytest.mark.parametrize("name", ["--deepspeed", "--deepspeed_config", "--ds-config"])
def test_the_file_that_is_checked_is_the_one_that_trains(launched: Launched, name: str) -> None:
    """Another one among the script's arguments or in its text is refused, unless it is equal."""
    code, _, err = launched(ADDED, name, "other.json")
    assert code == 2
    assert "other.json, which differs from ds_config.json" in err
    assert launched(ADDED, name, "missing.json")[0] == 2
    assert launched(ADDED, name, json.dumps(FILE))[0] == 0
    assert launched(ADDED, name, "same.json")[:2] == (0, f"{name} same.json")
    code, _, err = launched(f"{PARSER}deepspeed.initialize(model=net, config='other.json')")
    assert code == 2
    assert "line 3, names other.json" in err


LITERALS = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
def main():
    model_name = "Qwen2.5-0.5B"
    model = AutoModelForCausalLM.from_pretrained(model_name)
    model = get_peft_model(model, LoraConfig(r=16, target_modules="q_proj,v_proj".split(","), lora_dropout=0.01))
    args = TrainingArguments("out", per_device_train_batch_size=4, gradient_accumulation_steps=2, bf16=True,
                             gradient_checkpointing=True, max_steps=7, save_steps=steps())
    Trainer(model=model, args=args).train()
"""


def test_literals_of_the_script_are_read(request_of: Request) -> None:
    """Its model, batch, precision, checkpointing and adapters, unless its arguments or the user's options say
    otherwise; what is computed is left open."""
    Path("train.py").write_text(LITERALS)
    request, remarks = request_of(model=None)
    run, workload = request.run, request.run.workload
    assert (run.model_name, run.micro_batch_size, run.gradient_accumulation_steps) == ("Qwen2.5-0.5B", 4, 2)
    assert (workload.precision, run.gradient_checkpointing, request.total_steps) == ("bf16", True, 7)
    assert (workload.method, workload.lora_rank, workload.lora_targets) == ("lora", 16, ("q_proj", "v_proj"))
    assert [remark for remark in remarks if "assumed" in remark] == ["assumed samples of 2,048 tokens: pass --seq-len"]
    request, _ = request_of("--per_device_train_batch_size", "1", model=None, accumulation=3, passed=("accumulation",))
    assert (request.run.micro_batch_size, request.run.gradient_accumulation_steps) == (1, 3)
    Path("train.py").write_text(LITERALS.replace("model = get_peft", "if lora: model = get_peft"))
    assert request_of(model=None)[0].run.workload.method == "full"
    Path("train.py").write_text(LITERALS.replace("Qwen2.5-0.5B", "/nowhere/model"))
    request, remarks = request_of(model=None)
    assert request.run.model == "" and "/nowhere/model is not read" in remarks[-1]


@pytest.mark.parametrize(
    ("arguments", "trainer", "words", "expected"),
    [
        ("eval_strategy='steps'", "", "", (8, None, None)),  # the Trainer's own batch
        ("eval_strategy='no'", ", compute_metrics=f", "", (None, None, None)),
        ("evaluation_strategy='epoch'", ", compute_metrics=f", "--per_device_eval_batch_size 2", (2, 2, None)),
        ("do_eval=True, prediction_loss_only=True", ", compute_metrics=f", "", (8, None, None)),
        (
            "do_eval=True, predict_with_generate=True, generation_max_length=64",
            ", compute_metrics=f",
            "",
            (8, None, 64),
        ),
    ],
)
def test_evaluations_of_the_script_are_predicted(
    request_of: Request, arguments: str, trainer: str, words: str, expected: tuple[int | None, ...]
) -> None:
    """Their batch, and what its metrics keep, from its arguments and its Trainer's."""
    text = LITERALS.replace("save_steps=steps()", arguments).replace("args=args", f"args=args{trainer}")
    Path("train.py").write_text(text)
    workload = request_of(*words.split(), model=None)[0].run.workload
    assert (workload.eval_batch, workload.eval_logits, workload.eval_new_tokens) == expected


@pytest.mark.parametrize(
    ("trainer", "checkpointing", "predicted"),
    [
        ("SFTTrainer", True, True),
        ("GRPOTrainer", True, True),
        ("PPOTrainer", True, False),
        ("Trainer", False, True),
    ],
)
def test_trls_scripts_have_trls_defaults(
    request_of: Request, trainer: str, checkpointing: bool, predicted: bool
) -> None:
    """TRL checkpoints and trains in bf16 by default; another loss than the next token's, also that of a
    class of the script's own, is not predicted as if it were that."""
    Path("train.py").write_text(f"from trl import *\nclass Own({trainer}):\n    pass\nOwn(args=parse())\n")
    request, remarks = request_of()
    run = request.run
    assert (run.gradient_checkpointing, run.workload.precision) == (checkpointing, "bf16" if checkpointing else "fp32")
    assert (request.prediction is not None, request.other_loss) == (predicted, None if predicted else trainer)
    assert ("assumed" in remarks[1]) and ("the defaults of TRL" in remarks[1]) == checkpointing


def test_a_loop_of_its_own_has_no_defaults_of_the_trainer(request_of: Request) -> None:
    """With deepspeed.initialize the batch is left to DeepSpeed; with accelerate alone the precision is not fp32."""
    Path("ds_config.json").write_text(json.dumps({"train_batch_size": 8}))
    Path("train.py").write_text("deepspeed.initialize(model=model)")
    request, remarks = request_of(passed=("framework",), framework="deepspeed")
    assert request.run.micro_batch_size is None and "the defaults of" not in " ".join(remarks)
    Path("ds_config.json").write_text(json.dumps({"bf16": {"enabled": "auto"}}))
    for text, *expected in (("Accelerator()", "bf16", "accelerate"), ("Trainer(model)", "fp32", "torchrun")):
        Path("train.py").write_text(text)
        request = request_of()[0]
        assert [request.run.workload.precision, request.launcher] == expected


@pytest.mark.parametrize(("first", "stage", "warned"), [("model", 3, True), ("model", 2, False), ("args", 3, False)])
def test_a_model_that_zero3_does_not_shard_is_named(request_of: Request, first: str, stage: int, warned: bool) -> None:
    """Loaded before the training arguments, whole on every rank."""
    lines = {"model": "AutoModel.from_pretrained('gpt2')", "args": "TrainingArguments('out')"}
    Path("train.py").write_text("\n".join(lines[name] for name in sorted(lines, key=lambda name: name != first)))
    Path("ds_config.json").write_text(json.dumps({"zero_optimization": {"stage": stage}}))
    _, remarks = request_of()
    assert ("every rank then holds the whole model" in " ".join(remarks)) == warned


@pytest.mark.parametrize(
    ("text", "words", "named"),
    [
        ("TrainingArguments('out', warmup_ratio=0.1)", "", "train.py, line 1: warmup_ratio"),
        ("Trainer(model, tokenizer=tokenizer)", "", "train.py, line 1: tokenizer"),
        ("Own(model, tokenizer=tokenizer)\nTrainingArguments(**values)", "--overwrite_output_dir", ""),
        (
            "p.parse_args_into_dataclasses()",
            "--overwrite_output_dir",
            "the arguments of train.py: overwrite_output_dir",
        ),
        ("class A:\n    logging_dir: str\np.parse_args_into_dataclasses()", "--logging_dir x", ""),
    ],
)
def test_arguments_of_transformers_4_are_named(text: str, words: str, named: str) -> None:
    """Those that the installed TrainingArguments and Trainer do not take, in the text and on the command line; not the
    script's own."""
    found = ScriptSource(text).outdated("train.py", ScriptArguments(words.split()).by_name)
    assert [f"{place}: {', '.join(names)}" for place, names in found.items()] == [named] * bool(named)


@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize("model", ["Qwen2.5-0.5B", None])
def test_fp16_is_not_launched_on_a_cpu_without_it(
    request_of: Request, monkeypatch: pytest.MonkeyPatch, from_file: bool, model: str | None
) -> None:
    """Before anything starts, also for an unknown model; a CPU with fp16 instructions is left to DeepSpeed."""
    config = {"fp16": {"enabled": True}} if from_file else {}
    Path("ds_config.json").write_text(json.dumps({"zero_optimization": {"stage": 1}, **config}))
    place = {"device": "cpu", "gpus": "auto", "ranks": 2}
    words = [] if from_file else ["--fp16"]
    monkeypatch.setattr("ds_advise.probes.run.cpu_has_fp16", lambda: False)
    with pytest.raises(WorkloadError, match="fp16 does not run on this CPU"):
        request_of(*words, model=model, **place)
    monkeypatch.setattr("ds_advise.probes.run.cpu_has_fp16", lambda: True)
    request_of(*words, model=model, **place)


def test_a_script_of_literals_gets_the_configuration_from_its_launcher(request_of: Request) -> None:
    """A Trainer that reads no arguments: accelerate; with one of its own, or arguments, torchrun."""
    for text, launcher in (
        ("bf16=True", "accelerate"),
        ("deepspeed='ds_config.json'", "torchrun"),
        ("**a", "torchrun"),
    ):
        Path("train.py").write_text(f"Trainer(args=TrainingArguments('out', {text}))")
        assert request_of()[0].launcher == launcher
