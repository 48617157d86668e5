"""The facts of the installed DeepSpeed, from this user's cache or from its sources."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from ...ds_configs.files import replace_file
from ...estimators.json_form import from_json, to_json
from ...probes.installed_packages import installed_version, source_folder
from ...probes.store_path import store_path
from .facts import DeepSpeedFacts

BUNDLED = Path(__file__).with_name("bundled_facts.json")
"""The facts of one version, for machines without DeepSpeed."""

_FORM = 7
"""Version of the cached file; changes with its form and with what is read from the sources."""


def load_facts() -> DeepSpeedFacts:
    """The facts of the installed DeepSpeed, or the bundled ones if none is installed.

    An unreadable cache file is written again; a cache that cannot be written is not an error.
    """
    version = installed_version("deepspeed")
    folder = source_folder("deepspeed") if version else None
    if folder is None:
        return from_json(DeepSpeedFacts, json.loads(BUNDLED.read_text(encoding="utf-8")))
    name = f"deepspeed-{version}-torch-{installed_version('torch')}"  # torch's optimizers are among the facts
    safe_name = "".join(char if char.isalnum() or char in ".+-" else "_" for char in name)
    cached = store_path().with_name(f"{safe_name}-facts-{_FORM}.json")
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        facts = from_json(DeepSpeedFacts, json.loads(cached.read_text(encoding="utf-8")))
        if facts.version == version:
            return facts
    from .read_deepspeed import read_facts

    facts = read_facts(folder, version, source_folder("torch"))
    with contextlib.suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        replace_file(cached, json.dumps(to_json(facts)))
    return facts
