"""A checkpoint's files: what is whole, cut off, missing or changed, with and without checksums."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from ds_advise.validate.checkpoint import checkpoints_in, newest_usable, read_checkpoint, write_checksums
from ds_advise.validate.checkpoint_contents import read_contents
from ds_advise.validate.checkpoint_steps import mixed_steps
from safetensors.torch import save_file

from tests.helpers import write_checkpoint

STATES = "global_step8/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
MODEL = "model.safetensors"
TOKENIZER = "tokenizer.model"


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _web_page(path: Path) -> None:
    """As a server sends for a file that needs a login."""
    path.write_text("\n<!DOCTYPE html>\n<html><body>Log in</body></html>\n")


def _zeros(path: Path) -> None:
    """As a file system leaves a file after a crash."""
    path.write_bytes(bytes(100))


def _nothing_inside(path: Path) -> None:
    with zipfile.ZipFile(path, "w"):
        pass


def _any_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"a": 1}, 2))


def _cut_pickle(path: Path) -> None:
    """As DeepSpeed's fast writer saves, and then cut."""
    torch.save({"a": list(range(100))}, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:200])


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _copy_rank_0(path: Path) -> None:
    path.write_bytes(path.with_name(path.name.replace("rank_1", "rank_0")).read_bytes())


@pytest.mark.parametrize(
    ("name", "damage", "by_structure", "by_checksum"),
    [
        (STATES, _cut, "is cut off", "is cut off after"),
        (STATES, _flip, "has changed bytes", "has changed since it was saved"),
        (STATES, _empty, "is empty", "is cut off after 0 of"),
        (STATES, Path.unlink, "the optimizer states of rank 1 are missing", "is missing"),
        (STATES, _nothing_inside, "holds nothing that torch saved", "is cut off after"),
        (STATES, _web_page, "is a web page instead of the file", "is a web page instead of the file"),
        (STATES, _zeros, "is no file that torch saved", "is cut off after"),
        (STATES, _any_pickle, "is a pickle that torch did not save", "is cut off after"),
        (STATES, _cut_pickle, "is cut off", "is cut off after"),
        (STATES, _make_folder, "cannot be read (it is no file)", "cannot be read (it is no file)"),
        (STATES, _make_pipe, "cannot be read (it is no file)", "cannot be read (it is no file)"),
        (STATES, _copy_rank_0, "is a copy of bf16_zero_pp_rank_0_", "has changed since it was saved"),
        ("global_step8/mp_rank_00_model_states.pt", Path.unlink, "is missing", "is missing"),
        ("latest", Path.unlink, "is missing", "is missing"),
        ("latest", _empty, "is empty", "is cut off after 0 of"),
        ("trainer_state.json", _empty, "is empty", "is cut off after 0 of"),
        ("trainer_state.json", _cut, "is not JSON", "is cut off after"),
        (MODEL, _cut, "is cut off", "is cut off after"),
        (MODEL, _web_page, "is a web page instead of the file", "is a web page instead of the file"),
        (MODEL, _zeros, "is no file of safetensors", "is cut off after"),
        (MODEL, _flip, "", "has changed since it was saved"),
    ],
)
@pytest.mark.parametrize("summed", [False, True])
def test_a_damaged_file_is_named(
    tmp_path: Path, name: str, damage: Callable[[Path], None], by_structure: str, by_checksum: str, *, summed: bool
) -> None:
    """Written by torch and safetensors themselves. Without checksums a flipped byte in safetensors is not seen."""
    folder = write_checkpoint(tmp_path / "checkpoint-8", ranks=2)
    saved_ns = folder.stat().st_mtime_ns
    if summed:
        write_checksums(folder)
        assert folder.stat().st_mtime_ns == saved_ns, "the Trainer removes the oldest by it"
    before = read_checkpoint(folder, ranks=2)
    assert before.is_whole and before.evidence == ("checksums" if summed else "structure")
    assert {file.name: file.size_bytes for file in before.files}[STATES] == (folder / STATES).stat().st_size
    damage(folder / name)
    after = read_checkpoint(folder, ranks=2)
    expected = by_checksum if summed else by_structure
    assert after.is_whole == (not expected)
    assert expected in after.problem
    if expected and not (damage is Path.unlink and not summed):
        assert after.problem.startswith(name)


@pytest.mark.parametrize("kind", ["tensor", "number"])
@pytest.mark.parametrize(("of", "stage"), [("optim", 2), ("optim", 3), ("model", 3)])
def test_ranks_of_two_steps_are_no_checkpoint(tmp_path: Path, of: str, stage: int, kind: str) -> None:
    """Each file is whole, as after an interrupted copy. torch's optimizers keep the step as a tensor. A file that does
    not say its step is no evidence."""
    folder = write_checkpoint(tmp_path / "checkpoint-8", ranks=3, stage=stage)
    paths = sorted(folder.glob(f"*/*{of}_states.pt"))

    def save(path: Path, step: int) -> None:
        saved = torch.load(path, weights_only=False)
        number = torch.tensor(float(step)) if kind == "tensor" else step
        moments = {"exp_avg": torch.ones(3), "step": number, "exp_avg_sq": torch.ones(3)}
        torch.save(saved | {"global_steps": step, "base_optimizer_state": {"state": {0: moments}}}, path)

    for path, step in zip(paths, (8, 4), strict=False):
        save(path, step)
    checkpoint = read_checkpoint(folder)
    assert [file.name.rpartition("/")[2] for file in checkpoint.damaged] == [paths[1].name]
    save(paths[2], 8)
    checkpoint = read_checkpoint(folder)
    part = "optimizer" if of == "optim" else "model"
    assert (
        checkpoint.problem
        == f"global_step8/{paths[1].name} holds the {part} of step 4, and {paths[0].name} that of step 8"
    )
    save(paths[1], 8)
    assert read_checkpoint(folder).is_whole


@pytest.mark.parametrize(
    ("step", "lost"),
    [(torch.tensor(8.0), "/data/0"), (torch.tensor(float("inf")), ""), ("storage", ""), (None, ""), ([], "")],
)
def test_a_step_that_cannot_be_read_is_no_evidence(tmp_path: Path, step: object, lost: str) -> None:
    """The record of its tensor is not in the archive, its number is infinite, or it is no number."""
    folder = write_checkpoint(tmp_path / "checkpoint-8", ranks=3, stage=2)
    path = folder / STATES
    torch.save({"step": step}, path)
    if lost:
        with zipfile.ZipFile(path) as archive:
            kept = {name: archive.read(name) for name in archive.namelist() if not name.endswith(lost)}
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in kept.items():
                archive.writestr(name, content)
    with ThreadPoolExecutor(1) as pool:
        assert not mixed_steps(folder, [STATES], 8, pool)
    assert not any("step" in file.problem for file in read_checkpoint(folder).files)


@pytest.mark.parametrize(("kind", "words"), [("model", "the model states"), ("optim", "the optimizer states")])
def test_every_rank_of_zero3_has_both_files(tmp_path: Path, kind: str, words: str) -> None:
    """The last rank's too, whose number only its other file has."""
    folder = write_checkpoint(tmp_path / "checkpoint-8", ranks=2)
    whole = next(folder.glob("*/mp_rank_00_model_states.pt"))
    for rank in range(2):
        shutil.copy(whole, whole.with_name(f"zero_pp_rank_{rank}_{whole.name}"))
    whole.unlink()
    assert read_checkpoint(folder).is_whole
    next(folder.glob(f"*/*zero_pp_rank_1_*{kind}_states.pt")).unlink()
    checkpoint = read_checkpoint(folder)
    assert f"{words} of rank 1 are missing" in checkpoint.problem
    assert read_contents(folder).ranks == 2


def _save_by_fast_writer(path: Path) -> None:
    torch.save(torch.load(path), path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("rewrite", [lambda _: None, _save_by_fast_writer])
def test_the_last_ranks_of_zero2_are_known_without_their_files(tmp_path: Path, rewrite: Callable[[Path], None]) -> None:
    """From the model states, which say how many ranks saved, and whether each has a file."""
    folder = write_checkpoint(tmp_path / "saved", ranks=4)
    rewrite(next(folder.glob("*/mp_rank_00_model_states.pt")))
    for rank in range(3, -1, -1):
        next(folder.glob(f"*/*rank_{rank}_*optim_states.pt")).unlink()
        lost = [f"the optimizer states of rank {each} are missing" for each in range(rank, 4)]
        assert [f"{file.name} {file.problem}" for file in read_checkpoint(folder).damaged] == lost
        assert (read_contents(folder).ranks, read_contents(folder).stage) == (4, "2" if rank else "1 or 2")
    assert read_checkpoint(write_checkpoint(tmp_path / "ddp", ranks=4, stage=0)).is_whole


def test_a_tag_is_checked_by_its_own_files(tmp_path: Path) -> None:
    """A folder with two tags: the one that `latest` names, or the named one, which needs no `latest`."""
    folder = write_checkpoint(tmp_path / "saved", ranks=2, tag="global_step2")
    write_checkpoint(tmp_path / "later", ranks=2, tag="global_step10")
    (tmp_path / "later" / "global_step10").rename(folder / "global_step10")
    next(folder.glob("global_step2/*rank_1*optim_states.pt")).unlink()
    assert read_checkpoint(folder).problem == "the optimizer states of rank 1 are missing"
    assert read_checkpoint(folder / "global_step10").is_whole
    (folder / "latest").write_text("global_step99")
    assert read_checkpoint(folder).problem == "latest names global_step99, which is missing"
    assert (read_contents(folder).tag, read_contents(folder).step) == ("global_step10", 10)
    (folder / "latest").unlink()
    assert read_checkpoint(folder).problem == "latest is missing"
    assert read_checkpoint(folder / "global_step10").is_whole


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("broken", [0, 3, 5000])
def test_numbers_that_are_nan_are_counted(tmp_path: Path, dtype: torch.dtype, broken: int) -> None:
    """In archives and safetensors; infinite ones in optimizer states only, because a model may keep a mask of them."""
    folder = write_checkpoint(tmp_path / "checkpoint-8", ranks=1)
    values = torch.randn(5001).clamp(-1, 1).to(dtype)
    values[:broken] = float("nan")
    values[5000] = -float("inf")
    for path in folder.rglob("*states.pt"):
        torch.save(torch.load(path) | {"tensor": values}, path)
    save_file({"weight": values}, folder / MODEL)
    found = {file.name: file.non_finite for file in read_checkpoint(folder).files if file.non_finite is not None}
    assert found == {
        MODEL: broken,
        "global_step8/mp_rank_00_model_states.pt": broken,
        "global_step8/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt": broken + 1,
        "rng_state_0.pth": 0,
    }
    assert read_checkpoint(folder).is_whole and not read_checkpoint(folder).is_usable


def test_padding_of_zero3_may_be_any_number(tmp_path: Path) -> None:
    """4095 values over 2 ranks leave one unset, in the weights and in both states of Adam."""
    folder = write_checkpoint(tmp_path / "checkpoint-8", ranks=2, stage=3, parameters=4095)
    for broken, reported in ((3, 0), (4, 4)):
        states = torch.zeros(4)
        states[:broken] = float("nan")
        torch.save({"zero_stage": 3, "tensor": states}, folder / STATES)
        found = read_checkpoint(folder)
        assert (found.non_finite, found.is_usable) == (reported, not reported)
        assert found.unexamined == (0 if reported else 1)


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    """Also in place of a file whose format is not read."""
    for is_summed in (False, True):
        folder = write_checkpoint(tmp_path / f"{is_summed}" / "checkpoint-8", ranks=2)
        (folder / TOKENIZER).write_bytes(b"pieces of words")
        if is_summed:
            write_checksums(folder)
        for name in (STATES, MODEL, TOKENIZER):
            (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
        damaged = {file.name: file.problem for file in read_checkpoint(folder).damaged}
        assert damaged.keys() == {STATES, MODEL, TOKENIZER}
        assert {*damaged.values()} == {"is a Git LFS pointer instead of the file: git lfs pull"}


def test_a_web_page_may_be_a_file_of_its_own(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint-8", ranks=2)
    _web_page(folder / "report.html")
    assert read_checkpoint(folder).is_whole
    write_checksums(folder)
    (folder / "report.html").write_text("<html>" + "changed" * 20)
    assert read_checkpoint(folder).problem == "report.html has changed since it was saved"


def test_lost_model_states_are_named(tmp_path: Path) -> None:
    """Of ZeRO-2 the one file, also if it is the newest of two steps; of ZeRO-3 a file of each rank."""
    folder = write_checkpoint(tmp_path / "saved", ranks=2, tag="global_step3")
    lost = folder / "global_step3" / "mp_rank_00_model_states.pt"
    lost.unlink()
    for named in (folder, folder / "global_step3"):
        assert read_checkpoint(named).problem == "global_step3/mp_rank_00_model_states.pt is missing"
        assert (read_contents(named).stage, read_contents(named).step) == ("2", 3)
    for path in folder.glob("*/*optim_states.pt"):
        torch.save({"zero_stage": 3}, path)
    lost_shards = [f"the model states of rank {rank} are missing" for rank in (0, 1)]
    assert [f"{file.name} {file.problem}" for file in read_checkpoint(folder).damaged] == lost_shards
    shutil.rmtree(folder / "global_step3")
    assert read_checkpoint(folder).problem == "latest names global_step3, which is missing"
    assert read_contents(folder).stage == "none"
    (folder / "global_step3").mkdir()
    assert read_checkpoint(folder).problem == "latest names global_step3, which holds no states"


@pytest.mark.parametrize("name", ["checkpoint-7", "kept"])
@pytest.mark.parametrize("saved_by", ["engine", "trainer"])
def test_only_a_checkpoint_of_the_trainer_needs_its_state(tmp_path: Path, name: str, saved_by: str) -> None:
    """A script's own `engine.save_checkpoint` writes none, whatever its folder is called; the Trainer writes random
    states before its own."""
    folder = write_checkpoint(tmp_path / name, ranks=2, tag="global_step7")
    (folder / "trainer_state.json").unlink()
    if saved_by == "engine":
        for path in folder.glob("rng_state_*"):
            path.unlink()
    assert read_checkpoint(folder).problem == ("" if saved_by == "engine" else "trainer_state.json is missing")
    for path in folder.glob("rng_state_*"):
        path.unlink()
    (folder / "training_args.bin").write_bytes((folder / STATES.replace("step8", "step7")).read_bytes())
    assert read_checkpoint(folder).is_whole == (name == "kept"), "save_model alone may write the arguments"


def _write_universal(root: Path, *, stage: int, with_steps: bool) -> Path:
    """Universal states of three parameters, of which the first never had a gradient below stage 3."""
    folder = write_checkpoint(root / "saved", ranks=2, stage=stage, tag="global_step8")
    states, universal = folder / "global_step8", folder / "global_step8_universal"
    universal.mkdir()
    shapes = {name: torch.Size([4]) for name in ("tied", "weight", "bias")}
    for path in states.glob("*model_states.pt"):
        torch.save(torch.load(path, weights_only=False) | {"param_shapes": [shapes]}, universal / path.name)
    for name in shapes:
        (universal / "zero" / name).mkdir(parents=True)
        kinds = ["fp32", "exp_avg", "exp_avg_sq", *(["step"] if with_steps else [])]
        for kind in kinds if stage == 3 or name != "tied" else ["fp32"]:
            torch.save({"param": torch.ones(4)}, universal / "zero" / name / f"{kind}.pt")
    torch.save({"zero_stage": stage}, universal / "zero" / "optimizer_state.pt")
    (folder / "latest_universal").write_text(universal.name)
    return universal


@pytest.mark.parametrize(
    ("stage", "with_steps", "lost"),
    [
        *(
            (stage, False, lost)
            for stage in (1, 3)
            for lost in ("weight/fp32.pt", "weight/exp_avg.pt", "weight", "tied")
        ),
        (1, True, "weight/step.pt"),
        (1, True, "weight/exp_avg_sq.pt"),
        (3, False, "tied/exp_avg.pt"),
        (1, False, "optimizer_state.pt"),
    ],
)
def test_universal_states_lack_no_file_of_a_parameter(
    tmp_path: Path, stage: int, lost: str, *, with_steps: bool
) -> None:
    """Stages 1 and 2 load no state without its file, without a word. A parameter that never had a gradient has its
    weights alone."""
    universal = _write_universal(tmp_path, stage=stage, with_steps=with_steps)
    assert read_checkpoint(universal).is_whole
    path = universal / "zero" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert read_checkpoint(universal).problem == f"global_step8_universal/zero/{lost} is missing"


def test_a_copied_file_is_no_further_rank(tmp_path: Path) -> None:
    """The states say how many ranks saved them."""
    folder = write_checkpoint(tmp_path / "checkpoint-8", ranks=2)
    states = folder / STATES
    states.with_name(states.name.replace("rank_1", "rank_2")).write_bytes(states.read_bytes())
    assert read_contents(folder).ranks == 2
    (damaged,) = read_checkpoint(folder).damaged
    assert "is a copy of bf16_zero_pp_rank_1_" in damaged.problem


def test_a_file_of_the_fast_writer_is_whole(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint-8", ranks=2)
    states = torch.load(folder / STATES, weights_only=False)
    torch.save(states, folder / STATES, _use_new_zipfile_serialization=False)
    assert read_checkpoint(folder, ranks=2).is_whole


def test_the_newest_whole_checkpoint_is_taken(tmp_path: Path) -> None:
    """Not the newest of all; the damaged ones are returned; a broken list of checksums counts as none."""
    for step in (4, 8, 12):
        folder = write_checkpoint(tmp_path / f"checkpoint-{step}", ranks=2, tag="global_step8")
        write_checksums(folder)
    (folder / "ds_advise_checksums.json").write_text("{")
    _cut(folder / STATES)
    (tmp_path / "checkpoint-8" / "trainer_state.json").write_text(json.dumps({"global_step": 7}))
    usable, damaged = newest_usable(checkpoints_in(tmp_path), ranks=2, say=lambda _: None)
    assert usable is not None and usable.folder == tmp_path / "checkpoint-4"
    assert [each.folder.name for each in damaged] == ["checkpoint-12", "checkpoint-8"]
