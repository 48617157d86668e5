"""What of the activations travels: to other ranks, and to host memory. Each pass waits for it, so nothing hides it."""

from __future__ import annotations

from ..estimate import TimeTerm
from . import collective_time as collective
from . import offload_time as offload
from .step import Step


def exchanges(step: Step) -> list[TimeTerm]:
    """All-to-alls of every layer, in all passes: of heads, or of tokens to their experts."""
    exchange = collective.Exchange.of(step.model, step.workload, step.cluster, step.plan)
    if exchange is None:
        return []
    passes = 3 if step.plan.gradient_checkpointing else 2
    what = "tokens" if step.spread else "heads"
    return [
        step.term(
            f"all-to-all of {what}",
            exchange.resource,
            passes * step.micro_batches * exchange.pass_s,
            f"{passes} n ({what} (P - 1) / P / link + calls t)",
            f"n {what} P link calls t",
            **{what: exchange.size_bytes},
            P=exchange.ranks,
            link=exchange.bytes_per_s,
            calls=exchange.calls,
            t=exchange.call_s,
        )
    ]


def split_layers(step: Step) -> list[TimeTerm]:
    """All-reduces of the activations of split layers, in all passes.

    Forward, and again where a layer runs again, the results of attention and feed-forward (the latter's result not
    again: recomputation ends before it); backward the input's gradient of each layer that is split by columns:
    queries, keys, values, gate, up. An untied head gathers its logits, and its input's gradient is reduced.
    Source: deepspeed 0.19.8 module_inject/layers.py RowParallel, ColumnParallel, GatherFromTensorParallelRegion.
    """
    plan, model, n = step.plan, step.model, step.micro_batches
    if plan.autotp_size == 1:
        return []
    ring = collective.ring_of_neighbours(step.cluster, plan.autotp_size)
    again = (2 if step.workload.software.reentrant else 1) if plan.gradient_checkpointing else 0
    backward = sum(block.count * (4 + block.feed_forward.gated) for block in model.blocks)
    reduced = (2 + again) * model.num_layers + backward + (not model.tied)
    size = step.element * plan.micro_batch_size * step.workload.seq_len * model.hidden_size
    terms = [
        step.term(
            "all-reduces of split layers",
            ring.resource,
            n * reduced * ring.all_reduce_s(size, 1),
            "2 calls (hidden (T - 1) / T / link + t)",
            "hidden T link calls t",
            hidden=size,
            T=plan.autotp_size,
            link=ring.all_reduce_bytes_per_s,
            calls=n * reduced,
            t=ring.call_s,
        )
    ]
    if not model.tied:
        logits = step.element * plan.micro_batch_size * step.workload.seq_len * model.vocab_size
        terms.append(
            step.term(
                "logits gathered",
                ring.resource,
                n * ring.gather_s(logits, 1),
                "n (logits (T - 1) / T / link + t)",
                "n logits T link t",
                logits=logits,
                T=plan.autotp_size,
                link=ring.bytes_per_s,
                t=ring.call_s,
            )
        )
    return terms


def layer_inputs(step: Step, name: str) -> list[TimeTerm]:
    """What checkpointing keeps, copied by the stream that computes (transformers, `offload`)."""
    if not step.plan.cpu_checkpointing:
        return []
    n, model = step.micro_batches, step.model
    elements = sum(
        block.count * model.stream_len(block, step.workload.seq_len) * model.stream_width(block)
        for block in model.blocks
    )
    kept = step.element * step.plan.micro_batch_size * elements
    seconds = offload.host_link_s(step.cluster, n * kept, pinned=step.workload.software.pinned_inputs)
    own = {"inputs": kept, "PCIe": n * kept / seconds}
    return [step.term(name, "pcie", seconds, "n inputs / PCIe", "n inputs PCIe", **own)]
