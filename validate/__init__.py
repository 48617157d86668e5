"""Judgements: of a ds_config (`lint`), and of a machine (`doctor`)."""
