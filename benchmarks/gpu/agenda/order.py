"""All measurements, the most valuable first: a run that is cut off is worth as much as it got done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..configuration import Configuration
from ..machine.place import Place
from ..measurement import Measurement
from .configurations import HOST_TIME, MEMORY, TOY
from .questions import in_order
from .readme_commands import COMMANDS, DOCTOR

EXTENSIONS = "DeepSpeed's extensions compiled"
"""The name of the measurement whose failures others must know of."""


_CPU_ADAM_TOY = Measurement(
    name="CPU Adam by threads",
    kind="cpu_adam",
    arguments={"threads": [1], "buffer_bytes": 2**20},
    about_s=1,
    limit_s=120,
)


def agenda(place: Place) -> list[Measurement]:
    """What is to be measured on this machine."""
    return _on_cpu() if place.device == "cpu" else _on_gpu(place)


def _on_gpu(place: Place) -> list[Measurement]:
    trainings = [_training(configuration) for configuration in MEMORY]
    regret = [_training(configuration) for configuration in in_order(place.cluster())]
    ordered = [
        _extensions("FusedAdamBuilder", "CPUAdamBuilder", "AsyncIOBuilder"),
        Measurement(name="CUDA context and workspaces", kind="context", arguments={}, about_s=15, limit_s=90),
        *trainings[:12],
        *(_allocator(setting) for setting in (True, False)),
        *map(_training, HOST_TIME[:2]),
        *_kernels(),
        *COMMANDS[:3],
        *trainings[12:],
        *map(_training, HOST_TIME[2:]),
        *COMMANDS[3:],
        *regret,
        Measurement(
            name="dry run on this machine", kind="dry_run", arguments=MEMORY[0].arguments, about_s=30, limit_s=180
        ),
    ]
    return list({measurement.name: measurement for measurement in ordered}.values())


def _on_cpu() -> list[Measurement]:
    """One of each kind at toy sizes."""
    kernels: dict[str, Sequence[Sequence[Any]]] = {
        "products": [[64, 32, 32, "bfloat16"]],
        "attention": [[32, 4, 2, 16, 64]],
        "elementwise": [[64, 64]],
        "launches": [[10]],
        "fused Adam": [[4096]],
    }
    return [
        _extensions("CPUAdamBuilder"),
        Measurement(name="CUDA context and workspaces", kind="context", arguments={}, about_s=1, limit_s=60),
        _training(TOY),
        _allocator(True),
        Measurement(name="kernels", kind="kernels", arguments=kernels, about_s=1, limit_s=300),
        _CPU_ADAM_TOY,
        DOCTOR,
        Measurement(name="dry run on this machine", kind="dry_run", arguments=TOY.arguments, about_s=1, limit_s=300),
    ]


def _extensions(*builders: str) -> Measurement:
    return Measurement(
        name=EXTENSIONS, kind="extensions", arguments={"builders": list(builders)}, about_s=30, limit_s=420
    )


def _training(configuration: Configuration) -> Measurement:
    """Loading through the host's memory takes the longest, of a model that no stage shards."""
    billions = configuration.shape.parameters / 1e9
    offloads = "offload" in configuration.strategy or "nvme" in configuration.strategy
    about_s = 18 + billions * (3 if offloads else 1)
    return Measurement(
        name=configuration.name,
        kind="training",
        arguments=configuration.arguments,
        about_s=about_s,
        limit_s=60 + 4 * about_s,
    )


def _allocator(expandable_segments: bool) -> Measurement:
    configuration = Configuration(
        model="Qwen2.5-0.5B",
        strategy="zero3",
        micro_batch_size=2,
        seq_len=1024,
        steps=3,
        expandable_segments=expandable_segments,
    )
    how = "expandable" if expandable_segments else "fixed"
    return Measurement(
        name=f"allocator's trace of a training, {how} segments",
        kind="allocator",
        arguments=configuration.arguments,
        about_s=25,
        limit_s=150,
    )


def _kernels() -> list[Measurement]:
    """Shapes of the linear layers, heads and losses of models from 0.5B to 14B."""
    linear = [(896, 4864), (2048, 8192), (3584, 18944), (4096, 4096), (5120, 13824), (2304, 9216), (3584, 512)]
    sizes: dict[str, Sequence[Sequence[Any]]] = {
        "products": [
            *([tokens, *shape, "bfloat16"] for shape in linear for tokens in (512, 2048, 8192)),
            *([2048, width, vocabulary, "bfloat16"] for width, vocabulary in ((896, 151936), (4096, 128256))),
            [2048, 4096, 8, "bfloat16"],
            [2048, 8, 4096, "bfloat16"],
            [4096, 4096, 4096, "float32"],
        ],
        "attention": [
            [length, heads, kv_heads, size, 16384]
            for length in (512, 1024, 2048, 4096, 8192, 16384, 32768)
            for heads, kv_heads, size in ((14, 14, 64), (32, 32, 128), (8, 8, 256))
        ],
        "copies": [[2**power] for power in (16, 20, 24, 28, 30)],
        "launches": [[200]],
        "fused Adam": [[1_000_000], [100_000_000], [1_000_000_000]],
        "elementwise": [[2048, 896], [8192, 4096], [16384, 3584], [4096, 151936]],
    }
    figures_each = {"products": 3, "attention": 2, "copies": 4, "launches": 5, "fused Adam": 2, "elementwise": 5}
    kernels = [
        _kernel(group, shapes, about_s=10 + 0.5 * figures_each[group] * len(shapes)) for group, shapes in sizes.items()
    ]
    threads = {"threads": [16, 8, 4, 2, 1], "buffer_bytes": 2**30}
    adam = Measurement(name="CPU Adam by threads", kind="cpu_adam", arguments=threads, about_s=50, limit_s=150)
    return [*kernels, adam]


def _kernel(group: str, sizes: Iterable[Sequence[Any]], *, about_s: float) -> Measurement:
    arguments = {group: [list(size) for size in sizes]}
    return Measurement(
        name=f"kernels: {group}", kind="kernels", arguments=arguments, about_s=about_s, limit_s=30 + 2 * about_s
    )
