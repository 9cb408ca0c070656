# SPDX-License-Identifier: Apache-2.0
"""Why a decision was taken, in words and numbers."""

from __future__ import annotations

from tvm_streamk.candidates import Candidate, Problem
from tvm_streamk.partition import SPLIT_K


def _rounds(problem: Problem) -> str:
    tiles, sms = problem.num_tiles, problem.device.num_sms
    tail = tiles % sms or sms
    waves = "1 wave" if problem.waves == 1 else f"{problem.waves} waves, the last one"
    what = "tile makes" if tiles == 1 else "tiles make"
    return f"{tiles} {what} {waves} {100 * tail / sms:.0f} % full on {sms} processors"


def nothing_to_gain(problem: Problem) -> str | None:
    """Return why rules 1 and 2 leave the nest alone, or None."""
    tiles, sms = problem.num_tiles, problem.device.num_sms
    if tiles == 0:
        return "there is no tile"
    if tiles % sms == 0:
        waves = "1 whole wave" if problem.waves == 1 else f"{problem.waves} whole waves"
        return f"{tiles} tiles are exactly {waves} on {sms} processors: no processor idles"
    if not problem.merges:
        return "no merge is allowed, so no tile can be cut"
    if problem.panels < 2:
        return "one panel per tile: there is nothing to cut"
    even_us = tiles * problem.panels * problem.device.panel_us / problem.device.num_slots
    if tiles >= sms and problem.floor_us >= even_us:
        return (
            f"bound by memory: moving the operands takes {problem.floor_us:.1f} us, all panels "
            f"shared evenly would take {even_us:.1f} us, and {tiles} tiles keep all {sms} "
            f"processors loading"
        )
    return None


def why_data_parallel(
    problem: Problem, base: Candidate, best: Candidate | None, least_gain: float
) -> str:
    """Return why a kernel that could gain something is left alone all the same."""
    if best is None:
        if problem.workspace_limit_bytes is not None:
            return (
                f"{_rounds(problem)}; no way to cut tiles of {problem.panels} panels stays within "
                f"{problem.min_panels} panels a worker, {problem.peer_cap} peers and the workspace "
                f"limit of {problem.workspace_limit_bytes} bytes"
            )
        return (
            f"{_rounds(problem)}; {problem.panels} panels per tile are too few to cut: a worker "
            f"needs {problem.min_panels}, a tile may have {problem.peer_cap} peers"
        )
    return (
        f"{_rounds(problem)}; the best alternative, {best.decomposition} on {best.num_workers} "
        f"workers, is predicted {best.predicted_us:.1f} us against {base.predicted_us:.1f} us: "
        f"not the {least_gain:g} times that pay for a rewrite"
    )


def why_streamed(problem: Problem, best: Candidate, base: Candidate) -> str:
    """Return what a rewritten kernel is predicted to gain, and over what."""
    how = f"{best.decomposition} on {best.num_workers} workers"
    if best.decomposition == SPLIT_K:
        how += f" ({best.splits} to a tile)"
    gain = base.predicted_us / best.predicted_us
    unlimited = problem.merge_for(0)
    forced = ""
    if best.most_peers > 1 and best.merge != unlimited:
        forced = (
            f"; merge {best.merge}, since {unlimited} would need more than "
            f"{problem.workspace_limit_bytes} bytes"
        )
    return (
        f"{_rounds(problem)}; {how} is predicted {gain:.2f} times as fast, "
        f"{best.predicted_us:.1f} us against {base.predicted_us:.1f} us (an even distribution "
        f"would be {problem.bound:.2f} times){forced}"
    )
