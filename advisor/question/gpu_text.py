"""The text of `--gpus`: [nodes x] GPUs per node x kind, and what a text in another form means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil, prod

from ...ds_configs.launch_commands import COUNTS
from ...estimators.errors import ClusterError
from ...estimators.gpu_catalogue import (
    LARGEST_GB,
    SMALLEST_GB,
    assumes_sxm,
    find_gpu,
    gpu_of_memory,
    gpus,
    gpus_named,
    nearest_names,
)
from ...estimators.hardware import Cluster, Gpu
from ..text.units import alternatives, counted_noun
from .machine_parts import parse_size

MOST_GPUS_PER_NODE, MOST_NODES = 16, 1024
"""Larger counts are assumed to be typing errors (DGX-2 has the most GPUs in one host, 16)."""

_GPUS_OF_A_NODE = 8
"""GPUs of the usual large node, in a correction of more GPUs than one node holds."""

_COUNT = re.compile(r"(-?\d+)\s*x\s*", re.IGNORECASE | re.ASCII)

_COUNT_FIRST = re.compile(
    r"(\d{1,4}(?:\.\d{1,3})?|0,\d{1,3}|[.,]\d{1,3})(?:\s*[x*:\u00d7]\s*|\s+|(?=[a-z]))(.*\d.*)",
    re.IGNORECASE | re.ASCII,
)
_COUNT_LAST = re.compile(r"(.*\d.*?)\s*[x*:\u00d7]\s*(\d{1,4})", re.IGNORECASE | re.ASCII)
"""Other forms of a count and a kind: `8H100`, `8*H100`, `8 H100`, `1.5xH100`; `H100x8`, `H100:8`. The kind has a digit:
`Ti` of `4090 Ti` is none."""

_NODES_FIRST = re.compile(
    r"(\d{1,4})[\s-]*(?:nodes?|machines?|hosts?|servers?)[\s,x*:-]*(?:(?:of|with)\s+)?", re.IGNORECASE
)
_NODES_LAST = re.compile(
    r"(.*\d.*?)[\s,x*(-]*(?:(?:on|in)\s+)?(\d{1,4})[\s-]*(?:nodes?|machines?|hosts?|servers?)\W*", re.IGNORECASE
)
_GPU_WORDS = re.compile(r"(?<=[\s\d])\s*(?:gpus?|cards?)\b", re.IGNORECASE)
"""Counts in words: `2nodes8xH100`, `2 nodes of 8 H100 GPUs`, `8xH100 on 2 nodes`."""

_COUNTS_IN_LIST = re.compile(r"^([1-9]\d{0,3})\s*,\s*([1-9]\d?)(?=\s*[x*\u00d7]\s*\S)", re.IGNORECASE)
"""Nodes and GPUs with a comma between: `2,4x80GB`."""

_NAME = re.compile(r"(?=.*(?:[a-z]|\d{4}))[\w .-]+", re.IGNORECASE | re.ASCII)
"""A name, in contrast to a memory size, which several cards have."""

_SIZE = re.compile(r"(-?\d+(?:\.\d+)?)\s*(gi?b?)?", re.IGNORECASE | re.ASCII)
_WITHOUT_UNIT = re.compile(r"-?(\d{1,3})(?:\.\d+)?", re.ASCII)
_MIB = re.compile(r"61\d\d|81\d\d|\d{5,6}", re.ASCII)
"""A memory as nvidia-smi's CSV without units has it. Of four digits only 6 and 8 GB: others are names of cards."""

_TOO_SMALL = re.compile(r"^(\d{1,3})\s*mi?b$", re.IGNORECASE | re.ASCII)
"""A memory in the unit below its own: `24MB`."""

_NAME_AND_SIZE = re.compile(
    r"((?:[a-z]|\d{4}(?![\d.]|x(?!tx?[\W_])))[\w .-]*?\w)[\s_-]*(?<![\d.])(\d+(?:\.\d+)?)\s*gi?b",
    flags=re.IGNORECASE | re.ASCII,
)
"""Name and memory size, such as `RTX 3060-8GB`. The name has at least two characters; otherwise it could be the x
between counts. A longer number, or one before an x (not that of 7900XT), is no name but a wrong count."""

_SAME_SIZE = 0.1
"""Relative difference between a memory in MB and the nominal one of a card that has it: a driver's own figure, or
powers of ten."""

_BETWEEN = re.compile(r"\s*(?:[,;+&]|\band\b)\s*", re.IGNORECASE)
"""Between several kinds of GPU."""

_LONGEST = 100
"""Longer texts mean no GPUs; the expressions above would take long for them."""

_THIS_MACHINE = ("all", "any", "cuda", "cuda:0", "gpu", "local", "default", "here", "-1")
"""Words that other tools have for the GPUs of this machine."""

_NO_GPUS = {
    "TPUs are": re.compile(r"(?:google[\s-]?)?(?:cloud[\s-]?)?tpu", re.IGNORECASE),
    "GPUs of Apple are": re.compile(r"apple|mac(?!h)|m[1-9]$|m[1-9][\s-]?(?:pro|max|ultra)|mps$", re.IGNORECASE),
    "Gaudi is": re.compile(r"(?:intel[\s-]?)?(?:gaudi|habana|hpu)", re.IGNORECASE),
    "Ascend is": re.compile(r"(?:huawei[\s-]?)?(?:ascend|npu)", re.IGNORECASE),
    "Trainium is": re.compile(r"(?:aws[\s-]?)?(?:trainium|inferentia|trn\d)", re.IGNORECASE),
}
"""Accelerators that no GPU of the table resembles."""

_IDS = re.compile(r"\d(?:\s*,\s*\d){1,15}", re.ASCII)
"""GPUs as CUDA_VISIBLE_DEVICES numbers them."""

OR_THIS_MACHINE = ", or auto for this machine"
_GRAMMAR = f"write [NODESx]GPUSxKIND, such as 2x32GB, 8xA100-80GB or 4x8xH100{OR_THIS_MACHINE}"

Counts = tuple[str, ...]
"""The counts in front of a kind: (), (GPUs per node,) or (nodes, GPUs per node)."""


def described_cluster(text: str) -> Cluster:
    """The cluster that a text of `--gpus` other than `auto` describes. Raises ClusterError, with what it means if it is
    in another form."""
    counts, kind = _read(text)
    try:
        gpu, assumptions = _gpu_of_kind(kind)
    except ClusterError as error:
        raise _refusal(text, counts, kind, error) from None
    nodes, per_node = _numbers(counts)
    if not 0 < nodes <= MOST_NODES or per_node < 1:
        raise ClusterError(
            f"--gpus {text[:40]!r}",
            why=f"1 to {MOST_NODES} nodes and at least 1 GPU are needed",
            fix=f"write --gpus {_spec(_possible(counts), kind)}",
        )
    if per_node > MOST_GPUS_PER_NODE:
        raise ClusterError(
            f"--gpus {text[:40]!r} has {counts[-1][:40]} GPUs in one node",
            why=f"a node holds at most {MOST_GPUS_PER_NODE}",
            fix=f"write --gpus {_spec(_possible(counts), kind)}, which is nodes x GPUs x kind",
        )
    return Cluster(nodes=nodes, gpus_per_node=per_node, gpu=gpu, assumptions=assumptions)


def counts_in(text: str) -> tuple[int | None, int | None]:
    """(nodes, GPUs per node) in a text of `--gpus`; None for a count that the text does not give."""
    counts, _ = _read(text)
    nodes, per_node = _numbers(counts)
    return nodes if len(counts) == 2 else None, per_node if counts else None


def started(script: str, gpus: str) -> str:
    """The command behind `--` that starts a Python script with a process for each of the GPUs, as a text of `--gpus`
    counts them: `torchrun --nproc_per_node 4 train.py` for 4x48GB. Without counts the script alone, of which ds-advise
    starts the processes."""
    names, (nodes, per_node) = COUNTS["torchrun"], counts_in(gpus)
    given = {names.nodes: nodes, names.ranks: per_node}
    options = "".join(f"--{name} {count} " for name, count in given.items() if count is not None)
    return f"{options and 'torchrun '}{options}{script}"


def meant_gpus(text: str) -> str:
    """What to write in `--gpus` for a text that means counts and a known kind, as one word: `2xA100-SXM4-80GB` for
    `A100x2`, and the text itself in the right form; "" for any other text."""
    if len(text) > _LONGEST:
        return ""
    if (meant := _meaning(text)) is not None:
        return _spec(_possible(meant[0]), meant[1])
    several = _listed(text)
    return _together(several, several[0][1]) if len({kind for _, kind in several}) == 1 else ""


def near_gpus(text: str) -> tuple[str, ...]:
    """What to write in `--gpus` for counts and nearly the name of a kind: `8xH100-SXM5` first for `8xh1oo`; () for any
    other text."""
    counts, kind = _read(text[:_LONGEST])
    return tuple(_spec(counts, _word(name)) for name in nearest_names(kind)) if counts and kind else ()


def with_counts(text: str, nodes: str = "", per_node: str = "") -> str:
    """A text of `--gpus` with other counts, each "" for the one that the text has: `2x8xH100` for `8xH100` on 2 nodes.
    GPUs whose kind is not known get the memory of 24 GB."""
    counts, kind = _read(text)
    if _WITHOUT_UNIT.fullmatch(kind.strip()):  # `--gpus 8`
        counts, kind = (kind.strip(),), ""
    own_nodes, own_per_node = _numbers(counts)
    given = (nodes or str(own_nodes), per_node or str(own_per_node))
    is_counted = bool(nodes or per_node or counts)
    return _spec(_possible(given if int(given[0]) > 1 else given[1:] * is_counted), _known_kind(kind) or "24GB")


def _meaning(text: str) -> tuple[Counts, str] | None:
    """The counts and the known kind that a text means; None for any other text."""
    plain = _without_words(text.strip())
    texts = (plain, re.sub(r"(?<=\d)s$", "", plain, flags=re.IGNORECASE))  # `8 H100s`, but `L40S`
    found = ((counts, _known_kind(kind)) for each in texts for counts, kind in _meanings(each))
    return next(((counts, known) for counts, known in found if known), None)


def _listed(text: str) -> list[tuple[Counts, str]]:
    """The counts and the known kinds of a list such as `2xH100,2xA100`; none if a part means no GPUs."""
    if len(text) > _LONGEST:
        return []
    found = [_meaning(part) for part in _BETWEEN.split(text.strip()) if part]
    return [each for each in found if each is not None] if None not in found else []


def _together(parts: Sequence[tuple[Counts, str]], kind: str) -> str:
    """As many GPUs as the parts have, all of one kind."""
    return _spec(_possible((str(sum(prod(_numbers(_possible(counts))) for counts, _ in parts)),)), kind)


def _readings(text: str) -> list[tuple[Counts, str]]:
    """The counts and the kind, for every number of counts that the text may have, the most first."""
    found: list[tuple[Counts, str]] = [((), text.strip())]
    while len(found) < 3 and (count := _COUNT.match(found[0][1])):
        counts, rest = found[0]
        found.insert(0, ((*counts, count[1]), rest[count.end() :]))
    return found


def _read(text: str) -> tuple[Counts, str]:
    """The counts and the kind of a text. A number before an x may be of the name (7900XTX), so the kind decides."""
    found = _readings(text)
    for counts, kind in found:
        with suppress(ClusterError):
            _gpu_of_kind(kind)
            return counts, kind
    return found[0]


def _meanings(text: str) -> Iterator[tuple[Counts, str]]:
    """The counts and the kind that a text may mean, the most likely first."""
    found = _readings(text)
    yield from found
    for counts, rest in found:
        if len(counts) < 2 and (first := _COUNT_FIRST.fullmatch(rest)):
            yield (*counts, str(ceil(float(first[1].replace(",", "."))))), first[2]
        if len(counts) < 2 and (last := _COUNT_LAST.fullmatch(rest)):
            is_memory = int(last[2]) > MOST_GPUS_PER_NODE and gpus_named(f"{last[1]} {last[2]}GB")
            # Behind GPUs it counts nodes: `8xH100x2`.
            yield (counts, f"{last[1]}-{last[2]}GB") if is_memory else ((last[2], *counts), last[1])


def _without_words(text: str) -> str:
    """The text with counts that words name in the usual form: `2x8xH100` for `2 nodes of 8xH100`."""
    if last := _NODES_LAST.fullmatch(text):
        text = f"{last[2]}x{last[1]}"
    return _GPU_WORDS.sub("", _COUNTS_IN_LIST.sub(r"\1x\2", _NODES_FIRST.sub(r"\1x", text))).strip()


def _numbers(counts: Counts) -> tuple[int, int]:
    """(nodes, GPUs per node). A longer count is a number beyond any that is accepted: `int` refuses thousands of
    digits."""
    numbers = [int(digits[:10]) for digits in counts]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (1, *numbers, 1)[:2]  # type: ignore[return-value]  # two


def _possible(counts: Counts) -> Counts:
    """The counts that are accepted nearest to these."""
    nodes, per_node = (max(1, abs(number)) for number in _numbers(counts))
    if per_node > MOST_GPUS_PER_NODE:
        nodes, per_node = -(-nodes * per_node // _GPUS_OF_A_NODE), _GPUS_OF_A_NODE
    is_given = len(counts) == 2 or nodes > 1
    return (str(min(nodes, MOST_NODES)), str(per_node)) if is_given else (str(per_node),) * len(counts)


def _spec(counts: Counts, kind: str) -> str:
    return "x".join((*counts, kind.strip()))


def _gpu_of_kind(kind: str) -> tuple[Gpu, tuple[str, ...]]:
    """The GPU of a kind, and what is assumed of it. Raises ClusterError."""
    name = kind.strip()
    if _WITHOUT_UNIT.fullmatch(name):
        raise ClusterError(f"{name} has no unit", why="it could be a count or a memory size", fix=_GRAMMAR)
    if (size := _SIZE.fullmatch(name)) and size[2]:
        gpu = gpu_of_memory(float(size[1]))
        known = f"GPUs of {gpu.nominal_gb} GB have the speed of the {gpu.name} (--gpus names no model)"
        return gpu, (known,)
    try:
        return _named_gpu(name)
    except ClusterError:
        if named := _NAME_AND_SIZE.fullmatch(name):
            return _gpu_of_name_and_memory(named[1], float(named[2]))
        raise


def _named_gpu(name: str) -> tuple[Gpu, tuple[str, ...]]:
    gpu = find_gpu(name)
    return gpu, ((f"{name} means the {gpu.name}",) if assumes_sxm(name, gpu) else ())


def _gpu_of_name_and_memory(name: str, gigabytes: float) -> tuple[Gpu, tuple[str, ...]]:
    """An unknown card, or a known card with another memory size. Its speed is that of the card with its name, else that
    of a card of its size. Raises ClusterError for a name of several cards of other sizes."""
    gpu, named = gpu_of_memory(gigabytes), gpus_named(name)
    if len(named) > 1:
        why = f"{name} has {alternatives([f'{size}' for size in sorted({each.nominal_gb for each in named})])} GB"
        raise ClusterError(f"no {name} of {gigabytes:g} GB is known", why=why)
    if named:
        gpu = replace(named[0], memory_bytes=gpu.memory_bytes, nominal_gb=gpu.nominal_gb, assumed=True)
    else:
        gpu = replace(gpu, unknown_name=name)
    taken = f"{name} of {gpu.nominal_gb} GB, which is not in the table of GPUs, has the speed of the {gpu.name}"
    return gpu, (taken,)


def _known_kind(kind: str) -> str:
    """A kind as one word: the last of several GPUs with this name, a memory in GB for one in another unit; "" for an
    unknown kind."""
    name = kind.strip()
    with suppress(ClusterError):
        _gpu_of_kind(name)
        return re.sub(r"\s+", "" if _SIZE.fullmatch(name) else "-", name)
    if several := _several(name):
        return _word(several[-1].name)
    with suppress(ClusterError):
        size = f"{name}MiB" if _MIB.fullmatch(name) else _TOO_SMALL.sub(r"\1GB", name)
        gigabytes = parse_size("--gpus", size, least=SMALLEST_GB * 2**29, most=LARGEST_GB * 2**30) / 2**30
        nominal = min((gpu.nominal_gb for gpu in gpus()), key=lambda size: abs(size - gigabytes))
        if abs(nominal - gigabytes) <= _SAME_SIZE * nominal:
            return f"{nominal}GB"
    return ""


def _several(kind: str) -> tuple[Gpu, ...]:
    """The GPUs with a name that does not tell them apart, also beside a memory that none of them has; none for a
    size."""
    name = kind.strip()
    if _SIZE.fullmatch(name) or not _NAME.fullmatch(name):
        return ()
    sized = _NAME_AND_SIZE.fullmatch(name)
    return gpus_named(name) or gpus_named(sized[1] if sized else "")


def _memory_and_speed(kind: str) -> tuple[int, float]:
    gpu, _ = _gpu_of_kind(kind)
    return gpu.nominal_gb, gpu.bf16_flops_per_s or gpu.fp16_flops_per_s or gpu.fp32_flops_per_s or 0.0


def _word(name: str) -> str:
    return re.sub(r"\s+", "-", name)


def _refusal(text: str, counts: Counts, kind: str, error: ClusterError) -> ClusterError:
    """The error for a text whose kind is not known, with what to write. error: that of the kind."""
    kind = _without_words(kind) if len(kind) <= _LONGEST else kind  # `8 GPUs`
    shown, front = f"--gpus {text.strip()[:40]!r}", "".join(f"{count[:10]}x" for count in counts)
    if not kind:
        fix = f"write --gpus {front}24GB or {front}A100-80GB" if counts else _GRAMMAR
        return ClusterError(f"{shown} has no kind of GPU", why="memory and speed depend on it", fix=fix)
    if _IDS.fullmatch(kind):
        many = len(kind.split(","))
        fix = f"write --gpus {many}x24GB for {many} GPUs of 24 GB, or --gpus auto for those of this machine"
        return ClusterError(f"{shown} are numbers of GPUs, which say nothing about them", fix=fix)
    if kind.strip().lower() in _THIS_MACHINE:
        return ClusterError(f"{shown} names no GPU", fix="write --gpus auto for those of this machine")
    if other := next((name for name, form in _NO_GPUS.items() if form.match(kind.strip())), ""):
        fix = f"name one of them, such as {front}A100-80GB"
        return ClusterError(
            f"{shown} is no known GPU", why=f"{other} not predicted, only GPUs of NVIDIA and AMD", fix=fix
        )
    listed = _listed(text)
    if len({known for _, known in listed}) > 1:
        known = min((known for _, known in listed), key=_memory_and_speed)
        why = "one answer is about one kind; the smallest decides what fits, the slowest how long a step takes"
        named = (_several(_read(part)[1]) for part in _BETWEEN.split(text.strip()))
        named_kinds = next((each for each in named if known in (_word(gpu.name) for gpu in each)), ())
        kinds = [_word(gpu.name) for gpu in named_kinds] or [known]  # a name may be that of several
        return ClusterError(
            f"{shown} has several kinds of GPU",
            why=why,
            fix=f"write --gpus {alternatives([_together(listed, each) for each in kinds])}",
        )
    if meant := meant_gpus(text):
        if several := _several(kind):
            meant = alternatives([_spec(_possible(counts), _word(gpu.name)) for gpu in several])
            fix = f"write --gpus {meant}"
            sized = _NAME_AND_SIZE.fullmatch(kind.strip())
            if sized and SMALLEST_GB <= float(sized[2]) <= LARGEST_GB:
                memory = _spec(_possible(counts), f"{float(sized[2]):g}GB")
                fix = f"write --gpus {meant}, or the memory alone: --gpus {memory}"
            return ClusterError(error.what, why=error.why, fix=fix)
        return ClusterError(f"{shown} is not GPUs x kind", fix=f"write --gpus {meant}")
    if number := _WITHOUT_UNIT.fullmatch(kind.strip()):
        cards = counted_noun(int(number[1]), "GPU")
        meanings = [f"{number[1]}x24GB for {cards} of 24 GB"] * (not counts and 0 < int(number[1]) <= 16)
        if SMALLEST_GB <= int(number[1]) <= LARGEST_GB:
            meanings.append(f"{front}{number[1]}GB for memory")
        fix = f"write --gpus {', or --gpus '.join(meanings)}" if meanings else _GRAMMAR
        return ClusterError(
            f"{shown} ends in a number without a unit", why="it could be a count or a memory size", fix=fix
        )
    fix = error.fix.replace("--gpus 2x", f"--gpus {front}") if counts else error.fix
    if error.fix.startswith("nearest: "):
        names = ", ".join(f"{front}{_word(name)}" for name in nearest_names(kind))
        fix = f"write --gpus {names}, or {front}24GB for the memory alone"
    return ClusterError(error.what, why=error.why, fix=fix)
