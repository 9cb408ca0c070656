# SPDX-License-Identifier: Apache-2.0
"""What of a producer's software pipeline survives a trip count that is known at run time only."""

from __future__ import annotations

from typing import Any

STAGES = "software_pipeline_stage"
ASYNC_STAGES = "software_pipeline_async_stages"


def pipeline_of_unknown_length(panel_loop: Any) -> dict[str, Any]:
    """The panel loop's annotations for a trip count that is not constant.

    How many copies may still be under way when one is waited for has to be a constant in CUDA.
    With copies more than one trip ahead it would depend on whether there are as many trips, and TVM
    fails to generate code. Such a pipeline keeps its stages, but its copies are ordinary ones.
    """
    annotations = dict(panel_loop.annotations)
    if max((int(stage) for stage in annotations.get(STAGES, ())), default=0) > 1:
        annotations.pop(ASYNC_STAGES, None)
    return annotations
