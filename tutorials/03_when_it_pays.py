# SPDX-License-Identifier: Apache-2.0
"""When cutting tiles pays, when it does not, and how the package decides: with pictures.

Run it with ``python tutorials/03_when_it_pays.py [FOLDER]``; without a folder the pictures go to a
temporary one. No GPU is needed: what is said about GPUs is predicted, and what is run is checked.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np

from tvm_streamk.devices import Device, cpu, lookup
from tvm_streamk.explain import explain
from tvm_streamk.partition import Partition
from tvm_streamk.plot import MatplotlibMissing, figure_class, plot
from tvm_streamk.policy import choose
from tvm_streamk.schedules import cpu_gemm
from tvm_streamk.testing import integer_inputs, poisoned, run

DEVICE = "H200"
PANELS = (32, 128, 512)
MOST_TILES = 400
CPU_TILE, CPU_REGISTER_TILE, CPU_PANEL = (28, 64), (7, 32), 48
CPU_PANELS = 96


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n=== {text} ===\n")


def show_waves() -> None:
    """Section 1: the last round of tiles decides what there is to gain."""
    processors = lookup(DEVICE).num_sms
    print(f"A tile per thread block, {processors} processors:\n")
    print("  tiles  rounds  processors' time used  an even share would be")
    for tiles in (1, 66, 132, 133, 198, 264, 1000):
        rounds = -(-tiles // processors)
        bound = rounds * processors / tiles
        print(f"  {tiles:5}  {rounds:6}  {1 / bound:20.0%}   {bound:.2f} times as fast")
    print("\nThe right column is the quantisation bound: no way to share out the same panels gains")
    print("more. 133 tiles are the worst case of two rounds; with many rounds little is left.")


def show_decisions() -> None:
    """Section 2: the same question for four products, with what each way would take."""
    for what, shape in (
        ("Whole waves: 66 x 12 tiles are six full rounds. Nothing idles, nothing is cut.",
         (8448, 1500, 2816)),
        ("One tile more than a wave, with a long sum: nearly all of the second round is saved.",
         (128 * 7, 128 * 19, 16384)),
        ("One tile and a very long sum: a merge costs several panels, so a few peers are best.",
         (128, 128, 65536)),
        ("Few tiles and a short sum: starting and merging would take longer than the panels.",
         (256, 256, 512)),
    ):  # fmt: skip
        print(f"{what}\n")
        print(explain(*shape, device=DEVICE))


def show_pictures(folder: Path) -> None:
    """Section 3: workers against time, data-parallel above, the decision below."""
    small = Partition(9, 64, 8, "two_tile")
    print(f"Nine tiles on eight workers: {plot(small, folder / 'eight_workers.png')}")
    wide = explain(896, 2432, 16384, device=DEVICE)
    print(f"133 tiles on 132 workers:    {wide.plot(folder / 'h200.png')}")
    print(f"Gain against tiles:          {draw_gains(folder / 'gain_against_tiles.png')}")
    print("\nIn the last one, the saw-tooth is the bound. The longer the sum, the closer the")
    print("prediction comes to it: starts and merges are paid once, panels many times.")


def draw_gains(path: Path) -> Path:
    """Bound and predicted gain against the number of tiles, for sums of three lengths."""
    device = lookup(DEVICE)
    tiles = range(1, MOST_TILES + 1)
    figure = figure_class()(figsize=(9, 5), layout="constrained")
    axis = figure.subplots()
    bounds = [-(-count // device.num_sms) * device.num_sms / count for count in tiles]
    axis.plot(tiles, bounds, color="0.6", linewidth=1, label="quantisation bound")
    for panels in PANELS:
        gains = [choose(count, panels, device=device).predicted_gain for count in tiles]
        axis.plot(tiles, gains, linewidth=1.2, label=f"{panels} panels, K = {panels * 32}")
    axis.set_ylim(0.95, 3)
    axis.set_xlim(0, MOST_TILES)
    axis.set_xlabel(f"tiles of 128 x 128 on {device.num_sms} processors")
    axis.set_ylabel("predicted gain over data-parallel")
    axis.grid(color="0.9")
    axis.legend(frameon=False)
    figure.savefig(path, dpi=120)
    return path


def show_auto() -> None:
    """Section 4: ``auto`` on real schedules, run and compared with numpy."""
    for tiles in (1, 2, 3):
        rows, columns = CPU_TILE
        shape = (rows * tiles, columns, CPU_PANEL * CPU_PANELS)
        schedule = cpu_gemm(*shape, CPU_TILE, CPU_PANEL, CPU_REGISTER_TILE)
        print(schedule.stream_k("C", num_sms=2))
        m, n, k = shape
        left, right = integer_inputs((m, k)), integer_inputs((k, n), seed=1)
        _, _, product = run(schedule.mod, [left, right, poisoned((m, n))], "llvm")
        np.testing.assert_array_equal(product, left @ right)
        print("  The product equals numpy's, to the last bit.\n")


def show_limits() -> None:
    """Section 5: two promises that a server may need."""
    rows, columns = CPU_TILE
    depth = CPU_PANEL * CPU_PANELS
    print("A limit for the workspace, which auto keeps:\n")
    limited = cpu_gemm(rows, columns, depth, CPU_TILE, CPU_PANEL, CPU_REGISTER_TILE)
    print(limited.stream_k("C", num_sms=2, workspace_limit_bytes=1024))
    print("\nThe same bits for a row, whatever the number of rows beside it:\n")
    for tiles in (1, 5):
        schedule = cpu_gemm(rows * tiles, columns, depth, CPU_TILE, CPU_PANEL, CPU_REGISTER_TILE)
        plan = schedule.stream_k("C", num_sms=2, batch_invariant=True)
        print(f"  {tiles} tile(s): {plan.notes[0]}\n")


def show_calibration(folder: Path) -> None:
    """Section 6: whose constants. A file from ``calibrate`` is as good as a name."""
    file = folder / "my_machine.json"
    cpu(2).to_file(file)
    print("`python -m tvm_streamk calibrate --output my_machine.json` measures the four constants")
    print("on the device at hand. Here the estimates for a CPU stand in for a measurement:\n")
    device = Device.from_file(file)
    for name in ("start_us", "split_us", "panel_us", "peer_us"):
        print(f"  {name:9} {getattr(device, name):8.3f}")
    rows, columns = CPU_TILE
    schedule = cpu_gemm(
        rows * 3, columns, CPU_PANEL * CPU_PANELS, CPU_TILE, CPU_PANEL, CPU_REGISTER_TILE
    )
    print(f"\n{schedule.stream_k('C', device=str(file))}")


def walk_through(folder: Path) -> None:
    """Walk through all sections, with pictures in a folder."""
    title("1. Waves, and what there is to gain")
    show_waves()
    title("2. What would be decided, and why")
    show_decisions()
    title("3. Pictures")
    try:
        show_pictures(folder)
    except MatplotlibMissing as reason:
        print(f"No pictures: {reason}.")
    title("4. auto on one, two and three tiles for two workers")
    show_auto()
    title("5. Promises: a limit, and the same bits")
    show_limits()
    title("6. Constants of your own machine")
    show_calibration(folder)


def main(folder: str | None = None) -> None:
    """Walk through all sections; without a folder the pictures are in a temporary one."""
    if folder is None:
        walk_through(Path(tempfile.mkdtemp(prefix="when_it_pays_")))
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    walk_through(Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:2])
