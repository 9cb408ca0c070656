# SPDX-License-Identifier: Apache-2.0
"""Everything that a GPU machine can tell, in less than eight minutes: one command, one folder.

``python benchmarks/gpu_suite.py --output FOLDER`` on a machine with a CUDA device and ``nvcc``:

1. how many blocks of each kernel a processor holds, from ptxas and the occupancy formula;
2. the cost model's constants, calibrated with each kernel;
3. data-parallel, split-K with the best S, Stream-K with the best g and ``auto``, on products chosen
   for the device's number of processors; where PyTorch is installed, cuBLAS takes turns with them;
4. the table, the records as JSON, the device's records, and gain against the quantisation bound as
   a picture.

Kernels: the float32 hand schedule, and DLight's tensor-core schedule of a float16 product. When the
time is nearly over, what is left is not measured, and the table says so.

``--dry-run`` needs no GPU: tiny products of the same kernels for a device of four processors, whose
CUDA source runs on the CPU. Its times mean nothing.
"""

from __future__ import annotations

import functools
import importlib
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from tvm.target import Target

import tvm_streamk
from tvm_streamk.bench.measurement import Conditions, LaunchMany, Record, measure
from tvm_streamk.bench.picture import draw
from tvm_streamk.bench.products import Product, Shape, float32_product, hand_tile, shapes_for
from tvm_streamk.bench.table import notes, table
from tvm_streamk.calibration import PANELS, CannotFit
from tvm_streamk.commands import calibrate
from tvm_streamk.commands.bench import as_json
from tvm_streamk.devices import Device, lookup
from tvm_streamk.places import CUDA, Place, place
from tvm_streamk.plot import MatplotlibMissing
from tvm_streamk.schedules import gpu_gemm
from tvm_streamk.testing import DeviceMissing, integer_inputs, poisoned
from tvm_streamk.testing.launch_plan import plan_launches
from tvm_streamk.testing.measure import LEAST_PAIRS, NotQuiet

MINUTES = 7.5
RESERVE_SECONDS = 20.0
"""Before the time is over: no product is begun if the slowest one so far would not be done then."""

BUILDERS = 8
TABLE_COLUMNS = 110
BATCH_SECONDS = 0.2
DRY_PROCESSORS, DRY_PANELS, DRY_ROUNDS = 4, (8, 16), 2
DRY_DEPTH_SHARE, DRY_LEAST_PANELS = 64, 4
FLOAT32, FLOAT16 = "float32", "float16"
HALF_TILE, HALF_PANEL = (128, 128), 64
HALF_BLOCK = "C_o_update"
CUBLAS = "cuBLAS"
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Kernel:
    """A schedule that products of any shape can have."""

    dtype: str
    tile: tuple[int, int]
    panel: int
    make: Callable[[Shape], Product]

    def of_tiles(self, num_tiles: int, panels: int) -> Product:
        """A product of so many tiles and panels, one tile wide."""
        return self.make((self.tile[0] * num_tiles, self.tile[1], self.panel * panels))


def kernels(where: Place) -> dict[str, Kernel]:
    """The kernels, by element type."""
    return {
        FLOAT32: Kernel(
            FLOAT32, hand_tile(where), calibrate.GPU_PANEL, functools.partial(_hand, where)
        ),
        FLOAT16: Kernel(FLOAT16, HALF_TILE, HALF_PANEL, _half),
    }


def _hand(where: Place, shape: Shape) -> Product:
    threads, each, panel = calibrate.GPU_THREADS, calibrate.GPU_PER_THREAD, calibrate.GPU_PANEL
    return float32_product(shape, lambda: gpu_gemm(*shape, threads, each, panel))


def _half(shape: Shape) -> Product:
    """A float16 product with float32 sums on tensor cores, as DLight schedules it.

    Its second operand is transposed. The first use takes the time of importing TVM's intrinsics.
    """
    nests = importlib.import_module("tensor_core_nests")
    m, n, k = shape
    return Product(
        name=FLOAT16,
        shape=shape,
        make=lambda: nests.dlight_schedule(nests.product(shape, FLOAT16, FLOAT32)),
        block=HALF_BLOCK,
        inputs=lambda: [
            integer_inputs((m, k), FLOAT16),
            integer_inputs((n, k), FLOAT16, seed=1),
        ],
        output=lambda: poisoned((m, n)),
        expected=lambda operands: (
            operands[0].astype(FLOAT32) @ operands[1].astype(FLOAT32).transpose()
        ),
    )


def main(
    output: Annotated[Path, typer.Option(help="Folder for the results; made if missing.")] = Path(
        "gpu_results"
    ),
    dtype: Annotated[
        list[str] | None, typer.Option(help="float32, float16; may be repeated. Default: both.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="When to stop.")] = MINUTES,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tiny products, on the CPU; no GPU is needed.")
    ] = False,
) -> None:
    """Measure everything on this GPU."""
    deadline = time.monotonic() + minutes * 60
    console = Console()
    try:
        where = dry_place() if dry_run else place(CUDA)
    except DeviceMissing as why:
        raise typer.BadParameter(f"{why}; or --dry-run") from why
    known = kernels(where)
    wanted = dtype or list(known)
    if unknown := [word for word in wanted if word not in known]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(known)}")
    output.mkdir(parents=True, exist_ok=True)
    conditions = Conditions(LEAST_PAIRS, BATCH_SECONDS, builders=BUILDERS)
    if dry_run:
        conditions = Conditions(DRY_ROUNDS, 0.0, even_if_busy=True, builders=2)
    suite = Suite(where, conditions, dry_run, deadline, output, console)
    devices = {word: suite.device_for(known[word]) for word in wanted}
    suite.finish(list(suite.records([known[word] for word in wanted], devices)))


def dry_place() -> Place:
    """A device of few processors whose CUDA source runs on the CPU."""
    device = replace(lookup("A100").with_processors(DRY_PROCESSORS), name="dry run")
    return Place(CUDA, Target({"kind": "cuda", "arch": "sm_80"}), DRY_PROCESSORS, True, device)


@dataclass
class Suite:
    """One run: where, how, until when; and what was left out."""

    where: Place
    conditions: Conditions
    is_dry: bool
    deadline: float
    output: Path
    console: Console

    def __post_init__(self) -> None:
        self.left_out: list[str] = []
        self.longest_seconds = 0.0

    def device_for(self, kernel: Kernel) -> Device:
        """The device with its occupancy and its constants for a kernel, written to a file."""
        device = self.where.device.with_processors(blocks_per_sm=self._blocks_per_sm(kernel))
        panels = DRY_PANELS if self.is_dry else PANELS
        try:
            found = calibrate.measure(
                self.where, device, self.conditions, self.console, kernel.of_tiles, panels
            )
        except (CannotFit, NotQuiet) as why:
            self.left_out.append(f"{kernel.dtype}: no calibration, data-sheet constants ({why})")
            return device
        path = self.output / f"device_{kernel.dtype}.json"
        found.device.to_file(path, found.measurement())
        self.console.print(f"{kernel.dtype}: {path}, fits to {found.typical_error:.0%}")
        return found.device

    def _blocks_per_sm(self, kernel: Kernel) -> int:
        try:
            blocks = blocks_per_sm(kernel.of_tiles(1, 2), self.where)
        except OccupancyUnknown as why:
            self.left_out.append(f"{kernel.dtype}: blocks per processor taken as 1 ({why})")
            return 1
        self.console.print(f"{kernel.dtype}: {blocks} blocks of the kernel on a processor")
        return blocks

    def records(self, chosen: Sequence[Kernel], devices: dict[str, Device]) -> Iterator[Record]:
        """Measure the products, those of all kernels in turn, until the time is over."""
        products = [[kernel.make(shape) for shape in self._shapes(kernel)] for kernel in chosen]
        for product in (each for row in zip(*products, strict=True) for each in row):
            begin = time.monotonic()
            if begin > self.deadline - RESERVE_SECONDS - self.longest_seconds:
                self.left_out.append(f"{product.name} {product.extents}: no time left")
                continue
            self.console.print(f"{product.name} {product.extents}", highlight=False)
            others = {} if self.is_dry else cublas(product)
            device = devices[product.name]
            yield measure(product, self.where, device, self.conditions, others)
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - begin)

    def _shapes(self, kernel: Kernel) -> list[Shape]:
        shapes = shapes_for(self.where.processors, kernel.tile)
        if not self.is_dry:
            return shapes
        return [
            (m, n, max(k // DRY_DEPTH_SHARE, DRY_LEAST_PANELS * kernel.panel)) for m, n, k in shapes
        ]

    def finish(self, records: Sequence[Record]) -> None:
        """Show and write what was measured."""
        page = Console(record=True, width=TABLE_COLUMNS, file=None)
        page.print(table(records))
        for line in (*notes(records), *self.left_out):
            page.print(f"• {line}", highlight=False, markup=False)
        (self.output / "table.txt").write_text(page.export_text(), encoding="utf-8")
        (self.output / "records.json").write_text(as_json(records), encoding="utf-8")
        try:
            draw(records, self.output / "gain.png")
        except MatplotlibMissing as why:
            self.console.print(f"No picture: {why}")
        self.console.print(f"Written to {self.output}.")


class OccupancyUnknown(RuntimeError):
    """How many blocks a processor holds cannot be told."""


def blocks_per_sm(product: Product, where: Place) -> int:
    """Blocks of a product's Stream-K kernel that a processor holds.

    Raises
    ------
    OccupancyUnknown
        If there is no nvcc, or the table does not know the architecture.
    """
    compiler = shutil.which("nvcc")
    if compiler is None:
        raise OccupancyUnknown("there is no nvcc on the PATH")
    schedule = product.make()
    tvm_streamk.stream_k(schedule, product.block, num_workers=2)
    arguments: list[np.ndarray] = [*product.inputs(), product.output()]
    plan = plan_launches(schedule.mod, arguments, where.target)
    registers, shared = _usage(compiler, plan.source, str(where.target.attrs["arch"]))
    most = max(plan.launches, key=lambda launch: int(np.prod(launch.block)))
    shared += max(launch.dynamic_shared_bytes for launch in plan.launches)
    try:
        return max(where.device.occupancy(registers, int(np.prod(most.block)), shared), 1)
    except ValueError as why:
        raise OccupancyUnknown(str(why)) from why


def _usage(compiler: str, source: str, architecture: str) -> tuple[int, int]:
    """The most registers of a thread and static shared bytes of a block, as ptxas says."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.cu"
        file.write_text(source, encoding="utf-8")
        command = [compiler, f"-arch={architecture}", "-cubin", "-Xptxas", "-v", "-w", str(file)]
        done = subprocess.run(
            [*command, "-o", str(Path(folder) / "kernels.cubin")], capture_output=True, text=True
        )
    if done.returncode:
        raise OccupancyUnknown(f"nvcc fails: {done.stderr[-500:]}")
    registers = [int(number) for number in _REGISTERS.findall(done.stderr)]
    shared = [int(number) for number in _SHARED.findall(done.stderr)]
    return max(registers), max(shared, default=0)


def cublas(product: Product) -> dict[str, LaunchMany]:
    """The same product by cuBLAS, where PyTorch is installed and sees a GPU.

    A float16 product's output is float16 there.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    left, right = (torch.from_numpy(operand).cuda() for operand in product.inputs())
    if product.name == FLOAT16:
        right = right.transpose(0, 1)
    result = torch.matmul(left, right)

    def launch(times: int) -> None:
        for _ in range(times):
            torch.matmul(left, right, out=result)
        torch.cuda.synchronize()

    return {CUBLAS: launch}


if __name__ == "__main__":
    typer.run(main)
