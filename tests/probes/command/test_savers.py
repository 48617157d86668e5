"""Checkpoints of a script: nothing of size is written, and what was saved is loaded with its shapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.probes.command.trees import run_in_view, tree_state

SCRIPT = """
import io, pickle
import torch
from torch import nn
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model

# torch.save: shapes, sharing, small numbers, Python objects; through a renamed file and a buffer
weight = nn.Parameter(torch.ones(1024, 1024))
state = {"weight": weight, "tied": weight, "row": weight.data[3], "half": torch.ones(4096, 2, dtype=torch.bfloat16),
         "random": torch.get_rng_state(), "step": torch.tensor(7), "rate": 0.1, "on": torch.device("cpu")}
torch.save(state, here / "partial.pt")
os.replace(here / "partial.pt", "checkpoint.pt")
loaded = torch.load(here / "checkpoint.pt", map_location="cpu")
assert isinstance(loaded["weight"], nn.Parameter) and loaded["weight"].shape == (1024, 1024)
assert loaded["row"].untyped_storage()._cdata == loaded["weight"].untyped_storage()._cdata
assert loaded["half"].dtype == torch.bfloat16 and loaded["half"].shape == (4096, 2)
assert loaded["step"].item() == 7 and loaded["rate"] == 0.1 and torch.equal(loaded["random"], state["random"])
torch.set_rng_state(loaded["random"])
assert os.path.getsize("checkpoint.pt") < 20_000
buffer = io.BytesIO()
torch.save(state, buffer)
buffer.seek(0)
assert torch.load(buffer, map_location=lambda storage, location: storage)["half"].shape == (4096, 2)
assert torch.load(here / "checkpoint.pt", map_location={"cpu": "meta"})["weight"].device.type == "meta"

# torch's own refusals
class Own:
    pass
torch.save(Own(), "own.pt")
assert isinstance(torch.load("own.pt", weights_only=False), Own)
for call, error in ((lambda: torch.load("own.pt"), pickle.UnpicklingError),
                    (lambda: torch.save(1, here / "nowhere/x.pt"), RuntimeError),
                    (lambda: torch.save(lambda: 1, "x.pt"), (pickle.PicklingError, AttributeError))):
    try:
        call()
        raise AssertionError
    except error:
        pass

# an optimizer and a module
model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(1, 512)).sum().backward()
optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, here / "both.pt")
both = torch.load("both.pt")
model.load_state_dict(both["model"])
optimizer.load_state_dict(both["optimizer"])

# safetensors
tensors = {"a": torch.ones(1024, 1024), "b": torch.ones(3, dtype=torch.bfloat16)}
save_file(tensors, here / "a.safetensors", {"format": "pt"})
assert os.path.getsize("a.safetensors") < 500
assert {name: tuple(each.shape) for name, each in load_file("a.safetensors").items()} == {"a": (1024, 1024), "b": (3,)}
with safe_open(here / "a.safetensors", framework="pt", device="cpu") as file:
    assert sorted(file.keys()) == ["a", "b"] and file.metadata() == {"format": "pt"}
    assert file.get_tensor("b").dtype == torch.bfloat16 and file.get_slice("a").get_shape() == [1024, 1024]
    assert file.get_slice("a")[:2].shape == (2, 1024)
try:
    save_file({"a": weight, "b": weight}, here / "shared.safetensors")
    raise AssertionError
except RuntimeError as error:
    assert "share memory" in str(error)
save_model(model, here / "model.safetensors")
assert load_model(model, "model.safetensors") == (set(), [])

# files that the script did not save
assert torch.load(here / "users.pt")["a"].tolist() == [1.0, 2.0]
assert load_file(here / "users.safetensors")["a"].tolist() == [1.0, 2.0]

# tokenizers writes in Rust
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
tokenizer = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
os.makedirs(here / "out")
tokenizer.save(str(here / "out/tokenizer.json"))
tokenizer.save(str(here / "tokenizer.json"))
assert Tokenizer.from_file(str(here / "out/tokenizer.json")).get_vocab() == {"a": 0}
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="a")
fast.save_pretrained(here / "out")
assert PreTrainedTokenizerFast.from_pretrained(here / "out").vocab_size == 1
bert = BertModel(BertConfig(hidden_size=512, num_hidden_layers=2, num_attention_heads=2, vocab_size=9))
bert.save_pretrained(here / "bert")
assert sum(path.stat().st_size for path in (here / "bert").iterdir()) < 20_000
BertModel.from_pretrained(here / "bert")

# datasets writes Arrow files, beside the user's data set too
import datasets
rows = datasets.load_dataset("json", data_files=str(here / "rows.jsonl"), split="train")
rows = rows.map(lambda row: {"b": row["a"] + 1})
assert rows["b"][:] == [2, 3]
stored = datasets.load_from_disk(here / "stored").map(lambda row: {"b": row["a"] + 1})
assert stored["b"][:] == [2, 3] and any(name.startswith("cache-") for name in os.listdir(here / "stored"))
rows.save_to_disk(here / "saved")
rows.to_parquet(here / "rows.parquet")
assert datasets.load_from_disk(here / "saved")["b"][:] == [2, 3]
import pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.parquet.read_table(here / "rows.parquet"), here / "again.parquet")
assert pyarrow.parquet.read_table("again.parquet").num_rows == 2

# the hub is not changed
import huggingface_hub
from huggingface_hub import create_repo, upload_folder
assert create_repo("someone/model", private=True).repo_id == "someone/model"
assert upload_folder(repo_id="someone/model", folder_path=here / "out").oid == "0" * 40
"""


def test_everything_that_a_script_saves_is_small_and_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch, safetensors, tokenizers, transformers, datasets, pyarrow; at absolute and at relative paths."""
    torch = pytest.importorskip("torch")
    datasets = pytest.importorskip("datasets")
    safetensors = pytest.importorskip("safetensors.torch")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "user/cache"))
    folder, scratch = tmp_path / "user/work", tmp_path / "scratch"
    folder.mkdir(parents=True)
    scratch.mkdir()
    torch.save({"a": torch.tensor([1.0, 2.0])}, folder / "users.pt")
    safetensors.save_file({"a": torch.tensor([1.0, 2.0])}, folder / "users.safetensors")
    (folder / "tokenizer.json").write_text("the user's")
    (folder / "rows.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    datasets.Dataset.from_dict({"a": [1, 2]}).save_to_disk(folder / "stored")
    before = tree_state(tmp_path / "user")
    done = run_in_view(SCRIPT, folder, scratch, wall=False)
    assert done.returncode == 0, done.stderr
    assert tree_state(tmp_path / "user") == before
    written = sum(path.lstat().st_size for path in scratch.rglob("*") if not path.is_symlink())
    assert written < 1 << 20
