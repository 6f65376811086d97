"""Writes the graphs with which the embedded models run without torch (bertkit/models/*/onnx/graph.onnx).

Run it after replacing an embedded model by one of another shape; the graph holds no weights.
"""

from __future__ import annotations

from bertkit.checkpoint.folder import read_folder
from bertkit.checkpoint.locate import STARTING, locate
from bertkit.model.engine import GRAPH
from bertkit.runs.compress.onnx import write_graph

if __name__ == "__main__":
    for name in STARTING:
        path = locate(name) / GRAPH
        path.parent.mkdir(exist_ok=True)
        write_graph(path, read_folder(locate(name)))
        print(f"{path}: {path.stat().st_size:,} bytes")
