"""Modules that others wrote, as files of a user's: the ladder's peaks against those of dry runs.

    python -m benchmarks.dry_run.user_modules [--sources FOLDER] [NAME ...]

Packages that are not installed, and files that FOLDER lacks, are skipped by name. FOLDER holds, under these names:
model.py of karpathy/nanoGPT as nanogpt.py, word_language_model/model.py of pytorch/examples as word_language_model.py,
training/cifar/cifar10_deepspeed.py of DeepSpeedExamples as cifar10_deepspeed.py.
"""

from __future__ import annotations

import argparse
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from ds_advise.advisor.advise import build_question, strategy_candidate
from ds_advise.advisor.question.run import build_run
from ds_advise.estimators.errors import DsAdviseError
from ds_advise.estimators.estimate import total_bytes
from ds_advise.estimators.memory.activations import saved_tensors
from ds_advise.estimators.memory.device_overhead import library_workspace
from ds_advise.estimators.plan import STRATEGIES
from ds_advise.probes.dry_run.run import request_for

from .forked_dry_runs import answers

LOSS = """
import torch

def loss_fn(output, batch):
    logits = output if isinstance(output, torch.Tensor) else output[0]
    labels = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
    return torch.nn.functional.cross_entropy(logits, labels)
"""
IMAGE = "3,224,224"


class Module(NamedTuple):
    """A module, as `build` of a file."""

    needs: str
    """A package, or a file of the folder of sources."""
    text: str
    shape: str | None = None
    dtype: str | None = None
    micro_batch: int = 32


def _vision(package: str, call: str) -> Module:
    return Module(package, f"import {package}\n\ndef build():\n    return {call}\n{LOSS}", IMAGE)


MODULES = {
    "resnet50": _vision("torchvision", "torchvision.models.resnet50()"),
    "vit_b_16": _vision("torchvision", "torchvision.models.vit_b_16()"),
    "swin_t": _vision("torchvision", "torchvision.models.swin_t()"),
    "convnext_tiny": _vision("timm", 'timm.create_model("convnext_tiny")'),
    "timm_vit": _vision("timm", 'timm.create_model("vit_small_patch16_224")'),
    "efficientnet_b0": _vision("timm", 'timm.create_model("efficientnet_b0")'),
    "nanogpt": Module(
        "nanogpt.py",
        """
import torch
from nanogpt import GPT, GPTConfig

def build():
    return GPT(GPTConfig(dropout=0.0, bias=False))

def make_batch(micro_batch_size, seq_len):
    tokens = torch.zeros(micro_batch_size, 1024, dtype=torch.long)
    return {"idx": tokens, "targets": tokens.clone()}

def loss_fn(output, batch):
    return output[1]
""",
        micro_batch=4,
    ),
    "unet": Module(
        "diffusers",
        """
from diffusers import UNet2DModel

def build():
    return UNet2DModel(sample_size=64, block_out_channels=(128, 256, 256, 512))

def loss_fn(output, batch):
    return (output.sample - batch[0]).square().mean()
""",
        "3,64,64+scalar",
        "float+int64",
        8,
    ),
    "gin": Module(
        "torch_geometric",
        """
import torch
from torch_geometric.nn import GIN

def build():
    return GIN(in_channels=64, hidden_channels=256, num_layers=4, out_channels=16)

def make_batch(micro_batch_size, seq_len):
    nodes, edges = 500 * micro_batch_size, 3000 * micro_batch_size
    return torch.randn(nodes, 64), torch.zeros(2, edges, dtype=torch.long)
""",
    ),
    "lstm": Module(
        "word_language_model.py",
        """
import torch
from word_language_model import RNNModel

class Net(RNNModel):
    def forward(self, tokens):
        return super().forward(tokens, self.init_hidden(tokens.shape[1]))[0]

def build():
    return Net("LSTM", 33278, 650, 650, 2, dropout=0.5)

def make_batch(micro_batch_size, seq_len):
    return (torch.zeros(35, micro_batch_size, dtype=torch.long),)

def loss_fn(output, batch):
    return torch.nn.functional.nll_loss(output, batch[0].flatten())
""",
    ),
    "mixtral": Module(
        "transformers",
        """
import torch
from transformers import MixtralConfig, MixtralForCausalLM

def build():
    return MixtralForCausalLM(MixtralConfig(hidden_size=512, intermediate_size=1024, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=8, vocab_size=8000, sliding_window=None))

def make_batch(micro_batch_size, seq_len):
    tokens = torch.zeros(micro_batch_size, 512, dtype=torch.long)
    return {"input_ids": tokens, "labels": tokens.clone(), "use_cache": False}
""",
        micro_batch=4,
    ),
    "cifar": Module(
        "cifar10_deepspeed.py",
        f"""
from argparse import Namespace
import cifar10_deepspeed

def build():
    return cifar10_deepspeed.Net(Namespace(moe=False))
{LOSS}""",
        "3,32,32",
        micro_batch=256,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODULES))
    parser.add_argument("--sources", type=Path, default=Path())
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    arguments = parser.parse_args()
    saved_tensors.IN_PLACE = False  # as under the dispatch mode of a dry run
    errors: list[float] = []
    for name in arguments.names or MODULES:
        module = MODULES[name]
        is_file = module.needs.endswith(".py")
        if not (arguments.sources / module.needs).is_file() if is_file else find_spec(module.needs) is None:
            print(f"{name:16} skipped: {module.needs} is not here", flush=True)
            continue
        try:
            errors += compare(name, module, arguments.sources, arguments.strategies.split(","))
        except DsAdviseError as error:
            print(f"{name:16} {error}", flush=True)
    if errors:
        print(f"{len(errors)} plans: mean error {mean(map(abs, errors)):.1%}, worst {max(errors, key=abs):+.1%}")


def compare(name: str, module: Module, sources: Path, strategies: list[str]) -> list[float]:
    """The errors of the closed form's peaks, without and with checkpointing."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{name}.py")
        path = f"import sys\nsys.path.insert(0, {str(sources.absolute())!r})\n"
        file.write_text(path + module.text, encoding="utf-8")
        question = build_question(
            f"{file}:build",
            gpus="8xA100-80GB",
            ram="1TB",
            nvme="/nvme:4TB",
            micro_batch=module.micro_batch,
            input_shape=module.shape,
            input_dtype=module.dtype,
        )
        offered = question.model.module is not None and question.model.module.checkpointing
        workspace = total_bytes(library_workspace(question.cluster.gpu))
        errors: list[float] = []
        for choice in ("off", "on") if offered else ("off",):
            asked = question.replace_options(gradient_checkpointing=choice)
            plans = [strategy_candidate(asked, strategy) for strategy in strategies]
            runs = [request_for(build_run(asked, each.plan), rank=None) for each in plans]
            shown = []
            for strategy, candidate, result in zip(strategies, plans, answers(runs), strict=True):
                if isinstance(result, str):
                    raise RuntimeError(result)
                peak = result.peak.allocated_bytes_per_gpu
                errors.append((candidate.memory.allocated_bytes_per_gpu - workspace) / peak - 1)
                shown.append(f"{strategy} {errors[-1]:+.1%}")
            print(f"{name:16} ckpt {choice:3} {peak / 2**20:7,.0f} MiB  {', '.join(shown)}", flush=True)
    return errors


if __name__ == "__main__":
    main()
