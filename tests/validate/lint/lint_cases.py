"""What the tests of lint share: a configuration judged in one call."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ds_advise.advisor.answer.lint_file import lint_settings
from ds_advise.probes.machine import installed_version
from ds_advise.validate.lint import DeepSpeedFacts, LintReport, lint, read_deepspeed, read_document
from ds_advise.validate.lint.installed_facts import source_folder
from ds_advise.validate.lint.rule import Rule


@functools.cache
def facts() -> DeepSpeedFacts:
    """The installed DeepSpeed's."""
    folder, version = source_folder("deepspeed"), installed_version("deepspeed")
    assert folder is not None
    return read_deepspeed.read_facts(folder, version, source_folder("torch"))


def facts_for(rule: Rule) -> DeepSpeedFacts:
    """The installed DeepSpeed's, with the version for which an old rule holds."""
    return facts() if rule.holds_for(facts()) else replace(facts(), version=rule.since)


def judged(config: Mapping[str, Any] | str, known: DeepSpeedFacts | None = None, **options: Any) -> LintReport:
    """The report on a configuration, given as a dict or as the file's text, with the command's options."""
    text = config if isinstance(config, str) else json.dumps(config, indent=2)
    document = read_document(text.encode(), name="ds_config.json")
    given = {"framework": None, "model": None, "gpus": None, "ram": None, "seq_len": None, "offline": True, **options}
    return lint(document, facts=known or facts(), **lint_settings(document.root.value, **given))


def codes(report: LintReport, *severities: str) -> set[str]:
    """The codes that were found, of all severities or of some."""
    return {finding.code for finding in report.findings if not severities or finding.severity in severities}
