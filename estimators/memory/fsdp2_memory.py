"""Memory of training under FSDP2, as accelerate starts it for a Trainer: `estimate_torch_memory` with other moments.

With t = 4 bytes per trainable element and w per gathered one:

- accelerate makes trainable parameters fp32 before it shards them, whatever their type was. Gradients and states are
  fp32 too, so that a parameter takes 16 bytes over N ranks; frozen ones keep their type.
- Every layer is a unit, the token embedding another, the last norm and the head a third, which stays gathered from the
  forward to the backward pass; tied, the embedding is in that one, and its gradient is reduced at the end alone.
- A unit is gathered into one buffer and copied out of it into tensors. In the forward pass the buffer lives until the
  next unit is gathered, so that computing a layer holds two layers; in the backward pass the next one's buffer is
  filled meanwhile.
- A layer's gradients in w bytes are whole until its backward pass ends, then copied into a buffer that is reduced while
  the next layer computes.
- With accumulation every micro batch reduces its gradients (`sync_each_batch`): without it they would stay whole on
  every GPU, w bytes of each parameter.

Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param_group.py (`wait_for_unshard`, `post_backward`,
`_backward_prefetch`), _fsdp_collectives.py; accelerate 1.15 utils/fsdp_utils.py `fsdp2_prepare_model`; held against
torch's own memory tracker by `benchmarks.fsdp2_memory`. Not covered: offload, quantized weights, HSDP, `torch.compile`.
"""

from __future__ import annotations

from ..estimate import Formula, Phase, Terms
from .activations.activation_memory import activation_memory
from .activations.loss import output_terms
from .torch_memory import TorchStep

_SOURCE = "torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param_group.py; accelerate 1.15 utils/fsdp_utils.py"
_UNITS = {"w": "bytes per gathered element", "units": "elements of the units"}
_GATHERED = Formula("gathered_parameters", "w units", _SOURCE, _UNITS)
_WHOLE = Formula("gradients", "w units", _SOURCE, _UNITS)


class Fsdp2Step(TorchStep):
    """The moments of a step under FSDP2."""

    def phases(self) -> tuple[Phase, ...]:
        sizes, tensors, plan, workload = self.sizes, self.tensors, self.plan, self.workload
        capability = self.cluster.gpu.compute_capability
        made = activation_memory(
            self.model, workload, plan.micro_batch_size, plan.gradient_checkpointing, compute_capability=capability
        )
        w, numel, tied = sizes.width, tensors.trainable_numel, tensors.tied
        layer, trained_layer = tensors.layer_numel, sum(tensors.trainable_layer)
        head, embedding = tensors.head, 0 if tied else tensors.embedding
        kept, of_head = tied * head, head * tensors.trains_head
        # The head's buffer is freed after the forward pass. The standard loss then has two bytes a logit still to come.
        tokens = plan.micro_batch_size * workload.seq_len
        later = tokens * head // self.model.hidden_size if workload.loss == "standard" else 0
        buffer = 0 if tied else max(0, head - later)
        reduced = self._part("gradients", "t Pt / N", sizes.trained * numel / sizes.shards)
        earlier = reduced if plan.gradient_accumulation_steps > 1 else ()
        alive = self.resident + output_terms(self.model, workload, plan.micro_batch_size)
        saved = made.saved_terms + self._fp32_inputs()
        stepping = self._part("step_temporaries", "s Pt / N", sizes.step * numel / sizes.shards)

        def gathered(elements: int) -> Terms:
            return _GATHERED.term(w * elements, w=w, units=elements)

        def whole(elements: int) -> Terms:
            return _WHOLE.term(w * elements, w=w, units=elements)

        return (
            Phase(
                name="forward_backward_top",
                terms=alive + earlier + gathered(head + buffer) + saved + made.loss_terms,
            ),
            Phase(
                name="layer_backward",
                terms=alive
                + earlier
                + gathered(2 * layer + kept)
                + whole(trained_layer + of_head)
                + saved
                + made.block_terms,
            ),
            Phase(
                name="first_layer_backward",
                terms=alive
                + reduced
                + gathered(layer + kept + embedding)
                + whole(2 * trained_layer + tied * of_head)
                + made.block_terms,
            ),
            Phase(
                name="gradient_reduction",
                terms=alive
                + reduced
                + gathered(embedding)
                + whole(trained_layer + (2 * of_head if tied else embedding * tensors.trains_embedding)),
            ),
            Phase(name="step", terms=alive + reduced + stepping),
        )
