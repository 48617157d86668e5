"""The time of one optimizer step, term by term.

    step = n micro batches of (forward, backward) + optimizer
    pass = max(GPU computes, host launches) + what the links carry and the pass does not hide

Micro batches differ: stages 0 and 1 reduce gradients only in the last one. Data loading is assumed to be free.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from . import collective_time as collective
from . import offload_time as offload
from .cluster import Cluster
from .collective_time import CONTENTION, Ring
from .compute_time import ComputeTime, compute_time
from .estimate import TimeEstimate, TimeTerm
from .host_defaults import assumed_of_host
from .host_time import MICRO_STEP_HOST_S, ZERO3_SERIAL, host_work
from .memory_bound import COPIED_PASSES, OPTIMIZER_PASSES_BYTES, SUMMED_PASSES
from .model_shape import ModelShape
from .optimizers import optimizer
from .plan import Plan
from .roofline import memory_rate
from .software import DEFAULT, Software
from .trainable import TensorSet, tensor_set
from .workload import Workload


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
        tokens_per_step=(plan.micro_batch_size * plan.gradient_accumulation_steps * cluster.world_size
                         * workload.seq_len))


def assumptions(cluster: Cluster) -> tuple[str, ...]:
    """What the time rests on besides what was asked, one phrase each."""
    return (*cluster.assumptions, *assumed_of_host(cluster), "data loading that keeps up")


def _together(gpu_s: float, host_s: float, *, serial: bool) -> float:
    """The host launches ahead of the GPU, so the slower one counts; stage 3 keeps them closer together."""
    return max(gpu_s, host_s) + (ZERO3_SERIAL if serial else 0.0) * min(gpu_s, host_s)


@dataclass(slots=True)
class _Lane:
    """What the links carry beside one kind of pass, all micro batches together.

    carried: seconds by (name, resource, formula). pieces: collectives one after the other, of which the last has no pass
    left to hide behind.
    """

    carried: dict[tuple[str, str, str], float] = field(default_factory=dict)
    pieces: int = 1

    def add(self, name: str, resource: str, formula: str, seconds: float) -> None:
        if seconds:
            key = (name, resource, formula)
            self.carried[key] = self.carried.get(key, 0.0) + seconds

    def terms(self, shadow_s: float, *, overlaps: bool) -> list[TimeTerm]:
        """Terms of what the pass does not hide; each thing carried is hidden in the same proportion."""
        total = sum(self.carried.values())
        if not total:
            return []
        hidden = (1 - CONTENTION) * min(total * (1 - 1 / self.pieces), shadow_s) if overlaps else 0.0
        return [TimeTerm(name=name, seconds=seconds * (1 - hidden / total), hidden_s=seconds * hidden / total,
                         resource=resource, formula=formula, source="estimators/collective_time.py, offload_time.py")
                for (name, resource, formula), seconds in self.carried.items()]


class _Step:
    """One optimizer step, put together once.

    micro_batches: n. trained, trained_per_rank, trained_per_node: parameters that the optimizer updates.
    gradient_s:    copying gradients into buckets, or summing them up, over all micro batches.
    forward_s, backward_s: all passes of a kind, without what the links add.
    """

    def __init__(
        self, model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan, software: Software
    ) -> None:
        stage, n = plan.zero_stage, plan.gradient_accumulation_steps
        self.workload, self.cluster, self.plan = workload, cluster, plan
        self.micro_batches, self.element = n, workload.weight_bytes
        self.tensors: TensorSet = tensor_set(model, workload)
        self.ring: Ring = collective.ring(cluster)
        self.compute: ComputeTime = compute_time(
            model, workload, cluster.gpu, plan.micro_batch_size, plan.gradient_checkpointing, software)
        self.trained = self.tensors.trainable_numel
        self.trained_per_rank = self.trained / (cluster.world_size if stage else 1)
        self.trained_per_node = self.trained / cluster.nodes if stage else self.trained

        # Below stage 2 only the last micro batch hands its gradients to a reduction; the others sum them up.
        self.reductions = n if stage >= 2 else 1
        moved = self.trained * self.element * (COPIED_PASSES * self.reductions + SUMMED_PASSES * (n - 1))
        self.gradient_s = moved / memory_rate(cluster.gpu)

        host = host_work(model, workload, software)
        forward_host = MICRO_STEP_HOST_S + host.forward_s(stage)
        backward_host = (self.reductions * host.backward_s(stage, reduces=True)
                         + (n - self.reductions) * host.backward_s(stage, reduces=False)) / n
        if plan.gradient_checkpointing:
            backward_host += host.forward_s(stage)
        self.host_s = n * (forward_host + backward_host)
        self.forward_s = n * _together(self.compute.forward_s, forward_host, serial=stage == 3)
        self.backward_s = n * _together(self.compute.backward_s + self.gradient_s / n, backward_host, serial=stage == 3)

    def terms(self) -> list[TimeTerm]:
        return [*self._computing(), *self._forward_links(), *self._backward_links(), *self._optimizer()]

    def _computing(self) -> list[TimeTerm]:
        compute, n = self.compute, self.micro_batches
        on_gpu = n * (compute.forward_s + compute.backward_s) + self.gradient_s
        launched = max(0.0, self.forward_s + self.backward_s - on_gpu)
        inputs = (("n", n), ("B", self.plan.micro_batch_size), ("S", self.workload.seq_len))

        def term(name: str, resource: str, formula: str, seconds: float, hidden_s: float = 0.0) -> TimeTerm:
            return TimeTerm(name=name, seconds=seconds, hidden_s=hidden_s, resource=resource, formula=formula,
                            inputs=inputs, source="estimators/compute_time.py, roofline.py, memory_bound.py, host_time.py")

        return [
            term("matrix products", "gpu compute", "n sum(max(2 rows (inner + tile start) columns / R, bytes / W) + ramp)",
                 n * (compute.products_forward_s + compute.products_backward_s)),
            term("attention", "gpu compute", "n L 2 B A (d + dv) pairs (1 + backward) / rate(S)",
                 n * (compute.attention_forward_s + compute.attention_backward_s)),
            term("elementwise operations", "gpu memory", "n L (bytes forward + bytes backward) / W",
                 n * (compute.elementwise_forward_s + compute.elementwise_backward_s)),
            term("loss over the vocabulary", "gpu memory", "n B S V bytes per logit / W",
                 n * (compute.loss_forward_s + compute.loss_backward_s)),
            term("recomputation", "gpu compute", "n (forward of every layer, up to its last product)", n * compute.recompute_s),
            term("gradient copies", "gpu memory", "(2 e per reduction + 3 e per sum) Pt / W", self.gradient_s),
            term("launch overhead", "launch", "host time that the GPU waits for, forward and backward apart",
                 launched, hidden_s=max(0.0, self.host_s - launched))]

    def _forward_links(self) -> list[TimeTerm]:
        lane = _Lane()
        if self.plan.zero_stage == 3:
            self._gather(lane, self.micro_batches * self._gathered_shares()[0])
        return lane.terms(self.forward_s, overlaps=self.plan.overlap_comm)

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
        return lane.terms(self.backward_s * self.reductions / n, overlaps=plan.overlap_comm and plan.zero_stage >= 1)

    def _gathered_shares(self) -> tuple[float, float]:
        return collective.gathered_shares(self.tensors, self.plan, self.cluster.world_size)

    def _gather(self, lane: _Lane, passes: float) -> None:
        """Stage 3: weights from the ranks' shards, which may lie in host memory or on NVMe."""
        plan, cluster, tensors = self.plan, self.cluster, self.tensors
        size, calls = collective.gathered_bytes(tensors, self.workload), collective.gather_calls(tensors, plan)
        lane.pieces = max(lane.pieces, calls)
        lane.add("weight gathering", self.ring.resource, "passes e P (N - 1) / N / link",
                 passes * self.ring.gather_s(size, calls))
        if plan.offload_param != "none":
            lane.add("weights from host", "pcie", "passes e P / N / PCIe", passes * offload.host_link_s(
                cluster, size / cluster.world_size, pinned=plan.pin_memory))
        if plan.offload_param == "nvme":
            lane.add("weights from NVMe", "nvme", "passes e P / M / read rate",
                     passes * offload.nvme_read_s(cluster, size / cluster.nodes))

    def _reduce(self, lane: _Lane) -> None:
        plan = self.plan
        size, calls = self.trained * self.element, collective.reduce_calls(self.tensors, plan)
        if plan.zero_stage == 3:
            seconds, formula = self.ring.gather_s(size, calls), "n e Pt (N - 1) / N / link"
        else:
            seconds, formula = self.ring.all_reduce_s(size, calls), "reductions 2 e Pt (N - 1) / N / link"
        lane.add("gradient reduction", self.ring.resource, formula, self.reductions * seconds)

    def _gradients_to_host(self, lane: _Lane) -> None:
        plan, n = self.plan, self.micro_batches
        if plan.offload_optimizer == "none":
            return
        if plan.zero_stage == 3:
            per_parameter = 4 + 2 * self.element * n
        elif plan.zero_stage == 2 and n > 1:
            per_parameter = 4 + self.element * (2 * n - 1)
        else:
            per_parameter = 4
        lane.add("gradients to host", "pcie", "bytes per parameter Pt / N / PCIe", offload.host_link_s(
            self.cluster, per_parameter * self.trained_per_rank, pinned=plan.pin_memory))

    def _optimizer(self) -> list[TimeTerm]:
        plan, cluster = self.plan, self.cluster
        terms: list[TimeTerm] = []

        def add(name: str, resource: str, formula: str, seconds: float) -> None:
            terms.append(TimeTerm(name=name, seconds=seconds, resource=resource, formula=formula,
                                  inputs=(("Pt", self.trained), ("N", cluster.world_size)),
                                  source="estimators/memory_bound.py, offload_time.py, collective_time.py"))

        if plan.offload_optimizer == "none":
            moved = OPTIMIZER_PASSES_BYTES + 2 * optimizer(self.workload.optimizer).state_bytes
            add("optimizer", "gpu memory", "(36 + 2 states) Pt / N / W",
                moved * self.trained_per_rank / memory_rate(cluster.gpu))
        else:
            add("optimizer on the host", "cpu", "(26 + 2 states) Pt / M / DRAM",
                offload.cpu_step_s(cluster, self.workload, self.trained_per_node))
            if plan.offload_optimizer == "nvme":
                add("states from and to NVMe", "nvme", "(8 + states) Pt / M (1 / read + 1 / write)",
                    offload.nvme_step_s(cluster, self.workload, self.trained_per_node))
            if plan.offload_param == "none":
                add("updated weights to GPU", "pcie", "e Pt / N / PCIe", offload.host_link_s(
                    cluster, self.element * self.trained_per_rank, pinned=plan.pin_memory))
        if plan.offload_param != "none" and plan.offload_optimizer == "none":
            add("updated weights to host", "pcie", "e Pt / N / PCIe", offload.host_link_s(
                cluster, self.element * self.trained_per_rank, pinned=plan.pin_memory))
        if plan.offload_param == "nvme":
            add("updated weights to NVMe", "nvme", "e Pt / M / write rate",
                offload.nvme_write_s(cluster, self.element * self.trained_per_node))
        if plan.zero_stage in (1, 2):
            add("updated weights gathered", self.ring.resource, "e Pt (N - 1) / N / link",
                self.ring.gather_s(self.element * self.trained, 1))
        return terms
