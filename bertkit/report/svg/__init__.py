"""Every drawing of the reports. Each returns an SVG element as text, for use in `page`.

Values that are not finite are skipped, no values give a drawing that says so, and very many are thinned.
"""

from bertkit.report.svg.bars import bar_plot, heat_map, histogram
from bertkit.report.svg.lines import coverage_plot, line_plot, reliability_plot
from bertkit.report.svg.scatter import Dot, pareto_front, scatter_plot

__all__ = [
    "Dot",
    "bar_plot",
    "coverage_plot",
    "heat_map",
    "histogram",
    "line_plot",
    "pareto_front",
    "reliability_plot",
    "scatter_plot",
]
