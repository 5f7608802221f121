"""docs/performance.md, made from docs/results/benchmarks.json. Targets stand beside what was measured."""

from typing import Any

__all__ = ["write"]

Row = dict[str, Any]


def write(content: dict[str, Any]) -> str:
    """Returns the page."""
    rows = content["rows"]
    parts = {part: [row for row in rows if row["part"] == part] for part in {row["part"] for row in rows}}
    machine = content["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in machine if name not in ("processor", "cores", "python"))
    lines = [
        "# Performance",
        "",
        f"Made by `{content['command']}` (dpswd {content['version']}); page alone: `python -m benchmarks --page`.",
        f"Machine: {machine['processor']}, {machine['cores']} cores of a virtual machine that others share and that "
        f"other jobs ran on meanwhile; Python {machine['python']}, {versions}. All contestants take turns in one "
        "process; a figure is the median of the rounds. Where ratios of one table differ from those of another run by "
        "a tenth, that is the machine. With two threads on two cores, of which another job took one all the while, "
        "threads wait for each other: those rows say little about a quiet machine. "
        + (
            ""
            if any(row.get("device") == "cuda" for row in rows)
            else "No GPU was there: the CUDA path was not measured."
        ),
        "",
    ]
    parts["distance"] = parts.get("distance", []) + parts.get("large", [])
    sections = {
        "distance": _distance,
        "step": _step,
        "sort": _sort,
        "training": _training,
        "startup": _startup,
        "scaling": _scaling,
        "sketch": _sketch,
        "cost": _cost,
    }
    for part, section in sections.items():
        if parts.get(part):
            lines += [*section(parts[part]), ""]
    return "\n".join(lines)


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}" if seconds > 0.1 else f"{seconds * 1e3:.3g}"


def _ratio(ratio: float, holds: bool | None) -> str:
    return f"{ratio:.2f}" + {True: "", False: " **(missed)**", None: ""}[holds]


def _size(row: Row) -> str:
    return f"({row['n']:,}, {row['d']:,}, {row['k']:,})"


def _distance(rows: list[Row]) -> list[str]:
    cells = []
    for row in rows:
        ours, large = row["ours_s"], row["n"] >= 1000
        pot, naive, floor = row["pot_s"] / ours, row["naive_s"] / ours, ours / row["floor_s"]
        cells.append(
            [
                _size(row),
                f"{row['device']}, {row['threads']}",
                _ms(ours),
                _ratio(pot, pot >= (3 if row["d"] <= 784 else 1.4)),
                _ratio(naive, naive >= (1.5 if large else 1)),
                _ratio(floor, floor <= 1.3 if large else None),
                f"{row['difference']:.0e}",
                f"{row['ours_rounds']}, {row['pot_rounds']}, {row['naive_rounds']}",
            ]
        )
    memory = [
        [_size(row), *(f"{row[f'{name}_bytes'] / 1e6:,.0f}" for name in ("ours", "pot", "naive"))]
        for row in rows
        if "ours_bytes" in row
    ]
    return [
        "## One sliced distance, forward and backward",
        "",
        "`sliced_wasserstein(x, y, directions)`, float32, gradient for one side, the same directions for all. POT: "
        "`ot.sliced_wasserstein_distance` with its torch backend. Naive: two products, two sorts, as in the paper's "
        "code. Floor: two products, the fastest sort of one side, the backward product, nothing else (no distance, no "
        "sort of the private side). Targets: POT / ours at least 3 for d up to 784 and 1.4 above, naive / ours at "
        "least 1.5 for n of 1,000 and more and 1 below, ours / floor at most 1.3 for n of 1,000 and more.",
        "",
        *_table(
            [
                "(n, d, k)",
                "device, threads",
                "ours, ms",
                "POT / ours",
                "naive / ours",
                "ours / floor",
                "value differs by",
                "rounds: ours, POT, naive",
            ],
            cells,
        ),
        "",
        "What takes more than ten seconds runs once. The value is compared with POT's, relative.",
        "",
        *(
            [
                "Peak memory above the inputs, one thread, in a process of its own (target: 1 GB at n = 60,000):",
                "",
                *_table(["(n, d, k)", "ours, MB", "POT, MB", "naive, MB"], memory),
            ]
            if memory
            else []
        ),
    ]


def _step(rows: list[Row]) -> list[str]:
    cells = []
    for row in rows:
        by_rows, means = row["paper_s"] / row["rows_s"], row["paper_s"] / row["quantiles_s"]
        times = [_ms(row[f"{name}_s"]) for name in ("rows", "quantiles", "paper", "directions")]
        ratios = [_ratio(ratio, ratio >= (1.5 if row["n"] >= 1000 else 1)) for ratio in (by_rows, means)]
        cells.append([_size(row), str(row["threads"]), *times, *ratios])
    return [
        "## One whole private step",
        "",
        "`DPSlicedWassersteinLoss`, release, distance and backward, against the paper's step (torch's generator, "
        "everything in float32, nothing clipped). Ours clips and projects the private side in float64, and draws "
        "directions and noise in float64 from the operating system. That randomness, of which the column of the "
        "directions is the largest part, costs more than the distance itself; where ours is slower this is why. It is "
        "the price of noise that nobody can regenerate (docs/pitfalls.md), and a one-shot release pays it once.",
        "",
        *_table(
            [
                "(n, d, k)",
                "threads",
                "rows, ms",
                "block means, ms",
                "paper, ms",
                "of which our directions, ms",
                "paper / rows",
                "paper / block means",
            ],
            cells,
        ),
    ]


def _sort(rows: list[Row]) -> list[str]:
    names = {
        "torch_dim0_s": "torch, down the columns",
        "torch_s": "torch, contiguous",
        "numpy_argsort_s": "NumPy argsort",
        "ours_order_s": "values and order (packed)",
        "ours_values_s": "values only (NumPy)",
    }
    return [
        "## Sorts",
        "",
        "1,000 columns of n float32 values, one thread, milliseconds. A gradient needs the order; a side without a "
        "gradient does not. `dpswd.sorting` packs a value and its position into one float64 number.",
        "",
        *_table(["n", *names.values()], [[f"{row['n']:,}", *(_ms(row[name]) for name in names)] for row in rows]),
    ]


def _training(rows: list[Row]) -> list[str]:
    cells = []
    for row in rows:
        once = row["release_s"] if row["release_s"] < 0.5 * row["total_s"] and "rows" not in row["config"] else 0.0
        total = row["total_s"] - once - row["epsilon_s"]
        loss = row["loss_s"] + (0 if once else row["release_s"])
        cells.append(
            [
                f"`{row['config']}`",
                f"{row['steps']:,}",
                _ms(total / row["steps"]),
                _percent(loss / total, 0.2),
                _percent(row["rest_s"] / total, 0.1),
                f"{row['release_s']:.2f}",
                f"{row['epsilon_s']:.2f}",
            ]
        )
    return [
        "## Training",
        "",
        "The shipped configs on one thread, without their evaluations. Loss: forward, with the gradient that the "
        "forward already takes; releases too where every step makes one. Lightning: all that is neither the step nor "
        "the budget's account, data loading included (a batch is one indexing of one tensor). Targets: loss at most "
        "20%, Lightning at most 10%.",
        "",
        *_table(["config", "steps", "step, ms", "loss", "Lightning", "releases, s", "accounts of epsilon, s"], cells),
        "",
        "`configs/mnist.yaml` is 60 steps of a flow, of which the loss is nearly all by design, and then steps without "
        "any sliced distance. `configs/mnist_rows.yaml` makes a release of 784,000 fresh directions' coordinates at "
        "every step, the paper's way; see the table of the private step for where that goes.",
    ]


def _percent(share: float, target: float) -> str:
    return f"{share:.0%}" + ("" if share <= target else " **(missed)**")


def _startup(rows: list[Row]) -> list[str]:
    cells = [[f"`{row['what']}`", f"{row['seconds']:.2f}"] for row in rows]
    return [
        "## Start",
        "",
        "Fresh processes, wall clock from outside. Targets: `import dpswd` within 0.5 s of torch (names are "
        "imported when they are used; with all of them come SciPy and the accountants); 60,100 subsampled releases "
        "accounted for in 1 s, calibrated in 5 s. The figures include the start of Python and its imports; the account "
        "alone is in the table of growth.",
        "",
        *_table(["what", "seconds"], cells),
    ]


def _scaling(rows: list[Row]) -> list[str]:
    cells = [
        [
            f"{row['what']}, against {row['variable']}",
            f"{row['sizes'][0]:,} to {row['sizes'][-1]:,}",
            f"{_ms(row['seconds'][0])} to {_ms(row['seconds'][-1])}",
            f"{row['exponent']:.2f}",
        ]
        for row in rows
    ]
    at = {row["variable"]: dict(zip(row["sizes"], row["seconds"], strict=True)) for row in rows}
    lines = [
        "## Growth",
        "",
        "One thread; the others stay at n = 1,000, d = 784, k = 1,000. The exponent is that of the power law fitted to "
        "all sizes.",
        "",
        *_table(["what", "sizes", "milliseconds", "exponent"], cells),
    ]
    if 16_000 in at.get("B", {}):
        seconds = (at["B"][16_000] - at["B"][1000]) / 15_000 / 784**2  # per record and entry of the product
        hours = seconds * 1e7 * 1e5 * 1e3 / 3600
        lines += [
            "",
            f"A release of B records costs {seconds * 784**2 * 1e6:.3g} µs per record at d = k = 784, above what does "
            f"not depend on B, and grows as d k. So 10^7 records of d = 10^5 with k = 1,000 independent directions "
            f"would take about {hours:,.0f} hours on one such core (the products; several shards divide it), and hold "
            "80 MB per column plus 0.8 GB of directions. They are 4 TB in float32, so that a pass over them takes an "
            "hour and a half from a disk of 0.75 GB/s, and there is a pass for every nine directions within 768 MiB, "
            "over a hundred for k = 1,000. Reading is the first limit: give `max_bytes` (80 GB for one pass) or "
            "shards. A whole orthonormal basis, k = d = 10^5, is the second: 80 GB of directions and 10^15 operations "
            "to make them. Project to fewer dimensions first. These are extrapolations, nothing of that size was run.",
        ]
    return lines


def _sketch(rows: list[Row]) -> list[str]:
    row = rows[0]
    return [
        "## The stream",
        "",
        f"`dpswd.sketch.release_sketch` of {row['n']:,} x {row['d']:,} rows, {row['k']:,} directions, 100 block means, "
        f"records made chunk by chunk at every pass (that time is included), one thread: {row['seconds']:.0f} s, peak "
        f"memory of the whole process {row['peak_bytes'] / 1e9:.2f} GB (target: 2 GB). Equal to the sketch in memory "
        "to 1e-14, by tests/test_sketch.py, over chunks, passes, orders, and shards on several processes.",
    ]


def _cost(rows: list[Row]) -> list[str]:
    cells = []
    for row in rows:
        peak = max(row["peak_bytes"]) / 1e9
        cells.append(
            [
                f"{row['variable']}" + (" = B (one shot)" if row["variable"] == "N" else ""),
                ", ".join(
                    f"{name} = {value:,}" for name, value in row["base"].items() if row["variable"] + name != "NB"
                ),
                f"{row['sizes'][0]:,} to {row['sizes'][-1]:,}",
                f"{_ms(row['cpu_seconds'][0])} to {_ms(row['cpu_seconds'][-1])}",
                f"{row['time_exponent']:.2f}",
                f"{row['above_bytes'][0] / 1e6:,.0f} to {row['above_bytes'][-1] / 1e6:,.0f}",
                f"{row['memory_exponent']:.2f}",
                f"{peak:.2f}" + ("" if peak <= 4 else " **(missed)**"),
            ]
        )
    head = [
        "against",
        "the others",
        "sizes",
        "time, ms",
        "exponent",
        "memory above the inputs, MB",
        "exponent",
        "peak, GB",
    ]
    return [
        "## Cost of a release",
        "",
        "One release of B of N records and one comparison of 500 generated rows with it, gradient included; one "
        "thread, time of the processor, every size in a process of its own, 100 block means. Targets: a process stays "
        "within 4 GB, growth no worse than linear.",
        "",
        *_table(head, cells),
        "",
        "The columns are sorted: beyond linear, time grows by the logarithm of N or B, which is what an exponent "
        "a little above 1 says.",
    ]
