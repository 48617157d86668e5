"""The facts that lint uses where no DeepSpeed is installed, from the one that is.

python -m benchmarks.lint.facts            # says whether the bundled facts are those of the installed version
python -m benchmarks.lint.facts --write    # writes them
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ds_advise.validate.lint
from ds_advise.validate.lint.facts import installed_version, source_folder, to_json
from ds_advise.validate.lint.read_facts import read_facts

BUNDLED = Path(ds_advise.validate.lint.__file__).with_name("bundled_facts.json")


def installed() -> str:
    """The text of the bundled file, made from the installed DeepSpeed's and torch's sources."""
    folder, version = source_folder("deepspeed"), installed_version()
    assert folder is not None and version is not None, "DeepSpeed is installed"
    return (
        json.dumps(to_json(read_facts(folder, version, source_folder("torch"))), indent=None, separators=(",", ":"))
        + "\n"
    )


def main() -> None:
    if sys.argv[1:] == ["--write"]:
        BUNDLED.write_text(installed(), encoding="utf-8")
        return
    same = BUNDLED.read_text(encoding="utf-8") == installed()
    print("the bundled facts are the installed version's" if same else "they differ: run it with --write")
    raise SystemExit(not same)


if __name__ == "__main__":
    main()
