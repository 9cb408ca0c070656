# SPDX-License-Identifier: Apache-2.0
"""Stream-K work decomposition as a schedule primitive for Apache TVM's TensorIR.

Importing the package does three things, and nothing else has an effect at import: it attaches
``Schedule.stream_k``, puts ``LowerStreamK`` and its device passes into TVM's ``s_tir`` pipeline,
and registers the pipeline for Relax models under the name ``stream_k``.
"""

from __future__ import annotations

from tvm.s_tir import Schedule

from tvm_streamk import pipeline
from tvm_streamk.analysis import Applicability, TileNest, analyze, can_stream_k
from tvm_streamk.errors import StreamKError
from tvm_streamk.partition import Partition, Segment
from tvm_streamk.pipeline import LowerStreamK
from tvm_streamk.plan import Plan
from tvm_streamk.primitive import stream_k
from tvm_streamk.relax_pipeline import register as register_relax_pipeline
from tvm_streamk.relax_pipeline import relax_pipeline
from tvm_streamk.report import Report, report

__version__ = "0.1.0"

__all__ = [
    "Applicability",
    "LowerStreamK",
    "Partition",
    "Plan",
    "Report",
    "Segment",
    "StreamKError",
    "TileNest",
    "analyze",
    "can_stream_k",
    "relax_pipeline",
    "report",
    "stream_k",
]

Schedule.stream_k = stream_k
pipeline.register()
register_relax_pipeline()
