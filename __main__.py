"""`python -m ds_advise` is `ds-advise`."""

from .advisor.cli.main import main

main()
