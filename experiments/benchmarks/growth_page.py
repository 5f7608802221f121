"""Sections of docs/performance.md on accounts, growth, streams, memory and compiling."""

from typing import Any

from experiments.benchmarks.markdown import limit, ms, size, table

__all__ = ["account", "compiled", "cost", "scaling", "sketch"]

Row = dict[str, Any]


def account(rows: list[Row]) -> list[str]:
    """The account of 60,100 releases."""
    seconds = {row["what"]: row["seconds"] for row in rows}
    return [
        "## Accounting",
        "",
        "One row of the published Table 4 (d = 784, k = 1,000, 60,100 releases of 100 of 60,000 records, PLD), in a "
        "process that has imported everything and accounted for nothing like it: "
        f"epsilon takes {limit(seconds['account'], 1)} (target: 1 s), the sigma for a given epsilon "
        f"{limit(seconds['calibrate'], 5)} (target: 5 s). Equal to a slow version, a loop per grid point and plain "
        "convolution, to 1e-4: tests/accounting/test_pld_oracle.py.",
    ]


def scaling(rows: list[Row]) -> list[str]:
    """Time against every size, and what follows for sizes that nobody ran."""
    cells = [
        [
            f"{row['what']}, against {row['variable']}",
            f"{row['sizes'][0]:,} to {row['sizes'][-1]:,}",
            f"{ms(row['seconds'][0])} to {ms(row['seconds'][-1])}",
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
        *table(["what", "sizes", "milliseconds", "exponent"], cells),
        "",
        "![time and memory against every size](figures/scaling.png)",
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
            "hour and a half from a disk of 0.75 GB/s, and there is a pass for every four directions within 384 MiB, "
            "the default: 250 passes for k = 1,000. Reading is the first limit: give `max_bytes` (80 GB for one pass) "
            "or shards. A whole orthonormal basis, k = d = 10^5, is the second: 80 GB of directions, 10^15 operations "
            "to make them. Project to fewer dimensions first. These are extrapolations, nothing of that size was run.",
        ]
    return lines


def sketch(rows: list[Row]) -> list[str]:
    """The stream of a million rows."""
    row = rows[0]
    return [
        "## The stream",
        "",
        f"`dpswd.sketch.release_sketch` of {row['n']:,} x {row['d']:,} rows, {row['k']:,} directions, 100 block means, "
        f"records made chunk by chunk at every pass (that time is included), one thread: {row['seconds']:.0f} s, peak "
        f"memory of the whole process {row['peak_bytes'] / 1e9:.2f} GB (target: 2 GB). Equal to the sketch in memory "
        "to 1e-14, by tests/test_sketch.py, over chunks, passes, orders, and shards on several processes.",
    ]


def cost(rows: list[Row]) -> list[str]:
    """Time and memory of private training."""
    cells = []
    for row in rows:
        peak = max(row["peak_bytes"]) / 1e9
        cells.append(
            [
                row["variable"] + {"N": " = B (one shot)", "T": " (account)"}.get(row["variable"], ""),
                ", ".join(
                    f"{name} = {value:,}" for name, value in row["base"].items() if row["variable"] + name != "NB"
                ),
                f"{row['sizes'][0]:,} to {row['sizes'][-1]:,}",
                f"{ms(row['cpu_seconds'][0])} to {ms(row['cpu_seconds'][-1])}",
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
        "One release of B of N records and one comparison of 500 generated rows with it, gradient included; against T, "
        "an account of T releases by PLD; one thread, time of the processor, every size in a process of its own, 100 "
        "block means. Targets: a process stays "
        "within 4 GB, growth no worse than linear.",
        "",
        *table(head, cells),
        "",
        "The columns are sorted: beyond linear, time grows by the logarithm of N or B, which is what an exponent "
        "a little above 1 says.",
    ]


def compiled(rows: list[Row]) -> list[str]:
    """Whether a compiler helps."""
    row = rows[0]
    gain = row["naive_s"] / row["compiled_s"]
    return [
        "## torch.compile",
        "",
        f"The naive distance at {size(row)}, one thread: {ms(row['naive_s'])} ms, compiled {ms(row['compiled_s'])} ms "
        f"({gain:.2f} times as fast, after {row['compile_s']:.0f} s of compiling); ours {ms(row['ours_s'])} ms. "
        + ("It pays there. " if gain > 1.1 else "It does not pay: products and sorts stay what they are. ")
        + "Our distance calls NumPy's sort, where a compiled graph breaks, so nothing here is compiled or needs to be; "
        "a generator of yours may be.",
    ]
