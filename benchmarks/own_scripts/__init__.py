"""Training scripts of other projects, unmodified, each run by `ds-advise dry-run -- COMMAND`."""
