# SPDX-License-Identifier: Apache-2.0
"""Real networks on a CPU, whole and layer by layer: ``python benchmarks/relax_encoder.py``.

The sentence encoder, compiled for one length and for any, at several lengths, and the text
detector. Three forms are compared: the layers tiled and data-parallel, the same in persistent form
with whole tiles only, and as the policy decides. Each process times them in turn, pair by pair,
with the first form again as the control; batches during which others used the machine are dropped.
Of a whole network there are two instances of each form, since where weights lie in memory alone
changes its time by a tenth; where both forms have the same kernels there is nothing to compare.
What TVM's own pipeline takes is printed
beside it: it neither tiles nor uses vectors, so that ratio says nothing about Stream-K. With
``--save`` the table goes to ``relax_encoder.md`` and ``relax_encoder.json`` beside this program,
unless a figure is missing since the machine was not quiet.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import tvm
import tvm_ffi
import typer
from rich.console import Console
from rich.markdown import Markdown
from tvm import relax, tirx

from tvm_streamk.cpu_gemm_rule import CpuGemm
from tvm_streamk.dlight_rule import StreamK, backend_pipeline
from tvm_streamk.expressions import static_value
from tvm_streamk.relax_pipeline import relax_pipeline
from tvm_streamk.schedules import host_target
from tvm_streamk.testing import integer_inputs, networks, poisoned, prepare
from tvm_streamk.testing.measure import NotQuiet, PairedTimes, Turns, interleaved, take_turns

LENGTHS = (9, 33, 120)
DETECTOR = 0
"""In the place of a number of tokens. A negative one is of the encoder compiled for any length."""

NUM_WORKERS = 2
PROCESSES = 3
RESULTS = Path(__file__).with_suffix("")
DATA_PARALLEL, PERSISTENT, PLAIN, OURS = "data_parallel", "persistent", "plain", "ours"
PLAIN_RUNS = 3
MICROSECONDS = 1e6
LONGEST_NAME = 40
HEADER = ("network", "layer", "tiles x panels", "decision", "us", "data-parallel :", "persistent :")


def main(
    processes: Annotated[int, typer.Option(min=1, help="Fresh processes.")] = PROCESSES,
    lengths: Annotated[
        list[int] | None,
        typer.Option(help="Tokens of a sentence, negative: compiled for any; 0 is the detector."),
    ] = None,
    save: Annotated[bool, typer.Option("--save", help="Write the table.")] = False,
    child: Annotated[bool, typer.Option("--child", hidden=True)] = False,
) -> None:
    """Measure in fresh processes, print the table, and say what does not hold."""
    wanted = list(lengths or (*LENGTHS, *(-length for length in LENGTHS), DETECTOR))
    if child:
        print(json.dumps([measure(length) for length in wanted]))
        return
    command = [sys.executable, __file__, "--child", *(f"--lengths={each}" for each in wanted)]
    runs = [_in_fresh_process(command) for _ in range(processes)]
    text = table(runs)
    console = Console()
    console.print(Markdown(text) if console.is_terminal else text, soft_wrap=True)
    quiet = "not quiet" not in text
    if save and not quiet:
        console.print("Not saved: the machine was not quiet.")
    elif save:
        RESULTS.with_suffix(".md").write_text(text, encoding="utf-8")
        RESULTS.with_suffix(".json").write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    if not quiet:
        raise typer.Exit(1)


def _in_fresh_process(command: list[str]) -> list[dict[str, Any]]:
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(finished.stdout.splitlines()[-1])


# -- one process ----------------------------------------------------------------------------------


def measure(length: int) -> dict[str, Any]:
    """The whole network and each of its products."""
    target = tvm.target.Target(host_target())
    if length == DETECTOR:
        name, module = "detector", networks.detector_module()
        image = np.random.default_rng(0).normal(size=networks.DETECTOR_SHAPE)
        inputs = [image.astype("float32")]
    else:
        is_fixed = length > 0
        length = abs(length)
        name = f"encoder{'' if is_fixed else ' for any length'}, {length} tokens"
        module = networks.encoder_module(
            networks.encoder_sizes(), networks.encoder_weights(), length if is_fixed else None
        )
        tokens = np.random.default_rng(length).integers(0, 1000, (1, length)).astype("int32")
        inputs = [tokens, networks.positions_of(tokens)]
    steps = backend_pipeline(target).legalize_passes(target)
    with target:
        fused = tvm.transform.Sequential(steps)(module)
    layers = [
        measure_layer(str(variable.name_hint), function, target, length)
        for variable, function in fused.functions.items()
        if isinstance(function, tirx.PrimFunc)
    ]
    products = [layer for layer in layers if layer is not None]
    return {"network": name, "model": measure_model(module, inputs, target), "layers": products}


def measure_layer(name: str, function: Any, target: Any, length: int) -> dict[str, Any] | None:
    """One product in its three forms, for that many tokens; None for what is no product."""
    tiled = CpuGemm().apply(function, target)
    if tiled is None:
        return None
    streamed, verdict = StreamK(CpuGemm(), num_sms=NUM_WORKERS).attempt(tiled.copy(), target)
    plan = verdict.plan
    result: dict[str, Any] = {"layer": name, "decision": verdict.decision, "reason": verdict.reason}
    if plan is None:
        return result
    result |= {"tiles": plan.num_tiles or "symbolic", "panels": plan.panels}
    if not verdict.streams:
        return result
    persistent = tiled.copy()
    workers = min(NUM_WORKERS, plan.num_tiles or NUM_WORKERS)
    persistent.stream_k(plan.block, num_workers=workers, decomposition=PERSISTENT)
    inputs = _inputs(function, length)
    ours = prepare(streamed.mod, target, inputs)
    baselines = {DATA_PARALLEL: tiled, PERSISTENT: persistent}
    result["ratios"] = {}
    for word, schedule in baselines.items():
        other = prepare(schedule.mod, target, inputs)
        other.share(ours)
        results = []
        for each in (other, ours):
            each.write(len(inputs) - 1, inputs[-1])
            each.launch()
            results.append(each.read()[-1])
        np.testing.assert_array_equal(*results, err_msg=f"{name}, {word}")
        result["ratios"][word] = figures(interleaved(other.launch, ours.launch))
    return result


def _inputs(function: Any, length: int) -> list[np.ndarray]:
    shapes = [
        tuple(length if (known := static_value(extent)) is None else known for extent in each.shape)
        for each in function.params
    ]
    given = [integer_inputs(shape, seed=seed) for seed, shape in enumerate(shapes[:-1])]
    return [*given, poisoned(shapes[-1])]


def measure_model(module: Any, inputs: list[np.ndarray], target: Any) -> dict[str, Any]:
    """The whole network: tiled only, as decided, and by TVM's own pipeline."""
    arguments = [tvm.runtime.tensor(array) for array in inputs]
    pipelines = {
        DATA_PARALLEL: relax_pipeline(target, rules=[CpuGemm()]),
        OURS: relax_pipeline(target, num_sms=NUM_WORKERS),
        PLAIN: relax.get_default_pipeline(target),
    }

    def instance(form: str) -> Any:
        executable = tvm.compile(module, target, relax_pipeline=pipelines[form])
        machine = relax.VirtualMachine(executable, tvm.cpu())
        return lambda entry=machine[networks.ENTRY]: entry(*arguments)

    plain = instance(PLAIN)
    result: dict[str, Any] = {"plain_seconds": _best(plain)}
    if _same_kernels(*(pipelines[form](module) for form in (DATA_PARALLEL, OURS))):
        return result
    runs = [instance(form) for form in (DATA_PARALLEL, OURS, OURS, DATA_PARALLEL)]
    for run in runs:
        np.testing.assert_allclose(_array(run()), _array(plain()), rtol=1e-4, atol=1e-4)
    return result | {"ratios": {DATA_PARALLEL: figures(_of_two_instances(take_turns(runs)))}}


def _same_kernels(first: Any, second: Any) -> bool:
    """Whether two lowered modules have equal tensor functions."""
    own, other = (
        {str(variable.name_hint): function for variable, function in module.functions.items()}
        for module in (first, second)
    )
    return own.keys() == other.keys() and all(
        tvm_ffi.structural_equal(function, other[name])
        for name, function in own.items()
        if isinstance(function, tirx.PrimFunc)
    )


def _of_two_instances(turns: Turns) -> PairedTimes:
    """The first and last of four launches against the two between; the first one is the control."""
    first, second, again, last = turns.times
    mean = tuple(map(statistics.mean, zip(first, last, strict=True)))
    ours = tuple(map(statistics.mean, zip(second, again, strict=True)))
    return PairedTimes(mean, ours, mean, turns.batches, turns.dropped, turns.needed)


def _array(result: Any) -> np.ndarray:
    return (result if hasattr(result, "numpy") else result[0]).numpy()


def _best(run: Any) -> float:
    def seconds() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return min(seconds() for _ in range(PLAIN_RUNS))


def figures(times: PairedTimes) -> dict[str, Any]:
    """What a pair of forms gives, or why it gives nothing."""
    counts = {"pairs": len(times.first), "batches": times.batches, "dropped": times.dropped}
    try:
        return {
            **counts,
            "ratio": times.ratio,
            "spread": times.spread,
            "control": times.control,
            "seconds": times.seconds,
            "valid": times.is_valid,
        }
    except NotQuiet as reason:
        return {**counts, "not_quiet": str(reason)}


# -- the table ------------------------------------------------------------------------------------


def table(runs: list[list[dict[str, Any]]]) -> str:
    """One row per network and layer; an entry per process in each cell."""
    lines = [
        "# Real networks on a CPU",
        "",
        f"Machine: {platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"{NUM_WORKERS} workers. Made by `python benchmarks/relax_encoder.py --save`.",
        "",
        "Each entry is one fresh process: the median of at least 41 paired ratios and their "
        "quartiles. *data-parallel :* and *persistent :* are the times of those forms over that of "
        "what the policy decides. An entry in brackets is void: its control, the first form over "
        "itself, is not within 0.97 to 1.03. Of a whole network, two instances of each form are "
        "averaged: where the weights lie in memory changes its time by a tenth.",
        "",
        _row(HEADER),
        _row(["---"] * len(HEADER)),
    ]
    for position, first in enumerate(runs[0]):
        same = [run[position] for run in runs]
        lines.append(_model_row(first["network"], [each["model"] for each in same]))
        for number, layer in enumerate(first["layers"]):
            own = [each["layers"][number] for each in same]
            lines.append(_layer_row(first["network"], layer, own))
    return "\n".join([*lines, ""])


def _row(cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _model_row(network: str, runs: list[dict[str, Any]]) -> str:
    plain = statistics.median(run["plain_seconds"] for run in runs) * MICROSECONDS
    decision = f"(TVM's own pipeline: {plain:.0f} us)"
    cells = ["", "nothing streams: the same kernels", ""]
    if "ratios" in runs[0]:
        cells = [_time(runs), _ratios(runs, DATA_PARALLEL), ""]
    return _row([network, "**the whole model**", "", decision, *cells])


def _layer_row(network: str, layer: dict[str, Any], runs: list[dict[str, Any]]) -> str:
    size = f"{layer['tiles']} x {layer['panels']}" if "tiles" in layer else "symbolic"
    cells = [network, layer["layer"][:LONGEST_NAME], size, layer["decision"]]
    if "ratios" not in layer:
        return _row([*cells, "", "", ""])
    ratios = [_ratios(runs, word) for word in (DATA_PARALLEL, PERSISTENT)]
    return _row([*cells, _time(runs), *ratios])


def _time(runs: list[dict[str, Any]]) -> str:
    known = [run["ratios"][DATA_PARALLEL].get("seconds") for run in runs]
    seconds = [pair[1] for pair in known if pair]
    return f"{statistics.median(seconds) * MICROSECONDS:.0f}" if seconds else "-"


def _ratios(runs: list[dict[str, Any]], word: str) -> str:
    return ", ".join(_ratio(run["ratios"][word]) for run in runs)


def _ratio(figure: dict[str, Any]) -> str:
    if "not_quiet" in figure:
        return "not quiet"
    low, high = figure["spread"]
    shown = f"{figure['ratio']:.3f} ({low:.2f}-{high:.2f})"
    return shown if figure["valid"] else f"[{shown}]"


if __name__ == "__main__":
    typer.run(main)
