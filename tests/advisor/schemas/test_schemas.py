"""The published schemas hold for what the commands really print."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.cli.schema import NAMES, build_schema, command_schema
from ds_advise.estimators.json_form import to_json

from tests.helpers import schema_errors

ADVICE = "Qwen2.5-14B --gpus 2x32GB --no-write --offline --no-deepspeed-estimate"
QLORA = "Qwen2.5-7B --gpus 4x24GB --method qlora --sharding fsdp --no-write --offline"
NOTHING_FITS = "Qwen2.5-72B --gpus 1x8GB --ram 64GB --no-write --offline --no-deepspeed-estimate"
COMMANDS = {
    "advise": f"advise {ADVICE} --all",
    "advise, with a baseline of plain PyTorch": f"advise {QLORA}",
    "advise, where nothing fits": f"advise {NOTHING_FITS}",
    "explain": "explain Qwen2.5-14B --gpus 2x32GB --offline",
    "explain-key": "explain sub_group_size --model Qwen2.5-14B --gpus 2x32GB --offline",
    "compare": "compare zero2 zero3 --model Qwen2.5-7B --gpus 4x48GB --offline",
    "compare, files alone": "compare a.json b.json",
    "rent": "rent Qwen2.5-7B --method lora --prices prices.csv --deadline 1h --offline",
    "from": "from axolotl.yaml --gpus 2x24GB --offline",
    "lint": "lint a.json",
    "lint-files": "lint a.json b.json",
    "lint-files, one cannot be read": "lint a.json a.log",
    "doctor": "doctor",
    "why": "why a.log --config c.json --model Qwen2.5-7B --gpus 2x24GB --offline",
    "why, not known": "why b.log",
    "history": "history",
}


@pytest.mark.parametrize("what", COMMANDS)
def test_printed_json_matches_its_schema(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every field is known, of its type, and none is missing."""
    for name, stage in (("a.json", 2), ("b.json", 3)):
        Path(name).write_text(json.dumps({"zero_optimization": {"stage": stage, "typo": 1}, "bf16": {"enabled": True}}))
    Path("prices.csv").write_text("gpus,price_per_gpu\n1/2xA100-80GB,1.39\n1x4GB,0.1\n")
    Path("a.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    Path("c.json").write_text('{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1}')
    Path("b.log").write_text("MyError: 1\n")
    Path("axolotl.yaml").write_text("base_model: Qwen2.5-1.5B\ndeepspeed: a.json\nbf16: true\n")
    assert run([*COMMANDS[what].split(), "--json"]) in ((2,) if "cannot be read" in what else (0, 1))
    form = command_schema(what.partition(",")[0])
    assert schema_errors(json.loads(capsys.readouterr().out), form) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_is_printed_with_its_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They are JSON Schema 2020-12 with resolved classes."""
    assert run(["schema", name]) == 0
    text = capsys.readouterr().out
    form = json.loads(text)
    assert form["$id"] == f"urn:ds-advise:{name}:2" and form["type"] == "object"
    assert sorted(form["required"]) == sorted(form["properties"])
    for part in text.split('"$ref": "#/$defs/')[1:]:
        assert part.partition('"')[0] in form["$defs"]


def test_a_command_without_a_schema_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "nonsense"]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and "advise, explain" in error


@dataclass
class _Inner:
    kind: Literal["a", "b"] | None = None
    """Which of the
    two."""


@dataclass
class _Outer:
    sizes: tuple[int, ...]
    inner: _Inner | None


def test_a_schema_follows_from_the_types() -> None:
    """The strings under the fields are descriptions, and a field with a default is required, too."""
    form = build_schema((_Outer,))
    kind = form["$defs"]["_Inner"]["properties"]["kind"]
    assert kind["description"].split() == ["Which", "of", "the", "two."]
    assert form["$defs"]["_Inner"]["required"] == ["kind"]
    good = to_json(_Outer((1, 2), _Inner("a")))
    assert schema_errors(good, form) == []
    for broken in ({"sizes": [1.5]}, {"inner": {"kind": "c"}}, {"inner": {}}, {"more": 1}):
        assert schema_errors({**good, **broken}, form) != []
