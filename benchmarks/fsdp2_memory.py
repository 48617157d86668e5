"""Peak of live tensors under FSDP2, by torch's own memory tracker, against the closed form.

    python -m benchmarks.fsdp2_memory           # a table; minutes, no GPU
    python -m benchmarks.fsdp2_memory --write   # into docs/deepspeed-or-fsdp.md

The model is transformers' own, sharded over eight ranks by accelerate's `fsdp2_prepare_model`; tensors are fake
(torch `FakeTensorMode`), and so is the process group. `FSDPMemTracker` counts the storages that live in one step
after the first. The optimizer allocates AdamW's two states and computes nothing.
"""

from __future__ import annotations

import json
import logging
import tempfile
import types
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ds_advise import estimate

from .document import table_command

RANKS, BATCH, LENGTH = 8, 2, 2048

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 8000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "use_cache": False,
}
"""Four layers of Llama-3.1-8B with a small vocabulary, so that the peak is in the layers."""

CASES: dict[str, tuple[dict[str, Any], str, int]] = {
    "4 layers of 8B, vocabulary 8,000, checkpointing": ({}, "on", RANKS),
    "the same without checkpointing": ({}, "off", RANKS),
    "the same with checkpointing, sharded over 4 of the GPUs (hybrid sharding)": ({}, "on", 4),
    "tied embeddings, checkpointing": ({"tie_word_embeddings": True}, "on", RANKS),
    "vocabulary 128,256, checkpointing": ({"vocab_size": 128256}, "on", RANKS),
    "the same, sharded over 2 of the GPUs": ({"vocab_size": 128256}, "on", 2),
    "tied, vocabulary 128,256, checkpointing": ({"vocab_size": 128256, "tie_word_embeddings": True}, "on", RANKS),
}
"""Words -> changes of the model, checkpointing, the ranks that share the shards."""


def tracked_bytes(config: dict[str, Any], checkpointing: str, shards: int) -> int:
    """The peak of a step of the real FSDP2. The process group has to be initialized."""
    import torch
    from accelerate.utils import FullyShardedDataParallelPlugin, fsdp_utils
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from transformers import AutoConfig, AutoModelForCausalLM

    class States(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter] = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}

    fsdp_utils.logger = logging.getLogger()
    names = ("dp_replicate", "dp_shard")[shards == RANKS :]
    sizes = (RANKS // shards, shards)[shards == RANKS :]
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", sizes, mesh_dim_names=names)
    named = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            AutoConfig.for_model(config["model_type"], **named), dtype=torch.bfloat16, attn_implementation="sdpa"
        )
        model.train()
        if checkpointing == "on":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
        )
        plugin.set_mixed_precision("bf16")
        accelerator = types.SimpleNamespace(
            state=types.SimpleNamespace(fsdp_plugin=plugin),
            parallelism_config=types.SimpleNamespace(fsdp_dim_names=list(names)),
            torch_device_mesh=mesh,
            mixed_precision="bf16",
            is_main_process=True,
            device=torch.device("cpu"),
        )
        model = fsdp_utils.fsdp2_prepare_model(accelerator, model)
        optimizer = States([each for each in model.parameters() if each.requires_grad], {})
        tracker, tokens = FSDPMemTracker(model, optimizer), torch.zeros(BATCH, LENGTH, dtype=torch.long)
        for context in (nullcontext(), tracker):
            with context:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(input_ids=tokens, labels=tokens).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                del loss
    return sum(by_kind["Total"] for by_kind in tracker.get_tracker_snapshot("peak").values())


def predicted(config: dict[str, Any], checkpointing: str, shards: int) -> tuple[int, str]:
    """The closed form's peak without what only a GPU holds, and its moment."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        options = {
            "micro_batch": BATCH,
            "global_batch": "no-accumulation",
            "seq_len": LENGTH,
            "gradient_checkpointing": checkpointing,
            "settings": {"hybrid_shard_size": shards % RANKS},
        }
        memory = estimate(folder, gpus=f"{RANKS}xH100", strategy="fsdp2", offline=True, **options).memory  # type: ignore[arg-type]
    on_gpu = sum(term.size_bytes for term in memory.peak.terms if term.name == "library_workspace")
    return memory.peak.allocated_bytes - on_gpu, memory.peak.name.replace("_", " ")


def table() -> str:
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    warnings.filterwarnings("ignore")
    distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    lines = ["| model | tracked GiB | closed form | difference | moment |", "|---|---:|---:|---:|---|"]
    for words, (changes, checkpointing, shards) in CASES.items():
        config = {**LLAMA, **changes}
        tracked = tracked_bytes(config, checkpointing, shards)
        ours, moment = predicted(config, checkpointing, shards)
        cells = (words, f"{tracked / 2**30:.2f}", f"{ours / 2**30:.2f}", f"{ours / tracked - 1:+.1%}", moment)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    table_command(__doc__, "deepspeed-or-fsdp.md", "fsdp2_memory", table)
