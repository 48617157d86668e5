"""The entry point of `ds-advise` and `python -m ds_advise`: Ctrl-C shows no traceback, not even during the imports."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from .advisor.cli.main import main as run_and_exit

        run_and_exit()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
