# SPDX-License-Identifier: Apache-2.0
"""The explanation: its numbers, its text, and every way to ask for it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tvm_streamk.cost_model import predict
from tvm_streamk.devices import UnknownDevice, cpu, lookup
from tvm_streamk.explain import explain
from tvm_streamk.partition import (
    DATA_PARALLEL,
    DECOMPOSITIONS,
    PERSISTENT,
    SPLIT_K,
    STREAM_K,
    TWO_TILE,
    Partition,
)


def test_numbers_of_136_tiles_on_132_processors() -> None:
    explanation = explain(1024, 2112, 7168, device="H200")
    problem, decision = explanation.problem, explanation.decision
    assert (problem.num_tiles, problem.panels, problem.waves) == (136, 224, 2)
    assert problem.bound == pytest.approx(2 * 132 / 136)
    assert decision.decomposition == TWO_TILE
    rows = {row.decomposition: row for row in explanation.rows}
    assert set(rows) == set(DECOMPOSITIONS)
    assert rows[DATA_PARALLEL].most_panels == rows[PERSISTENT].most_panels == 448
    assert rows[TWO_TILE].most_panels == -(-136 * 224 // 132)
    assert rows[TWO_TILE].predicted_us == decision.predicted_us
    assert rows[DATA_PARALLEL].predicted_us == decision.data_parallel_us
    assert rows[TWO_TILE].workspace_bytes == 2 * 132 * 128 * 128 * 4
    assert explanation.partition == Partition(136, 224, 132, TWO_TILE)


def test_text_says_what_was_chosen_and_why() -> None:
    text = str(explain(1024, 2112, 7168, device="H200"))
    assert "1024 x 2112 x 7168 in tiles of 128 x 128, panels of 32, on h200" in text
    assert "136 tiles of 224 panels, 2 waves" in text and "quantisation bound" in text
    for word in DECOMPOSITIONS:
        assert word in text
    assert "> two_tile" in text
    words = " ".join(text.split())
    assert "Chosen: two_tile. 136 tiles make 2 waves, the last one 3 % full on 132" in words
    assert max(map(len, text.splitlines())) <= 100


def test_the_table_fits_a_narrow_terminal() -> None:
    output = io.StringIO()
    Console(width=80, file=output).print(explain(8448, 1500, 281600, device="H200"))
    text = output.getvalue()
    assert "…" not in text
    assert "last_arriver" in text and "data_parallel" in text


@pytest.mark.parametrize(
    ("arguments", "decomposition", "note"),
    [
        ((128, 128, 16384), TWO_TILE, "the same as stream_k below one wave"),
        ((128, 128, 64), STREAM_K, "no grid gives 8 panels a worker and 2 peers"),
        ((128, 128, 31 * 32), SPLIT_K, "no divisor of 31 panels from 2 to 3"),
    ],
)
def test_what_is_not_possible_says_why(
    arguments: tuple[int, int, int], decomposition: str, note: str
) -> None:
    explanation = explain(*arguments, num_sms=132)
    row = next(row for row in explanation.rows if row.decomposition == decomposition)
    assert row.predicted_us is None
    assert row.note.startswith(note)
    assert f"{decomposition}: {note}" in " ".join(str(explanation).split())


def test_batch_tile_and_ragged_extents() -> None:
    explanation = explain(100, 130, 33, tile=(64, 32, 16), num_sms=4, batch=3)
    assert explanation.problem.num_tiles == 3 * 2 * 5
    assert explanation.problem.panels == 3
    assert explanation.problem.tile_bytes == 64 * 32 * 4
    assert "3 times 100 x 130 x 33" in str(explanation)


def test_constants_are_scaled_to_the_tile() -> None:
    small = explain(1024, 1024, 1024, tile=(64, 64, 32), device="A100").problem.device
    assert small.panel_us == pytest.approx(lookup("A100").panel_us / 4)
    assert small.peer_us < lookup("A100").peer_us


def test_options_reach_the_decision() -> None:
    limited = explain(512, 5120, 27648, device="H200", workspace_limit_bytes=1024)
    assert limited.decision.decomposition == DATA_PARALLEL
    assert "or more than 1024 bytes of workspace" in str(limited)
    forbidden = explain(512, 5120, 27648, device="H200", merges_allowed=())
    assert "no merge is allowed" in str(forbidden)
    invariant = explain(128, 128, 16384, device="A100", batch_invariant=True)
    assert invariant.decision.reason.startswith("batch-invariant")
    rows = {row.decomposition: row for row in invariant.rows}
    assert rows[SPLIT_K].num_workers == invariant.decision.num_workers
    assert explain(64, 64, 64, device="H200", blocks_per_sm=2).problem.device.num_slots == 264
    assert explain(64, 64, 64, device=cpu(2)).problem.device.num_sms == 2


def test_the_yardstick_is_the_persistent_form() -> None:
    explanation = explain(384, 384, 4096, num_sms=8)
    row = next(row for row in explanation.rows if row.decomposition == PERSISTENT)
    expected = predict(Partition(9, 128, 8, PERSISTENT), explanation.problem.device)
    assert row.predicted_us == pytest.approx(expected)
    assert "yardstick, never chosen" in row.note


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="processor count is not known; give num_sms or device"):
        explain(64, 64, 64)
    with pytest.raises(ValueError, match="K must be at least 1, got 0"):
        explain(64, 64, 0, num_sms=4)
    with pytest.raises(ValueError, match="tile depth must be at least 1, got 0"):
        explain(64, 64, 64, tile=(8, 8, 0), num_sms=4)
    with pytest.raises(UnknownDevice, match="device 'Z80' is not known"):
        explain(64, 64, 64, device="Z80")
