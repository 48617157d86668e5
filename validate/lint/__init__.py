"""Lint of a ds_config: settings that DeepSpeed rejects, ignores, or interprets in an unintended way, with their place
in the file.

from ds_advise.validate.lint import lint, load_facts, read_document
report = lint(read_document(Path("ds_config.json").read_bytes(), name="ds_config.json"), facts=load_facts())
"""

from .config_file import apply
from .document import Document
from .document_reader import read_document
from .facts import DeepSpeedFacts
from .installed_facts import load_facts
from .lint import RULES, LintFinding, LintReport, lint
from .rule import Rule

__all__ = [
    "RULES",
    "DeepSpeedFacts",
    "Document",
    "LintFinding",
    "LintReport",
    "Rule",
    "apply",
    "lint",
    "load_facts",
    "read_document",
]
