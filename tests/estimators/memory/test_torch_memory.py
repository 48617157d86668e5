"""Plain PyTorch: what its versions, peft's adapters and its optimizers keep."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from operator import or_
from typing import Any

import pytest
import torch
from ds_advise import estimate
from ds_advise.estimators.errors import WorkloadError
from ds_advise.estimators.estimate import MemoryEstimate
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.memory.activations.activation_memory import activation_layout
from ds_advise.estimators.memory.activations.recording import LayerRecorder
from ds_advise.estimators.memory.device_overhead import EARLIER_BATCHES
from ds_advise.estimators.memory.plan_memory import estimate_memory, least_bytes
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.plan import PlainPyTorch
from ds_advise.estimators.workload import AttentionKernel, Software, Workload
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.helpers import preset


def asked(strategy: str = "torch", model: str = "Qwen2.5-0.5B", **question: Any) -> MemoryEstimate:
    """The memory of a model, by default a small one on one GPU."""
    options = {"gpus": "1xV100-16GB", "micro_batch": 1, "global_batch": "no-accumulation", "seq_len": 256}
    options |= {"gradient_checkpointing": "on", **question}
    return estimate(model, strategy=strategy, offline=True, **options).memory


def named(memory: MemoryEstimate, name: str) -> int:
    return memory.components.get(name, 0)


def held(memory: MemoryEstimate) -> dict[str, Counter[str]]:
    """Bytes of each component, by phase."""
    found = {phase.name: Counter[str]() for phase in memory.phases}
    for phase in memory.phases:
        for term in phase.terms:
            found[phase.name][term.name] += term.size_bytes
    return found


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_layer_under_autocast_saves_what_the_real_one_saves(attention: AttentionKernel) -> None:
    """On a CPU, whose autocast treats all operations of Llama as a GPU's does. What grows with the tokens: three
    lengths leave out the casts of weights."""
    sizes = {"hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 4, "num_key_value_heads": 4}
    sizes |= {"vocab_size": 64, "pad_token_id": 0}

    def real(seq_len: int, layers: int) -> int:
        config = LlamaConfig(**sizes, num_hidden_layers=layers)
        model: Any = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        own, kept = {weight.untyped_storage().data_ptr() for weight in model.parameters()}, {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage
            return tensor

        tokens = torch.zeros((1, seq_len), dtype=torch.long)
        with saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
            model.train()(input_ids=tokens, labels=tokens)
        return sum(storage.nbytes() for address, storage in kept.items() if address not in own)

    def predicted(seq_len: int) -> int:
        shape = shape_from_config({**LlamaConfig(**sizes).to_dict(), "architectures": ["LlamaForCausalLM"]}, name="")
        workload = Workload(seq_len=seq_len, attention=attention, software=Software(autocast=True))
        return activation_layout(LayerRecorder(shape, workload, False, 8.0)).per_layer.at(1)

    lengths = (64, 128, 192)
    one, two, three = (real(length, 3) - real(length, 2) for length in lengths)
    least, middle, most = map(predicted, lengths)
    assert (two - one, three - two) == (middle - least, most - middle)


def test_adafactor_keeps_rows_and_columns_of_what_nobody_flattened() -> None:
    """FSDP and ZeRO flatten; of flat tensors it keeps the whole second moment."""
    alone = asked(optimizer="adafactor", precision="fp32")
    flat = asked(optimizer="adafactor", precision="fp32", strategy="ddp")
    weights = named(alone, "parameters")
    assert 0 < named(alone, "optimizer_states") < 0.01 * weights < named(flat, "optimizer_states")


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2", "torch"])
def test_the_lower_bound_of_plain_pytorch_is_below_its_peak(strategy: PlainPyTorch) -> None:
    """DeepSpeed's masters and states would be above it: FSDP 1 in bf16 takes 8 bytes a parameter, ZeRO-3 14."""
    model, workload = shape_from_config(LlamaConfig(num_hidden_layers=24).to_dict(), name="llama"), Workload()
    cluster = Cluster(nodes=1, gpus_per_node=4, gpu=find_gpu("A100-80GB"))
    plan = preset(strategy, model, workload, cluster, micro=1, steps=1)  # type: ignore[arg-type]
    bound = least_bytes(model, workload, cluster, plan)
    assert 0 < bound <= estimate_memory(model, workload, cluster, plan).allocated_bytes_per_gpu


def test_fsdp2_keeps_fp32_shards_and_gathers_units_twice() -> None:
    """accelerate makes what trains fp32, whatever it was: 16 bytes a parameter over the ranks. A layer is in its buffer
    and in tensors; the head's gradient is not kept with the layers'. The real FSDP2 agrees to 4 %
    (benchmarks.fsdp2_memory)."""
    two = {"gpus": "2xA100-40GB", "gradient_checkpointing": "off"}
    memory, flat = (asked(strategy=strategy, **two) for strategy in ("fsdp2", "fsdp"))
    weights = named(memory, "parameters")
    assert weights == pytest.approx(2 * named(flat, "parameters"), rel=1e-6)
    assert named(memory, "optimizer_states") == 2 * weights
    assert held(memory)["step"].total() == pytest.approx(4 * weights, rel=0.1)
    assert held(memory)["first_layer_backward"]["gradients"] > weights
    frozen = asked(strategy="fsdp2", method="lora", **two)
    assert named(frozen, "parameters") < 0.6 * weights  # the base model keeps its 16 bits


@pytest.mark.parametrize("question", [{"method": "qlora"}, {"optimizer": "adafactor"}, {"objective": "dpo"}])
def test_what_is_not_derived_of_fsdp2_is_refused(question: dict[str, str]) -> None:
    with pytest.raises(WorkloadError, match="FSDP2 is predicted for"):
        asked(strategy="fsdp2", gpus="2xA100-40GB", **question)


def test_the_cache_holds_memory_beyond_the_need() -> None:
    """nvidia-smi shows a cache that is given back before a request fails: without expandable segments every component's
    own segments, with them the gap that the 16-bit logits leave among fp32 ones; never more than the GPU has."""
    long = {"method": "lora", "seq_len": 4096}
    fixed, expandable = (asked(software=f"expandable-segments={word}", **long) for word in ("no", "yes"))
    layer = held(fixed)["layer_backward"]
    apart = layer["recomputed layer"] + layer["gradients of activations"]
    assert fixed.cached_bytes_per_gpu > apart - named(fixed, "allocator_overhead") > 0
    assert sum(fixed.components.values()) == fixed.device_bytes_per_gpu
    assert 0 < expandable.cached_bytes_per_gpu < fixed.cached_bytes_per_gpu
    gap = 2 * 4096 * 151_936
    assert expandable.cached_bytes_per_gpu == gap - named(expandable, "allocator_overhead")
    tight = asked(gpus="1xRTX2080Ti", software="expandable-segments=no", **long)
    assert 0 < tight.cached_bytes_per_gpu < fixed.cached_bytes_per_gpu
    memory = tight.device_bytes_per_gpu + tight.cached_bytes_per_gpu
    assert memory == find_gpu("RTX2080Ti").memory_bytes


def test_batches_of_varying_length_leave_their_logits_in_fixed_segments() -> None:
    """A longer batch finds no free block for its logits but the optimizer's. Expandable segments grow instead, and no
    plan needs more."""
    plain = "expandable-segments=no"
    options = [{"method": "lora", "seq_len": 2048}, {"method": "full", "seq_len": 128, "gpus": "1xA100-80GB"}]
    (fixed, varying), (full, full_varying) = (
        (asked(software=plain, **each), asked(software=f"{plain},varying-lengths", **each)) for each in options
    )
    loss = 12 * 2048 * 151_936  # three fp32 tensors
    assert varying.cached_bytes_per_gpu - fixed.cached_bytes_per_gpu == pytest.approx(EARLIER_BATCHES * loss, rel=0.15)
    assert varying.device_bytes_per_gpu == fixed.device_bytes_per_gpu
    assert full_varying.cached_bytes_per_gpu == full.cached_bytes_per_gpu
    assert asked(software="varying-lengths", **options[0]).components == asked(**options[0]).components


@pytest.mark.parametrize(
    ("model", "gpus", "apart", "groups"),
    [
        ("Qwen2.5-7B", 2, 2 * 2 * 152_064 * 3584, 1),
        ("Qwen2.5-0.5B", 2, 0, 1),
        ("mistralai/Mistral-7B-v0.1", 3, 2 * 2 * 32_000 * 4096, 2),
    ],
)
def test_fixed_segments_of_zero3_hold_what_no_free_block_is_large_enough_for(
    model: str, gpus: int, apart: int, groups: int
) -> None:
    """The blocks of an earlier embedding are cut into layers' parameters when the next one is gathered: replays of dry
    runs hold 4.46 GiB for 3.02 alive (Qwen-7B on two GPUs), but 1.02 for 1.02 of a model that stays whole
    (Qwen2.5-0.5B). Mistral-7B's second sub-group on three GPUs is larger than its first: 60.1
    GiB of a replay, where 44.4 are alive."""
    software = "expandable-segments=no,optimizer-step=foreach"
    question = {"gpus": f"{gpus}xA100-80GB", "seq_len": 1024, "software": software, "settings": "sub_group_size=1e9"}
    memory = asked("zero3", model, **question)
    most = reduce(or_, held(memory).values())
    layers = held(memory)["layer_backward"]["gathered_parameters"]
    most["gathered_parameters"] = max(most["gathered_parameters"], layers + apart)
    most["step_temporaries"] *= groups
    assert memory.cached_bytes_per_gpu == pytest.approx(most.total() - memory.reserved_bytes_per_gpu, rel=0.01)


def test_deepspeeds_engine_casts_what_others_keep_in_fp32() -> None:
    """Adapters and the habit of casting in every pass make no difference under ZeRO."""
    plain, given = (
        asked(strategy="zero2", method="lora", gpus="2xA100-40GB", gradient_checkpointing="off", software=software)
        for software in (None, "fp32-adapters,autocast")
    )
    assert plain.components == given.components


def test_a_model_from_scratch_is_not_read_into_host_ram() -> None:
    """Under zero.Init rank 0 reads the whole checkpoint; without one the shards are all that loads."""
    read, made = (
        asked("zero3-offload", "Llama-3.1-8B", gpus="8xA100-40GB", software=software)
        for software in (None, "from-scratch")
    )
    assert read.host_loading_bytes_per_node - made.host_loading_bytes_per_node == 2 * 8_030_261_248
