"""Logits and their copies at the peak of the loss, by the version of the framework that a run used.

Bytes per logit, w for the 16-bit logits themselves:

| `logits` | bytes | what it is |
|---|---|---|
| standard | as `estimators.memory.activations.loss` | transformers from 4.48 on: labels are padded, logits are not
sliced | | sliced   | w + 4 + 4 + 4 | 4.46, 4.47: logits, fp32 copy, its slice, log-softmax |
| inline   | 4 + 4 + 4 | until 4.45: the fp32 copy replaces the logits |
| held     | 4 + 4 + 4 + 4 | until 4.45, in a loop that keeps the model's output through the backward pass |
| half     | w + w + w | a loss that is never upcast: logits, their slice, log-softmax |
| chunked  | w + 4 + 8 / 8 | torchtune, litgpt: fp32 copies of one chunk at a time |

`softmax`: "recomputed" where a Triton kernel overwrites the logits with their gradient (no log-softmax is kept),
    "16-bit"
where it is taken in the logits' type.

Source: transformers 4.45, 4.46 and 4.48 modeling_llama.py and loss/loss_utils.py; torchtune 0.6
modules/loss/cross_entropy_loss.py; litgpt utils.py `chunked_cross_entropy`.
"""

from __future__ import annotations

from ds_advise.estimators.estimate import Formula, MemoryTerm

from .rows import Run

CHUNKS = 8
"""Parts of the logits that a chunked loss works on, torchtune's default."""

_NAMES = ("log-softmax", "gradient of log-softmax", "gradient of logits", "soft cap of logits")
_SOURCE = "benchmarks/accuracy/logits.py"


def is_logits(part: MemoryTerm) -> bool:
    """A term of the standard loss that `loss_terms` replaces."""
    return part.name in _NAMES


def loss_terms(run: Run) -> tuple[MemoryTerm, ...]:
    """Logits, copies and the last hidden state, which the forward pass still holds when it computes the loss."""
    width, hidden, vocabulary = run.workload.weight_bytes, run.model.hidden_size, run.model.vocab_size
    softmax = {"": 4, "16-bit": width, "recomputed": 0}[run.softmax]
    per_logit = {
        "sliced": width + 8 + softmax,
        "inline": 8 + softmax,
        "held": 12 + softmax,
        "chunked": width + softmax + 8 / CHUNKS,
        "half": 2 * width + min(softmax, width),
    }[run.logits]
    tokens = run.plan.micro_batch_size * run.workload.seq_len
    states, logits = Formula("last_hidden_state", "w B S H", _SOURCE), Formula("logits_and_loss", "c B S V", _SOURCE)
    return states.term(width * tokens * hidden, w=width, H=hidden) + logits.term(
        per_logit * tokens * vocabulary, c=per_logit, V=vocabulary
    )
