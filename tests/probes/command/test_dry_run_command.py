"""Scripts as users write them, run by `ds-advise dry-run -- COMMAND`: what is observed is what they do.

A script asserts by itself what it reads from tensors: a failed assertion fails the command.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.cli.schema import command_schema
from ds_advise.estimators.errors import DsAdviseError
from ds_advise.probes.command.arguments import Arguments
from ds_advise.probes.command.request import CommandRequest
from ds_advise.probes.command.run import dry_run_command
from ds_advise.probes.run_errors import NoEngineError, command_error

from tests.helpers import SMALL_LLAMA, h100s, schema_errors, sizes
from tests.terminal import Terminal

ZERO_2 = {
    "bf16": {"enabled": True},
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 1_000_000},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}
AUTO = {
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 3},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text(json.dumps(SMALL_LLAMA))
    for name, config in {"zero2.json": ZERO_2, "auto.json": AUTO}.items():
        (folder / name).write_text(json.dumps(config))
    return folder


def dry_run(
    folder: Path, script: str, *options: str, arguments: Sequence[str] = (), launcher: Sequence[str] = ()
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error. The options begin with a DeepSpeed configuration, if any."""
    (folder / "train.py").write_text(script)
    words = ["dry-run", *options, "--gpus", "2xA100-40GB", "--timeout", "240", "--", *launcher, "train.py", *arguments]
    done = subprocess.run(
        [sys.executable, "-m", "ds_advise", *words],
        cwd=folder,
        env=os.environ | {"COLUMNS": "1000"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def observe(folder: Path, script: str, *options: str, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """The answer of a command that ends well."""
    _, printed, errors = dry_run(folder, script, *options, "--json", arguments=arguments)
    assert printed.startswith("{"), errors
    answer: dict[str, Any] = json.loads(printed)
    return answer


def phases(answer: dict[str, Any]) -> list[tuple[int, str]]:
    return [(phase["iteration"], phase["phase"]) for phase in answer["phases"]]


def step(number: int) -> list[tuple[int, str]]:
    return [(number, name) for name in ("forward", "backward", "step")]


# ---------------------------------------------------------------------- the Trainer

TRAINER = """
import torch
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
rows = [{"input_ids": torch.full((128,), row), "labels": torch.full((128,), row)} for row in range(200)]
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("model"))
trainer = Trainer(model=model, args=args, train_dataset=rows, eval_dataset=rows,
    compute_metrics=lambda found: {"largest": float(found.predictions.shape[-1])})
trainer.train()
assert trainer.evaluate()["eval_largest"] == 1000
trainer.save_model("saved")
"""
TRAINER_ARGUMENTS = """--deepspeed auto.json --bf16 --report_to none --per_device_train_batch_size 4
    --gradient_accumulation_steps 2 --per_device_eval_batch_size 8 --eval_strategy epoch --output_dir out"""


@pytest.mark.slow
def test_evaluation_and_saving_of_a_trainer_are_phases(folder: Path) -> None:
    answer = observe(folder, TRAINER, arguments=TRAINER_ARGUMENTS.split())
    seen = phases(answer)
    assert all(each in seen for each in step(2)) and (3, "step") in seen
    names = [name for _, name in seen]
    assert names.index("evaluation") > names.index("step") and "saving" in names
    assert answer["observed"]["evaluation_cut"], "a few of its batches show what all of them need"
    (engine,) = answer["observed"]["engines"]
    assert (engine["micro_batch_size"], engine["gradient_accumulation_steps"]) == (4, 2)
    assert answer["observed"]["batch_shapes"]["input_ids"] == [4, 128]
    assert not (folder / "saved").exists() and not (folder / "out").exists()


@pytest.mark.parametrize(("kind", "error"), [("ValueError", "not used: ['--modle', 'x']"), ("SystemExit", "2")])
def test_a_misspelt_option_is_named_with_the_scripts_own(kind: str, error: str) -> None:
    """As the parser has it; nothing is said of an option that it has nothing like, or that the error does not name."""
    arguments, parser = Arguments(None, str), argparse.ArgumentParser()
    arguments.active = True
    parser.add_argument("--model")
    arguments._parsing_with(argparse.ArgumentParser.parse_known_args)(parser, ["--modle", "x", "--wandb=1"])
    misspelt = arguments.misspelt("['--modle', '--wandb']")
    assert misspelt == "write --model for --modle" and not arguments.misspelt("['--wandb', '--modles']")
    answer = {"kind": kind, "phase": "load", "error": error, "printed": "t.py: error: unrecognized arguments: --modle"}
    raised = command_error(answer | {"misspelt": misspelt})
    assert isinstance(raised, DsAdviseError) and raised.fix == misspelt


def test_an_option_of_another_parser_is_not_misspelt() -> None:
    """A script may read its words in two stages."""
    arguments = Arguments(None, str)
    arguments.active = True
    for names in (("--config",), ("--configs", "--model")):
        parser = argparse.ArgumentParser()
        for name in names:
            parser.add_argument(name)
        arguments._parsing_with(argparse.ArgumentParser.parse_known_args)(parser, ["--configs", "x", "--modle", "y"])
    assert arguments.misspelt("['--configs', 'x', '--modle', 'y']") == "write --model for --modle"


@pytest.mark.parametrize("kind", ["NoEngine", "PlainTrainingError"])
def test_a_script_that_does_not_take_the_given_configuration_takes_none(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "train.py").touch()
    answer = {"kind": kind, "phase": "load", "error": "", "trained": True, "takes_config": True}
    answer |= {"what": "it trains by torch's fully_shard", "why": "", "fix": "name a configuration"}
    monkeypatch.setattr("ds_advise.probes.command.run.start", lambda *_: answer)
    request = CommandRequest(words=("python", "train.py"), folder=folder, cluster=h100s(2))
    for config in (None, folder / "zero2.json"):
        with pytest.raises(NoEngineError) as raised:
            dry_run_command(replace(request, config_file=config))
        assert raised.value.takes_config == (config is None) == ("name a configuration" in raised.value.fix)


LENGTHS = """
import sys
from datasets import load_dataset
from transformers import AutoConfig, AutoModelForCausalLM, DataCollatorWithPadding, Trainer, TrainingArguments
rows = load_dataset("json", data_files="rows.json", split="train")
assert len(rows) == 40, len(rows)
def collate(batch):
    import torch
    longest = max(len(row["input_ids"]) for row in batch)
    ids = torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in batch])
    return {"input_ids": ids, "labels": ids.clone()}
args = TrainingArguments("out", deepspeed="auto.json", bf16=True, per_device_train_batch_size=2, report_to="none")
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("model"))
Trainer(model=model, args=args, train_dataset=rows, data_collator=collate).train()
"""


def write_rows(folder: Path) -> None:
    """The longest of the first 40 rows has 90 tokens, the longest of all has 300."""
    lengths = [90 if row == 31 else 300 if row == 50 else 10 + row % 7 for row in range(60)]
    lines = [json.dumps({"input_ids": [1] * length}) for length in lengths]
    (folder / "rows.json").write_text("\n".join(lines))


def test_the_longest_batch_of_the_first_rows_is_trained(folder: Path) -> None:
    write_rows(folder)
    observed = observe(folder, LENGTHS, "--longest", "--rows", "40")["observed"]
    assert observed["rows"] == {"train": 60}
    assert observed["searched_batches"] == 10, "40 rows on two ranks with two in a batch"
    assert set(observed["batch_lengths"]) <= {90, *range(10, 17)} and len(set(observed["batch_lengths"])) == 1
    assert observed["ended"] == "repeated"


@pytest.mark.slow
def test_more_rows_are_read_for_a_second_step(folder: Path) -> None:
    """2,000 rows are 63 of 75 micro batches on two ranks with 16 in a batch."""
    (folder / "rows.json").write_text("\n".join([json.dumps({"input_ids": [1] * 8})] * 5000))
    script = LENGTHS.replace("per_device_train_batch_size=2", "per_device_train_batch_size=16, num_train_epochs=1")
    script = script.replace("assert len(rows) == 40, len(rows)", "")
    script = script.replace("num_train_epochs=1", "num_train_epochs=1, gradient_accumulation_steps=75")
    observed = observe(folder, script)["observed"]
    assert observed["steps"] == 3 and observed["rows"] == {}
    (engine,) = observed["engines"]
    assert (engine["gradient_accumulation_steps"], engine["recorded_micro_batches"]) == (75, 75)
    cut = observe(folder, script, "--rows", "2000")["observed"]
    assert cut["steps"] == 1 and "63 of 75 micro batches" in cut["remarks"][0]


@pytest.mark.slow
def test_batches_of_different_lengths_do_not_repeat(folder: Path) -> None:
    write_rows(folder)
    observed = observe(folder, LENGTHS, "--rows", "40")["observed"]
    assert observed["searched_batches"] == 0 and observed["ended"] == "steps"
    assert len(set(observed["batch_lengths"])) > 1


# ---------------------------------------------------------------------- loops of the script's own

ACCELERATE = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
accelerator = Accelerator(mixed_precision="bf16")
model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.bfloat16)
model.gradient_checkpointing_enable()
rows = [{"input_ids": torch.full((256,), row), "labels": torch.full((256,), row)} for row in range(100)]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows, batch_size=2, shuffle=True))
seen = []
for batch in loader:
    seen += batch["input_ids"][:, 0].tolist()
    loss = model(**batch).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    assert accelerator.gather(loss.detach()).shape == (2,) and loss.item() == loss.item()
assert len(set(seen)) == len(seen) and sorted(seen) != seen and all(0 <= each < 100 for each in seen), seen
"""


def test_a_model_in_evaluation_mode_is_not_recomputed(folder: Path) -> None:
    """The script names no configuration: it is given in front. Its loader shuffles real rows."""
    config = {key: value for key, value in ZERO_2.items() if key != "optimizer"}
    (folder / "zero2.json").write_text(json.dumps(config | {"gradient_accumulation_steps": 1}))
    code, printed, errors = dry_run(folder, ACCELERATE, "zero2.json")
    assert code == 0, errors
    assert "the model is in evaluation mode. Call model.train()." in printed
    assert "checkpointing  off" in printed and "ZeRO stage 2" in printed and "AdamW" in printed


@pytest.mark.slow
def test_a_training_mode_model_is_recomputed_and_needs_less(folder: Path) -> None:
    config = {key: value for key, value in ZERO_2.items() if key != "optimizer"}
    (folder / "zero2.json").write_text(json.dumps(config | {"gradient_accumulation_steps": 1}))
    trains = ACCELERATE.replace("model.gradient", "model.train()\nmodel.gradient")
    off, on = (observe(folder, script, "zero2.json") for script in (ACCELERATE, trains))
    assert [each["observed"]["recomputes"] for each in (off, on)] == [False, True]
    assert [each["observed"]["in_training_mode"] for each in (off, on)] == [False, True]
    most = [max(phase["gpu_peak_bytes"] for phase in each["phases"] if phase["iteration"] == 2) for each in (off, on)]
    assert most[1] < most[0]


PLAIN = """
import deepspeed, torch
from torch import nn
from torch.utils.data import DataLoader
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layer, self.head = nn.Embedding(500, 256), nn.Linear(256, 512), nn.Linear(512, 500)
    def forward(self, ids):
        return self.head(torch.relu(self.layer(self.table(ids))))
rows = [torch.arange(row, row + 32) for row in range(100)]
engine, _, loader, _ = deepspeed.initialize(model=Net(), training_data=rows, config="zero2.json")
validation = DataLoader(rows, batch_size=50)
for epoch in range(2):
    for batch in loader:
        ids = batch.to(engine.device)
        even = ids % 2 == 0
        assert even.sum().item() == 32 and ids[even].shape == (32,), (even.sum().item(), ids[even].shape)
        assert even.nonzero().shape == (32, 2)
        logits = engine(ids)
        loss = nn.functional.cross_entropy(logits[even].float(), ids[even])
        engine.backward(loss)
        engine.step()
    engine.eval()
    with torch.no_grad():
        found = [engine(batch.to(engine.device)).argmax(-1).cpu() for batch in validation]
    assert [each.shape for each in found] == [(50, 32), (50, 32)]
    engine.train()
engine.save_checkpoint("checkpoints")
"""


def test_a_loop_of_deepspeed_with_masks_evaluation_and_a_checkpoint(folder: Path) -> None:
    """The launcher's number of processes contradicts the GPUs."""
    (folder / "train.py").write_text(PLAIN)
    options = ["--gpus", "2xA100-40GB", "--rank", "1", "--json"]
    words = ["dry-run", *options, "--", "torchrun", "--nproc_per_node", "4", "train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "ds_advise", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["rank"], answer["world_size"]) == (1, 2)
    observed = answer["observed"]
    (remark,) = observed["remarks"]
    assert "4" in remark and "2" in remark
    names = [name for _, name in phases(answer)]
    assert names[:2] == ["load", "initialize"] and {"evaluation", "saving"} <= set(names)
    assert phases(answer)[2:5] == step(1)
    assert (observed["ended"], observed["steps"]) == ("repeated", 3)
    (engine,) = observed["engines"]
    parameters = 500 * 256 + 256 * 512 + 512 + 512 * 500 + 500
    assert (engine["model"], engine["parameters"], engine["trainable_parameters"]) == ("Net", parameters, parameters)
    assert engine["trainable_dtypes"] == {"float32": parameters}
    assert observed["unknown_masks"] == 0, "every mask is computed from the batch"
    assert not (folder / "checkpoints").exists()
    assert schema_errors(answer, command_schema("dry-run-command")) == []


PIPELINE = """
import deepspeed, torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn
deepspeed.init_distributed()
layers = [LayerSpec(nn.Linear, 256, 256) for _ in range(6)]
model = PipelineModule(layers=layers, num_stages=2, loss_fn=lambda found, label: (found - label).float().pow(2).mean())
row = torch.ones(256, dtype=torch.bfloat16)
config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": True},
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
engine, *_ = deepspeed.initialize(model=model, training_data=[(row, row)] * 400, config=config)
for _ in range(20):
    engine.train_batch()
"""


@pytest.mark.slow
def test_a_pipeline_has_phases_of_its_instructions(folder: Path) -> None:
    answer = observe(folder, PIPELINE)
    (engine,) = answer["observed"]["engines"]
    assert engine["parameters"] == 3 * (256 * 256 + 256), "one of two stages"
    assert (engine["data_parallel_size"], engine["gradient_accumulation_steps"]) == (1, 4)
    assert answer["observed"]["ended"] == "repeated"
    assert {"forward", "backward", "step"} <= {name for iteration, name in phases(answer) if iteration == 2}


TWO_ENGINES = """
import deepspeed, torch
from torch import nn
def engine_of(model, **changes):
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config="zero2.json")[0]
generator = engine_of(nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 256)))
judge = engine_of(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)))
for _ in range(30):
    noise = torch.randn(2, 64, device=generator.device, dtype=torch.bfloat16)
    made = generator(noise)
    judged = judge(made.detach()).float().mean()
    judge.backward(judged)
    judge.step()
    fooled = -judge(generator(noise)).float().mean()
    generator.backward(fooled)
    generator.step()
"""


@pytest.mark.slow
def test_two_engines_take_turns(folder: Path) -> None:
    observed = observe(folder, TWO_ENGINES)["observed"]
    counts = {each["parameters"] for each in observed["engines"]}
    assert counts == {64 * 1024 + 1024 + 1024 * 256 + 256, 256 * 512 + 512 + 512 + 1}
    assert observed["ended"] == "repeated"


REFERENCE = """
import copy, deepspeed, torch
from transformers import AutoConfig, AutoModelForCausalLM
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("model"))
reference = copy.deepcopy(model).eval().requires_grad_(False)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config="zero2.json")
config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
reference, *_ = deepspeed.initialize(model=reference, config=config)
prompt = torch.arange(20).reshape(2, 10).to(engine.device)
for _ in range(20):
    with torch.no_grad():
        ids = engine.module.generate(prompt, max_new_tokens=6, do_sample=True, pad_token_id=0, eos_token_id=1)
        assert ids.shape == (2, 16), ids.shape
        known = reference(ids).logits
    loss = (engine(ids).logits - known).float().pow(2).mean()
    engine.backward(loss)
    engine.step()
"""


@pytest.mark.slow
def test_a_reference_generation_and_scores_are_seen(folder: Path) -> None:
    """Generation lasts to its maximum: no unknown token ends it."""
    answer = observe(folder, REFERENCE)
    trained, reference = answer["observed"]["engines"]
    assert (trained["zero_stage"], reference["zero_stage"]) == (2, 3)
    assert (trained["optimizer"], reference["optimizer"]) == ("FusedAdam", "")
    assert reference["trainable_parameters"] == 0 < reference["parameters"] == trained["parameters"]
    assert {"generation", "scoring", *("forward", "backward", "step")} <= {name for _, name in phases(answer)}


QLORA = """
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
quantized = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
args = TrainingArguments("out", deepspeed="zero2.json", bf16=True, per_device_train_batch_size=2, report_to="none",
    learning_rate=1e-4)
model = AutoModelForCausalLM.from_pretrained("model", quantization_config=quantized, dtype=torch.bfloat16)
print(sum(each.numel() for each in model.parameters() if each.dtype == torch.uint8))
model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
rows = [{"input_ids": torch.full((64,), row), "labels": torch.full((64,), row)} for row in range(200)]
Trainer(model=model, args=args, train_dataset=rows).train()
"""


@pytest.mark.slow
def test_quantized_weights_take_half_a_byte(folder: Path) -> None:
    """bitsandbytes need not be installed: it does nothing on a simulated GPU."""
    wide = SMALL_LLAMA | sizes(1024, 4096, 4, 8, 8, 1000)
    (folder / "model" / "config.json").write_text(json.dumps(wide))
    answer = observe(folder, QLORA)
    (engine,) = answer["observed"]["engines"]
    assert engine["trainable_parameters"] == 4 * 2 * 4 * (1024 + 1024), "two adapters of rank 4 in each layer"
    linear = 4 * (4 * 1024 * 1024 + 3 * 1024 * 4096)
    embeddings = 2 * 1000 * 1024
    live = next(phase for phase in answer["phases"] if phase["phase"] == "initialize")["gpu_live_bytes"]
    least = linear * (0.5 + 1 / 64) + 2 * embeddings
    assert least < live < least + 2 * embeddings + 16 * engine["trainable_parameters"] + (4 << 20)


def test_an_exception_of_the_script_is_shown_with_its_line_and_its_fix_on_a_terminal(folder: Path) -> None:
    """Frames of this package are not shown. Elsewhere the error is one line."""
    script = f"""
import deepspeed, torch
def engine_of(config):
    return deepspeed.initialize(model=torch.nn.Linear(4, 4), config=config)
engine_of({ZERO_2 | {"train_batch_size": 6}!r})
"""
    code, _, line = dry_run(folder, script)
    assert code == 1 and "train.py:4 (during load): AssertionError: Check batch related parameters" in line
    terminal = Terminal(80)
    words = [sys.executable, "-m", "ds_advise", "dry-run", "--gpus", "2xA100-40GB", "--", "train.py"]
    done = subprocess.run(words, cwd=folder, stderr=terminal.slave, timeout=300, check=False)
    shown = terminal.wait(lambda text: "the script failed at" in text)
    assert done.returncode == 1
    assert "train.py:4, in engine_of" in shown and "> AssertionError: Check batch related" in shown
    assert "Cause:" in shown and "Fix:" in shown
    assert "probes/command" not in shown and "launchers.py" not in shown


@pytest.mark.parametrize("stage", [1, 3])
def test_on_a_cpu_a_bucket_takes_what_is_written_into_it(folder: Path, stage: int) -> None:
    """`torch.empty` of the default 500 million elements takes no memory there. On a GPU it takes all of it."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW"},
    }
    script = f"""
import deepspeed, torch
model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 300))
engine, *_ = deepspeed.initialize(model=model, config={config!r}, model_parameters=model.parameters())
for _ in range(3):
    engine.backward(engine(torch.ones(1, 300, device=engine.device)).sum())
    engine.step()
"""
    found = {}
    for device in (("--device", "cpu", "--ranks", "2"), ("--gpus", "2xA100-40GB")):
        (folder / "train.py").write_text(script)
        words = [sys.executable, "-m", "ds_advise", "dry-run", *device, "--json", "--", "train.py"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=True)
        found[device[1]] = json.loads(done.stdout)
    trained = 2 * (300 * 300 + 300)
    on_cpu, on_gpu = (each["peak"]["by_category"]["buckets"] for each in found.values())
    assert 4 * trained <= on_cpu <= 2 * 4 * (trained + 512) and on_gpu >= 4 * 500_000_000
    assert found["cpu"]["required_host_bytes_per_node"] < 2 * 2**30
    by_module = found["2xA100-40GB"]["peak"]["by_module"]
    assert by_module.get("0", 0) < 4 * trained < by_module[""], "a flat buffer is of no single module"
    assert found["cpu"]["peak"]["required_bytes_per_gpu"] == found["cpu"]["peak"]["reserved_bytes_per_gpu"]


def test_keys_that_the_engine_ignores_are_named(folder: Path) -> None:
    misspelled = {"gradient_acumulation_steps": 4, "zero_optimisation": {"stage": 2}}
    config = {name: value for name, value in ZERO_2.items() if name != "zero_optimization"} | misspelled
    (folder / "typo.json").write_text(json.dumps(config))
    script = """
import deepspeed, torch
model = torch.nn.Linear(4, 4)
engine, *_ = deepspeed.initialize(model=model, config="typo.json", model_parameters=model.parameters())
for _ in range(3):
    engine.backward(engine(torch.ones(2, 4, device=engine.device, dtype=torch.bfloat16)).sum())
    engine.step()
"""
    code, out, err = dry_run(folder, script, launcher=["torchrun", "--nproc_per_node", "4"])
    assert code == 0, err
    words = " ".join(out.split())
    below_the_verdict = words[: words.index("Rank 0")]
    assert "typo.json: DeepSpeed has no key 'gradient_acumulation_steps', so it has no effect:" in below_the_verdict
    assert "rename it to gradient_accumulation_steps" in below_the_verdict
    assert "ZeRO is off: it has stage 0 instead of 2; the figures are those without it: rename" in below_the_verdict
    assert "renamed block" not in words
    assert (
        "starts 4 ranks, and --gpus has 2: the answer is for 2, whose step has 0.5 x the samples." in below_the_verdict
    )
    assert words.endswith("ds-advise launch -- torchrun --nproc_per_node 2 train.py"), "the ranks of the figures"
    code, _, err = dry_run(folder, script, "zero2.json")
    assert code == 2 and "the command trains with typo.json, not with zero2.json" in err


FAILS_AT_LAST = """
import sys, torch, deepspeed
model = torch.nn.Linear(64, 64)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config="zero2.json")
for _ in range(8):
    engine.backward(engine(torch.ones(2, 64, dtype=torch.bfloat16, device=engine.device)).float().sum())
    engine.step()
raise ValueError(sys.argv[1])
"""


@pytest.mark.slow
def test_a_failure_behind_the_steps_fails_the_dry_run_if_its_cause_is_known(folder: Path) -> None:
    """Tensors of the simulation have no values, which may be the cause of another one."""
    known = "Cannot get 16bit model weights because `stage3_gather_16bit_weights_on_model_save` is False"
    code, out, _ = dry_run(folder, FAILS_AT_LAST, arguments=[known])
    out = " ".join(out.split())
    assert code == 1 and f"the script failed at {folder}/train.py:8: ValueError: {known}" in out
    assert "A training fails there too. Fix: Set it to true" in out and "ds-advise launch" not in out
    code, out, _ = dry_run(folder, FAILS_AT_LAST, arguments=["score 0.0"])
    assert code == 0 and "the script failed at" in out and "ds-advise launch -- " in out
