"""Advice for scripts as users write them: what is asked is what they train, and the changed command runs as advised."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ds_advise
import pytest
from ds_advise.advisor.answer.recommendation import Change, Changes
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.cli.schema import command_schema
from ds_advise.advisor.command.advise import advise_command
from ds_advise.advisor.command_results import AnswerForCommand
from ds_advise.advisor.render.command_advice import MOST_LINES, _facts
from ds_advise.advisor.render.deliver import printed_text
from ds_advise.advisor.render.why import why_document
from ds_advise.estimators.errors import DsAdviseError
from ds_advise.probes.failures.diagnosis import diagnose_text

from tests.helpers import SMALL_LLAMA, schema_errors
from tests.probes.failures.test_diagnosis import FRAMES, FULL

AUTO = {
    "wall_clock_breakdown": True,
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 3},
}
TRAINER = """
import torch
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.bfloat16)
rows = [{"input_ids": torch.arange(256), "labels": torch.arange(256)}] * 64
Trainer(model=model, args=arguments, train_dataset=rows).train()
"""
PADDED = """
import torch
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
def collate(rows):
    longest = max(-(-row["length"] // ROUNDED) * ROUNDED for row in rows)
    ids = torch.ones(len(rows), longest, dtype=torch.long)
    mask = (torch.arange(longest) < torch.tensor([[row["length"]] for row in rows])).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}
(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
arguments.remove_unused_columns = False
model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.bfloat16)
rows = [{"length": 901 + 3 * row} for row in range(32)]
Trainer(model=model, args=arguments, data_collator=collate, train_dataset=rows).train()
"""
ADAPTERS = """
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
base = AutoModelForCausalLM.from_pretrained("model", dtype=torch.bfloat16)
model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1))
arguments = TrainingArguments(
    "out", bf16=True, deepspeed="auto.json", per_device_train_batch_size=1, gradient_accumulation_steps=4
)
rows = [{"input_ids": torch.arange(256), "labels": torch.arange(256)}] * 64
Trainer(model=model, args=arguments, train_dataset=rows).train()
"""
TRL = """
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, HfArgumentParser, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer
(arguments,) = HfArgumentParser(SFTConfig).parse_args_into_dataclasses()
arguments.dataset_kwargs = {"skip_prepare_dataset": True}
words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="a", eos_token="b")
model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.bfloat16)
rows = Dataset.from_dict({"input_ids": [[1] * 256] * 64, "labels": [[1] * 256] * 64})
SFTTrainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer).train()
"""
MODULE = """
import argparse
import deepspeed
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--micro-batch", type=int, default=4)
parser.add_argument("--local_rank", type=int)
arguments = parser.parse_args()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 10))

    def forward(self, inputs, labels):
        logits = self.layers(inputs)
        return logits, torch.nn.functional.cross_entropy(logits.float(), labels)


net = Net()
net.layers[0].weight.requires_grad_(False)
config = {
    "train_micro_batch_size_per_gpu": arguments.micro_batch,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 3},
}
trained = [each for each in net.parameters() if each.requires_grad]
engine, *_ = deepspeed.initialize(model=net, model_parameters=trained, config=config)
data = torch.utils.data.TensorDataset(torch.randn(512, 64), torch.randint(10, (512,)))
for inputs, labels in torch.utils.data.DataLoader(data, batch_size=arguments.micro_batch):
    logits, loss = engine(inputs.to(engine.device, torch.bfloat16), labels.to(engine.device))
    engine.backward(loss)
    engine.step()
"""
SHARDED = """
import sys
import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = {
    "train_micro_batch_size_per_gpu": int(sys.argv[1]),
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 3},
}
with deepspeed.zero.Init(config_dict_or_path=config):
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=128_256
    ))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
rows = [torch.ones(2048, dtype=torch.long)] * 512
for ids in torch.utils.data.DataLoader(rows, batch_size=int(sys.argv[1])):
    ids = ids.to(engine.device)
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(SMALL_LLAMA))
    (tmp_path / "auto.json").write_text(json.dumps(AUTO))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def advice(script: str, *words: str, **options: Any) -> AnswerForCommand:
    Path("train.py").write_text(script)
    answer = ds_advise.advise(command=[sys.executable, "train.py", *words], gpus="2xA100-40GB", **options)
    assert isinstance(answer, AnswerForCommand)
    return answer


def test_samples_that_accelerate_shares_over_gpus_are_whole_again(folder: Path) -> None:
    """The engine knows the groups by `mpu`, not by its configuration, and the model sees a part of each sample."""
    parallel = {"sp_size": 2, "sp_backend": "deepspeed", "dp_shard_size": 1, "sp_attn_implementation": "sdpa"}
    given = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"deepspeed_config_file": "auto.json"},
        "num_machines": 1,
        "num_processes": 2,
        "parallelism_config": {f"parallelism_config_{name}": value for name, value in parallel.items()},
    }
    (folder / "ulysses.json").write_text(json.dumps(given))
    script = TRAINER.replace(
        '"labels": torch.arange(256)', '"labels": torch.arange(256), "position_ids": torch.arange(256)'
    )
    (folder / "train.py").write_text(script)
    words = ["train.py", "--output_dir", "out", "--bf16", "--report_to", "none", "--per_device_train_batch_size", "1"]
    found = ds_advise.advise(
        command=["accelerate", "launch", "--config_file", "ulysses.json", *words], gpus="2xA100-40GB"
    )
    workload, plan = found.question.workload, found.recommended.plan
    assert (workload.seq_len, workload.global_batch_size, plan.sequence_parallel_size) == (256, 1, 2)


def test_liger_in_trl_is_its_layers_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's trainers keep their chunked head since 1.15."""
    pytest.importorskip("trl")
    liger = folder / "packages" / "liger_kernel"
    (liger / "transformers").mkdir(parents=True)
    (liger / "__init__.py").touch()
    takes = (
        "def _apply_liger_kernel_to_instance(model, fused_linear_cross_entropy): assert not fused_linear_cross_entropy"
    )
    (liger / "transformers" / "__init__.py").write_text(takes)
    information = liger.with_name("liger_kernel-0.8.5.dist-info")
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: liger_kernel\nVersion: 0.8.5\n")
    monkeypatch.setenv("PYTHONPATH", str(liger.parent), prepend=os.pathsep)
    words = ["--deepspeed", "auto.json", "--output_dir", "out", "--max_length", "256", "--report_to", "none"]
    workload = advice(TRL, *words, "--use_liger_kernel").question.workload
    assert (workload.framework, workload.kernels, workload.loss) == ("trl", "liger", "chunked-head")


def test_a_log_with_its_command_gets_the_command_that_fits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By dry runs of the user's script."""
    (folder / "train.py").write_text(TRAINER)
    (folder / "train.log").write_text(f"{FRAMES}{FULL}")
    (folder / "model" / "config.json").write_text(json.dumps(SMALL_LLAMA | {"vocab_size": 128_000}))
    command = [sys.executable, "train.py", "--deepspeed", "auto.json", "--output_dir", "out", "--bf16"]
    command += ["--per_device_train_batch_size", "16"]
    (folder / "ds_config.json").write_text("{}")
    assert run(["why", "train.log", "--gpus", "2x4GB", "--json", "--force", "--", *command]) == 0
    assert "zero_optimization" in json.loads((folder / "ds_config.json").read_text())
    report = json.loads(capsys.readouterr().out)
    assert schema_errors(report, command_schema("why")) == []
    training = report["training"]
    assert not training["today"]["fits"] and report["message"]["id"] == "gpu-memory"
    assert training["proofs"][-1]["problem"] == "" and "--per_device_train_batch_size" in training["changed"]["command"]
    assert run(["why", "train.log", "--model", "gpt2", "--", *command]) == 2
    assert "--model has no effect on a command" in capsys.readouterr().err


@pytest.mark.parametrize("names_it", [True, False])
def test_a_configuration_is_given_in_front_only_if_the_command_names_none(names_it: bool, folder: Path) -> None:
    """A Trainer whose code names the file does not heed the variables of accelerate's launcher."""
    named = 'output_dir="out", bf16=True, per_device_train_batch_size=16, deepspeed="auto.json"'
    script = TRAINER.replace("(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()", "")
    made = named if names_it else named.partition(", deepspeed")[0]
    (folder / "train.py").write_text(script.replace("args=arguments", f"args=TrainingArguments({made})"))
    (folder / "model" / "config.json").write_text(json.dumps(SMALL_LLAMA | {"vocab_size": 128_000}))
    answer = advise_command(
        [sys.executable, "train.py"], {"gpus": "2x4GB", "offline": True}, config_file=Path("auto.json")
    )
    assert answer.changed is not None and answer.today.arguments.ds_config == str(folder / "auto.json")
    assert (answer.given_config is None) == names_it
    (line,) = answer.changed.lines
    assert ('deepspeed="ds_config.json"' in line.text) == names_it
    assert ("ACCELERATE_USE_DEEPSPEED=true" in answer.changed.words) != names_it
    assert '"wall_clock_breakdown": true' in answer.changed.files["ds_config.json"]


def test_the_advice_for_a_script_is_that_for_its_model_and_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--deepspeed", "auto.json", "--output_dir", "out", "--bf16", "--report_to", "none"]
    given += ["--per_device_train_batch_size", "2"]
    answer = advice(TRAINER, *given, "--gradient_accumulation_steps", "2", "--gradient_checkpointing", "true")
    chosen, changed, proof = answer.recommended, answer.changed, answer.proof
    assert chosen is not None and changed is not None and proof is not None and proof.answer is not None
    by_name = ds_advise.advise(
        "model",
        gpus="2xA100-40GB",
        seq_len=256,
        global_batch=8,
        loss="standard",
        software="optimizer-step=fused",
        deepspeed_estimate=False,
    )
    assert by_name.recommended is not None and by_name.recommended.plan == chosen.plan
    assert chosen.memory.allocated_bytes_per_gpu == by_name.recommended.memory.allocated_bytes_per_gpu
    assert answer.question.trainable_parameters == answer.today.engine.trainable_parameters
    assert proof.answer.engine.micro_batch_size == chosen.plan.micro_batch_size == 4
    assert not changed.lines and list(changed.files) == ["ds_config.json"]
    assert changed.words[-6:] == (
        *("--per_device_train_batch_size", "4"),
        *("--gradient_accumulation_steps", "1"),
        *("--gradient_checkpointing", str(chosen.plan.gradient_checkpointing).lower()),
    )
    assert json.loads(changed.files["ds_config.json"])["wall_clock_breakdown"] is True  # a key of the user's
    assert answer.ds_config == json.loads(changed.files["ds_config.json"]) and answer.strategy == chosen.strategy
    printed = str(answer)
    assert printed == repr(answer) and len(printed.splitlines()) <= MOST_LINES
    for text in (printed, answer._repr_html_()):
        assert "advised" in text and "Evidence: dry runs of the command as it is and as advised" in text
    monkeypatch.setattr("ds_advise.advisor.render.command_advice.MOST_LINES", 1)
    assert "ds-advise launch -- " in printed
    assert "`ds-advise launch -- COMMAND` checks, starts and monitors it." in " ".join(str(answer).split())
    row = answer.today_row
    assert row is not None and row.plan == answer.today_plan and answer.today.step is not None
    assert row.plan.reduce_bucket_size != next(  # the best plan of the strategy has other buckets
        step.candidate.plan.reduce_bucket_size for step in answer.ladder if step.candidate and step.strategy == "zero3"
    )
    lines = printed.splitlines()
    (today,) = (line.split() for line in lines if line.endswith("(today)"))
    speed = next(line for line in lines if line.startswith(" step ")).split(", ")[1]
    assert today[0] == "zero3" and speed.startswith(f"{today[-3]} tokens/s")  # one figure for one plan
    (names,) = (line.split()[1:] for line in lines if line.startswith(" strategy "))
    assert names == ["zero3", chosen.strategy] and "ZeRO-0" not in printed and "no ZeRO" not in printed
    measured = proof.answer.result.peak.allocated_bytes_per_gpu
    assert measured == pytest.approx(chosen.memory.allocated_bytes_per_gpu, rel=0.1)
    assert {path.name for path in folder.iterdir()} - {"results of this test"} == {"auto.json", "model", "train.py"}
    assert (
        schema_errors(json.loads(json.dumps(answer.to_json(), default=_plain)), command_schema("advise-command")) == []
    )


@pytest.mark.usefixtures("folder")
def test_a_plan_that_is_not_faster_keeps_today_s() -> None:
    given = ["--deepspeed", "auto.json", "--output_dir", "out", "--bf16", "--report_to", "none"]
    answer = advice(TRAINER, *given, "--per_device_train_batch_size", "2")
    assert answer.proof is not None and answer.proof.answer is not None and answer.recommended is not None
    kept = replace(answer, today=answer.proof.answer)
    lines = str(kept).splitlines()
    assert kept.is_needless and lines[0].startswith(" Keep today's plan, DDP: ") and "as fast" not in str(kept)
    step = answer.proof.answer.step
    assert step is not None
    terms = tuple(each._replace(seconds=1.05 * each.seconds) for each in step.time.terms)
    slower = replace(step, time=replace(step.time, terms=terms))
    near = replace(kept, today=replace(kept.today, step=slower))
    assert near.is_needless and "DDP is 1.05 x as fast; a change is advised from 1.10 x." in " ".join(str(near).split())
    (marked,) = (line for line in lines if line.startswith("> "))
    assert marked.startswith(f"> {answer.recommended.strategy} ") and marked.endswith("(today)")
    assert "ds-advise launch -- " in lines[lines.index(" Check, start and monitor it:") + 1]
    without = replace(kept, runs_deepspeed=False)  # what was observed is not what the command runs today
    assert not without.is_needless and without.speedup is None
    assert "(observed)" in str(without) and "today" not in str(without)


def test_a_command_for_other_gpus_is_changed_to_those_asked_about(folder: Path) -> None:
    """The advised command starts as many ranks as --gpus has, and the answer says so."""
    Path("loop.py").write_text("""
import argparse, deepspeed, torch
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser = deepspeed.add_config_arguments(parser)
model = torch.nn.Linear(64, 64)
engine, *_ = deepspeed.initialize(args=parser.parse_args(), model=model, model_parameters=model.parameters())
for _ in range(3):
    engine.backward(engine(torch.ones(2, 64, device=engine.device)).sum())
    engine.step()
""")
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}, "optimizer": {"type": "AdamW"}}
    (folder / "own.json").write_text(json.dumps(config))
    words = ["torchrun", "--nproc_per_node", "4", "loop.py", "--deepspeed_config", "own.json"]
    answer = ds_advise.advise(command=words, gpus="2xA100-40GB")
    assert isinstance(answer, AnswerForCommand)
    assert answer.words[:3] == ("torchrun", "--nproc_per_node", "2") and answer.start[:3] == [*answer.words[:3]]
    words_of_it = "The command starts 4 ranks, and --gpus has 2: the answer is for 2, whose step has 0.5 x the samples."
    assert words_of_it in " ".join(str(answer).split())
    assert "transformers" not in str(answer)  # which the script does not use


@pytest.mark.usefixtures("folder", "in_forks")
@pytest.mark.slow
def test_after_a_failure_the_stage_of_the_script_is_tried() -> None:
    """The script shards its model by itself, so it runs under ZeRO-3 alone."""
    answer = advice(SHARDED, "32")
    first, *_, last = answer.proofs
    assert first.candidate.plan.zero_stage < 3 and first.candidate.fit.reason == "script failed"
    assert [proof.candidate.plan.zero_stage for proof in answer.proofs[1:]] == [3] * len(answer.proofs[1:])
    assert last.answer is not None and answer.recommended is not None and not last.problem
    assert not answer.today.fit.fits and answer.speedup is None
    lines = str(answer).splitlines()
    assert lines[0] == f" ZeRO-3 at micro batch {answer.recommended.plan.micro_batch_size} fits."
    facts = {line[:15].strip(): line[15:].strip() for line in lines}
    assert facts["step"].startswith("does not fit ") and " tokens/s" in facts["step"]
    (row,) = (line.split() for line in lines if line.startswith("> "))
    assert facts["host RAM"].endswith(f" {row[5]} GiB per node")  # one figure for one plan
    cluster = replace(answer.today.run.cluster, host_memory_bytes_per_node=64 * 2**30)
    on_host = replace(answer.today, run=replace(answer.today.run, cluster=cluster))
    assert _facts(on_host, None)["host RAM"].endswith(" of 64.0 GiB per node")
    assert any(line.startswith(" Not tried: ") for line in lines) and "within the error" not in str(answer)
    unproved = str(replace(answer, recommended=None, proofs=(first,)))
    assert unproved.splitlines()[0] == " No plan could be proved." and "Nothing fits" not in unproved
    assert f"The script fails under {first.candidate.strategy}." in unproved and "\n> " not in unproved
    none_taken = tuple(step._replace(taken=False) for step in answer.ladder)
    larger = Changes(lambda: [Change(flags="--ram 34GiB", outcome="fits: zero2-offload")])
    nothing = str(replace(answer, recommended=None, proofs=(), ladder=none_taken, changes=larger))
    assert nothing.startswith(" Nothing fits.") and "What would make it fit" in nothing and "--ram 34GiB" in nothing
    failed = replace(answer, recommended=None, proofs=(first,))
    why = printed_text(why_document("train.log", diagnose_text(FRAMES + FULL), None, failed))
    assert "No plan could be proved." in why and f"Tried {first.candidate.strategy}, " in why
    fits = replace(answer, recommended=None, proofs=(first,), today=last.answer)
    assert str(fits).startswith(" Keep today's plan, ZeRO-3: ")


def _plain(value: Any) -> Any:
    from ds_advise.estimators.json_form import to_json

    return to_json(value)


def test_adapters_are_asked_as_they_are_and_code_is_changed_by_lines(folder: Path) -> None:
    answer = advice(ADAPTERS)
    workload, changed = answer.question.workload, answer.changed
    assert (workload.method, workload.lora_rank, workload.lora_targets) == ("lora", 4, ("q_proj", "v_proj"))
    assert workload.lora_dropout == 0.1 and workload.global_batch_size == 8
    assert answer.question.trainable_parameters == answer.today.engine.trainable_parameters
    assert changed is not None and answer.proof is not None and not answer.proof.problem
    (line,) = changed.lines
    assert answer.today.arguments.calls["model"] == f"{folder}/train.py:5"  # inside of peft's
    assert line.place == f"{folder}/train.py:7" and "per_device_train_batch_size=4" in line.text
    assert 'deepspeed="ds_config.json"' in line.text


@pytest.mark.usefixtures("folder")
def test_a_module_is_recorded_with_what_is_frozen(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(MODULE)
    assert run(["--gpus", "2xA100-40GB", "--", sys.executable, "train.py", "--micro-batch", "8"]) == 0
    printed, progress = capsys.readouterr()
    assert "ds-advise: dry run under ddp, plan 1 of at most 3 ...\n" in progress
    lines = printed.splitlines()
    assert len(lines) <= 45 and all(len(line) <= 80 for line in lines), printed
    (gpu,) = [line for line in lines if line.startswith(" GPU ")]
    (row,) = [line.split() for line in lines if line.startswith(">")]
    assert f"{row[4]} of 39.5 GiB" in gpu and f", {row[6]} samples/s\n" in printed  # one figure for one plan
    assert "Wrote ds_config.json." in printed and "train.py:30: deepspeed.initialize(config=" in printed
    written = json.loads(Path("ds_config.json").read_text())
    assert written["train_micro_batch_size_per_gpu"] == 8 and written["optimizer"]["type"] == "AdamW"
    answer = advice(MODULE, "--micro-batch", "8")
    engine = answer.today.engine
    assert answer.question.model.module is not None and engine.parameters != engine.trainable_parameters
    assert answer.question.trainable_parameters == engine.trainable_parameters
    assert answer.question.model.parameters == engine.parameters
    assert answer.changed is not None and list(answer.changed.files) == ["ds_config.json"]  # it has that content


@pytest.mark.usefixtures("folder")
def test_the_same_answer_names_the_same_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Another configuration keeps its name, and the number is explained."""
    Path("train.py").write_text(MODULE)
    Path("ds_config.json").write_text("{}")
    printed = []
    for _ in range(2):
        assert run(["--gpus", "2xA100-40GB", "--", sys.executable, "train.py"]) == 0
        printed.append(" ".join(capsys.readouterr().out.split()))
    kept = "; ds_config.json is another configuration (--force replaces it)."
    assert f"Wrote ds_config-2.json{kept}" in printed[0]
    assert f"ds_config-2.json has this content from an earlier answer{kept}" in printed[1]
    assert Path("ds_config.json").read_text() == "{}"
    assert sorted(path.name for path in Path().glob("*.json")) == ["auto.json", "ds_config-2.json", "ds_config.json"]
    assert run(["--gpus", "2xA100-40GB", "--force", "--", sys.executable, "train.py"]) == 0
    assert "Wrote ds_config.json." in capsys.readouterr().out
    assert Path("ds_config.json").read_text() == Path("ds_config-2.json").read_text()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("micro", "rounded"),
    [pytest.param("2", 1, marks=pytest.mark.slow), ("2", 8), pytest.param("1", 1, marks=pytest.mark.slow)],
)
def test_padding_to_the_longest_of_a_batch_is_none_for_one_row(micro: str, rounded: int) -> None:
    """The advised micro batch is 1; a mask reaches its attention only where lengths are rounded up."""
    given = ["--deepspeed", "auto.json", "--output_dir", "out", "--bf16", "--report_to", "none"]
    script = PADDED.replace("ROUNDED", str(rounded))
    answer = advice(script, *given, "--per_device_train_batch_size", micro, micro_batch=1)
    software, proof = answer.question.workload.software, answer.proof
    assert software.padding_mask and software.varying_lengths == (rounded == 1)
    assert proof is not None and proof.answer is not None and answer.recommended is not None
    assert proof.answer.observed.attention == (("efficient",) if rounded == 8 else ("flash",))
    schedule = proof.answer.result.schedule
    assert schedule is not None and any(each.masked for each in schedule.operations) == (rounded == 8)
    measured = proof.answer.result.peak.allocated_bytes_per_gpu
    assert measured == pytest.approx(answer.recommended.memory.allocated_bytes_per_gpu, rel=0.02)


@pytest.mark.usefixtures("folder")
def test_what_a_command_cannot_be_asked_is_refused() -> None:
    with pytest.raises(DsAdviseError, match="a model or a command"):
        ds_advise.advise("gpt2", command=["train.py"], gpus="2xA100-40GB")
    with pytest.raises(DsAdviseError, match="does not apply to a command"):
        ds_advise.advise(command=["train.py"], device="cpu")
    with pytest.raises(DsAdviseError, match=r"offload.* does not apply to a command"):
        ds_advise.advise(command=["train.py"], gpus="2xA100-40GB", gradient_checkpointing="offload")
    assert run(["--gpus", "2xA100-40GB", "--probe", "--", "train.py"]) == 2
