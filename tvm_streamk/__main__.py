# SPDX-License-Identifier: Apache-2.0
"""``python -m tvm_streamk``: the command line. Each command is a module of ``commands``."""

from __future__ import annotations

import typer

from tvm_streamk.commands.bench import bench
from tvm_streamk.commands.calibrate import calibrate
from tvm_streamk.commands.demo import demo
from tvm_streamk.commands.explain import explain

app = typer.Typer(
    help="Stream-K work decomposition for Apache TVM.", no_args_is_help=True, add_completion=False
)


@app.callback()
def main() -> None:
    """Stream-K work decomposition for Apache TVM."""


app.command()(demo)
app.command()(explain)
app.command()(calibrate)
app.command()(bench)

if __name__ == "__main__":
    app(prog_name="python -m tvm_streamk")
