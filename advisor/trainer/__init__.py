"""The built-in trainer behind `ds-advise train`: data files to samples, the script that every rank runs, the whole
flow.

Read `train.py` for the flow, `rank.py` for what a rank does, `data/prepare.py` for what becomes of the data.
"""
