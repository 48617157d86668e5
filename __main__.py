"""The entry point of `ds-advise` and `python -m ds_advise`: Ctrl-C shows no traceback, not even during the imports."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from .advisor.cli.main import main as run_and_exit

        run_and_exit()
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name != "click":  # the library that would report the others
            raise
        print("ds-advise: this needs click: it is not installed; pip install click", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
