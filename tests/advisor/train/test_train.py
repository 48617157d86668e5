"""`ds-advise train`, really executed: two ranks on the CPU over gloo, a small model with random weights, data of every
shape.

Every case trains from the command line to the saved model, which must load and generate. Each takes some seconds of
imports in every rank, so all but one are slow.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.cli.schema import command_schema
from ds_advise.advisor.importers.script_arguments import ScriptArguments
from ds_advise.advisor.train.folder import TrainingFolder
from ds_advise.validate.checkpoint import CHECKSUMS, checkpoints_in

from tests.helpers import TINY_SIZES, schema_errors

pytestmark = pytest.mark.timeout(1500)  # the first test compiles DeepSpeed's extensions

STEPS = 12

CHAT = [
    {"messages": [{"role": "user", "content": f"{a}+{b}"}, {"role": "assistant", "content": str(a + b)}]}
    for a in range(4)
    for b in range(5)
]
LABELLED = [{"text": f"the sum of {number}", "label": {"number": [number]}} for number in range(16)]
COMPLETIONS = [{"prompt": f"question {number}:", "completion": f" the answer {number}"} for number in range(32)]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    """A Qwen2 of two layers, in safetensors, with the tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(Qwen2Config(**TINY_SIZES), dtype=torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer_folder).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True, scope="module")
def ranks_on_the_cpu(extensions: Callable[..., None]) -> Iterator[None]:
    """Ready to train on every strategy, without the network. The search leaves offload out on the CPU, because nothing
    is gained; here it runs for what it does to loading, saving and resuming."""
    extensions("ShareMemCommBuilder", "FusedAdamBuilder", "CPUAdamBuilder")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ds_advise.advisor.search.batch_sweep.unsupported", lambda *_: None)
        for name, value in (("HF_HUB_OFFLINE", "1"), ("OMP_NUM_THREADS", "1")):
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    before = _children()
    yield
    assert {pid: words for pid, words in _children().items() if pid not in before} == {}


def train(model: Path, data: Path, output: Path, options: str) -> int:
    fixed = f"--device cpu --ranks 2 --max-steps {STEPS} --no-check"
    paths = ["--model", str(model), "--data", str(data), "--output-dir", str(output)]
    return run(["train", *paths, *fixed.split(), *options.split()])


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".csv":
        import csv

        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def losses(output: Path) -> list[float]:
    logged = TrainingFolder(output).logged("loss")
    assert [step for step, _ in logged] == list(range(1, STEPS + 1))
    return [loss for _, loss in logged]


def assert_learned(output: Path, *, to: float = 0.9) -> None:
    """The last losses are at most this share of the first."""
    by_step = losses(output)
    assert fmean(by_step[-3:]) < to * fmean(by_step[:3]), by_step


def generated(folder: Path) -> Any:
    """The model in a folder, after it has generated a few tokens with the tokenizer in it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "2+2"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        answer = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert answer.shape[1] > prompt["input_ids"].shape[1]
    return model


def weights(folder: Path, name: str = "model.safetensors") -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / name))


CHATS_OPTIONS = "--strategy zero2-offload --learning-rate 3e-3 --save-steps 4 --global-batch 4"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> tuple[Path, Path, str]:
    """A training on chats that nothing disturbs: (data, output folder, what was printed)."""
    folder = tmp_path_factory.mktemp("undisturbed")
    data, output = write(folder / "chats.jsonl", CHAT), folder / "out"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert train(model_folder, data, output, CHATS_OPTIONS) == 0
    return data, output, " ".join(printed.getvalue().split())


def test_chats_train_to_a_saved_model(
    undisturbed: tuple[Path, Path, str], model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints what it read, trains with the optimizer in host RAM, saves weights that differ, and prints how
    to load them. What belongs to an interrupted training is refused afterwards."""
    _, output, printed = undisturbed
    assert_learned(output)
    assert "20 rows of chat messages in chats.jsonl: " in printed
    assert "ZeRO-2 with optimizer in host RAM" in printed
    measured, predicted = (float(word) for word in printed.partition("host GiB per node ")[2].split()[:2])
    assert 0.6 < measured / predicted < 1.6
    assert f"The model and its tokenizer are in {output}." in printed
    model = generated(output)
    assert model.config.use_cache
    before, after = weights(model_folder), weights(output)
    assert {name: tensor.shape for name, tensor in before.items()} == {
        name: tensor.shape for name, tensor in after.items()
    }
    assert not before["lm_head.weight"].equal(after["lm_head.weight"])
    assert checkpoints_in(output) == [output / "checkpoint-8", output / "checkpoint-12"]
    assert all((checkpoint / CHECKSUMS).exists() for checkpoint in checkpoints_in(output))
    assert run(["train", "--resume", "--output-dir", str(output)]) == 2
    assert f"has ended after {STEPS} steps" in capsys.readouterr().err


@pytest.mark.slow
def test_labelled_text_trains_under_zero3_offload(tmp_path: Path, model_folder: Path) -> None:
    """The seeds' first format, one object a line in a .json file; the sharded weights are whole when saved; an
    evaluation loss is reported at every checkpoint and falls; the loss is drawn for TensorBoard."""
    output = tmp_path / "out"
    options = "--strategy zero3-offload --learning-rate 3e-3 --eval-split 0.25 --save-steps 6"
    assert train(model_folder, write(tmp_path / "train.json", LABELLED), output, options) == 0
    assert_learned(output)
    generated(output)
    assert all(tensor.shape == weights(model_folder)[name].shape for name, tensor in weights(output).items())
    (first, before), (last, after) = TrainingFolder(output).logged("eval_loss")
    assert (first, last) == (6, 12) and after < before
    assert list(output.rglob("events.out.tfevents*"))


@pytest.mark.slow
def test_completions_train_adapters_under_zero3_and_merge_them(tmp_path: Path, model_folder: Path) -> None:
    """From a CSV file, packed. Only the adapter is saved, without the base that ZeRO-3 gathers. The merged model
    computes the same as the adapter on its base, without peft."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    output = tmp_path / "out"
    options = "--strategy zero3 --method lora --lora-rank 32 --learning-rate 3e-2 --packing --seq-len 64 --merge"
    assert train(model_folder, write(tmp_path / "data.csv", COMPLETIONS), output, options) == 0
    assert_learned(output, to=0.95)  # a random head is frozen, so adapters have little to learn with
    assert all("lora_" in name for name in weights(output, "adapter_model.safetensors"))
    assert not (output / "model.safetensors").exists()
    merged = generated(output / "merged").float()
    base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        before = base(ids).logits
        adapted = PeftModel.from_pretrained(base, output)
        assert not torch.allclose(adapted(ids).logits, before, atol=0.2)
        torch.testing.assert_close(merged(ids).logits, adapted(ids).logits, atol=0.05, rtol=0.05)  # merged in bf16


@pytest.mark.slow
def test_a_killed_training_resumes_as_if_undisturbed(
    tmp_path: Path, undisturbed: tuple[Path, Path, str], model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank is killed between checkpoints, and one checkpoint is broken: --resume repeats the steps since the last
    whole one, with the same data in the same order, so that the losses are those of an undisturbed run."""
    data, whole, _ = undisturbed
    output = tmp_path / "out"
    with after_step(output, 1, 6, lambda pid: os.kill(pid, signal.SIGKILL)):
        assert train(model_folder, data, output, CHATS_OPTIONS) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert f"ds-advise train --resume --output-dir {output}" in printed.replace("\\ ", "")  # one line or two
    assert "A rank was lost, first on rank 1" in printed and "Rank 1 was killed by SIGKILL." in printed
    last = TrainingFolder(output).newest_checkpoint()
    assert last is not None
    (output / "checkpoint-11").mkdir()
    assert run(["train", "--resume", "--output-dir", str(output), "--epochs", "9"]) == 2
    assert "--epochs was None in the training to resume" in capsys.readouterr().err
    # The imports take longer than a second.
    assert run(["train", "--resume", "--output-dir", str(output), "--stall", "1"]) == 1
    assert run(["train", "--resume", "--output-dir", str(output)]) == 0
    resumed = capsys.readouterr()
    assert "The ranks made no progress" in resumed.out
    assert f"resuming from {last.name}" in resumed.err
    assert "checkpoint-11 is damaged: the optimizer states of rank 0 are missing" in resumed.err
    assert losses(output) == losses(whole)
    first, second = weights(whole), weights(output)
    assert all(tensor.equal(second[name]) for name, tensor in first.items())


@pytest.mark.slow
def test_fallback_ends_a_training_whose_memory_runs_out(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a plan that takes less, from the last checkpoint; the job that --resume would take is the new one."""
    import psutil

    # Each tensor is mapped anew; memory that the allocator keeps would last to the end of a quick training.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "4096")

    def no_more_memory(pid: int) -> None:
        process = psutil.Process(pid)
        process.rlimit(psutil.RLIMIT_DATA, (process.memory_info().data // 2,) * 2)

    output = tmp_path / "out"
    options = "--strategy zero1 --micro-batch 4 --global-batch 8 --learning-rate 3e-3 --save-steps 2 --fallback"
    with after_step(output, 1, 5, no_more_memory):
        code = train(model_folder, write(tmp_path / "chats.jsonl", CHAT * 50), output, options)
    printed = capsys.readouterr()
    assert code == 0, printed
    assert "The host's memory ran out" in printed.err and "continuing with" in printed.err
    assert_learned(output)
    kept = ScriptArguments(TrainingFolder(output).read_job().arguments)
    micro_batch, accumulation = (kept.number("per_device_train_batch_size"), kept.number("gradient_accumulation_steps"))
    assert micro_batch is not None and accumulation is not None and micro_batch * accumulation * 2 == 8
    assert not [word for word in kept.words if str(output) in word], "a copy is not resumed in this folder"
    [config] = (output / "training").rglob("ds_config.json")
    assert config.read_text() == (output / "ds_config.json").read_text()


@pytest.mark.slow
def test_a_finished_training_is_saved_and_a_damaged_checkpoint_refused(
    tmp_path: Path, undisturbed: tuple[Path, Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed after the checkpoint of the last step, within an epoch: --resume makes no step and saves the model of all
    steps. With a byte of that checkpoint changed the one before is taken."""
    _, trained, _ = undisturbed
    output, whole = tmp_path / "out", weights(trained)
    shutil.copytree(trained, output)
    (output / "trainer_state.json").unlink()
    (output / "model.safetensors").unlink()
    assert run(["train", "--resume", "--output-dir", str(output)]) == 0
    resumed = capsys.readouterr()
    assert "all steps are made; saving from checkpoint-12" in resumed.err
    assert "Finished: all 12 steps had been made" in resumed.out
    assert all(tensor.equal(whole[name]) for name, tensor in weights(output).items())

    (output / "trainer_state.json").unlink()
    assert (output / "checkpoint-12" / CHECKSUMS).exists()
    flipped = next((output / "checkpoint-12/global_step12").glob("*rank_1*optim_states.pt"))
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 0x40
    flipped.write_bytes(content)
    said: list[str] = []
    assert TrainingFolder(output).newest_usable(2, said.append) == output / "checkpoint-8"
    assert f"checkpoint-12 is damaged: global_step12/{flipped.name} has changed" in said[-1]
    (output / "checkpoint-8/trainer_state.json").write_text("")
    assert run(["train", "--resume", "--output-dir", str(output)]) == 2
    assert "has no whole checkpoint: checkpoint-8: trainer_state.json is cut off after 0 of" in capsys.readouterr().err


def content(folder: Path) -> dict[str, tuple[int, int]]:
    """Time of the last change and size of every file below a folder."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.parametrize("place", ["copied", "symlinked"])
def test_a_folder_is_resumed_where_it_is(
    tmp_path: Path, undisturbed: tuple[Path, Path, str], capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """A copy is trained in its own files, and the original stays as it is; a link to a folder resumes, too."""
    _, whole, _ = undisturbed
    source, output = tmp_path / "out", tmp_path / "a copy: déjà vu"
    shutil.copytree(whole, source)
    shutil.rmtree(source / "checkpoint-12")
    (source / "trainer_state.json").unlink()
    before = content(source)
    if place == "symlinked":
        output.symlink_to(source)
    else:
        shutil.copytree(source, output)
    assert run(["train", "--resume", "--output-dir", str(output)]) == 0
    assert "resuming from checkpoint-8" in capsys.readouterr().err
    assert losses(output) == losses(whole)
    assert checkpoints_in(output) == [output / "checkpoint-8", output / "checkpoint-12"]
    first, second = weights(whole), weights(output)
    assert all(tensor.equal(second[name]) for name, tensor in first.items())
    if place == "copied":
        assert content(source) == before


@contextlib.contextmanager
def after_step(output: Path, rank: int, step: int, act: Callable[[int], None]) -> Iterator[None]:
    """Does something to a rank of the training in the block once it has made a step. It must have been done when the
    block ends."""
    ended = threading.Event()

    def watch() -> bool:
        record = output / f"training/launch-1/rank{rank}.jsonl"
        while not ended.is_set():
            written = record.read_text().rpartition("\n")[0] if record.exists() else ""  # the last line may be half
            lines = [json.loads(line) for line in written.splitlines()]
            if any(line.get("step", 0) >= step for line in lines):
                act(lines[0]["pid"])
                return True
            time.sleep(0.002)
        return False

    with ThreadPoolExecutor() as pool:
        watched = pool.submit(watch)
        try:
            yield
        finally:
            ended.set()
    assert watched.result(), f"step {step} was seen"


def _children() -> dict[int, str]:
    """Every descendant: its command line, or where that is gone its state."""
    import psutil

    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found[process.pid] = f"{process.status()} {process.ppid()} {' '.join(process.cmdline())}"
    return found


@pytest.mark.slow
def test_shared_and_tiled_samples_train(tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both ranks take part in every sample through several epochs, loss and feed-forward are computed in tiles, and
    `--json` prints one object."""
    data, output = write(tmp_path / "chats.jsonl", CHAT), tmp_path / "out"
    options = "--sequence-parallel-size 2 --loss tiled --mlp tiled --seq-len 96 --strategy zero2 --learning-rate 1e-2"
    assert train(model_folder, data, output, f"{options} --global-batch 4 --json") == 0
    assert_learned(output)
    assert json.loads((output / "ds_config.json").read_text())["sequence_parallel_size"] == 2
    form, whole = json.loads(capsys.readouterr().out), command_schema("train")
    assert schema_errors(form, whole) == []
    assert (form["finished"], form["model"], form["launched"]["last_step"]) == (True, str(output), STEPS)
