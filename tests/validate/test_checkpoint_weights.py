"""`ds-advise checkpoint`: what lies in a folder, and its weights as a model."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.question.model_source import load_model
from ds_advise.estimators.time.job import checkpoint_bytes
from ds_advise.estimators.workload import Workload
from ds_advise.validate.checkpoint import CHECKSUMS, read_checkpoint

from tests.helpers import write_checkpoint
from tests.training_scripts.forked_ranks import run_ranks

SCRIPT = Path(__file__).parents[1] / "training_scripts" / "save_checkpoint.py"
SHAPES = [("1", "untied"), ("2", "tied"), ("3", "untied"), ("3", "tied")]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The checkpoint of a stage, saved by two ranks once."""
    root = tmp_path_factory.mktemp("saved")

    def save(stage: str, tied: str) -> Path:
        folder = root / f"zero{stage}-{tied}"
        if not folder.exists():
            logs = root / f"{folder.name}-logs"
            logs.mkdir()
            # Another local size keeps DeepSpeed from compiling its shared-memory collectives.
            run_ranks(SCRIPT, [str(folder), stage, tied], 2, logs, LOCAL_SIZE="1")
        return folder

    return save


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "tied"), SHAPES)
def test_weights_are_those_of_the_training(
    stage: str,
    tied: str,
    saved: Callable[[str, str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the bit, in fp32 and in the type of config.json, and from_pretrained reads them. The command for another
    number of ranks converts the checkpoint."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    folder = saved(stage, tied)
    true = torch.load(folder.with_suffix(".weights"))
    shape = load_model(str(folder / "config.json"))
    own = checkpoint_bytes(shape, Workload(), int(stage)) - 2 * shape.parameters  # the model's file is the Trainer's
    # The shards of a small model are 3 % larger than their tensors.
    assert sum(path.stat().st_size for path in folder.rglob("*.pt")) == pytest.approx(own, rel=0.05)
    for dtype, kind in (("auto", torch.bfloat16), ("fp32", torch.float32)):
        target = tmp_path / dtype
        assert run(["checkpoint", str(folder), "--to-hf", str(target), "--dtype", dtype, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["contents"]["stage"] == stage
        assert answer["contents"]["parameters"] == answer["conversion"]["parameters"]
        assert (answer["contents"]["ranks"], answer["contents"]["step"]) == (2, 1)
        written = load_file(target / "model.safetensors")
        assert written.keys() == true.keys()
        assert answer["conversion"]["parameters"] == sum(each.numel() for each in written.values())
        assert [name for name, each in written.items() if not torch.equal(each, true[name].to(kind))] == []
        assert {path.name for path in target.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "auto")
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == (tied == "tied")
    assert run(["checkpoint", str(folder), "--to-hf", str(tmp_path / "auto")]) == 2
    assert "exists: nothing is overwritten; pass --force" in capsys.readouterr().err
    assert run(["checkpoint", str(folder), "--to-hf", str(tmp_path / "auto"), "--force"]) == 0
    for target in (folder, folder.parent):
        assert run(["checkpoint", str(folder), "--to-hf", str(target), "--force"]) == 2
        assert "it holds other folders" in capsys.readouterr().err
    assert (folder / "latest").is_file()
    assert run(["checkpoint", str(folder)]) == 0
    from deepspeed.checkpoint import ds_to_universal  # here: an import before the first command prints

    printed = capsys.readouterr().out.replace("\\\n", "").split()
    monkeypatch.setattr("sys.argv", ["", *printed[printed.index("--input_folder") :], "--num_extract_workers", "1"])
    ds_to_universal.main(ds_to_universal.parse_arguments())
    assert (folder / "latest_universal").read_text() == "global_step1_universal"
    capsys.readouterr()
    assert run(["checkpoint", str(folder / "global_step1_universal")]) == 0
    stages = "ZeRO-3" if stage == "3" else "ZeRO-1 or 2"
    printed = " ".join(capsys.readouterr().out.split())
    assert f"_universal: universal checkpoint of ZeRO-{stage}, step 1, " in printed
    assert f"You can resume with {stages} on any number of GPUs, with checkpoint.load_universal." in printed
    assert "latest" not in printed
    assert run(["checkpoint", str(folder)]) == 0
    printed = capsys.readouterr().out.replace("\\\n", "")
    assert "It was converted for another" in printed and "ds_to_universal" not in printed
    assert "global_step1_universal" in printed


@pytest.mark.slow
def test_an_export_says_what_its_folder_lacks(
    saved: Callable[[str, str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine saves neither config.json nor a tokenizer; values that are no numbers are counted."""
    folder = Path(shutil.copytree(saved("2", "tied"), tmp_path / "copy"))
    for name in ("config.json", "tokenizer.json"):
        (folder / name).unlink()
    assert run(["checkpoint", str(folder / "global_step1"), "--to-hf", "first"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Wrote first: " in printed and "from_pretrained loads" not in printed
    assert "no config.json and no tokenizer, which from_pretrained needs: copy them from the model" in printed
    path = next(folder.glob("*/*rank_0_*optim_states.pt"))
    states = torch.load(path, weights_only=False)
    with torch.no_grad():
        states["optimizer_state_dict"]["single_partition_of_fp32_groups"][0][5:8] = float("nan")
    torch.save(states, path)
    assert run(["checkpoint", str(folder), "--to-hf", "second"]) == 1
    assert "3 values are NaN or infinite, the first in model.embed_tokens.weight" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_folder_of_states_and_a_stale_latest_have_a_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path / "saved", ranks=2, tag="global_step2")
    repair = "echo global_step2 > saved/latest"
    assert run(["checkpoint", "saved/global_step2"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(" saved/global_step2: ZeRO-2 checkpoint of 2 ranks, step 2, ")
    assert repair not in printed and "Saved by DeepSpeed 0.19.8 with 4,096 parameters." in printed
    for latest in ("", "global_step9"):
        (folder / "latest").write_text(latest)
        if not latest:
            (folder / "latest").unlink()
        assert run(["checkpoint", "saved/global_step2"]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert f"`latest` names {latest or 'no tag'}. Load" in printed
        assert "Whole: " in printed and 'Load global_step2 with tag="global_step2"' in printed and repair in printed
        assert run(["checkpoint", "saved"]) == 1
        printed = " ".join(capsys.readouterr().out.split())
        assert "Damaged" not in printed and "The states are whole: " in printed and repair in printed
        what = "names global_step9, which is missing" if latest else "is missing"
        assert f'`latest` {what}. Load global_step2 with tag="global_step2"' in printed
    monkeypatch.chdir(folder / "global_step2")
    assert run(["checkpoint", "."]) == 0
    assert "--input_folder ../global_step2 " in capsys.readouterr().out.replace("\\\n", "")


@pytest.mark.parametrize("has_config", [True, False])
def test_the_model_that_the_engine_saves_is_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, has_config: bool
) -> None:
    """`engine.save_16bit_model` writes pytorch_model.bin and no config.json, with which from_pretrained loads it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 64}
    config = LlamaConfig(**sizes, num_attention_heads=2, architectures=["LlamaForCausalLM"])
    weights = LlamaForCausalLM(config).state_dict()
    (tmp_path / "model").mkdir()
    torch.save(weights, tmp_path / "model" / "pytorch_model.bin")
    if has_config:
        config.save_pretrained(tmp_path / "model")
    assert run(["checkpoint", "model"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("model: model folder, ") and "Whole: every file was read" in printed
    loads = "from_pretrained" if has_config else "torch.load"
    assert f"You can load its weights with {loads}. It holds no states to resume from." in printed
    assert ("only with config.json, which the folder lacks" in printed) != has_config
    del weights["model.norm.weight"]
    torch.save(weights, tmp_path / "model" / "pytorch_model.bin")
    assert run(["checkpoint", "model"]) == has_config
    assert ("1 tensor of LlamaForCausalLM is missing, model.norm.weight" in capsys.readouterr().out) == has_config


def test_without_zero_the_optimizer_states_lie_in_the_file_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "saved", ranks=1, stage=0)
    assert run(["checkpoint", "saved"]) == 0
    assert "model and optimizer states, weights" in capsys.readouterr().out


def test_the_older_whole_step_is_offered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a damaged newest step of a folder, and for one whose weights are NaN."""
    folder = write_checkpoint(tmp_path / "saved", ranks=2, tag="global_step2")
    write_checkpoint(tmp_path / "later", ranks=2, tag="global_step10")
    (tmp_path / "later" / "global_step10").rename(folder / "global_step10")
    (folder / "latest").write_text("global_step10")
    states = folder / "global_step10" / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    for content in ({"zero_stage": 2, "master": torch.tensor([float("nan")])}, None):
        states.unlink()
        if content:
            torch.save(content, states)
        for named in ("saved", "saved/global_step10"):
            assert run(["checkpoint", named]) == 1
            printed = " ".join(capsys.readouterr().out.split())
            assert ("1 value is NaN or infinite, the first in global_step10/bf16_" in printed) == bool(content)
            assert "o not resume from it." in printed and "to_universal" not in printed
            assert 'Other states in the folder are whole. Load global_step2 with tag="global_step2"' in printed
            assert "echo global_step2 > saved/latest" in printed
    (folder / "global_step2" / "mp_rank_00_model_states.pt").unlink()
    assert run(["checkpoint", "saved"]) == 1
    assert "echo" not in capsys.readouterr().out


@pytest.mark.parametrize("names", [("epoch_2", "epoch_10"), ("checkpoint_2", "checkpoint_10")])
def test_the_newest_of_several_folders_is_taken(
    tmp_path: Path, names: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with its own `latest`, as accelerate's save_state writes them; they are not merged."""
    for name in names:
        folder = write_checkpoint(tmp_path / "out" / name, ranks=2, tag="pytorch_model")
    assert run(["checkpoint", "out"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f" out/{names[1]}: ZeRO-2 checkpoint of 2 ranks")
    assert f"out contains 2 checkpoints; {names[1]} is taken" in printed.err
    (folder / "latest").unlink()
    assert run(["checkpoint", "out"]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith(f" {names[1]} is damaged: latest is missing.")
    assert f"\n out/{names[0]}: " in printed.out
    assert f"Resume from out/{names[0]}, the newest whole one." in printed.out
    assert run(["checkpoint", str(tmp_path)]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err


def test_a_damaged_checkpoint_names_the_newest_whole_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (3, 6, 9):
        folder = write_checkpoint(tmp_path / "out" / f"checkpoint-{step}", ranks=1)
        if step > 3:
            (folder / "model.safetensors").write_bytes(b"{}")
    assert run(["checkpoint", "out/checkpoint-9"]) == 1
    assert "The newest whole checkpoint of the same training is out/checkpoint-3." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("damaged", "beside"), [("run1", "run2"), ("checkpoint-9", "unrelated"), ("epoch_2", "old_epoch_1")]
)
def test_a_folder_beside_a_damaged_checkpoint_may_be_another_training(
    damaged: str, beside: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(tmp_path / damaged, ranks=1)
    write_checkpoint(tmp_path / beside, ranks=1)
    (folder / "model.safetensors").write_bytes(b"{}")
    assert run(["checkpoint", damaged]) == 1
    assert beside not in capsys.readouterr().out


def test_a_checkpoint_of_another_model_is_not_of_the_same_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that was copied into the output folder, with parameters of other sizes."""
    folder = write_checkpoint(tmp_path / "checkpoint-9", ranks=1)
    write_checkpoint(tmp_path / "checkpoint-8", ranks=1, parameters=100)
    write_checkpoint(tmp_path / "checkpoint-3", ranks=1)
    (folder / "model.safetensors").write_bytes(b"{}")
    assert run(["checkpoint", "checkpoint-9"]) == 1
    assert "of the same training is checkpoint-3." in capsys.readouterr().out


def _change_config(**changes: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return change


class _Evil:
    def __reduce__(self) -> tuple[Callable[..., int], tuple[str]]:
        return os.system, ("touch executed",)


def _plant_code(folder: Path) -> None:
    """A pickle that runs a command, in the archive of a rank."""
    (path,) = folder.glob("*/*rank_1*optim_states.pt")
    stream = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(stream, "w") as new:
        for each in old.infolist():
            content = pickle.dumps(_Evil(), 2) if each.filename.endswith("data.pkl") else old.read(each)
            new.writestr(each.filename, content)
    path.write_bytes(stream.getvalue())


def _write_pickle(folder: Path) -> None:
    """As torch saved before its zip archives."""
    states = next(folder.glob("*/*rank_1*optim_states.pt"))
    torch.save({}, states, _use_new_zipfile_serialization=False)  # as DeepSpeed's fast writer saves


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_write_pickle, "is not loaded: it is not a torch.save archive"),
        (_change_config(num_hidden_layers=3), "does not hold the weights of its config.json: model.layers.2."),
        (_change_config(vocab_size=300), "(256, 64), and (300, 64) in the model"),
        (_plant_code, "is not loaded: it refers to posix.system, whose code would run"),
    ],
)
def test_a_foreign_checkpoint_writes_nothing(
    damage: Callable[[Path], None],
    says: str,
    saved: Callable[[str, str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path(shutil.copytree(saved("3", "untied"), tmp_path / "copy"))
    damage(folder)
    assert run(["checkpoint", str(folder), "--to-hf", "out"]) == 2
    assert says in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"copy"}


def test_a_folder_is_described_without_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files that a training left, whole and damaged, and folders that are no checkpoint."""
    folder = write_checkpoint(tmp_path / "checkpoint-8", ranks=2)
    assert run(["checkpoint", folder.name]) == 0
    assert "from_pretrained loads its weights only with config.json" in " ".join(capsys.readouterr().out.split())
    (folder / "config.json").write_text("{}")
    assert run(["checkpoint", folder.name]) == 0
    shown = capsys.readouterr().out
    assert run(["checkpoint", str(folder)]) == 0  # its commands are as short as those of the relative path
    assert "--input_folder checkpoint-8/global_step8 " in capsys.readouterr().out.replace("\\\n", "")
    lines = shown.splitlines()
    assert lines[0].startswith(" checkpoint-8: ZeRO-") and " checkpoint of 2 ranks, step 8, " in lines[0]
    assert lines[1] == " Whole: every file was read, none is missing or cut off; no value is NaN."
    assert lines[2] == " You can resume with 2 ranks, load its weights with from_pretrained or convert"
    next(folder.glob("*/*rank_0*optim_states.pt")).unlink()
    next(folder.glob("*/*model_states.pt")).write_bytes(b"PK")
    assert run(["checkpoint", folder.name, "--to-hf", "out"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "Damaged: 2 files. Do not resume from it." in out
        and "is cut off" in out
        and "of rank 0 are missing" in out
        and not (tmp_path / "out").exists()
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert run(["checkpoint", "model"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("model: model folder, 12 B Whole: ") and "You can load its weights with from_pretr" in out
    (tmp_path / "model" / "model.safetensors").write_bytes(b"{}")
    assert run(["checkpoint", "model"]) == 1
    assert " ".join(capsys.readouterr().out.split()).startswith("model: model folder, 4 B Damaged: 1 file.")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "deep.json").write_text("[" * 100_000)
    for path, says in (
        ("empty", "empty holds no checkpoint"),
        ("absent", "absent is not a folder"),
    ):
        assert run(["checkpoint", path]) == 2
        assert says in capsys.readouterr().err


def test_a_trainers_folder_is_exported_without_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest whole checkpoint of the output folder; its safetensors are the model's weights, to the bit."""
    from safetensors.torch import load_file

    for step in (4, 8, 12):
        folder = write_checkpoint(tmp_path / "out" / f"checkpoint-{step}", ranks=1, stage=0)
    (folder / "model.safetensors").write_bytes(b"{}")
    for dtype, kind in (("auto", torch.float32), ("bf16", torch.bfloat16)):
        assert run(["checkpoint", "out", "--to-hf", dtype, "--dtype", dtype]) == 1  # not the newest
        printed = capsys.readouterr()
        assert printed.out.startswith(" checkpoint-12 is damaged: model.safetensors is cut off.")
        assert "\n out/checkpoint-8: checkpoint without ZeRO" in printed.out
        assert "out contains 3 checkpoints; checkpoint-8 is taken" in printed.err
        weights = load_file(tmp_path / dtype / "model.safetensors")
        assert torch.equal(weights["weight"], torch.arange(4096.0).to(kind))
    for folder in (tmp_path / "out").iterdir():
        (folder / "model.safetensors").write_bytes(b"{}")
    assert run(["checkpoint", "out"]) == 1
    assert " out/checkpoint-12: " in capsys.readouterr().out


def test_model_states_without_zero_are_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`engine.save_checkpoint` at stage 0 keeps the weights whole there; its answer offers the export."""
    from safetensors.torch import load_file

    folder = write_checkpoint(tmp_path / "saved", ranks=1, tag="global_step2", stage=0)
    (folder / "model.safetensors").unlink()
    assert run(["checkpoint", "saved"]) == 0
    assert "ds-advise checkpoint saved --to-hf my-model" in capsys.readouterr().out
    assert run(["checkpoint", "saved", "--to-hf", "written"]) == 0
    assert torch.equal(load_file(tmp_path / "written" / "model.safetensors")["weight"], torch.arange(4096.0))


def test_a_checkpoint_may_hold_any_json_and_disappear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that keeps a few checkpoints removes the oldest while it is read."""
    folder = write_checkpoint(tmp_path / "checkpoint-8", ranks=1)
    (folder / "trainer_state.json").write_text("[" * 100_000)
    assert read_checkpoint(folder).problem == "trainer_state.json is not JSON"
    (folder / "model.safetensors.index.json").write_text('{"weight_map": [1]}')
    states = next(folder.glob("*/*optim_states.pt"))
    shutil.copy(states, states.with_name(states.name.replace("rank_0", "rank_99999999")))
    assert len(read_checkpoint(folder).damaged) > 1000
    for sums in ("[" * 100_000, '{"latest": ["a", null]}', '{"latest": 1}', "[1]"):
        (folder / CHECKSUMS).write_text(sums)
        assert read_checkpoint(folder).evidence == "structure"
    listed = os.scandir

    def removed(path: Any) -> Any:
        if str(path).endswith("global_step8"):
            shutil.rmtree(folder)
        return listed(path)

    monkeypatch.setattr(os, "scandir", removed)
    assert not read_checkpoint(folder).is_whole
