# SPDX-License-Identifier: Apache-2.0
"""``python -m tvm_streamk explain M N K``: what would be decided for a product, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tvm_streamk.explain import DEFAULT_TILE, HALF_BYTES
from tvm_streamk.explain import explain as explain_product
from tvm_streamk.plot import MatplotlibMissing

KIB = 1024


def explain(
    m: Annotated[int, typer.Argument(metavar="M", help="Rows of the output.")],
    n: Annotated[int, typer.Argument(metavar="N", help="Columns of the output.")],
    k: Annotated[int, typer.Argument(metavar="K", help="Length of the reduction.")],
    tile: Annotated[
        tuple[int, int, int], typer.Option(help="Rows, columns and panel depth of the tile.")
    ] = DEFAULT_TILE,
    device: Annotated[
        str | None,
        typer.Option(
            help="A known device, such as H200, a TVM target tag, or a calibrated .json file."
        ),
    ] = None,
    num_sms: Annotated[
        int | None, typer.Option(help="Processors, instead of the device's own number.")
    ] = None,
    blocks_per_sm: Annotated[
        int | None, typer.Option(help="Blocks of the kernel that a processor holds.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Independent products.")] = 1,
    input_bytes: Annotated[int, typer.Option(help="Bytes of an input element.")] = HALF_BYTES,
    workspace_limit: Annotated[int | None, typer.Option(help="Most KiB for partial sums.")] = None,
    batch_invariant: Annotated[
        bool, typer.Option(help="Cut tiles by K alone, whatever M and N.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw both schedules: a .png or .svg file.")
    ] = None,
) -> None:
    """Say how M x N x K would be shared out, and why."""
    console = Console()
    try:
        explanation = explain_product(
            m,
            n,
            k,
            tile,
            device,
            num_sms,
            batch,
            blocks_per_sm=blocks_per_sm,
            input_bytes=input_bytes,
            workspace_limit_bytes=None if workspace_limit is None else workspace_limit * KIB,
            batch_invariant=batch_invariant,
        )
        console.print(explanation)
        if plot is not None:
            console.print(f"Picture: {explanation.plot(plot)}")
    except (ValueError, MatplotlibMissing) as why:
        raise typer.BadParameter(str(why)) from why
