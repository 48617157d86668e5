"""What held a GPU's memory when it ran out, by the figures of the allocator's message."""

from __future__ import annotations

from collections.abc import Iterator

from ...estimators.units import GIB
from ...probes.failures.diagnosis import Diagnosis
from ...probes.failures.out_of_memory import unfragmented
from ..document import blocks as doc
from ..document.charts import Bar, Limit, Part, StackedBars
from ..text.units import capitalised, ended, gib

WITHOUT_SAMPLES = ("load", "zero_init", "first_step", "optimizer_step")
"""Phases whose memory does not depend on the samples."""

_HELD = {
    "activations": "tensors",
    "buffers": "allocator's free blocks",
    "runtime": "runtime",
    "optimizer": "other processes",
    "loss": "asked",
}
"""What held the GPU's memory, by the ink of its part; what was asked for is drawn last, and may pass the end."""

_HELD_AS_ASSUMED = _HELD | {"optimizer": "probably other processes"}
"""The same if the message names no process."""

_DRAWN = 0.005
"""Least share of the GPU that is drawn: the message rounds its figures, and a bar has fewer than 100 columns."""


def memory_at_failure(found: Diagnosis) -> Iterator[doc.Block]:
    """Yield what the process asked for, what held the memory, and whether it was in pieces; nothing without figures."""
    memory = found.memory
    if memory is None:
        return
    asked, held, reserved, total = memory.asked_bytes, memory.allocated_bytes, memory.reserved_bytes, memory.total_bytes
    free = None if memory.free_bytes is None else f"{_logged(memory.free_bytes)} GiB were free"
    sentence = "; ".join(filter(None, [None if asked is None else f"it asked for {_logged(asked)} GiB", free]))
    yield doc.Gap()
    if sentence:
        yield doc.Sentence(ended(capitalised(sentence)))
    unused = None if reserved is None or held is None else max(0, reserved - held)
    if total is not None and held is not None:
        sizes = (held, unused, memory.runtime_bytes, memory.other_bytes, asked)
        names = _HELD_AS_ASSUMED if memory.is_assumed else _HELD
        shown = [(ink, size) for ink, size in zip(_HELD, sizes, strict=True) if size and size >= _DRAWN * total]
        bar = Bar(label="", parts=tuple(Part(name=names[ink], value=size, ink=ink) for ink, size in shown), note="")
        limit = Limit(total, f"{gib(total)} GiB")
        drawing = StackedBars(title="Memory of the GPU, in GiB", bars=(bar,), limit=limit, families=names)
        yield doc.Chart(drawing, printed=drawing)
    if asked and held and asked > held and found.phase is not None and found.phase.name not in WITHOUT_SAMPLES:
        place = found.first and found.first.own_frame
        shapes = f": compare the shapes in {place.short_file}:{place.place}" if place else ""
        yield doc.Sentence(f"That one request is larger than all tensors that the process held{shapes}.")
    if memory.exceeds_gpu:
        yield doc.Sentence(
            "torch holds more than the GPU has: the driver keeps the rest in RAM, as under Windows and WSL, which "
            "makes steps slow. The request did not fit there, either."
        )
    elif found.message is not None and found.message.id == "gpu-memory" and reserved is not None:
        blocks = "the allocator's free blocks"
        if asked is None or unused is None or unused + (memory.free_bytes or 0) < asked:
            text = f"It is not fragmentation: {blocks} and the free memory together do not hold the request."
        elif unused >= asked:
            text = f"It is not fragmentation: {blocks} are a small part of the GPU."
        else:
            text = f"The free memory and {blocks} hold the request together, in pieces: {_setting(found)} may end it."
        yield doc.Sentence(text)


def _setting(found: Diagnosis) -> str:
    """Return what may end fragmentation, as the torch of the log knows it."""
    return (found.first and unfragmented(found.first.error.text)) or "expandable segments"


def _logged(size_bytes: int) -> str:
    """Return a size with the decimals of the allocator's message."""
    return f"{size_bytes / GIB:.2f}"
