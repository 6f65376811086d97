"""The self-contained HTML report: pure functions from results to one page, with no script and no network.

`html.py` is the page and its blocks, `svg/` the drawings, and one file each writes the report of a
pretraining run, a fine-tuning run and a comparison.
"""
