"""The time of one optimizer step, term by term.

    step = n micro batches of (forward, backward) + optimizer
    pass = max(GPU computes, host launches) + what the links carry and the pass does not hide

Micro batches differ: stages 0 and 1 reduce gradients only in the last one. Data loading is assumed to be free.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..estimate import TimeEstimate, TimeTerm
from ..hardware.cluster import Cluster
from ..hardware.host_defaults import assumed_of_host
from ..memory.trainable import TensorSet, tensor_set
from ..models.model_shape import ModelShape
from ..optimizers import optimizer
from ..plan import Plan
from ..software import DEFAULT, Software
from ..workload import Workload
from . import collective_time as collective
from . import offload_time as offload
from .collective_time import CONTENTION, Ring
from .compute_time import ComputeTime, compute_time
from .host_time import MICRO_STEP_HOST_S, ZERO3_SERIAL, host_work
from .memory_bound import COPIED_PASSES, OPTIMIZER_PASSES_BYTES, SUMMED_PASSES
from .roofline import memory_rate, product_rate
from .terms import time_term


def estimate_time(
    model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan, software: Software = DEFAULT
) -> TimeEstimate:
    """Seconds of one optimizer step of `plan`, by component.

    Formulas and sources stand in `compute_time`, `memory_bound`, `host_time`, `collective_time` and `offload_time`;
    this adds them up. Expensive parts are kept per (model, workload, GPU, micro batch), so a call in a search takes
    tens of microseconds.

    Not covered: data loading, evaluation, checkpoints and logging; pipeline, tensor and sequence parallelism; GPUs that
    throttle or are shared.
    """
    step = _Step(model, workload, cluster, plan, software)
    return TimeEstimate(
        terms=tuple(term for term in step.terms() if term.seconds or term.hidden_s),
        tokens_per_step=(
            plan.micro_batch_size * plan.gradient_accumulation_steps * cluster.world_size * workload.seq_len
        ),
    )


def assumptions(cluster: Cluster) -> tuple[str, ...]:
    """What the time rests on besides what was asked, one phrase each."""
    return (*cluster.assumptions, *assumed_of_host(cluster), "data loading that keeps up")


def _together(gpu_s: float, host_s: float, serial: float) -> float:
    """The host launches ahead of the GPU, so the slower one counts, and of the other the part that is `serial`."""
    return max(gpu_s, host_s) + serial * min(gpu_s, host_s)


@dataclass(slots=True)
class _Lane:
    """What the links carry beside one kind of pass, all micro batches together."""

    carried: list[TimeTerm] = field(default_factory=list)
    """A term for each thing, all of it in `seconds`. pieces: collectives one after the other, of which the last has no
    pass left to hide behind."""
    pieces: int = 1

    def terms(self, shadow_s: float, *, overlaps: bool) -> list[TimeTerm]:
        """Terms of what the pass does not hide; each thing carried is hidden in the same proportion."""
        total = sum(term.seconds for term in self.carried)
        if not total or not overlaps:
            return self.carried
        hidden = (1 - CONTENTION) * min(total * (1 - 1 / self.pieces), shadow_s) / total
        return [
            replace(term, seconds=term.seconds * (1 - hidden), hidden_s=term.seconds * hidden) for term in self.carried
        ]


class _Step:
    """One optimizer step, put together once.

    micro_batches: n. trained, trained_per_rank, trained_per_node: parameters that the optimizer updates.
    gradient_s:    copying gradients into buckets, or summing them up, over all micro batches.
    forward_s, backward_s: all passes of a kind, without what the links add.
    """

    def __init__(self, model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan, software: Software) -> None:
        stage, n = plan.zero_stage, plan.gradient_accumulation_steps
        self.workload, self.cluster, self.plan = workload, cluster, plan
        self.micro_batches, self.element = n, workload.weight_bytes
        self.tensors: TensorSet = tensor_set(model, workload)
        self.ring: Ring = collective.ring(cluster)
        # On a CPU the process that computes also moves what the ranks exchange.
        self.overlaps = plan.overlap_comm and not cluster.gpu.is_cpu
        self.compute: ComputeTime = compute_time(
            model, workload, cluster.gpu, plan.micro_batch_size, plan.gradient_checkpointing, software
        )
        self.trained = self.tensors.trainable_numel
        self.trained_per_rank = self.trained / (cluster.world_size if stage else 1)
        self.trained_per_node = self.trained / cluster.nodes if stage else self.trained

        # Below stage 2 only the last micro batch hands its gradients to a reduction; the others sum them up.
        self.reductions = n if stage >= 2 else 1
        moved = self.trained * self.element * (COPIED_PASSES * self.reductions + SUMMED_PASSES * (n - 1))
        self.gradient_s = moved / memory_rate(cluster.gpu)

        host = host_work(model, workload, software, on_cpu=cluster.gpu.is_cpu)
        forward_host = MICRO_STEP_HOST_S + host.forward_s(stage)
        backward_host = (
            self.reductions * host.backward_s(stage, reduces=True)
            + (n - self.reductions) * host.backward_s(stage, reduces=False)
        ) / n
        if plan.gradient_checkpointing:
            backward_host += host.forward_s(stage)
        self.host_s = n * (forward_host + backward_host)
        # A CPU computes what it launches itself; stage 3 keeps a GPU and its host close together.
        serial = 1.0 if cluster.gpu.is_cpu else ZERO3_SERIAL if stage == 3 else 0.0
        self.forward_s = n * _together(self.compute.forward_s, forward_host, serial)
        self.backward_s = n * _together(self.compute.backward_s + self.gradient_s / n, backward_host, serial)

    def terms(self) -> list[TimeTerm]:
        return [*self._computing(), *self._forward_links(), *self._backward_links(), *self._optimizer()]

    def _term(
        self,
        name: str,
        resource: str,
        formula: str,
        seconds: float,
        source: str,
        hidden_s: float = 0.0,
        **inputs: float,
    ) -> TimeTerm:
        return time_term(
            name=name,
            seconds=seconds,
            hidden_s=hidden_s,
            resource=resource,
            formula=formula,
            inputs=tuple(inputs.items()),
            source=f"estimators/{source}",
        )

    def _computing(self) -> list[TimeTerm]:
        compute, n, cluster = self.compute, self.micro_batches, self.cluster
        on_gpu = n * (compute.forward_s + compute.backward_s) + self.gradient_s
        launched = max(0.0, self.forward_s + self.backward_s - on_gpu)
        rate, memory = product_rate(cluster.gpu, self.workload.precision), memory_rate(cluster.gpu)
        batch: dict[str, float] = {"n": n, "B": self.plan.micro_batch_size, "S": self.workload.seq_len}
        elementwise = compute.elementwise_forward_s + compute.elementwise_backward_s
        loss = compute.loss_forward_s + compute.loss_backward_s
        return [
            self._term(
                "matrix products",
                "gpu compute",
                "n sum(max(2 rows (inner + tile start) columns / R, bytes / W) + ramp)",
                n * (compute.products_forward_s + compute.products_backward_s),
                "roofline.py product_s",
                **batch,
                R=rate,
                W=memory,
            ),
            self._term(
                "attention",
                "gpu compute",
                "n L 2 B A (d + dv) pairs (1 + backward) / rate(S)",
                n * (compute.attention_forward_s + compute.attention_backward_s),
                "roofline.py attention_rate",
                **batch,
            ),
            self._term(
                "elementwise operations",
                "gpu memory",
                "n bytes / W",
                n * elementwise,
                "memory_bound.py",
                n=n,
                bytes=elementwise * memory,
                W=memory,
            ),
            self._term(
                "loss over the vocabulary",
                "gpu memory",
                "n bytes / W",
                n * loss,
                "memory_bound.py",
                n=n,
                bytes=loss * memory,
                W=memory,
            ),
            self._term(
                "recomputation",
                "gpu compute",
                "n (forward of every layer, up to its last product)",
                n * compute.recompute_s,
                "compute_time.py",
                n=n,
            ),
            self._term(
                "gradient copies",
                "gpu memory",
                f"({COPIED_PASSES:g} reductions + {SUMMED_PASSES:g} (n - 1)) w Pt / W",
                self.gradient_s,
                "memory_bound.py",
                reductions=self.reductions,
                n=n,
                w=self.element,
                Pt=self.trained,
                W=memory,
            ),
            self._term(
                "launch overhead",
                "launch",
                "host time that the GPU waits for, forward and backward apart",
                launched,
                "host_time.py",
                hidden_s=max(0.0, self.host_s - launched),
            ),
        ]

    def _forward_links(self) -> list[TimeTerm]:
        lane = _Lane()
        if self.plan.zero_stage == 3:
            self._gather(lane, self.micro_batches * self._gathered_shares()[0])
        return lane.terms(self.forward_s, overlaps=self.overlaps)

    def _backward_links(self) -> list[TimeTerm]:
        plan, n = self.plan, self.micro_batches
        lane = _Lane(pieces=collective.reduce_calls(self.tensors, plan))
        if plan.zero_stage == 3:
            passes = n * self._gathered_shares()[1]
            if plan.gradient_checkpointing and plan.stage3_max_reuse_distance < 2 * self.tensors.layer_numel:
                passes *= 2  # a layer is released between its recomputation and its backward pass
            self._gather(lane, passes)
        self._reduce(lane)
        self._gradients_to_host(lane)
        return lane.terms(self.backward_s * self.reductions / n, overlaps=self.overlaps and plan.zero_stage >= 1)

    def _gathered_shares(self) -> tuple[float, float]:
        return collective.gathered_shares(self.tensors, self.plan, self.cluster.world_size)

    def _collective(
        self,
        name: str,
        times: float,
        size_bytes: float,
        calls: int,
        what: str,
        *,
        all_reduce: bool = False,
        **inputs: float,
    ) -> TimeTerm:
        """`times` all-gathers, reduce-scatters or all-reduces of a size; `what` is the formula of the bytes that go
        around."""
        ring = self.ring
        seconds, link, rounds = (
            (ring.all_reduce_s, ring.all_reduce_bytes_per_s, 2) if all_reduce else (ring.gather_s, ring.bytes_per_s, 1)
        )
        return self._term(
            name,
            ring.resource,
            f"{what} (N - 1) / N / link + calls t",
            times * seconds(size_bytes, calls),
            "collective_time.py",
            **inputs,
            N=ring.ranks,
            link=link,
            calls=rounds * times * calls,
            t=ring.call_s,
        )

    def _gather(self, lane: _Lane, passes: float) -> None:
        """Stage 3: weights from the ranks' shards, which may lie in host memory or on NVMe."""
        plan, cluster, tensors = self.plan, self.cluster, self.tensors
        size, calls = collective.gathered_bytes(tensors, self.workload), collective.gather_calls(tensors, plan)
        if not passes:
            return
        lane.pieces = max(lane.pieces, calls)
        if self.ring.ranks > 1:
            lane.carried.append(
                self._collective("weight gathering", passes, size, calls, "passes weights", passes=passes, weights=size)
            )
        if plan.offload_param != "none":
            lane.carried.append(
                self._pcie(
                    "weights from host",
                    "passes weights / N / PCIe",
                    passes * size / cluster.world_size,
                    passes=passes,
                    weights=size,
                    N=cluster.world_size,
                )
            )
        if plan.offload_param == "nvme":
            lane.carried.append(
                self._term(
                    "weights from NVMe",
                    "nvme",
                    "passes weights / M / read",
                    passes * offload.nvme_read_s(cluster, size / cluster.nodes),
                    "offload_time.py",
                    passes=passes,
                    weights=size,
                    M=cluster.nodes,
                    read=1 / offload.nvme_read_s(cluster, 1),
                )
            )

    def _pcie(self, name: str, formula: str, size_bytes: float, **inputs: float) -> TimeTerm:
        pinned = self.plan.pin_memory
        return self._term(
            name,
            "pcie",
            formula,
            offload.host_link_s(self.cluster, size_bytes, pinned=pinned),
            "offload_time.py",
            **inputs,
            PCIe=1 / offload.host_link_s(self.cluster, 1, pinned=pinned),
        )

    def _reduce(self, lane: _Lane) -> None:
        plan, times = self.plan, self.reductions
        if self.ring.ranks == 1:
            return
        size, calls = self.trained * self.element, collective.reduce_calls(self.tensors, plan)
        if plan.zero_stage < 3:
            lane.carried.append(
                self._collective(
                    "gradient reduction",
                    times,
                    size,
                    calls,
                    "2 reductions w Pt",
                    all_reduce=True,
                    reductions=times,
                    w=self.element,
                    Pt=self.trained,
                )
            )
        else:
            lane.carried.append(
                self._collective(
                    "gradient reduction", times, size, calls, "n w Pt", n=times, w=self.element, Pt=self.trained
                )
            )

    def _gradients_to_host(self, lane: _Lane) -> None:
        plan, n = self.plan, self.micro_batches
        if plan.offload_optimizer == "none":
            return
        if plan.zero_stage == 3:
            per_parameter, formula = 4 + 2 * self.element * n, "(4 + 2 w n) Pr / PCIe"
        elif plan.zero_stage == 2 and n > 1:
            per_parameter, formula = 4 + self.element * (2 * n - 1), "(4 + w (2 n - 1)) Pr / PCIe"
        else:
            per_parameter, formula = 4, "4 Pr / PCIe"
        lane.carried.append(
            self._pcie(
                "gradients to host",
                formula,
                per_parameter * self.trained_per_rank,
                w=self.element,
                n=n,
                Pr=self.trained_per_rank,
            )
        )

    def _optimizer(self) -> list[TimeTerm]:
        plan, cluster = self.plan, self.cluster
        kind, ranks, node = optimizer(self.workload.optimizer), self.trained_per_rank, self.trained_per_node
        updated: dict[str, float] = {"w": self.element, "Pr": ranks}
        terms: list[TimeTerm] = []
        if plan.offload_optimizer == "none":
            rate = memory_rate(cluster.gpu)
            terms.append(
                self._term(
                    "optimizer",
                    "gpu memory",
                    f"({OPTIMIZER_PASSES_BYTES:g} + 2 states) Pr / W",
                    (OPTIMIZER_PASSES_BYTES + 2 * kind.state_bytes) * ranks / rate,
                    "memory_bound.py",
                    states=kind.state_bytes,
                    Pr=ranks,
                    W=rate,
                )
            )
        else:
            states = kind.cpu_state_bytes or 0.0
            seconds, per_parameter = offload.cpu_step_s(cluster, self.workload, node), offload.cpu_step_bytes(states)
            terms.append(
                self._term(
                    "optimizer on the host",
                    "cpu",
                    "(26 + 2 states) Pn / host",
                    seconds,
                    "offload_time.py",
                    states=states,
                    Pn=node,
                    host=per_parameter * node / seconds,
                )
            )
            if plan.offload_optimizer == "nvme":
                terms.append(
                    self._term(
                        "states from and to NVMe",
                        "nvme",
                        "(8 + states) Pn (1 / read + 1 / write)",
                        offload.nvme_step_s(cluster, self.workload, node),
                        "offload_time.py",
                        states=states,
                        Pn=node,
                        read=1 / offload.nvme_read_s(cluster, 1),
                        write=1 / offload.nvme_write_s(cluster, 1),
                    )
                )
            if plan.offload_param == "none":
                terms.append(self._pcie("updated weights to GPU", "w Pr / PCIe", self.element * ranks, **updated))
        if plan.offload_param != "none" and plan.offload_optimizer == "none":
            terms.append(self._pcie("updated weights to host", "w Pr / PCIe", self.element * ranks, **updated))
        if plan.offload_param == "nvme":
            terms.append(
                self._term(
                    "updated weights to NVMe",
                    "nvme",
                    "w Pn / write",
                    offload.nvme_write_s(cluster, self.element * node),
                    "offload_time.py",
                    w=self.element,
                    Pn=node,
                    write=1 / offload.nvme_write_s(cluster, 1),
                )
            )
        if plan.zero_stage in (1, 2) and self.ring.ranks > 1:
            terms.append(
                self._collective(
                    "updated weights gathered",
                    1,
                    self.element * self.trained,
                    1,
                    "w Pt",
                    w=self.element,
                    Pt=self.trained,
                )
            )
        return terms
