"""The built-in trainer behind `ds-advise train`. `session.py` has the flow, `data/prepare.py` what becomes of the data,
`ranks/rank.py` what a rank does; launching, watching and falling back are `launch`'s."""
