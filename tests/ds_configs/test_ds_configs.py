"""Plans as DeepSpeed configurations: what DeepSpeed and the Trainer accept, and the way back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ds_advise.ds_configs.emit import ds_config
from ds_advise.ds_configs.read import plan_from_ds_config
from ds_advise.ds_configs.training_script import training_arguments
from ds_advise.estimators.errors import ClusterError, ConfigFileError, WorkloadError
from ds_advise.estimators.gpu_catalogue import find_gpu, gpu_of_memory
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.memory.fit_probability import host_bytes_to_fit
from ds_advise.estimators.memory.plan_memory import node_bytes
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.models.model_shape import ModelShape
from ds_advise.estimators.optimizers import OPTIMIZERS
from ds_advise.estimators.plan import STRATEGIES, Plan, Strategy
from ds_advise.estimators.workload import Framework, Precision, Software, Workload

from tests.helpers import preset

MODEL = find("Qwen2.5-7B")
CLUSTER = Cluster(nodes=1, gpus_per_node=2, gpu=gpu_of_memory(24), nvme_path="/local nvme", nvme_bytes_per_node=10**12)
FLAVORS: tuple[Framework, ...] = ("hf", "deepspeed")


def plan(
    strategy: Strategy, workload: Workload | None = None, cluster: Cluster = CLUSTER, model: ModelShape = MODEL
) -> Plan:
    return preset(strategy, model, workload or Workload(), cluster, steps=4)


def config(
    strategy: Strategy, flavor: Framework = "deepspeed", workload: Workload | None = None, cluster: Cluster = CLUSTER
) -> dict[str, Any]:
    workload = workload or Workload()
    return ds_config(plan(strategy, workload, cluster), MODEL, workload, cluster, flavor=flavor)


SETTINGS: list[tuple[Strategy, dict[str, Any]]] = [
    *((strategy, {}) for strategy in STRATEGIES),
    ("zero3-offload", {"offload_optimizer_ratio": 0.25}),
    ("zero2", {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}),
    ("zero2", {"autotp_size": 2}),
    ("zero1", {"communication_data_type": "fp32"}),
    ("zero2", {"grad_accum_dtype": "fp32", "contiguous_gradients": False}),
    ("zero3", {"sequence_parallel_size": 2}),
    ("zero3", {"zero_hpz_partition_size": 2, "zero_quantized_weights": True, "zero_quantized_gradients": True}),
]


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize(("strategy", "settings"), SETTINGS, ids=str)
def test_an_emitted_configuration_reads_back_as_the_same_plan(
    strategy: Strategy, settings: dict[str, Any], flavor: Framework
) -> None:
    """emit and read are each other's inverse, through JSON, for both flavours; a preset is on its strategy."""
    wanted = replace(plan(strategy), **settings)
    assert wanted.strategy == strategy
    given = {"micro_batch_size": 2, "gradient_accumulation_steps": 4} if flavor == "hf" else {}
    emitted = json.loads(json.dumps(ds_config(wanted, MODEL, Workload(), CLUSTER, flavor=flavor)))
    assert "auto" not in json.dumps(emitted["zero_optimization"]), "memory is predicted for numbers"
    offloads = [block for name, block in emitted["zero_optimization"].items() if name.startswith("offload_")]
    assert all(block["pin_memory"] is True for block in offloads), "before DeepSpeed 0.19.5 the default is False"
    assert plan_from_ds_config(emitted, MODEL, CLUSTER, gradient_checkpointing=True, **given) == wanted


def test_a_group_for_the_second_copy_is_read_as_deepspeed_reads_it() -> None:
    """Below stage 3 the key has no effect, and a group of more ranks than there are is one of all."""
    given = {"train_batch_size": 2, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 1000}}
    assert plan_from_ds_config(given, MODEL, CLUSTER).zero_hpz_partition_size == CLUSTER.world_size
    given["zero_optimization"] = {"stage": 2, "zero_hpz_partition_size": 2}
    assert plan_from_ds_config(given, MODEL, CLUSTER).zero_hpz_partition_size == 1


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_deepspeed_accepts_the_explicit_configuration(strategy: Strategy, precision: Precision) -> None:
    """DeepSpeed's own validation passes and holds the plan's numbers, none of them left to a default."""
    from deepspeed.runtime.config import DeepSpeedConfig

    one_gpu = replace(CLUSTER, gpus_per_node=1)
    workload = Workload(precision=precision)
    accepted = DeepSpeedConfig(config(strategy, workload=workload, cluster=one_gpu))
    wanted, zero = plan(strategy, workload, one_gpu), accepted.zero_config
    assert zero.stage == wanted.zero_stage
    assert accepted.bfloat16_config.enabled == (precision == "bf16")
    assert accepted.float16_config.enabled == (precision == "fp16")
    assert accepted.train_batch_size == 8
    if wanted.zero_stage:
        assert zero.reduce_bucket_size == wanted.reduce_bucket_size
        assert zero.overlap_comm == wanted.overlap_comm
    if wanted.zero_stage == 3:
        assert (zero.sub_group_size, zero.prefetch_bucket_size) == (
            wanted.sub_group_size,
            wanted.stage3_prefetch_bucket_size,
        )
    if wanted.offload_param == "nvme":
        assert zero.offload_param.buffer_size == wanted.param_buffer_size
        assert str(zero.offload_param.nvme_path) == "/local nvme"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_printed_arguments_fill_every_auto(strategy: Strategy) -> None:
    """The Trainer finds no contradiction between file and arguments, and leaves no `auto` behind."""
    from deepspeed.runtime.config import DeepSpeedConfig
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    one_gpu = replace(CLUSTER, gpus_per_node=1)
    arguments = training_arguments(plan(strategy, cluster=one_gpu), Workload(), one_gpu)
    del arguments["deepspeed"]
    trainer_arguments = TrainingArguments(**arguments, use_cpu=True)
    filled = HfTrainerDeepSpeedConfig(config(strategy, "hf", cluster=one_gpu))
    filled.trainer_config_process(trainer_arguments)
    filled.trainer_config_finalize(trainer_arguments, model=None, num_training_steps=10)
    assert filled.mismatches == []
    assert "auto" not in json.dumps(filled.config)
    accepted = DeepSpeedConfig(filled.config)
    assert (accepted.train_micro_batch_size_per_gpu, accepted.gradient_accumulation_steps) == (2, 4)
    assert accepted.bfloat16_config.enabled


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_only_optimizers_with_a_cpu_form_are_offloaded(name: str) -> None:
    """An optimizer that has none is refused with its name, the others are emitted."""
    workload = Workload(optimizer=name)
    if OPTIMIZERS[name].cpu_state_bytes is None:
        with pytest.raises(WorkloadError, match=name):
            config("zero2-offload", workload=workload)
    else:
        assert config("zero2-offload", workload=workload)["optimizer"]


def test_nvme_needs_a_folder() -> None:
    """Without one the error names the flag; DeepSpeed would fail with a TypeError."""
    with pytest.raises(ClusterError, match="--nvme"):
        config("zero3-nvme", cluster=replace(CLUSTER, nvme_path=""))


def test_nvme_buffers_hold_the_largest_shard() -> None:
    """Every parameter's shard fits one buffer: DeepSpeed asserts it at start, after minutes of loading."""
    for ranks in (1, 2, 3, 8):
        largest = max(tensor.numel for tensor, _ in MODEL.tensor_counts)
        buffer = plan("zero3-nvme", cluster=replace(CLUSTER, gpus_per_node=ranks)).param_buffer_size
        assert largest <= buffer * ranks < largest + ranks


def test_no_bucket_is_larger_than_what_it_carries() -> None:
    """With LoRA the reduce bucket, which DeepSpeed allocates whole, shrinks to the adapters."""
    full, lora = plan("zero2"), plan("zero2", Workload(method="lora", lora_rank=8))
    assert lora.reduce_bucket_size < full.reduce_bucket_size
    assert 16 * 2**20 < lora.reduce_bucket_size < 32 * 2**20


def test_buckets_grow_with_the_ranks_and_stay_a_share_of_the_gpu() -> None:
    """Messages do not shrink below 2 MB on many GPUs, and never exceed one percent of the memory."""
    many = replace(CLUSTER, nodes=32, gpus_per_node=8, gpu=find_gpu("H100-SXM5-80GB"))
    assert plan("zero2", cluster=many).reduce_bucket_size == 256_000_000
    more = replace(many, nodes=1000)
    assert plan("zero2", cluster=more).reduce_bucket_size * 2 <= more.gpu.memory_bytes / 100


@pytest.mark.parametrize("strategy", ["zero2-offload", "zero3-offload-param", "zero3-offload"])
def test_memory_is_pinned_where_the_ram_suffices(strategy: Strategy) -> None:
    """torch rounds pinned blocks up to a power of two; a byte less than fits them, and it is pageable."""
    pinned = plan(strategy)
    need = host_bytes_to_fit(node_bytes(MODEL, Workload(), CLUSTER, pinned))
    assert pinned.pin_memory
    assert plan(strategy, cluster=replace(CLUSTER, host_memory_bytes_per_node=need)) == pinned
    assert plan(strategy, cluster=replace(CLUSTER, host_memory_bytes_per_node=need - 1)) == replace(
        pinned, pin_memory=False
    )
    largest = plan(strategy, cluster=replace(CLUSTER, gpus_per_node=8), model=find("Llama-3.1-405B"))
    assert not largest.pin_memory or strategy == "zero3-offload-param", "no known host has so much"


HIDDEN = MODEL.hidden_size
CPU: dict[str, Any] = {"device": "cpu"}
BATCH_KEYS = ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps")
FILLED = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")


def zero_block(zero_optimization: Any) -> dict[str, Any]:
    return {"train_batch_size": 2, "zero_optimization": zero_optimization}


def stage_block(stage: int, **settings: Any) -> dict[str, Any]:
    return zero_block({"stage": stage, **settings})


NVME = {"device": "nvme", "buffer_count": 9, "pin_memory": False}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            {"train_micro_batch_size_per_gpu": 3},
            {"zero_stage": 0, "micro_batch_size": 3, "gradient_accumulation_steps": 1, "overlap_comm": False},
        ),
        ({"train_batch_size": 24, "gradient_accumulation_steps": 4}, {"micro_batch_size": 3}),
        ({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3}, {"gradient_accumulation_steps": 4}),
        (dict.fromkeys(BATCH_KEYS, "auto"), {"micro_batch_size": 8, "gradient_accumulation_steps": 1}),
        (
            stage_block(3, **dict.fromkeys(FILLED, "auto")),
            dict(zip(FILLED, (HIDDEN**2, int(0.9 * HIDDEN**2), 10 * HIDDEN), strict=True)) | {"overlap_comm": True},
        ),
        (
            stage_block(2, stage3_prefetch_bucket_size="auto", reduce_bucket_size=2e8, cpu_offload=True),
            {"stage3_prefetch_bucket_size": 50_000_000, "reduce_bucket_size": 200_000_000, "offload_optimizer": "cpu"},
        ),
        (stage_block(2, reduce_bucket_size=2e8), {"overlap_comm": False}),
        (
            stage_block(3, max_live_parameters=7, offload_param=NVME),
            {"stage3_max_live_parameters": 7, "offload_param": "nvme", "param_buffer_count": 9, "pin_memory": False},
        ),
        (zero_block(True), {"zero_stage": 1}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_reading_fills_in_what_trainer_and_deepspeed_fill_in(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Batch sizes are derived, `auto` is resolved, defaults, aliases and deprecated keys are DeepSpeed's."""
    read = plan_from_ds_config(given, MODEL, CLUSTER)
    assert {name: getattr(read, name) for name in wanted} == wanted


@pytest.mark.parametrize(("version", "pinned"), [((0, 19, 5), True), ((0, 19, 4), False)])
def test_what_no_pin_memory_means_depends_on_the_version(version: tuple[int, ...], pinned: bool) -> None:
    given = stage_block(2, offload_optimizer=CPU)
    software = Software(deepspeed=version)
    assert plan_from_ds_config(given, MODEL, CLUSTER, software=software).pin_memory == pinned


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (stage_block(4), "zero_optimization.stage"),
        (stage_block(2, reduce_bucket_size=0), "reduce_bucket_size"),
        (stage_block(3, sub_group_size=1.5), "sub_group_size"),
        (stage_block(2, offload_optimizer={"device": "disk"}), "offload_optimizer.device"),
        (stage_block(2, offload_optimizer="cpu"), "offload_optimizer"),
        (stage_block(2, overlap_comm="maybe"), "overlap_comm"),
        ({"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2}, "train_batch_size"),
        ({"train_batch_size": 2, "tensor_parallel": {"autotp_size": 1.5}}, "tensor_parallel.autotp_size"),
        (stage_block(3, offload_optimizer=CPU | {"ratio": 2}), "offload_optimizer.ratio"),
        ({}, "train_micro_batch_size_per_gpu"),
    ],
)
def test_a_value_that_deepspeed_refuses_is_named(given: dict[str, Any], key: str) -> None:
    """The error names the key; nothing is guessed."""
    with pytest.raises(ConfigFileError, match=key):
        plan_from_ds_config(given, MODEL, CLUSTER)


_READ_BY_CLASS = {
    "overlap_comm": (True, False, 1, 0, 1.0, "true", "OFF", "y", "2", 2, "true "),
    "stage": (3, 3.0, "3", "3.0", True, "x", 4),
    "reduce_bucket_size": (5e8, "500000000", " 5 ", "5.0", "1_000", "5e8", 5.5, "-1", 1e30, True),
    "offload_optimizer.ratio": (1, 0.5, "0.5", "1e-1", True, 2, "x"),
    "offload_optimizer.pin_memory": ("true", "off", 0, "no!"),
    "offload_optimizer.buffer_count": ("4", 4.0, "4.5"),
}


@pytest.mark.parametrize("key", _READ_BY_CLASS)
def test_a_value_is_read_as_deepspeeds_class_reads_it(key: str) -> None:
    """Texts of truth values and numbers, 1 as true, whole floats; and what it refuses is refused."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from pydantic import ValidationError

    block, _, name = key.rpartition(".")
    field = {"stage": "zero_stage", "ratio": "offload_optimizer_ratio", "buffer_count": "optimizer_buffer_count"}
    for value in _READ_BY_CLASS[key]:
        zero: dict[str, Any] = {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}}
        (zero[block] if block else zero)[name] = value
        config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero}
        try:
            taken = DeepSpeedZeroConfig(**zero)
        except ValidationError:
            with pytest.raises(ConfigFileError, match=name):
                plan_from_ds_config(config, MODEL, CLUSTER)
            continue
        wanted = getattr(taken.offload_optimizer if block else taken, name)
        assert getattr(plan_from_ds_config(config, MODEL, CLUSTER), field.get(name, name)) == wanted, value


@pytest.mark.parametrize("key", ["train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"])
def test_a_text_that_no_class_reads_is_no_number(key: str) -> None:
    """DeepSpeed compares it with a number, and stops."""
    with pytest.raises(ConfigFileError, match=key):
        plan_from_ds_config({"train_micro_batch_size_per_gpu": 1, key: "1"}, MODEL, CLUSTER)


@pytest.mark.parametrize(("release", "classes"), [((4, 57), ["OlmoeSparseMoeBlock"]), ((5, 0), None)])
def test_experts_that_are_modules_are_leaves_at_stage_3(release: tuple[int, int], classes: list[str] | None) -> None:
    """Where DeepSpeed has no default; fused experts are called by every rank and need none."""
    workload = Workload(software=Software(transformers=release))
    zero = ds_config(plan("zero3"), find("OLMoE-1B-7B-0924"), workload, CLUSTER, flavor="hf")["zero_optimization"]
    assert zero.get("leaf_module") == (None if classes is None else {"classes": classes})
