"""`python -m ds_advise` is `ds-advise`."""

from .advisor.cli import main

main()
