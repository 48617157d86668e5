"""Facts about the training from a script's text: its calls with literal arguments, parsed with `ast`. No code is
executed, and imported modules are not read."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...estimators.errors import ConfigFileError
from ...estimators.objectives import OBJECTIVES
from ...estimators.workload import NEXT_TOKEN, Objective
from ...probes.machine import search_path
from ..importers.script_arguments import ScriptArguments

_SHELL_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")

_TRL_ARGUMENTS = re.compile(r"(SFT|DPO|GRPO|KTO|RLOO|Reward|CPO|ORPO|GKD|OnlineDPO|Distillation)Config")
_TRAINER = re.compile(r"\w*Trainer")
_NAMES_TRAINER = re.compile(r"\b(TrainingArguments|HfArgumentParser|Seq2SeqTrainer|SFTTrainer|SFTConfig|Trainer)\b")
_NAMES_ADAPTERS = re.compile(r"\b(LoraConfig|get_peft_model|PeftModel)\b")
_MAKES_ACCELERATOR = re.compile(r"\bAccelerator\s*\(")
_PARSES_ARGUMENTS = frozenset({"parse_args_into_dataclasses", "parse_args_and_config"})
_READS_ARGUMENTS = _PARSES_ARGUMENTS | {
    *("HfArgumentParser", "TrlParser", "ArgumentParser", "argv", "Fire", "command", "option", "OmegaConf", "CLI")
}
_MODEL_NAMES = ("model_name_or_path", "model_name", "model_path", "model_id", "base_model", "pretrained_model")

_LORA = {
    "r": "lora_r",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
}
"""Arguments of LoraConfig -> script options (TRL's ModelConfig)."""

_OTHER_LOSS = re.compile(
    r"(DPO|OnlineDPO|KTO|PPO|GRPO|RLOO|ORPO|CPO|BCO|XPO|NashMD|GKD|Reward|PRM|Distillation|SDFT|SDPO|TPO|GOLD)Trainer"
)
"""TRL's trainers with a loss other than next-token; many hold further models (TRL 1.16.0 and 0.12). The predicted ones
are in `OBJECTIVES`."""

_OLD = {
    "evaluation_strategy": "eval_strategy",
    "warmup_ratio": "warmup_steps (below 1 it is a share of all steps)",
    "tokenizer": "processing_class",
    "no_cuda": "use_cpu",
    "group_by_length": 'train_sampling_strategy="group_by_length"',
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "adafactor": 'optim="adafactor"',
    **dict.fromkeys(("overwrite_output_dir", "logging_dir", "save_safetensors", "include_tokens_per_second"), ""),
    **dict.fromkeys(("half_precision_backend", "fp16_backend", "fp16_opt_level", "jit_mode_eval", "use_ipex"), ""),
    **dict.fromkeys(("use_mps_device", "past_index", "ray_scope", "tpu_num_cores", "torchdynamo"), ""),
}
"""Arguments of transformers 4 that 5.23 does not accept -> their replacements; "" if there is none."""


def how_to_update(names: Iterable[str]) -> str:
    """The arguments that replace those of transformers 4."""
    new = [f"{_OLD[name]} in place of {name}" for name in names if _OLD.get(name)]
    gone = [name for name in names if not _OLD.get(name)]
    parts = [f"write {', '.join(new)}"] * bool(new) + [f"remove {', '.join(gone)}"] * bool(gone)
    return f"{'; '.join(parts)}; or install the transformers that the script was written for"


class ScriptSource:
    """The parsed text of a script; empty if its syntax is invalid in this version of Python."""

    def __init__(self, text: str) -> None:
        try:
            self._tree = ast.parse(text)
        except (SyntaxError, ValueError):
            self._tree = ast.Module([], [])
        nodes = list(ast.walk(self._tree))
        self.calls = sorted((node for node in nodes if isinstance(node, ast.Call)), key=lambda call: call.lineno)
        self.names = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)} | {
            n.value.lstrip("-") for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)
        }
        """Names of attributes that are read, and string constants without leading dashes."""
        self._fields = {n.target.id for n in nodes if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
        self._bases = {n.name: [_name(base) for base in n.bases] for n in nodes if isinstance(n, ast.ClassDef)}
        self._assigned = dict(_assignments(nodes))
        self.names_trainer = _NAMES_TRAINER.search(text) is not None
        """Whether the text names the Trainer's classes. This and the next two also work for other versions of
        Python."""
        self.names_adapters = _NAMES_ADAPTERS.search(text) is not None
        self.makes_accelerator = _MAKES_ACCELERATOR.search(text) is not None

    @property
    def trainer(self) -> str | None:
        """The class of the script's Trainer, such as "DPOTrainer"; the base class if the script defines its own."""
        for call in self.calls:
            name = called(call)
            while name in self._bases:
                name = next((base for base in self._bases[name] if _TRAINER.fullmatch(base)), "")
            if _TRAINER.fullmatch(name):
                return name
        return None

    @property
    def metrics_get_logits(self) -> bool:
        """Whether the Trainer computes metrics from the logits themselves."""
        given = {keyword.arg for call in self.calls if _TRAINER.fullmatch(called(call)) for keyword in call.keywords}
        return "compute_metrics" in given and "preprocess_logits_for_metrics" not in given

    @property
    def objective(self) -> Objective | None:
        """The objective of the Trainer. None for one that is not predicted, for CPOTrainer, whose arguments decide the
        objective, and for PPOTrainer, which does not read the configuration that `launch` passes."""
        trainer = self.trainer or ""
        for objective, spec in OBJECTIVES.items():
            if spec.trainer == trainer and spec.trainer and not spec.arguments and not spec.value_model:
                return objective
        return None if _OTHER_LOSS.fullmatch(trainer) else NEXT_TOKEN

    @property
    def is_trl(self) -> bool:
        """Whether the training arguments are TRL's, which have other defaults than transformers'."""
        others = self.trainer == "SFTTrainer" or self.objective != NEXT_TOKEN
        return others or any(_is_trl(call) for call in self.calls)

    @property
    def arguments(self) -> dict[str, Any]:
        """The literal arguments of TrainingArguments, and the model's name if the text has it."""
        values: dict[str, Any] = {}
        for call in self._argument_calls():
            values |= self._literals(call)
        model = self._model()
        return {**({} if model is None else {"model_name_or_path": model}), **values}

    @property
    def adapters(self) -> dict[str, Any] | None:
        """The arguments of peft's LoraConfig, under the names of script options. None if the script makes none or makes
        it under a condition, if their size is not a literal, and without target modules, which peft then chooses by the
        model."""
        choices = (node for node in ast.walk(self._tree) if isinstance(node, ast.If | ast.IfExp))
        optional = {node for choice in choices if not _is_main_guard(choice) for node in ast.walk(choice)}
        for call in self.calls:
            if called(call) == "LoraConfig" and call not in optional:
                given, known = {keyword.arg for keyword in call.keywords}, self._literals(call)
                sizes = {name: option for name, option in _LORA.items() if name in given}
                if "target_modules" in given and sizes.keys() <= known.keys():
                    return {option: known[name] for name, option in sizes.items()}
        return None

    @property
    def takes_config(self) -> bool:
        """Whether the script may take a DeepSpeed configuration: it or an imported module may parse arguments, or its
        TrainingArguments name a configuration. False if it makes TrainingArguments from literals alone."""
        calls = list(self._argument_calls())
        named = {keyword.arg for call in calls for keyword in call.keywords}
        return (
            not calls
            or bool({"deepspeed", None} & named)
            or bool(_READS_ARGUMENTS & {*self.names, *map(called, self.calls)})
        )

    @property
    def accepts_deepspeed_flag(self) -> bool:
        """Whether the parser accepts `--deepspeed` before `--deepspeed_config`. argparse takes it for an abbreviation
        if the parser has only the longer option."""
        adding = [call for call in self.calls if called(call) == "add_argument"]
        added = {word.value for call in adding for word in call.args if isinstance(word, ast.Constant)}
        by_deepspeed = any(called(call) == "add_config_arguments" for call in self.calls)
        return by_deepspeed or "--deepspeed_config" not in added or "--deepspeed" in added

    @property
    def late_arguments(self) -> tuple[int, int] | None:
        """(line that loads the model, line that makes TrainingArguments) if the model is loaded first; else None."""
        scopes = [n for n in ast.walk(self._tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        for scope in (self._tree, *scopes):
            calls = sorted(_calls_in(scope), key=lambda call: call.lineno)
            loads = [call.lineno for call in calls if _loads_model(call)]
            makes = [c.lineno for c in calls if called(c) in _PARSES_ARGUMENTS or _is_arguments(c)]
            if loads and makes and loads[0] < makes[0]:
                return None if any(called(call) == "HfDeepSpeedConfig" for call in calls) else (loads[0], makes[0])
        return None

    def outdated(self, target: str, options: Iterable[str]) -> dict[str, list[str]]:
        """Place -> arguments that the installed transformers does not accept. The places are the script's calls, and
        the options of a script that parses TrainingArguments. Empty if transformers is not installed."""
        accepted, of_trainer = _installed_arguments()
        if not accepted:
            return {}
        old = _OLD.keys() - accepted
        found: dict[str, list[str]] = {}
        for call in self.calls:
            names = [keyword.arg for keyword in call.keywords if keyword.arg]
            if _is_arguments(call):
                is_plain = called(call) == "TrainingArguments" and "TrainingArguments" not in self._bases
                refused = [name for name in names if name in old or (is_plain and name not in accepted)]
            elif called(call) in ("Trainer", "Seq2SeqTrainer"):
                refused = [name for name in names if name in _OLD and name not in of_trainer]
            else:
                continue
            found.setdefault(f"{target}, line {call.lineno}", []).extend(refused)
        if any(called(call) in _PARSES_ARGUMENTS for call in self.calls):
            found[f"the arguments of {target}"] = [n for n in options if n in old and n not in self._fields]
        return {place: names for place, names in found.items() if names}

    def _argument_calls(self) -> Iterator[ast.Call]:
        return (call for call in self.calls if _is_arguments(call))

    def _literals(self, call: ast.Call) -> dict[str, Any]:
        pairs = ((keyword.arg, self._literal(keyword.value)) for keyword in call.keywords)
        return {name: value for name, value in pairs if name is not None and value is not None}

    def _literal(self, node: ast.expr) -> Any:
        """The value of a constant, of a list of constants, of `"a,b".split(",")` or of a name that is assigned such a
        value; None for any other expression."""
        if isinstance(node, ast.Name):
            return self._assigned.get(node.id)
        if isinstance(node, ast.Call) and called(node) == "split" and isinstance(node.func, ast.Attribute):
            text = self._literal(node.func.value)
            return text if isinstance(text, str) and "," in text else None
        return _constant(node)

    def _model(self) -> str | None:
        loaded = [call.args[0] for call in self.calls if _loads_model(call) and call.args]
        trained = [
            keyword.value
            for call in self.calls
            for keyword in call.keywords
            if keyword.arg == "model" and _TRAINER.fullmatch(called(call))
        ]
        written = [self._literal(node) for node in (*loaded, *trained)] + [self._assigned.get(n) for n in _MODEL_NAMES]
        return next((name for name in written if isinstance(name, str)), None)


@dataclass(frozen=True, kw_only=True)
class Script:
    """The script that every rank runs as `__main__`."""

    target: str
    """The path of a file, or the name of a module."""
    arguments: tuple[str, ...] = ()
    """Its arguments on the command line, without those that pass the DeepSpeed configuration."""
    is_module: bool = False

    @cached_property
    def source(self) -> ScriptSource:
        """The parsed text; empty if the file cannot be read. Raises ConfigFileError if the script does not exist."""
        path = _module_file(self.target) if self.is_module else Path(self.target)
        if not self.is_module and (not path.is_file() or path.suffix in _SHELL_SUFFIXES):
            raise _not_a_script(path)
        try:
            return ScriptSource(path.read_text(encoding="utf-8", errors="replace") if path.name else "")
        except OSError:
            return ScriptSource("")

    @cached_property
    def options(self) -> ScriptArguments:
        """The script's arguments as options."""
        return ScriptArguments(self.arguments)

    @cached_property
    def described(self) -> ScriptArguments:
        """The script's arguments, completed by the literal arguments in its text and by its LoraConfig."""
        adapters = self.source.adapters
        peft = {} if adapters is None else {"use_peft": True, **adapters}
        return ScriptArguments.from_values(self.source.arguments | self.options.by_name | peft)


def _module_file(name: str) -> Path:
    """The file of a module, found without importing the module; an empty path if there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    return Path(spec.origin) if spec is not None and spec.origin else Path()


def _not_a_script(path: Path) -> ConfigFileError:
    target = str(path)
    example = "ds-advise launch ds_config.json -- train.py ..."
    if target == "-m":
        return ConfigFileError("-m after -- is interpreted as the script", fix="write it before: -m -- package.train")
    if path.is_file() or shutil.which(target, path=search_path()) is not None:
        return ConfigFileError(
            f"{target} is a program, not a training script",
            why="launch starts the ranks itself, with the launcher that the script needs (--launcher)",
            fix=f"pass only the Python script and its arguments: {example}",
        )
    return ConfigFileError(
        f"script {target} does not exist",
        why="the ranks cannot start without it",
        fix=f"give its path relative to this folder: {example}",
    )


def called(call: ast.Call) -> str:
    """The name of the called function or method."""
    return _name(call.func)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_arguments(call: ast.Call) -> bool:
    return called(call).endswith("TrainingArguments") or _is_trl(call)


def _is_trl(call: ast.Call) -> bool:
    return _TRL_ARGUMENTS.fullmatch(called(call)) is not None


def _is_main_guard(node: ast.If | ast.IfExp) -> bool:
    return any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test))


def _loads_model(call: ast.Call) -> bool:
    owner = _name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    return called(call) == "from_pretrained" and ("Model" in owner or "For" in owner)


def _calls_in(scope: ast.AST) -> Iterator[ast.Call]:
    """The calls in a scope, except those inside its functions."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Call):
            yield node
        yield from _calls_in(node)


def _assignments(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, Any]]:
    """(name, constant) of the names that are assigned exactly once."""
    stored = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = _constant(node.value)
            for target in targets:
                if isinstance(target, ast.Name) and value is not None and stored.count(target.id) == 1:
                    yield target.id, value


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _installed_arguments() -> tuple[set[str], set[str]]:
    """(the arguments of the installed TrainingArguments, those of its Trainer), read without an import; empty if
    transformers is not installed."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return set(), set()
    folder = Path(spec.submodule_search_locations[0])
    fields: set[str] = set()
    parameters: set[str] = set()
    try:
        for node in _class(folder / "training_args.py", "TrainingArguments").body:
            if isinstance(node, ast.AnnAssign):
                fields.add(_name(node.target))
        for node in _class(folder / "trainer.py", "Trainer").body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                parameters |= {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
    except (OSError, SyntaxError, StopIteration):
        return set(), set()
    return fields, parameters


def _class(file: Path, name: str) -> ast.ClassDef:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return next(node for node in body if isinstance(node, ast.ClassDef) and node.name == name)
