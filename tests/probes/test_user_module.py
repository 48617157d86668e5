"""Modules of the user's own: recorded whole, and answered as any model."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import ds_advise
import pytest
import torch
from ds_advise.advisor.advise import build_question, strategy_candidate
from ds_advise.advisor.question.model_source import parse_inputs
from ds_advise.advisor.question.run import build_run
from ds_advise.ds_configs.module_loop import module_lines
from ds_advise.ds_configs.training_script import script_lines
from ds_advise.estimators.errors import DsAdviseError, ModelConfigError, WorkloadError
from ds_advise.estimators.estimate import total_bytes
from ds_advise.estimators.memory.activations import saved_tensors
from ds_advise.estimators.memory.device_overhead import library_workspace
from ds_advise.estimators.memory.trainable import tensor_set
from ds_advise.estimators.models.model_shape import Input, ModelShape, UserModule
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.time.flops import micro_batch_flops
from ds_advise.estimators.workload import Workload
from ds_advise.probes.dry_run.run import dry_run
from ds_advise.probes.model_recorder import recorded_model
from torch.utils.flop_counter import FlopCounterMode

from tests.helpers import ask_forks, dry_runs_in_forks, printed
from tests.probes.tied_transformer import Transformer, loss_fn
from tests.training_scripts.forked_ranks import run_ranks

CONVNET = Path(__file__).parent / "dry_run" / "convnet.py"
TRANSFORMER = Path(__file__).parent / "tied_transformer.py"
GPUS = "2xA100-80GB"


@pytest.fixture(scope="module")
def convnet() -> ModelShape:
    with dry_runs_in_forks():
        return build_question(f"{CONVNET}:ConvNet", gpus=GPUS).model


def test_the_ladder_of_a_file_counts_samples(convnet: ModelShape) -> None:
    assert (convnet.parameters, convnet.unit, convnet.fixed_len) == (315722, "samples", 1)
    answer = ds_advise.advise(convnet, gpus=GPUS, micro_batch=256, deepspeed_estimate=False)
    assert answer.question.workload.framework == "deepspeed"
    assert all(
        step.candidate is not None and not step.candidate.plan.gradient_checkpointing for step in answer.ladder[:7]
    )
    plan = answer.recommended.estimate if answer.recommended else None
    assert plan is not None and plan.time.tokens_per_step == 2 * 256
    assert "ds-advise launch ds_config.json -- train.py" in printed(answer, width=200)


def test_the_flops_are_those_that_torch_counts(convnet: ModelShape) -> None:
    """Convolutions too; the gradient of the image is not taken."""
    question = build_question(convnet, gpus=GPUS, micro_batch=7)
    flops = micro_batch_flops(convnet, question.workload, strategy_candidate(question, "ddp").plan)
    namespace: dict[str, Any] = {}
    exec(CONVNET.read_text(encoding="utf-8"), namespace)
    model = namespace["ConvNet"]()
    with FlopCounterMode(display=False) as forward:
        loss = model(torch.zeros(7, 3, 32, 32)).mean()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    assert flops.forward == forward.get_total_flops()
    assert flops.backward == pytest.approx(backward.get_total_flops(), rel=1e-6)


def test_an_object_is_answered_and_stays_as_it_is() -> None:
    module = Transformer()
    answer = ds_advise.advise(
        module,
        example_inputs=torch.zeros((2, 32), dtype=torch.long),
        loss_fn=loss_fn,
        gpus=GPUS,
        micro_batch=4,
        deepspeed_estimate=False,
    )
    assert answer.question.model.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert answer.question.model.module is not None
    assert answer.question.model.module.checkpointing == "model.set_grad_checkpointing()"
    assert not module.is_checkpointed and next(module.parameters()).device.type == "cpu"
    assert {candidate.plan.gradient_checkpointing for candidate in answer.candidates} == {False, True}
    with pytest.raises(ModelConfigError, match="an object of this process"):
        build_run(answer.question, answer.candidates[0].plan)


ADAPTED = """
import torch
from width import WIDTH

class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH))

def build():
    from peft import LoraConfig, get_peft_model
    return get_peft_model(Net(), LoraConfig(r=4, target_modules=["2"]))
"""


@pytest.mark.usefixtures("in_forks")
def test_what_the_function_freezes_has_no_gradient_and_its_recording_lasts_as_long_as_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text(ADAPTED, encoding="utf-8")
    file = tmp_path / "width.py"
    file.write_text("WIDTH = 8", encoding="utf-8")

    def shape() -> ModelShape:
        return build_question(
            f"{tmp_path}/net.py:build", gpus=GPUS, input_shape="16" if "16" in file.read_text() else "8"
        ).model

    first = shape()
    tensors = tensor_set(first, Workload())
    assert (tensors.trainable_numel, sum(tensors.frozen)) == (4 * (32 + 8), 8 * 32 + 32 + 32 * 8 + 8)
    flops = micro_batch_flops(first, Workload(), Plan(zero_stage=0, micro_batch_size=4))
    # The frozen first layer has no backward pass; of the second only the adapter takes gradients.
    assert flops.backward == 2 * 4 * (2 * 4 * 8 + 32 * 4)
    with monkeypatch.context() as patch:
        patch.setattr(recorded_model, "answer", lambda *_: pytest.fail("recorded again"))
        assert shape() == first
    file.write_text("WIDTH = 16", encoding="utf-8")
    assert shape().parameters > first.parameters


@pytest.mark.usefixtures("in_forks")
@pytest.mark.parametrize("follows", [True, False])
def test_tokens_count_where_batches_follow_the_length(tmp_path: Path, *, follows: bool) -> None:
    length = "seq_len" if follows else "16"
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\n\ndef build():\n    return torch.nn.Embedding(10, 4)\n\n"
        f"def make_batch(size, seq_len):\n    return (torch.zeros((size, {length}), dtype=torch.long),)\n",
        encoding="utf-8",
    )
    model = build_question(f"{file}:build", gpus=GPUS, seq_len=64).model
    assert (model.unit, model.fixed_len) == (("tokens", 64) if follows else ("samples", 1))


@pytest.mark.usefixtures("in_forks")
def test_attention_without_a_dimension_of_heads_keeps_its_scores(tmp_path: Path) -> None:
    """No fused kernel takes three dimensions."""
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\n\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(8, 8)\n\n"
        "    def forward(self, x):\n        rows = super().forward(x)\n"
        "        return torch.nn.functional.scaled_dot_product_attention(rows, rows, rows)\n",
        encoding="utf-8",
    )
    question = build_question(f"{file}:Net", gpus=GPUS, micro_batch=16, input_shape="1024,8")
    assert strategy_candidate(question, "ddp").memory.allocated_bytes_per_gpu > 16 * 1024 * 1024 * 2


REFUSED = """
import torch

class Item(torch.nn.Linear):
    def forward(self, x):
        return x if x.sum() > 0 else super().forward(x)

class Index(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x)[x > 0]

class Loop(torch.nn.Linear):
    def forward(self, x):
        return torch.stack([super(Loop, self).forward(row) for row in x])

def frozen():
    return torch.nn.Linear(8, 8).requires_grad_(False)

def item(): return Item(8, 8)
def index(): return Index(8, 8)
def loop(): return Loop(8, 8)
def number(): return 3
uncallable = 3
"""


@pytest.mark.usefixtures("in_forks")
@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("item", r"refused.py:6 asks for the value of a tensor"),
        ("index", r"refused.py:10 needs real values"),
        ("loop", "its operations depend on the batch size"),
        ("frozen", "all of its parameters are frozen"),
        ("number", "number of .*refused.py returned a int"),
        ("missing", "has no function 'missing'"),
        ("uncallable", "has no function 'uncallable'"),
    ],
)
def test_unrecordable_models_are_refused_with_a_reason(tmp_path: Path, function: str, why: str) -> None:
    (tmp_path / "refused.py").write_text(REFUSED, encoding="utf-8")
    with pytest.raises(ModelConfigError, match="cannot be recorded") as caught:
        build_question(f"{tmp_path}/refused.py:{function}", gpus=GPUS, input_shape="8")
    assert caught.match(why) or pytest.fail(f"{caught.value.why}")


def test_an_error_of_the_modules_own_code_points_to_the_shape(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import torch\n\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(8, 8)\n\n"
        "    def forward(self, rows):\n        return super().forward(rows)\n",
        encoding="utf-8",
    )
    with pytest.raises(ModelConfigError, match="check --input-shape") as caught:
        build_question(f"{tmp_path}/own.py:Net", gpus=GPUS, input_shape="7")
    assert ".," not in str(caught.value)


WITH_LABELS = """
import torch

class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(8, 2)

    def forward(self, rows, labels):
        return torch.nn.functional.cross_entropy(super().forward(rows), labels)
"""


@pytest.mark.usefixtures("in_forks")
def test_inputs_that_are_not_the_arguments_of_forward_are_refused_with_those_that_are(tmp_path: Path) -> None:
    """From --input-shape and from the file's `make_batch`; a probe would fail alike."""
    (tmp_path / "own.py").write_text(WITH_LABELS, encoding="utf-8")
    for shapes in (None, "8", "8+scalar+scalar"):
        with pytest.raises(ModelConfigError, match=r"input-shape 3,32,32\+scalar --input-dtype float\+int64") as caught:
            build_question(f"{tmp_path}/own.py:Net", gpus=GPUS, input_shape=shapes)
        assert shapes is None or "forward of Net takes rows, labels: " in str(caught.value)
    own_function = "\ndef make_batch(batch, _):\n    return (torch.zeros(batch, 8),)\n"
    (tmp_path / "own.py").write_text(WITH_LABELS + own_function, encoding="utf-8")
    with pytest.raises(ModelConfigError, match="return all of its arguments from make_batch"):
        build_question(f"{tmp_path}/own.py:Net", gpus=GPUS)
    (tmp_path / "own.py").write_text(WITH_LABELS, encoding="utf-8")
    assert (
        build_question(
            f"{tmp_path}/own.py:Net", gpus=GPUS, input_shape="8+scalar", input_dtype="float+int64"
        ).model.parameters
        == 18
    )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"method": "lora"}, "--method lora"),
        ({"gradient_checkpointing": "on"}, "does not offer --gradient-checkpointing on"),
        ({"gradient_checkpointing": "offload"}, "does not offer --gradient-checkpointing offload"),
    ],
)
def test_options_that_do_not_apply_are_refused(convnet: ModelShape, options: dict[str, Any], what: str) -> None:
    with pytest.raises(WorkloadError, match=what):
        build_question(convnet, gpus=GPUS, **options)


def test_inputs_are_shapes_with_types() -> None:
    assert parse_inputs(None, None) == ()
    assert parse_inputs("3,32,32+scalar", "float+int64") == (Input((3, 32, 32)), Input((), "int64"))
    assert parse_inputs("4+5", "int64") == (Input((4,), "int64"), Input((5,), "int64"))


@pytest.mark.parametrize(
    ("shapes", "types"),
    [
        *((shapes, None) for shapes in ("3,x", "3,", "", "9" * 5000, "\u0663", "1e3", "0", "-1", "3, 0x2")),
        ("3", "string"),
        ("3", "float+int64"),
        (None, "int64"),
    ],
)
def test_other_inputs_are_refused(shapes: str | None, types: str | None) -> None:
    with pytest.raises(DsAdviseError):
        parse_inputs(shapes, types)


OF_AN_IMAGE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.image = torch.nn.Conv2d(3, 64, 3, padding=1)
        self.query, self.key, self.value = (torch.nn.Linear(64, 64) for _ in range(3))
        self.wide, self.narrow = torch.nn.Linear(64, 65536), torch.nn.Linear(65536, 64)
        self.end = torch.nn.Conv2d(64, 3, 1)

    def forward(self, x):
        rows = self.image(x).flatten(2).transpose(1, 2)
        queries, keys, values = (layer(rows)[:, None] for layer in (self.query, self.key, self.value))
        attended = torch.nn.functional.scaled_dot_product_attention(queries, keys, values)[:, 0]
        image = (attended + self.narrow(self.wide(rows.mean(1)))[:, None]).transpose(1, 2).unflatten(2, (64, 64))
        return self.end(torch.nn.functional.interpolate(image, scale_factor=2.0).relu())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("in_forks")
@pytest.mark.parametrize(
    ("net", "strategies", "options"),
    [
        ("transformer", "ddp zero2", {"gradient_checkpointing": "off"}),
        ("transformer", "zero1 zero3", {"gradient_checkpointing": "on"}),
        ("image", "zero2 zero3", {}),
    ],
)
def test_the_ladder_is_within_a_hundredth_of_dry_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, net: str, strategies: str, options: dict[str, Any]
) -> None:
    """Tied weights, buckets, gathered weights, checkpointed layers. Linear layers read an image's rows in place at
    ZeRO-3, and the buffer in which the last weights came is gone at the end."""
    monkeypatch.setattr(saved_tensors, "IN_PLACE", False)  # as under the dispatch mode of a dry run
    image = tmp_path / "image.py"
    image.write_text(OF_AN_IMAGE, encoding="utf-8")
    model, shape, dtype = {
        "transformer": (f"{TRANSFORMER}:Transformer", "128", "int64"),
        "image": (f"{image}:Net", "3,64,64", "float"),
    }[net]
    question = build_question(
        model, gpus="8xA100-80GB", ram="1TB", micro_batch=64, input_shape=shape, input_dtype=dtype, **options
    )
    plans = [strategy_candidate(question, strategy) for strategy in strategies.split()]
    results = ask_forks([partial(dry_run, build_run(question, each.plan)) for each in plans])
    workspace = total_bytes(library_workspace(question.cluster.gpu))
    for plan, result in zip(plans, results, strict=True):
        expected = plan.memory.allocated_bytes_per_gpu - workspace
        assert expected == pytest.approx(result.peak.allocated_bytes_per_gpu, rel=0.01), plan.strategy


LOSS_IN_FORWARD = """
import torch

class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(8, 4)

    def forward(self, rows, labels):
        return torch.nn.functional.cross_entropy(super().forward(rows), labels)

def make_batch(size, seq_len):
    return torch.randn(size, 8), torch.randint(4, (size,))
"""
LOSS_OF_BATCH = """
import torch

class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(8, 4)

    def forward(self, rows):
        return super().forward(rows)

def make_batch(size, seq_len):
    return {"rows": torch.randn(size, 8)}

def loss_fn(output, batch):
    return torch.nn.functional.mse_loss(output, batch["rows"][:, :4])
"""
TRAINING = """
import argparse
import deepspeed
import torch
from net import *

torch.manual_seed(0)
parser = argparse.ArgumentParser()
model = Net()
loader = [make_batch(4, 1) for _ in range(2)]
{lines}
assert engine.global_steps == 2 and loss.dim() == 0
"""


@pytest.mark.usefixtures("in_forks")
@pytest.mark.parametrize(
    ("source", "loss"),
    [(LOSS_IN_FORWARD, "loss = engine(*batch)"), (LOSS_OF_BATCH, "loss = loss_fn(engine(**batch), batch)")],
)
def test_the_printed_loop_trains_the_documented_batches(tmp_path: Path, source: str, loss: str) -> None:
    """In bf16: the engine casts the module and not its batches."""
    Path("net.py").write_text(source, encoding="utf-8")
    answer = ds_advise.advise("net.py:Net", gpus="1xA100-80GB", global_batch=4, precision="bf16")
    candidate = answer.recommended
    assert candidate is not None
    model, workload, cluster = answer.question.model, answer.question.workload, answer.question.cluster
    lines = script_lines(model, workload, candidate.plan, cluster, "ds_config.json")
    assert f"    {loss}" in lines
    config = answer.ds_config
    assert config is not None
    recorded = config["ds_advise"]
    assert recorded["predicted"]["unit"] == "samples" and "seq_len" not in recorded["options"]
    config["optimizer"]["params"]["torch_adam"] = True  # DeepSpeed's own is compiled
    Path("config.json").write_text(json.dumps(config), encoding="utf-8")
    Path("train.py").write_text(TRAINING.format(lines="\n".join(lines)), encoding="utf-8")
    arguments = ["--deepspeed", "--deepspeed_config", "config.json"]
    run_ranks(tmp_path / "train.py", arguments, 1, tmp_path, LOCAL_SIZE="2", PYTHONPATH=str(tmp_path))


@pytest.mark.parametrize(
    ("module", "lines"),
    [
        (
            UserModule("", loss="unknown", floats="all"),  # a loader of images and labels, which stay integers
            [
                "*inputs, target = [item.to(engine.device) for item in batch]",
                "inputs = [item.to(torch.float16) for item in inputs]",
                "output = engine(*inputs)",
                "loss = ...  # your own, of output and target",
            ],
        ),
        (
            UserModule("", loss="unknown", batch="dict"),
            ["output = engine(**batch)", "loss = ...  # your own, of output and batch"],
        ),
        (UserModule("", batch="dict", loss=".loss"), ["loss = engine(**batch).loss"]),
        (UserModule("", floats="none", loss="[0]"), ["batch = [item.to(engine.device) for item in batch]"]),
        (UserModule("", floats="all"), ["batch = [item.to(engine.device, torch.float16) for item in batch]"]),
        (
            UserModule("", batch="nested"),
            ["# Move the batch's tensors to engine.device, floating-point ones as torch.float16."],
        ),
    ],
)
def test_the_loop_follows_batch_and_loss_of_the_recording(module: UserModule, lines: list[str]) -> None:
    printed_lines = module_lines(module, Workload(precision="fp16"))
    assert {f"    {line}" for line in lines} <= {*printed_lines}
