"""The self-contained HTML report: pure functions from results to one page, with no script and no network.

Python gathers the data (`pretraining`, `finetuning`, `comparison`, `explain`: one file per report) and draws (`svg/`);
`html.py` hands blocks to `templates/`, which alone make HTML, with `report.css` inside the page. Every word is in
`words/`, one file per language.
"""
