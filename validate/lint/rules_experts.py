"""Mixtures of experts (DS65x)."""

from __future__ import annotations

from collections.abc import Iterator

from ...ds_configs.read import FIRST_WITHOUT_AUTOEP
from ...estimators.models.families import leaf_classes_to_write
from ...probes.installed_packages import installed_version
from .. import parse_version
from . import rule_conditions as when
from .linted_config import LintedConfig
from .rule import Violation, error_rule, section, violation, warning_rule
from .rule_conditions import at, that


def _no_leaf(config: LintedConfig) -> Iterator[Violation]:
    if config.stage != 3 or config.model is None or config.workload is None or config.world_size == 1:
        return
    needed = leaf_classes_to_write(config.model, config.workload.software)
    block = config.block("zero_optimization.leaf_module")
    classes = {str(name).rpartition(".")[2] for name in block.get("classes") or ()}
    if needed and not classes & {*needed} and not block.get("names") and not block.get("name_suffixes"):
        listed = ", ".join(f'"{name}"' for name in needed)
        fix = f'write "leaf_module": {{"classes": [{listed}]}}, or call set_z3_leaf_modules in the script'
        what = f"each expert of {config.model.name} is a module"
        yield violation("zero_optimization.leaf_module", what, fix=fix)


_transformers_without_autoep = that(
    lambda _: parse_version(installed_version("transformers") or "0").release >= FIRST_WITHOUT_AUTOEP
)

EXPERT_RULES = section(
    "Mixtures of experts",
    error_rule(
        "DS651 AutoEP with a newer transformers",
        at(
            "expert_parallel",
            when.is_on("expert_parallel.enabled") & _transformers_without_autoep,
            lambda *_: f"AutoEP cannot be initialized with transformers {installed_version('transformers')}",
        ),
        why="DeepSpeed replaces internals of transformers' modules; from 5.23 on, initialize raises "
        "`_CanRecordRegistry.get() takes 2 positional arguments but 3 were given`",
        fix="install transformers 5.8",
        since="0.19",
        source="module_inject/auto_ep_presets/base.py _install_instance_transformers_output_recorders",
    ),
    warning_rule(
        "DS655 experts at stage 3 that are not leaf modules",
        _no_leaf,
        why="ranks call different experts, and a rank that gathers an expert's weights waits for the ranks that do not "
        "call it: the training hangs. DeepSpeed makes leaf modules of Mixtral, Qwen2-MoE and Qwen3-MoE only",
        source="runtime/zero/leaf_module_config.py DEFAULT_LEAF_MODULE_CLASSES; utils/z3_leaf_module.py",
    ),
)
