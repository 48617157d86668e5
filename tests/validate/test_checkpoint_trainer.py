"""Checkpoints without DeepSpeed: of the Trainer, of FSDP and of accelerate, and folders of a model alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ds_advise.advisor.cli.main import run
from ds_advise.validate.checkpoint import checkpoints_in, newest_usable, read_checkpoint, write_checksums
from ds_advise.validate.checkpoint_contents import read_contents
from ds_advise.validate.checkpoint_trainer import missing_to_load
from safetensors.torch import load_file, save_file

from tests.helpers import write_checkpoint

_TRAINING = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
folder, resumed, kind = sys.argv[1:]
sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=64)
model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True))
if kind == "lora":
    from peft import LoraConfig, get_peft_model
    model = get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 8
kept = dict(save_only_model=kind == "only", report_to=[], use_cpu=True, disable_tqdm=True)
arguments = TrainingArguments(folder, max_steps=4 if resumed else 2, save_steps=2, **kept)
Trainer(model, arguments, train_dataset=rows).train(resume_from_checkpoint=resumed or None)
"""


def _train(folder: Path, kind: str, resumed: str = "") -> None:
    subprocess.run([sys.executable, "-c", _TRAINING, str(folder), resumed, kind], check=True, capture_output=True)


def _shown(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    code = run(["checkpoint", *map(str, words)])
    printed = capsys.readouterr()
    return code, " ".join((printed.out + printed.err).split())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "lora", "only"])
def test_what_the_trainer_saves_and_resumes_from_is_whole(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under any name; the step is the training's own."""
    _train(tmp_path / "out", kind)
    shutil.copytree(tmp_path / "out" / "checkpoint-2", tmp_path / "copy9")
    for folder in ("out", "out/checkpoint-2", "copy9"):
        code, printed = _shown(capsys, folder)
        assert code == 0 and "Whole: " in printed, printed
        loads = "adapter with PeftModel.from_pretrained" if kind == "lora" else "weights with from_pretrained"
        assert loads in printed
        resumes = "You can resume without DeepSpeed with resume_from_checkpoint" in printed
        assert resumes == (kind != "only")
        assert ("Trainer checkpoint without DeepSpeed, step 2, " in printed) == resumes
        assert ("model folder" in printed and "no states to resume from" in printed) != resumes
    _train(tmp_path / "out", kind, str(tmp_path / "out" / "checkpoint-2"))
    assert json.loads((tmp_path / "out" / "checkpoint-4" / "trainer_state.json").read_text())["global_step"] == 4


def _write(folder: Path) -> Path:
    """The files of a Trainer's checkpoint without DeepSpeed (transformers 5.24 trainer.py `_save_checkpoint`)."""
    folder.mkdir(parents=True)
    weights = {"weight": torch.arange(64.0)}
    save_file(weights, folder / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth", "training_args.bin"):
        torch.save(weights, folder / name)
    (folder / "config.json").write_text("{}")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 8}))
    return folder


@pytest.mark.parametrize(
    ("lost", "problem"),
    [
        ("optimizer.pt", "the optimizer states are missing"),
        ("scheduler.pt", "scheduler.pt is missing"),
        ("trainer_state.json", "trainer_state.json is missing"),
        ("model.safetensors", "the weights are missing"),
        ("rng_state_0.pth", ""),
        ("training_args.bin", ""),
        ("config.json", ""),
    ],
)
def test_what_the_trainer_needs_is_named(tmp_path: Path, lost: str, problem: str) -> None:
    """Of a Trainer's checkpoint without DeepSpeed, whatever its folder is called; a file that is cut off too."""
    for name in ("checkpoint-8", "kept"):
        folder = _write(tmp_path / name)
        assert read_checkpoint(folder, by_deepspeed=False).is_usable
        assert read_contents(folder).step == 8
        path = folder / lost
        if path.suffix != ".json":
            content = path.read_bytes()
            path.write_bytes(content[:-40])
            assert read_checkpoint(folder, by_deepspeed=False).problem == f"{lost} is cut off"
        path.unlink()
        assert read_checkpoint(folder, by_deepspeed=False).problem == problem


def test_the_lost_random_states_of_one_gpu_are_no_damage(tmp_path: Path) -> None:
    """The Trainer names them without a rank (transformers 5.24 trainer.py `_load_rng_state`)."""
    folder = _write(tmp_path / "checkpoint-8")
    (folder / "rng_state_1.pth").unlink()
    (folder / "rng_state_0.pth").rename(folder / "rng_state.pth")
    write_checksums(folder)
    (folder / "rng_state.pth").unlink()
    found = read_checkpoint(folder, by_deepspeed=False)
    assert found.is_usable and found.lost_random == ("rng_state.pth",)


@pytest.mark.parametrize("summed", [False, True])
def test_lost_random_states_are_no_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str], *, summed: bool) -> None:
    """The Trainer logs that they are missing and resumes."""
    folder = _write(tmp_path / "checkpoint-8")
    if summed:
        write_checksums(folder)
    (folder / "rng_state_0.pth").unlink()
    name = "rng_state_0.pth" if summed else "the random states of rank 0"
    found = read_checkpoint(folder, by_deepspeed=False)
    assert found.is_usable and found.lost_random == (name,)
    assert run(["checkpoint", str(folder)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Damaged" not in out and "Whole: every other file" in out
    assert f"Missing: {name}. The Trainer resumes without, with other random numbers." in out


def test_deepspeed_does_not_resume_from_a_checkpoint_without_its_states(tmp_path: Path) -> None:
    """A training under DeepSpeed takes an older one, and a listing the newest of any kind, a model last."""
    write_checkpoint(tmp_path / "checkpoint-4", ranks=2)
    _write(tmp_path / "checkpoint-8")
    model = _write(tmp_path / "checkpoint-12")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"):
        (model / name).unlink()
    for by_deepspeed, name in ((True, "checkpoint-4"), (False, "checkpoint-8")):
        usable, _ = newest_usable(checkpoints_in(tmp_path), by_deepspeed=by_deepspeed, say=lambda _: None)
        assert usable is not None and usable.folder.name == name


def test_sharded_states_of_fsdp_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the places that torch's metadata name."""
    from torch.distributed import checkpoint as distributed

    folder = _write(tmp_path / "checkpoint-8")
    for name in ("model.safetensors", "optimizer.pt", "config.json"):
        (folder / name).unlink()
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        writer = distributed.FileSystemWriter(folder / name)
        distributed.save({"state": {"a": torch.randn(100), "b": torch.ones(3)}}, storage_writer=writer, no_dist=True)
    code, printed = _shown(capsys, "checkpoint-8")
    assert code == 0 and "Trainer checkpoint of FSDP, step 8, " in printed
    assert "You can resume under FSDP with resume_from_checkpoint." in printed
    assert "In 2 files, the values were not examined for NaN." in printed
    code, printed = _shown(capsys, "checkpoint-8", "--to-hf", "out")
    assert code == 2 and "FSDP saved its weights; use accelerate merge-weights" in printed
    part = folder / "optimizer_0" / "__0_0.distcp"
    part.write_bytes(part.read_bytes()[:-1])
    found = read_checkpoint(folder, by_deepspeed=False)
    assert found.problem.startswith("optimizer_0/.metadata names __0_0.distcp, which is cut off after ")
    part.unlink()
    assert "names __0_0.distcp, which is missing" in read_checkpoint(folder, by_deepspeed=False).problem
    metadata = folder / "pytorch_model_fsdp_0" / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:50])
    assert "pytorch_model_fsdp_0/.metadata is cut off" in _shown(capsys, "checkpoint-8")[1]
    metadata.unlink()
    assert "pytorch_model_fsdp_0/.metadata is missing" in _shown(capsys, "checkpoint-8")[1]


def test_a_state_of_accelerate_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`Accelerator.save_state` keeps no config.json."""
    folder = _write(tmp_path / "state")
    for name in ("config.json", "trainer_state.json", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"):
        (folder / name).unlink()
    (folder / "optimizer.pt").rename(folder / "optimizer.bin")
    code, printed = _shown(capsys, "state")
    assert code == 0 and "state: accelerate checkpoint without DeepSpeed, " in printed
    assert "You can resume without DeepSpeed with Accelerator.load_state." in printed


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["model.safetensors", "config.json"], ""),
        (["model.safetensors"], "config.json is missing"),
        (["adapter_model.safetensors", "adapter_config.json"], ""),
        (["adapter_model.safetensors"], "adapter_config.json is missing"),
        (["weights.safetensors", "config.json"], "model.safetensors is missing"),
        (
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "config.json"],
            "model.safetensors.index.json is missing",
        ),
    ],
)
def test_a_model_that_from_pretrained_does_not_load_is_not_whole(
    tmp_path: Path, names: list[str], missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    for name in names:
        if name.endswith(".json"):
            (tmp_path / "model" / name).write_text("{}")
        else:
            save_file({"weight": torch.ones(2)}, tmp_path / "model" / name)
    code, printed = _shown(capsys, "model")
    assert code == bool(missing) and ("from_pretrained does not load it. " + missing in printed) == bool(missing)
    assert ("peft's PeftModel.from_pretrained does not" in printed) == missing.startswith("adapter_config")
    assert ("You can load its " in printed) != bool(missing)
    merges = "Model.from_pretrained('model').merge_and_unload().save_pretrained('my-model')\""
    assert (merges in printed.replace("\\ ", "")) == (not missing and names[0].startswith("adapter"))


@pytest.mark.parametrize(
    "names",
    [
        ("adapter_model.safetensors", "adapter_config.json", "model_card.md", "modeling_x.py"),
        (
            *("model.safetensors", "config.json", "pytorch_model-00001-of-00001.bin"),
            "pytorch_model.bin.index.json",
        ),
    ],
)
def test_only_safetensors_decide_what_from_pretrained_needs(names: tuple[str, ...]) -> None:
    assert missing_to_load(names) == ()


def test_weights_of_fsdp_beside_a_model_need_their_metadata(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    part = tmp_path / "pytorch_model_fsdp_0" / "__0_0.distcp"
    part.parent.mkdir()
    part.write_bytes(b"0")
    missing = [file.name for file in read_checkpoint(tmp_path, by_deepspeed=False).files if file.problem]
    assert missing == ["pytorch_model_fsdp_0/.metadata"]


def test_a_damaged_newest_checkpoint_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`resume_from_checkpoint=True` takes the one of the largest step (transformers 5.24 `get_last_checkpoint`)."""
    for step in (2, 4, 10):
        _write(tmp_path / "out" / f"checkpoint-{step}")
    (tmp_path / "out" / "checkpoint-10" / "optimizer.pt").unlink()
    weights = tmp_path / "out" / "checkpoint-4" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    code, printed = _shown(capsys, "out")
    assert code == 1 and printed.startswith(
        "checkpoint-10 is damaged: the optimizer states are missing. checkpoint-4 is damaged: model.safetensors is cut "
        "off. resume_from_checkpoint=True would take checkpoint-10. Resume with "
        'resume_from_checkpoint="out/checkpoint-2", or move checkpoint-10 and checkpoint-4 away. out/checkpoint-2: '
    )
    assert run(["checkpoint", "out", "--json"]) == 1
    newer = json.loads(capsys.readouterr().out)["newer"]
    assert [(each["folder"], each["damaged"][0]["problem"]) for each in newer] == [
        ("out/checkpoint-10", "are missing"),
        ("out/checkpoint-4", "is cut off"),
    ]


@pytest.mark.slow
def test_weights_that_from_pretrained_would_invent_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a class that transformers has; the tied head is none of them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, tie_word_embeddings=True
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    path, name = tmp_path / "model" / "model.safetensors", "model.norm.weight"
    code, printed = _shown(capsys, "model")
    assert code == 0 and "not checked" not in printed and "You can load its weights" in printed
    tensors = load_file(path)
    for changed, says in (
        (None, f"1 tensor of LlamaForCausalLM is missing, {name}: from_pretrained would initialize it at random."),
        (torch.ones(3), f"1 tensor of LlamaForCausalLM is of another shape, {name}: from_pretrained stops at it."),
    ):
        left = {key: value for key, value in tensors.items() if key != name}
        save_file(left if changed is None else left | {name: changed}, path, metadata={"format": "pt"})
        code, printed = _shown(capsys, "model")
        assert code == 1 and says in printed and "You can load nothing" in printed and "Whole" not in printed
    named = path.with_name("config.json")
    for text, why in (
        (named.read_text().replace("LlamaFor", "OtherFor"), "transformers has no class OtherForCausalLM."),
        ("{}", "config.json names no class."),
    ):
        named.write_text(text)
        code, printed = _shown(capsys, "model")
        assert code == 0 and f"is missing was not checked: {why}" in printed
    named.write_text('{"architectures": ["LlamaForCausalLM"]}')
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "was not checked: transformers is not installed." in _shown(capsys, "model")[1]


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_states_of_another_model_than_that_of_the_config_are_not_exported(
    stage: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which `--to-hf` refuses. Without config.json no model of Hugging Face is promised; peft merges adapters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = write_checkpoint(tmp_path / "saved", ranks=2, tag="global_step2", stage=stage)
    (folder / "model.safetensors").unlink()
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, tie_word_embeddings=True
    )
    own = LlamaForCausalLM(config)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    shapes = {name: parameter.shape for name, parameter in own.named_parameters()}
    assert "model.norm.weight" in shapes

    def save(names: dict[str, torch.Size]) -> None:
        for path in folder.glob("*/*model_states.pt"):
            torch.save(torch.load(path, weights_only=False) | {"param_shapes": [names]}, path)

    save(shapes)
    code, printed = _shown(capsys, "saved")
    assert code == 0 and "Export the weights as a Hugging Face model:" in printed
    save({name: shape for name, shape in shapes.items() if name != "model.norm.weight"})
    code, printed = _shown(capsys, "saved")
    assert code == 1 and "1 tensor of LlamaForCausalLM is missing, model.norm.weight: --to-hf stops at it;" in printed
    assert "Export" not in printed and "export its weights" not in printed and "You can resume with 2 ranks" in printed
    (folder / "config.json").unlink()
    code, printed = _shown(capsys, "saved")
    assert code == 0 and "Export the weights as safetensors:" in printed
    save({"base_model.model.q.lora_A.default.weight": torch.Size([8, 64])})
    code, printed = _shown(capsys, "saved")
    assert code == 0 and "--to-hf" not in printed
    assert run(["checkpoint", "saved", "--to-hf", "new"]) == 2
    error = capsys.readouterr().err
    assert "merge_and_unload().save_pretrained('my-model')" in error and "train" not in error.replace("pretrained", "")


def test_renamed_states_are_ordered_by_their_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which the states say; a name without number hides none."""
    folder = write_checkpoint(tmp_path / "saved", ranks=2, tag="global_step1")
    for tag, step in (("step2", None), ("kept", 3)):
        write_checkpoint(tmp_path / tag, ranks=2, tag=tag)
        (tmp_path / tag / tag).rename(folder / tag)
        path = folder / tag / "mp_rank_00_model_states.pt"
        torch.save(torch.load(path, weights_only=False) | ({"global_steps": step} if step else {}), path)
        (folder / "latest").write_text("global_step9")
        code, printed = _shown(capsys, "saved")
        assert code == 1 and f"echo {tag} > saved/latest" in printed and f", step {step or 2}, " in printed


def test_values_that_are_nan_come_before_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And are not hidden by a missing `latest`."""
    folder = write_checkpoint(tmp_path / "saved", ranks=1, tag="global_step2")
    states = next(folder.glob("*/*optim_states.pt"))
    torch.save({"zero_stage": 2, "master": torch.tensor([float("nan")])}, states)
    code, printed = _shown(capsys, "saved")
    assert code == 1 and printed.index("1 value is NaN") < printed.index("Its files are complete: ")
    assert "Whole" not in printed
    (folder / "latest").unlink()
    code, printed = _shown(capsys, "saved")
    assert code == 1 and "1 value is NaN" in printed and "echo" not in printed


@pytest.mark.slow
def test_a_tensor_under_two_names_is_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the model's class it is written under both."""
    folder = write_checkpoint(tmp_path / "saved", ranks=1, tag="global_step2", stage=0)
    (folder / "model.safetensors").unlink()
    path = folder / "global_step2" / "mp_rank_00_model_states.pt"
    states = torch.load(path, weights_only=False)
    torch.save(states | {"module": {**states["module"], "lm_head.weight": states["module"]["weight"]}}, path)
    code, printed = _shown(capsys, "saved", "--to-hf", "out")
    assert code == 0 and "4,096 parameters" in printed
    assert "lm_head.weight has the values of another tensor and is written too" in printed
