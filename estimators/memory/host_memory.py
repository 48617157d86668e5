"""Host memory of a node in addition to offloaded tensors: processes, inputs of checkpointed layers, evaluated logits,
and the peak while the model loads. Not covered: data loader workers, the page cache."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ..estimate import NODE_SYMBOLS, READ_BY_RANK_0, Formula, MemoryEstimate, Terms, total_bytes
from ..hardware import Cluster
from ..models.model_shape import ModelShape
from ..objectives import has_reference_model
from ..plan import Plan
from ..workload import Workload
from .offload_memory import offloaded_parameters, pinned_block
from .trainable import ShardedTensors

PROCESS_BYTES = 2 << 30
"""Memory of Python, torch, CUDA libraries and tokenized data in one rank's process. Two small runs reported 1.2 and 2.8
GB of host memory in total."""

CPU_RANK_BYTES, CPU_LAUNCHER_BYTES = 250 << 20, 155 << 20
"""Memory of a rank on the CPU, without the part that `device_terms` counts, and of a node's launcher. Measured: memory
not mapped from files, in a training of 140 thousand parameters by the Trainer on two ranks and one."""

_SYMBOLS = {
    **NODE_SYMBOLS,
    "process": "bytes of Python, torch and CUDA's libraries in one process",
    "device": "bytes of one rank on the CPU",
    "layers": "checkpointed layers",
    "E": "samples of all ranks that are evaluated",
    "k": "bytes per logit while they are joined",
    "models": "models that are loaded: 2 with a reference model, else 1",
    "loaded": "bytes per weight in the type in which the model is loaded",
    "whole": "parameters of the whole model",
    "largest": "elements of the largest tensor",
    "spread": "elements of a rank's own experts",
}
_PROCESSES = Formula(
    "processes",
    "L process",
    "assumed; two small runs reported 1.2 and 2.8 GB in total",
    _SYMBOLS,
    "data loader workers, tokenized data beyond it, the page cache",
)
_LAUNCHER = Formula("launcher", "launcher", "observed", _SYMBOLS)
_ON_CPU = Formula("rank_memory", "L device", "the ranks' own memory is the host's", _SYMBOLS)
_CHECKPOINTS = Formula(
    "layer_inputs",
    "L layers p2(B S H w)",
    "transformers 5.23 modeling_utils.py activation_checkpointing_enable (offload), torch 2.13 autograd/graph.py "
    "save_on_cpu",
    _SYMBOLS,
)
_LOGITS = Formula(
    "evaluated_logits", "L k E S V", "transformers 5.23 trainer_pt_utils.py EvalLoopContainer, nested_numpify", _SYMBOLS
)

_LOADING = (
    "transformers 5.23 modeling_utils.py _load_pretrained_model, deepspeed 0.19.8 runtime/engine.py "
    "_configure_distributed_model"
)
_NOT_LOADED = "a checkpoint in another dtype, .bin files without mmap"
_MODEL = Formula("loaded_model", "L models loaded whole", _LOADING, _SYMBOLS, _NOT_LOADED)
_CHECKPOINT = Formula(READ_BY_RANK_0, "w whole", _LOADING, _SYMBOLS, _NOT_LOADED)
_LARGEST = Formula("largest_tensor", "L w largest", _LOADING, _SYMBOLS, _NOT_LOADED)
_SPREAD = Formula("copies_of_experts", "L w spread", "deepspeed 0.19.8 module_inject/auto_ep_layer.py", _SYMBOLS)


def checkpoint_terms(model: ModelShape, workload: Workload, plan: Plan, local_ranks: int) -> Terms:
    """Return the inputs of checkpointed layers in host memory. `workload` is that of a rank."""
    if not plan.cpu_checkpointing:
        return ()
    pins = workload.software.pinned_inputs
    formula = _CHECKPOINTS if pins else _CHECKPOINTS._replace(text="L layers B S H w")
    terms: Terms = ()
    for block in model.blocks:
        rows = model.stream_len(block, workload.seq_len)
        batch, hidden, width = plan.micro_batch_size, model.activation_width(block), workload.weight_bytes
        size = batch * rows * hidden * width
        # Each layer's input is a block of its own, so each is rounded up.
        size = block.count * (pinned_block(size) if pins else size)
        terms += formula.node_term(local_ranks, size, layers=block.count, B=batch, S=rows, H=hidden, w=width)
    return terms


def process_terms(cluster: Cluster) -> Terms:
    """Return the memory of a node's processes without the tensors."""
    ranks, of_a_rank = cluster.gpus_per_node, CPU_RANK_BYTES if cluster.gpu.is_cpu else PROCESS_BYTES
    launcher = _LAUNCHER.node_term(1, CPU_LAUNCHER_BYTES) if cluster.gpu.is_cpu else ()
    return launcher + _PROCESSES.node_term(ranks, of_a_rank, process=of_a_rank)


def kept_logits(model: ModelShape, workload: Workload, cluster: Cluster) -> Terms:
    """Return the logits of an evaluation that every rank gathers from all ranks and keeps for metrics: E samples in
    fp32 (numpy has no bf16), and the array that concatenates each rank's last k batches; at least those k batches and
    their copies."""
    if not workload.eval_logits:
        return ()
    width = 2 if workload.precision == "fp16" else 4
    once = workload.eval_logits * (workload.eval_batch or 0) * cluster.world_size
    samples = workload.eval_samples or once
    # `EvalLoopContainer` concatenates each new array with all earlier ones, so the result exists twice at the end.
    copies = 2 * width if samples > once else width + (workload.weight_bytes if workload.precision == "bf16" else 0)
    inputs = {"E": samples, "k": copies, "S": workload.seq_len, "V": model.vocab_size}
    size = copies * samples * workload.seq_len * model.vocab_size
    return _LOGITS.node_term(cluster.gpus_per_node, size, **inputs)


def cpu_ranks_memory(memory: MemoryEstimate, cluster: Cluster, kept: Terms) -> MemoryEstimate:
    """Return the estimate plus the `kept` logits of an evaluation and, on a CPU, the ranks' own memory."""
    memory = replace(memory, host_pageable_terms=memory.host_pageable_terms + kept) if kept else memory
    if not cluster.gpu.is_cpu:
        return memory
    size = memory.device_bytes_per_gpu
    own = _ON_CPU.node_term(cluster.gpus_per_node, size, device=size)
    return replace(memory, host_pageable_terms=memory.host_pageable_terms + own)


@lru_cache(maxsize=256)
def loading_terms(sharded: ShardedTensors, plan: Plan, local_ranks: int) -> Terms:
    """Return the peak of a node's host memory while the model is loaded and partitioned, without its processes.

    Stages 0 to 2, and stage 3 without `zero.Init`: every local rank builds the whole model on the host, L w P, in fp32
    for `loading` "host-fp32". Loaded on the GPU (`device_map`) or quantized, it passes through the host tensor by
    tensor. Under `zero.Init` only rank 0 reads the checkpoint, w P, and the shards go to their final place. A model
    built from scratch is sharded tensor by tensor, as it is made. A reference model is loaded while the policy is still
    on the host.

    Not covered: a checkpoint in another dtype, .bin files without mmap.
    """
    tensors = sharded.tensors
    software, width, numel = tensors.workload.software, tensors.workload.weight_bytes, tensors.numel
    shards = offloaded_parameters(sharded, plan, local_ranks)
    if plan.zero_stage == 3 and software.zero_init and tensors.workload.method != "qlora":
        return shards + (() if software.from_scratch else _CHECKPOINT.term(width * numel, w=width, whole=numel))
    if software.loading.startswith("gpu") or tensors.workload.method == "qlora":
        # Each is read, quantized or cast, and copied before the next one.
        largest = max(tensor.numel for tensor, _ in tensors.model.tensor_counts)
        built = _LARGEST.node_term(local_ranks, width * largest, w=width, largest=largest)
    else:
        models = 2 if has_reference_model(tensors.workload) else 1
        width = 4 if software.loading == "host-fp32" else width
        built = _MODEL.node_term(local_ranks, models * width * numel, models=models, loaded=width, whole=numel)
    return max(built, shards, key=total_bytes)


def spread_experts(sharded: ShardedTensors, local_ranks: int) -> Terms:
    """Return the copies of a rank's own experts under AutoEP: the optimizer's list of parameters keeps the model
    alive."""
    tensors = sharded.tensors
    width, numel = tensors.workload.weight_bytes, tensors.spread_numel
    return _SPREAD.node_term(local_ranks, width * numel, w=width, spread=numel)
