"""docs/performance.md, made from docs/results/benchmarks.json. Targets stand beside what was measured."""

from typing import Any

from experiments.benchmarks import growth_page
from experiments.benchmarks.markdown import ms, percent, ratio, size, table

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
        f"Made by `{content['command']}` (dpswd {content['version']}); page alone: `python -m experiments.benchmarks --page`.",
        f"Machine: {machine['processor']}, {machine['cores']} cores of a virtual machine that others share and that "
        f"other jobs may have run on meanwhile; Python {machine['python']}, {versions}. All contestants take turns in "
        "one process; a figure is the median of the rounds. Where ratios of one table differ from those of another run "
        "by a tenth, that is the machine. Two threads on two cores wait for whatever else runs there. "
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
        "account": growth_page.account,
        "scaling": growth_page.scaling,
        "sketch": growth_page.sketch,
        "cost": growth_page.cost,
        "compiled": growth_page.compiled,
    }
    for part, section in sections.items():
        if parts.get(part):
            lines += [*section(parts[part]), ""]
    return "\n".join(lines)


def _distance(rows: list[Row]) -> list[str]:
    cells = []
    for row in rows:
        ours, large = row["ours_s"], row["n"] >= 1000
        pot, naive = row["pot_s"] / ours, row["naive_s"] / ours
        floor, strict = ours / row["floor_s"], ours / row["strict_s"]
        cells.append(
            [
                size(row),
                f"{row['device']}, {row['threads']}",
                ms(ours),
                ratio(pot, pot >= (3 if row["d"] <= 784 else 1.4)),
                ratio(naive, naive >= (1.5 if large else 1)),
                ratio(floor, floor <= 1.3 if large else None),
                ratio(strict, None),
                f"{row['difference']:.0e}",
                f"{row['ours_rounds']}, {row['pot_rounds']}, {row['naive_rounds']}",
            ]
        )
    memory = [
        [size(row), *(f"{row[f'{name}_bytes'] / 1e6:,.0f}" for name in ("ours", "pot", "naive"))]
        for row in rows
        if "ours_bytes" in row
    ]
    return [
        "## One sliced distance, forward and backward",
        "",
        "`sliced_wasserstein(x, y, directions)`, float32, gradient for one side, the same directions for all. POT: "
        "`ot.sliced_wasserstein_distance` with its torch backend. Naive: two products, two sorts, as in the paper's "
        "code. Floor: two products, the fastest sort of one side, the backward product, nothing else (no distance, no "
        "sort of the private side); by torch's `@`, which is MKL, and, stricter, by what ours uses: oneDNN, about "
        "twice as fast on this processor. Targets: POT / ours at least 3 for d up to 784 and 1.4 above, naive / ours "
        "at least 1.5 for n of 1,000 and more and 1 below, ours / floor at most 1.3 for n of 1,000 and more.",
        "",
        *table(
            [
                "(n, d, k)",
                "device, threads",
                "ours, ms",
                "POT / ours",
                "naive / ours",
                "ours / floor",
                "ours / floor with our products",
                "value differs by",
                "rounds: ours, POT, naive",
            ],
            cells,
        ),
        "",
        "What takes over ten seconds runs once. Values are compared with those in float64 (target: 1e-5 relative).",
        "",
        *(
            [
                "Peak memory above the inputs, one thread, in a process of its own (target: 1 GB at n = 60,000):",
                "",
                *table(["(n, d, k)", "ours, MB", "POT, MB", "naive, MB"], memory),
            ]
            if memory
            else []
        ),
    ]


def _step(rows: list[Row]) -> list[str]:
    cells = []
    for row in rows:
        by_rows, means = row["paper_s"] / row["rows_s"], row["paper_s"] / row["quantiles_s"]
        times = [ms(row[f"{name}_s"]) for name in ("rows", "quantiles", "paper", "directions")]
        ratios = [ratio(gain, gain >= (1.5 if row["n"] >= 1000 else 1)) for gain in (by_rows, means)]
        cells.append([size(row), str(row["threads"]), *times, *ratios])
    return [
        "## One whole private step",
        "",
        "`DPSlicedWassersteinLoss`, release, distance and backward, against the paper's step (torch's generator, "
        "everything in float32, nothing clipped). Ours clips and projects the private side in float64, and draws "
        "directions and noise in float64 from a cryptographic generator with fresh entropy in every draw: where ours "
        "is slower this is why. It is the price of noise that nobody can regenerate (docs/pitfalls.md), and a one-shot "
        "release pays it once. Targets: 1.5 times as fast for n of 1,000 and more, never slower below.",
        "",
        *table(
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
        "gradient does not. `dpswd._sorting` packs a value and its position into one float64 number.",
        "",
        *table(["n", *names.values()], [[f"{row['n']:,}", *(ms(row[name]) for name in names)] for row in rows]),
    ]


def _training(rows: list[Row]) -> list[str]:
    cells = []
    for row in rows:
        once = row["release_s"] if row["release_s"] < 0.5 * row["total_s"] and "rows" not in row["config"] else 0.0
        total = row["total_s"] - once - row["epsilon_s"]
        total -= row["saving_s"]
        loss = row["loss_s"] + (0 if once else row["release_s"])
        cells.append(
            [
                f"`{row['config']}`",
                f"{row['steps']:,}",
                ms(total / row["steps"]),
                percent(loss / total, 0.2),
                percent(row["rest_s"] / total, 0.1),
                f"{row['release_s']:.2f}",
                f"{row['epsilon_s']:.2f}",
                f"{row['saving_s']:.2f}",
            ]
        )
    return [
        "## Training",
        "",
        "The shipped configs on one thread, without their evaluations. Loss: forward, with the gradient that the "
        "forward already takes; releases too where every step makes one. Lightning: all that is neither the step, nor "
        "the budget's account, nor the saving of twenty checkpoints, data loading included (a batch is one indexing of "
        "one tensor). Targets: loss at most 20%, Lightning at most 10%.",
        "",
        *table(["config", "steps", "step, ms", "loss", "Lightning", "releases, s", "accounts, s", "saving, s"], cells),
        "",
        "`configs/mnist.yaml`, the whole run, is one release, a few steps of a flow along its slices, and then steps "
        "of a network without any sliced distance. `configs/mnist_rows.yaml` makes a release of 1,000 fresh directions "
        "at every step, the paper's way, and `configs/digits.yaml` trains a network of 128 units: little else is "
        "done in a step of theirs.",
    ]


def _startup(rows: list[Row]) -> list[str]:
    cells = [[f"`{row['what']}`", f"{row['seconds']:.2f}"] for row in rows]
    return [
        "## Start",
        "",
        "Fresh processes, wall clock from outside, the start of Python included. Target: `import dpswd` within 0.5 s "
        "of torch (names are imported when they are used; with all of them come SciPy and the accountants).",
        "",
        *table(["what", "seconds"], cells),
    ]
