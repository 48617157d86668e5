"""Every machine of a table, in every number, with its best plan and what the job then takes and costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...estimators.errors import ClusterError, WorkloadError
from ...estimators.hardware.cluster import Cluster
from ...estimators.time.duration import JobDuration
from ...estimators.time.interruptions import Interrupted, interrupted_run
from ...estimators.time.price import HOUR_S, Price
from ..answer.what_if import gpus_argument
from ..question.job_options import batch_of
from ..question.question import Question
from ..question.workload import resolve_precision
from ..search.candidate import Candidate, duration_of
from ..search.fastest import Slopes, fastest
from .machine import Machine

BOOT_S = 300.0
"""From the order of another machine to the start of the training on it: boot, image, drivers; an assumption."""

WAIT_S = 2.3 * HOUR_S
"""From an interruption until such a machine is to be had again: the traces behind `HOURS_BETWEEN_INTERRUPTIONS` lack
1,853 machine-hours for 802 preemptions. Nothing is paid meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A number of machines on which the job can run, and what it takes there."""

    machine: Machine
    question: Question
    """The question about these machines."""
    candidate: Candidate
    """The fastest plan that fits on them."""
    duration: JobDuration
    """The job without interruptions."""
    price: Price
    interrupted: Interrupted | None
    """What interruptions make of the job; None where the machines stay."""

    @property
    def cluster(self) -> Cluster:
        return self.question.cluster

    @property
    def is_spot(self) -> bool:
        return self.interrupted is not None

    @property
    def paid_s(self) -> float:
        """Seconds for which the machines are paid."""
        if self.interrupted is None:
            return self.duration.duration_s
        return self.duration.loading_s + self.interrupted.paid_s

    @property
    def duration_s(self) -> float:
        """Seconds from the first start to the end."""
        return self.paid_s + (self.interrupted.waiting_s if self.interrupted is not None else 0.0)

    @property
    def duration_s_range(self) -> tuple[float, float] | None:
        """The 80 % interval of `duration_s`, as far as the step's time decides."""
        ends = self.duration.duration_s_range
        stretched = self.duration_s / self.duration.duration_s
        return ends and (ends[0] * stretched, ends[1] * stretched)

    @property
    def cost(self) -> float:
        return self.price.cost(self.cluster, self.paid_s)

    @property
    def cost_range(self) -> tuple[float, float] | None:
        """The 80 % interval of `cost`, likewise."""
        ends = self.duration.duration_s_range
        stretched = self.cost / self.duration.duration_s
        return ends and (ends[0] * stretched, ends[1] * stretched)

    @property
    def gpus(self) -> str:
        """As --gpus takes it."""
        return gpus_argument(self.cluster)

    @property
    def cost_of_interruptions(self) -> float:
        """What of the cost is for work done again, restarts, and the checkpoints that are written for them."""
        return self.price.cost(self.cluster, self.paid_s - self.duration.duration_s)

    @property
    def cost_per_million_tokens(self) -> float:
        return self.cost / (self.duration.tokens / 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Machines on which the job cannot run."""

    machine: Machine
    nodes: int
    reason: str

    @property
    def gpus(self) -> str:
        """As --gpus takes it."""
        return gpus_argument(replace(self.machine.cluster, nodes=self.nodes))


class Market:
    """What a job takes on one kind of machine or another; machines that are alike are searched once."""

    def __init__(self, question: Question, *, precision: str, global_batch: int | None) -> None:
        """question: about any machine. precision and global_batch: as they were asked, since what is left open depends
        on the machine."""
        assert question.job is not None, "a cost is that of a job"
        self._question, self._precision, self._global_batch = question, precision, global_batch
        self._slopes = Slopes()
        self._known: dict[Cluster, tuple[Question, Candidate, JobDuration] | str] = {}

    def offers(self, machines: tuple[Machine, ...], *, most_nodes: int) -> Iterator[Offer | LeftOut]:
        """Every machine in numbers of 1, 2, 4 ... up to `most_nodes` and what it can be joined to, on demand and spot,
        as far as it has a price."""
        for machine in machines:
            nodes = 1
            while nodes <= min(most_nodes, machine.most_nodes):
                yield from self._of(machine, nodes)
                nodes *= 2

    def _of(self, machine: Machine, nodes: int) -> Iterator[Offer | LeftOut]:
        found = self._on(_joined(machine.cluster, nodes))
        if isinstance(found, str):
            yield LeftOut(machine=machine, nodes=nodes, reason=found)
            return
        question, candidate, duration = found
        for price, is_spot in ((machine.price, False), (machine.spot, True)):
            if price is None:
                continue
            interrupted = _interrupted(duration, machine, nodes) if is_spot else None
            if is_spot and interrupted is None:
                yield LeftOut(machine=machine, nodes=nodes, reason="is interrupted more often than it can save")
                continue
            yield Offer(
                machine=machine,
                question=question,
                candidate=candidate,
                duration=duration,
                price=price,
                interrupted=interrupted,
            )

    def _on(self, cluster: Cluster) -> tuple[Question, Candidate, JobDuration] | str:
        """The best plan on a cluster and the job under it, or why there is none."""
        if cluster not in self._known:
            self._known[cluster] = self._searched(cluster)
        return self._known[cluster]

    def _searched(self, cluster: Cluster) -> tuple[Question, Candidate, JobDuration] | str:
        try:
            question = self._about(cluster)
            candidate = fastest(question, self._slopes)
        except (ClusterError, WorkloadError) as error:
            return error.what
        if candidate is None:
            return "nothing fits"
        duration = duration_of(question, candidate)
        assert duration is not None, "the question has a job"
        return question, candidate, duration

    def _about(self, cluster: Cluster) -> Question:
        """The question about other machines."""
        asked = self._question
        assert asked.job is not None
        batch = self._global_batch or batch_of(asked.job, ranks=cluster.world_size, micro_batch=asked.micro_batch_size)
        precision = resolve_precision(self._precision, cluster.gpu)
        workload = replace(asked.workload, precision=precision, global_batch_size=batch)
        return replace(asked, cluster=cluster, workload=workload)


def _joined(machine: Cluster, nodes: int) -> Cluster:
    network = machine.interconnect_bytes_per_s if nodes > 1 else None
    return replace(machine, nodes=nodes, interconnect_bytes_per_s=network)


def _interrupted(duration: JobDuration, machine: Machine, nodes: int) -> Interrupted | None:
    """The job on machines that may be taken back. A restart boots, loads the model, and reads the checkpoint, which is
    taken to last as long as writing it."""
    write_s = duration.saving.write_s
    return interrupted_run(
        duration.training_s + duration.evaluation_s,
        write_s=write_s,
        restart_s=BOOT_S + duration.loading_s + write_s,
        between_s=machine.hours_between_interruptions * HOUR_S / nodes,
        wait_s=WAIT_S,
    )
