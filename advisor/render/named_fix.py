"""The fix of a known failure with the names and the numbers of its message."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection
from itertools import pairwise
from typing import NamedTuple

from ...ds_configs.files import CONFIG_NAME
from ...ds_configs.launch_commands import COUNTS
from ...probes.failures.diagnosis import Diagnosis
from ...probes.failures.finding import Finding
from ...probes.failures.installed_code import OtherRelease
from ...probes.failures.messages import MemoryPhase, find_message
from ...probes.failures.out_of_memory import OF_OLD_TORCH, in_private_pools, unfragmented
from ...validate.lint.values import nearest
from ..importers.imported_run import known_names
from ..text.units import alternatives, capitalised, numbered
from .auto_classes import auto_classes
from .refused_argument import OF_TRL, fix_of, names_of_trl, owner

_QUOTED_FILE = re.compile(r"[\"']([^\"']+\.json)[\"']")

_CLOSE = 0.75
"""Least likeness of a misspelled name and the right one."""

_KEY = re.compile(r"[\w.]+")
_PROBLEM = re.compile(r"\s+(?P<what>[A-Z].*?)(?: \[type=\w+, input_value=(?P<value>.+), input_type=\w+\])?$")
"""The two lines of pydantic on a key."""

_MISMATCH = re.compile(r"- ds (?P<key>[\w.]+)=(?P<set>\S+) vs hf (?P<name>\w[\w ().]*?)=(?P<given>\S+)")
"""A line of transformers on a key (5.24 integrations/deepspeed.py `fill_match`)."""

_PATH = re.compile(r"\[Errno \d+\] [^:]+: '([^']+)'")

_OF_AMD = {"nvidia-smi": "rocm-smi", "CUDA_VISIBLE_DEVICES": "HIP_VISIBLE_DEVICES"}
"""Tools and variables of NVIDIA's GPUs, and those of AMD's (ROCm documentation, "GPU isolation techniques")."""

_OTHER_STATE = "the rank in another state"
"""Words of a fix in whose place the ranks stand that the log names."""

_IF_ALL_WAIT = "If all wait in the same operation, "
"""What begins the part of a fix that remains if no rank is in another state."""

_EXTENSIONS = "~/.cache/torch_extensions"
"""The usual folder in a fix, in whose place that of the log stands."""

_REFUSED_GLOBAL = re.compile(r"Unsupported global: GLOBAL (?P<name>(?P<package>\w+)[\w.]*)")
"""A class in a message of torch's unpickler (torch 2.13 _weights_only_unpickler.py)."""

_ALLOWED_BY = {
    "deepspeed": "Upgrade DeepSpeed",
    "numpy": "Upgrade transformers, whose Trainer allows numpy's random state",
}
"""Packages of refused classes -> what reads them in a newer version (deepspeed 0.19.8 runtime/checkpoint_engine,
transformers 5.24 trainer_pt_utils.py `safe_globals`)."""

_FAULTHANDLER = "python -X faulthandler shows the place"
"""Words of a fix for a crash whose place is not known."""

_NO_GRAPHS = (
    "Do without CUDA graphs, which hold {} in pools of their own (torch.compile makes them with "
    'mode="reduce-overhead" or "max-autotune")'
)

_IN_8_BITS = re.compile(r"bitsandbytes/optim/\S+ .*\buint8\b")
"""A frame that makes states of 8 bits."""

_SMALLER_STATES = re.compile(r"[Aa]n optimizer with smaller states(?: \(such as 8 bits\))?")
"""Words of a fix of which those states are the usual ones."""


class _Cache(NamedTuple):
    """A cache of a library, and the variable that names its folder."""

    what: str
    variable: str
    sign: re.Pattern[str]
    """Found in a frame or a path of what writes it."""


_CACHES = (
    _Cache("the built extensions", "TORCH_EXTENSIONS_DIR", re.compile(r"torch_extensions|torch/utils/cpp_extension")),
    _Cache("the cache of Triton", "TRITON_CACHE_DIR", re.compile(r"\.triton/|triton/runtime/cache\.py")),
    _Cache(
        "the cache of `datasets`",
        "HF_DATASETS_CACHE (or HF_HOME)",
        re.compile(r"(?:-packages|^)/?datasets/(?:arrow_writer|builder|arrow_dataset)\.py|huggingface/datasets/"),
    ),
    _Cache("the cache of the Hub", "HF_HOME", re.compile(r"huggingface_hub/\S*\.py|huggingface/hub/|hf_xet")),
)
"""By the libraries' documentation: torch utils/cpp_extension.py, triton runtime/cache.py, datasets config.py,
huggingface_hub constants.py."""

_PROCESS = re.compile(r"Process (?P<number>\d+) has (?P<size>\d[\d.]* \w+) memory in use")


def named_fix(found: Diagnosis, config: str = "") -> str:
    """Return the fix of a known failure, as precise as its message allows; "" if the cause is not known.

    config: the path of the training's DeepSpeed configuration; "" if it is not known.
    """
    explanation, message = found.explanation, found.message
    if explanation is None or message is None or found.first is None:
        return ""
    file = config or _config_of(found)
    key = explanation.name if isinstance(explanation, MemoryPhase) else message.id
    precise = _FIXES.get(key) or (_on_disk if message.kind == "disk_full" else None)
    fix = (precise(found.first, explanation.fix) if precise is not None else "") or explanation.fix
    if message.id == "gpu-fragmented" and found.phase is not None:  # how much a peak lacks, the message does not say
        fix = f"{fix}. If it runs out again: {found.phase.fix[0].lower()}{found.phase.fix[1:]}"
    if message.kind == "gpu_out_of_memory" and (pools := in_private_pools(found.first.error.text)):
        fix = f"{_NO_GRAPHS.format(pools)}. Else: {fix}"
    if found.first.named.get("device") == "HIP":
        fix = re.sub("|".join(_OF_AMD), lambda name: _OF_AMD[name[0]], fix)
    if found.timed_out and found.odd:
        fix = fix.replace(_OTHER_STATE, f"what {numbered('rank', found.odd)} did")
    elif found.all_wait_alike:
        fix = capitalised(fix.rpartition(_IF_ALL_WAIT)[2])
    return fix.replace(CONFIG_NAME, file) if file else fix.replace(f" in {CONFIG_NAME}", "")


def _config_of(found: Diagnosis) -> str:
    """Return the configuration that the command or the user's code names in the log."""
    code = [frame.code for frame in found.first.error.frames if frame.is_own] if found.first else []
    quoted = (each[1] for line in reversed(code) for each in _QUOTED_FILE.finditer(line))
    return next(quoted, next((word for word in found.command if word.endswith(".json")), ""))


def _of_keys(first: Finding, _fix: str) -> str:
    """Name every key that DeepSpeed's classes reject, with its right name or what it must be."""
    lines = [line.text.rstrip() for line in first.error.lines]
    pairs = ((key, _PROBLEM.match(what)) for key, what in pairwise(lines) if _KEY.fullmatch(key))
    found = [(key, problem) for key, problem in pairs if problem is not None]
    if not found:
        return ""
    fixes = [_of_key(key, problem) for key, problem in found]
    before = "Upgrade transformers, or " if first.message is not None and first.message.id == "zero-fraction" else ""
    fixes[0] = f"{before}{fixes[0]}" if before else fixes[0][0].upper() + fixes[0][1:]
    return f"{'; '.join(fixes)}; `ds-advise lint {CONFIG_NAME}` checks the rest"


def _of_key(key: str, problem: re.Match[str]) -> str:
    what, value = problem["what"], problem["value"]
    if what.startswith("Extra inputs"):
        *_, name = key.split(".")
        near = _near_key(name)
        return f"rename {name} to {near} in {CONFIG_NAME}" if near else f"remove {key} from {CONFIG_NAME}"
    if "fractional part" in what:
        return f"write an integer for {key} in {CONFIG_NAME}{f', such as {int(float(value))}' if value else ''}"
    return f"correct {key} in {CONFIG_NAME}{f', which is {value}' if value else ''}: {what[0].lower()}{what[1:]}"


def _near_key(name: str) -> str:
    """Return the key of DeepSpeed that is like a name, the successor of a deprecated one; "" for none."""
    from ...validate.lint import load_facts  # imported here: few failures need it

    blocks = load_facts().blocks
    near = nearest(name, {known for block in blocks for known in block.names()}, cutoff=_CLOSE)
    successors = (
        block.field(known.successor) for block in blocks for known in block.fields if known.moves and known.name == near
    )
    return next((field.usual_name for field in successors if field is not None), near)


def _of_batch(first: Finding, _fix: str) -> str:
    """Name the total that fits the other numbers, and the other number that fits the total."""
    total, micro, steps, ranks = (int(first.named.get(name, 0)) for name in ("total", "micro", "steps", "ranks"))
    if not total:
        return ""
    kept = ""
    if total % (micro * ranks) == 0:
        kept = f", or keep {total} with gradient_accumulation_steps {total // (micro * ranks)}"
    elif total % (steps * ranks) == 0:
        kept = f", or keep {total} with train_micro_batch_size_per_gpu {total // (steps * ranks)}"
    follows = 'it follows from the other two if it is "auto" (Trainer) or left out'
    return f"Set train_batch_size to {micro * steps * ranks}{kept}; {follows}"


def _of_mismatch(first: Finding, _fix: str) -> str:
    """Name the keys and both values."""
    found = [*_MISMATCH.finditer(first.error.text)]
    keys = [f"{each['key']} ({each['set']}, but {each['name']} is {each['given']})" for each in found]
    return f'Set to "auto" in {CONFIG_NAME}, which takes the script\'s values: {", ".join(keys)}' if keys else ""


def _of_argument(first: Finding, fix: str) -> str:
    """Name the argument that is like the one that the class does not have, and the package of the class."""
    callee, name = (first.named.get(group, "") for group in ("callee", "argument"))
    of = owner(first)
    fix = fix if of is None else fix_of(of, name)
    own = (names_of_trl(callee) or known_names("trl")) if callee in OF_TRL else set[str]()
    near = _near(name, own) if own or callee.endswith("TrainingArguments") else ""
    return f"Rename {name} to {near}, if that is meant; else {fix[0].lower()}{fix[1:]}" if near else fix


def _of_words(first: Finding, fix: str) -> str:
    """Name what became of the arguments of a command line, if they are those of TrainingArguments."""
    try:
        words = ast.literal_eval(f"[{first.named.get('words', '')}]")
    except (ValueError, SyntaxError):
        return ""
    names = [word.partition("=")[0].removeprefix("--") for word in words if str(word).startswith("--")]
    fixes = [*filter(None, map(_of_option, names))]
    return f"{'; '.join(fixes)}. {fix}" if fixes else ""


def _of_option(name: str) -> str:
    text = f"TrainingArguments.__init__() got an unexpected keyword argument '{name}'"
    if (known := find_message(text)) is not None:
        return f"--{name}: {known.about(text).cause.rstrip('.')}"
    near = _near(name)
    return f"--{name} may be --{near}, an argument of TrainingArguments" if near else ""


def _of_launcher(first: Finding, fix: str) -> str:
    """Name the launcher's own option for each number of nodes and ranks of another launcher."""
    launcher = first.named.get("launcher", "")
    own = next((counts for name, counts in COUNTS.items() if name == launcher), None)
    names = [word.partition("=")[0][2:] for word in first.named.get("words", "").split() if word.startswith("--")]
    fixes = [
        f"{launcher} has no --{name}: use --{getattr(own, field)}"
        for name in names
        for other in COUNTS.values()
        for field in ("nodes", "ranks")
        if own is not None and getattr(other, field) == name.replace("-", "_")
    ]
    return f"{'; '.join(fixes)}. {fix}" if fixes else ""


def _of_other_processes(first: Finding, fix: str) -> str:
    """Name the other processes and their memory."""
    found = [*_PROCESS.finditer(first.error.text)]
    listed = ", ".join(f"{each['number']} ({each['size']})" for each in found)
    return f"{fix}. The processes on it: {listed}" if found else ""


def _of_fragments(first: Finding, _fix: str) -> str:
    """Name the variable and the option that the torch of the message knows."""
    setting = unfragmented(first.error.text)
    newer = "; or upgrade torch (2.1 or later), and set expandable_segments:True there, which this torch does not know"
    return f"Set {setting}{'' if setting.endswith('expandable_segments:True') else newer}" if setting else ""


def _of_auto_class(first: Finding, _fix: str) -> str:
    """Name the classes that load the model, by the installed transformers."""
    tried = first.named.get("auto", "")
    classes = [name for name in auto_classes(first.named.get("module", "")) if name != tried]
    return f"Load it by {alternatives(classes)} in place of {tried}" if classes else ""


def _at_loss(first: Finding, _fix: str) -> str:
    """Name first what a torch can do for which there are no kernels of Liger (its setup.py needs 2.1.2)."""
    if not unfragmented(first.error.text).endswith(OF_OLD_TORCH):
        return ""
    liger = "Liger's loss, which stores no logits, needs torch 2.1.2 or later"
    return f"A smaller micro batch, or shorter sequences. {liger}"


def _of_states(first: Finding, fix: str) -> str:
    """Name smaller states than those of 8 bits, where the optimizer has them."""
    if not any(_IN_8_BITS.search(str(frame)) for frame in first.error.frames):
        return ""
    return capitalised(_SMALLER_STATES.sub('a paged optimizer (optim="paged_adamw_8bit")', fix))


def _of_extension(first: Finding, fix: str) -> str:
    """Name the folder of the log."""
    folder = first.named.get("folder")
    return fix.replace(_EXTENSIONS, folder) if folder else ""


def _of_toolkit(first: Finding, fix: str) -> str:
    """Name the variable that skips DeepSpeed's check, where only the minor versions differ."""
    toolkit, built = (first.named.get(name, "").partition(".")[0] for name in ("toolkit", "built"))
    is_own = "does not match" in first.error.text
    return f"{fix}; or build anyway by DS_SKIP_CUDA_CHECK=1" if toolkit and toolkit == built and is_own else ""


def _of_crash(first: Finding, fix: str) -> str:
    """Name the traceback that faulthandler printed."""
    near = (first.error.head, *first.error.around)
    shown = "The traceback below `Fatal Python error` shows the place"
    return fix.replace(_FAULTHANDLER, shown) if any("Fatal Python error" in line for line in near) else ""


def _of_compiler(first: Finding, _fix: str) -> str:
    """Name the toolkit whose nvcc knows the standard (CUDA release notes), if nvcc refused it."""
    found = re.search(r"Value 'c\+\+(\d+)' is not defined", first.error.text)
    needed = {"14": "9.0", "17": "11.0", "20": "12.0"}.get(found[1]) if found else None
    what = "`nvcc --version` shows the one that was used"
    return f"Install a CUDA toolkit of {needed} or later, and point CUDA_HOME at it; {what}" if needed else ""


def _of_global(first: Finding, _fix: str) -> str:
    """Name the refused class, and what reads it by itself in a newer version."""
    found = _REFUSED_GLOBAL.search("\n".join([first.error.text, *(line.text for line in first.error.after)]))
    if found is None:
        return ""
    allowed = f"torch.serialization.add_safe_globals([{found['name']}]) before it is loaded"
    trusted = f"or a file that you trust, {allowed}, or TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1"
    upgrade = _ALLOWED_BY.get(found["package"])
    return f"{upgrade}; f{trusted}" if upgrade else f"F{trusted}"


def _of_import(first: Finding, fix: str) -> str:
    """Name the package that imports, if the last frame is of one."""
    frame = first.error.frames[-1] if first.error.frames else None
    importer = "" if frame is None or frame.is_own else frame.short_file.partition("/")[0]
    if importer in ("", first.named.get("package")):
        return ""
    return fix.replace("an older version of what imports it (the last frame)", f"an older {importer}").replace(
        "upgrade that", f"upgrade {importer}"
    )


def _of_quantized(first: Finding, fix: str) -> str:
    """Name what old versions refuse, whose message has no 4 bits."""
    if not re.search(r"in 8-bit precision on multiple devices\.?$", first.error.head):
        return ""
    return f"pip install -U accelerate: this version refuses several GPUs even without a launcher. Else {fix}"


def _of_types(first: Finding, fix: str) -> str:
    """Name the option of the half precision that one of both tensors has."""
    types = {first.named.get(name, "") for name in ("one", "other")}
    option = "bf16" if "BFloat16" in types else "fp16" if "Half" in types else ""
    return fix.replace("bf16=True or fp16=True", f"{option}=True, --{option}") if option else ""


def _of_container(first: Finding, fix: str) -> str:
    """Name the limit."""
    limit = first.memory_limit
    return f"{fix}. It was {re.sub('(?=[GMT])', ' ', limit)}" if limit else ""


def _of_second(first: Finding, fix: str) -> str:
    """Name the block of the configuration that the script makes, too."""
    found = re.search(r"cannot specify an? (optimizer|scheduler) in", first.error.text)
    if found is None:
        return ""
    too = " (and `scheduler` if the script makes one)" if found[1] == "optimizer" else ""
    return f"Remove `{found[1]}`{too} from {CONFIG_NAME}, or {fix.partition(', or ')[2]}"


def _near(name: str, others: Collection[str] = ()) -> str:
    """Return the argument of TrainingArguments that is like a name; "" for none. others: further arguments."""
    near = nearest(name, known_names("training-arguments").union(others), cutoff=_CLOSE)
    return near if near != name else ""


def _on_disk(first: Finding, fix: str) -> str:
    """Name the path whose disk or quota is full, and the variable of a cache that was written."""
    path = _PATH.search(first.error.text)
    shown = "\n".join([*map(str, first.error.frames), first.error.text])
    cache = next((cache for cache in _CACHES if cache.sign.search(shown)), None)
    if cache is not None:
        fix = f"Free space, or move {cache.what} to another disk by {cache.variable}"
    return f"{fix}. It was writing {path[1]}" if path else "" if cache is None else fix


_FIXES: dict[str, Callable[[Finding, str], str]] = {
    "config-extra-key": _of_keys,
    "config-invalid": _of_keys,
    "zero-fraction": _of_keys,
    "batch-product": _of_batch,
    "mismatch-arguments": _of_mismatch,
    "two-optimizers": _of_second,
    "unexpected-argument": _of_argument,
    "unused-arguments": _of_words,
    "launcher-argument": _of_launcher,
    "wrong-auto-class": _of_auto_class,
    "container-memory": _of_container,
    "gpu-fragmented": _of_fragments,
    "extension-lock": _of_extension,
    "cuda-mismatch": _of_toolkit,
    "compiler-version": _of_compiler,
    "weights-only": _of_global,
    "import-name": _of_import,
    "module-moved": _of_import,
    "quantized-multi-gpu": _of_quantized,
    "types-differ": _of_types,
    "segmentation-fault": _of_crash,
    "gpu-shared": _of_other_processes,
    "loss": _at_loss,
    "first_step": _of_states,
    "optimizer_step": _of_states,
}
"""Message, or phase of memory that ran out -> what makes its fix precise."""


def upgrade(other: OtherRelease) -> str:
    """What to try for an error that is not known, if the code that raised it is of another release."""
    name = f"{other.package} {other.installed}"
    return (
        f"pip install -U {other.package} where the training ran. The {name} that is installed here has no line "
        f"`{other.code}` in {other.file}: the log is of another release, and this one may not have the fault."
    )
