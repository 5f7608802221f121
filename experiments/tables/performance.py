"""Tables of docs/performance.md. A ratio that misses its target is marked."""

from experiments.results import Result, Row
from experiments.tables.markdown import Pivot, Table, with_origin
from experiments.tables.values import gigabytes, megabytes, microseconds, milliseconds, select

VARIABLES = {"N": "N = B (one shot)", "T": "T (account)"}
PEAK_BYTES = 4e9  # target of the memory of a release
LARGE = 1000  # rows from which a ratio to other code has its target


def benchmark_distance(result: Result) -> str:
    """Time and memory of a distance, beside POT, the naive one and a lower bound."""
    rows = select(result["rows"], part="distance", device="cpu")
    table = Pivot(
        "(n, d, k)",
        last=["naive / ours", "ours / floor", "ours, ms", "MB, ours / POT / naive"],
    )
    for row in rows:
        last = [_naive_over_ours(row), _ours_over_floor(row), milliseconds(row["ours_s"])]
        last.append(_bytes_of_three(row))
        column = f"POT / ours, threads: {row['threads']}"
        table.add([_size(row)], column=column, cell=_pot_over_ours(row), last=last)
    processor = result["machine"]["processor"]
    note = f"{processor}, POT {result['pot']}, torch {result['machine']['torch']}"
    return with_origin(table, result, rows, note=note)


def _pot_over_ours(row: Row) -> str:
    """Format the time of POT over ours.

    The target is 3, and 1.4 in thousands of dimensions.
    """
    target = 1.4
    if row["d"] <= 784:
        target = 3.0
    ratio = row["pot_s"] / row["ours_s"]
    return _marked(ratio, ratio >= target)


def _naive_over_ours(row: Row) -> str:
    ratio = row["naive_s"] / row["ours_s"]
    return _marked(ratio, ratio >= _least_ratio(row))


def _ours_over_floor(row: Row) -> str:
    """Format the time of ours over the lower bound.

    The target is 1.3, from 1,000 rows on.
    """
    ratio = row["ours_s"] / row["floor_s"]
    return _marked(ratio, ratio <= 1.3 or row["n"] < LARGE)


def _bytes_of_three(row: Row) -> str:
    """Format the memory of ours, POT and the naive distance.

    It is measured with one thread only.
    """
    memory = [megabytes(row.get(f"{name}_bytes")) for name in ("ours", "pot", "naive")]
    return " / ".join(memory)


def _least_ratio(row: Row) -> float:
    """Return the target of a ratio to naive code.

    It is 1.5 for 1,000 rows and more, 1 below.
    """
    if row["n"] >= LARGE:
        return 1.5
    return 1.0


def _marked(value: float, is_met: bool) -> str:
    """Format a value, marked where it misses its target."""
    if is_met:
        return f"{value:.2f}"
    return f"{value:.2f} **(missed)**"


def _size(row: Row) -> str:
    return f"({row['n']:,}, {row['d']:,}, {row['k']:,})"


def benchmark_step(result: Result) -> str:
    """Time of a private step, beside the step of the paper."""
    rows = select(result["rows"], part="step")
    table = Pivot("(n, d, k)", last=["paper, ms", "rows, ms", "directions, ms", "product, ms"])
    for row in rows:
        ratios = []
        for statistic in ("rows", "quantiles"):
            ratio = row["paper_s"] / row[f"{statistic}_s"]
            ratios.append(_marked(ratio, ratio >= _least_ratio(row)))
        cell = " / ".join(ratios)
        works = ("paper", "rows", "directions", "product")
        last = [milliseconds(row[f"{work}_s"]) for work in works]
        table.add([_size(row)], column=f"threads: {row['threads']}", cell=cell, last=last)
    note = f"{result['machine']['processor']}, paper / rows and paper / block means"
    return with_origin(table, result, rows, note=note)


def structured_steps(result: Result) -> str:
    """Time of a private step with structured slices, beside the step of the paper."""
    rows = select(result["rows"], part="step")
    last = ["directions of ours", "paper, ms", "block means, ms", "rows, ms", "floor of rows, ms"]
    table = Pivot("(n, d, k) of the paper", last=last)
    for row in rows:
        ratios = []
        for name in ("rows", "blocks"):
            ratio = _ratio(row, "paper", name)
            ratios.append(_marked(ratio, ratio >= _least_step_ratio(row)))
        ratio = _ratio(row, "paper", "iid")
        ratios.append(_marked(ratio, ratio >= 1))
        directions = f"{row['slices']:,} {row['kind']}"
        if row["precision"] == "single":
            directions += ", single precision"
        values = [directions]
        for name in ("paper", "blocks", "rows", "floor"):
            values.append(milliseconds(_least(row, name)))
        column = f"threads: {row['threads']}"
        table.add([_size(row)], column=column, cell=" / ".join(ratios), last=values)
    note = f"{result['machine']['processor']}, paper / rows, paper / block means, paper / iid rows"
    return with_origin(table, result, rows, note=note)


def _ratio(row: Row, name: str, other: str) -> float:
    """Return the time of one function over that of another one."""
    return _least(row, name) / _least(row, other)


def _least(row: Row, name: str) -> float:
    """Return the time of the fastest round of a function.

    On one thread it is processor time, which other programs hardly change.
    """
    seconds: float = row[f"{name}_least_s"]
    if row["threads"] == 1:
        seconds = row[f"{name}_least_cpu_s"]
    return seconds


def _least_step_ratio(row: Row) -> float:
    """Return the target: 1.5, and 5 in thousands of dimensions."""
    if row["d"] > 1000:
        return 5.0
    return 1.5


def _one_digit(value: float) -> str:
    """Return a large number with one digit that is not zero, as 10,000."""
    return f"{float(f'{value:.0e}'):,.0f}"


def structured_distances(result: Result) -> str:
    """Time and precision of a distance by structured slices, beside POT."""
    rows = select(result["rows"], part="distance")
    last = ["ours, ms", "standard deviation, structured / iid"]
    table = Pivot("(n, d, k)", last=last)
    for row in rows:
        ratio = _ratio(row, "pot", "structured")
        of_deviations = row["iid_deviation"] / row["structured_deviation"]
        at_equal_precision = _one_digit(ratio * of_deviations**2)
        deviations = f"{row['structured_deviation']:.1e} / {row['iid_deviation']:.1e}"
        table.add(
            [_size(row)],
            column=f"threads: {row['threads']}",
            cell=f"{ratio:.2f} / {at_equal_precision}",
            last=[milliseconds(_least(row, "structured")), deviations],
        )
    note = "POT / ours with as many directions, and at equal precision"
    return with_origin(table, result, rows, note=note)


def structured_classes(result: Result) -> str:
    """Time of a distance to block means of classes."""
    rows = select(result["rows"], part="classes")
    table = Pivot("rows, classes, k, blocks", last=[])
    for row in rows:
        size = f"{row['n']}, {row['classes']}, {row['k']}, {row['blocks']}"
        column = f"threads: {row['threads']}, ms"
        table.add([size], column=column, cell=milliseconds(_least(row, "ours")), last=[])
    return with_origin(table, result, rows)


def benchmark_compiled(result: Result) -> str:
    """Time of the naive distance under ``torch.compile``."""
    rows = select(result["rows"], part="compiled")
    table = Table(rows)
    table.column("(n, d, k)", _size)
    table.formatted("naive, ms", "naive_s", milliseconds)
    table.formatted("compiled, ms", "compiled_s", milliseconds)
    table.formatted("ours, ms", "ours_s", milliseconds)
    table.number("compilation, s", "compile_s", form=".1f")
    return with_origin(table, result, rows)


def benchmark_startup(result: Result) -> str:
    """Time of an import, of an account and of a calibration."""
    rows = select(result["rows"], part=("startup", "account"))
    rows = select(rows, what=("import dpswd", "epsilon", "calibration"))
    table = Table(rows)
    table.column("what", _code)
    table.number("seconds", "seconds", form=".2f")
    return with_origin(table, result, rows)


def _code(row: Row) -> str:
    return f"`{row['what']}`"


def benchmark_cost(result: Result) -> str:
    """Growth of time and memory of a release against every size."""
    rows = select(result["rows"], part="cost")
    table = Table(rows)
    table.column("against", _variable)
    table.formatted("sizes", "sizes", _range)
    table.column("time, ms (exponent)", _time)
    table.column("memory, MB (exponent)", _memory)
    table.formatted("peak, GB", "peak_bytes", _peak)
    return with_origin(table, result, rows)


def _variable(row: Row) -> str:
    variable: str = row["variable"]
    return VARIABLES.get(variable, variable)


def _time(row: Row) -> str:
    """Format the least and the largest time of a release, and the exponent."""
    seconds = row["cpu_seconds"]
    ends = f"{milliseconds(seconds[0])} to {milliseconds(seconds[-1])}"
    return f"{ends} ({row['time_exponent']:.2f})"


def _memory(row: Row) -> str:
    """Format the least and the largest memory of a release, and the exponent."""
    memory = row["above_bytes"]
    ends = f"{megabytes(memory[0])} to {megabytes(memory[-1])}"
    return f"{ends} ({row['memory_exponent']:.2f})"


def _peak(peaks: list[int]) -> str:
    """Format the largest memory of all sizes in gigabytes, marked above its target."""
    return _marked(max(peaks) / 1e9, max(peaks) <= PEAK_BYTES)


def _range(sizes: list[int]) -> str:
    return f"{sizes[0]:,} to {sizes[-1]:,}"


def parts(result: Result) -> str:
    """Time, memory and accuracy of fits of images on disk."""
    rows = result["rows"]
    table = Table(rows)
    table.number("images", "n", form=",")
    table.text("in", "source")
    table.number("processes", "processes", form="d")
    table.number("whole fit, s", "seconds", form=".0f")
    table.number("releases, s", "releases_s", form=".0f")
    table.formatted("a record in a pass, µs", "record_pass_s", microseconds)
    table.formatted("memory of a process, GB", "peak_bytes", gigabytes)
    table.number("LogReg", "accuracy", "logreg", form=".1f")
    table.number("CNN", "accuracy", "cnn", form=".1f")
    note = "largest memory of all processes, each from its start to its end"
    return with_origin(table, result, rows, note=note)


def parts_growth(result: Result) -> str:
    """Growth of time and memory of a fit against every size."""
    rows = result["growth"]
    table = Table(rows)
    table.text("against", "variable")
    table.formatted("sizes", "sizes", _range)
    table.column("time, s (exponent)", _time_of_fit)
    table.column("memory, GB (exponent)", _memory_of_fit)
    note = "exponents of fitted powers; processor time of the releases, one process"
    return with_origin(table, result, rows, note=note)


def _time_of_fit(row: Row) -> str:
    seconds = row["cpu_s"]
    return f"{seconds[0]:.1f} to {seconds[-1]:.1f} ({row['time_exponent']:.2f})"


def _memory_of_fit(row: Row) -> str:
    peaks = row["peak_bytes"]
    ends = f"{gigabytes(peaks[0])} to {gigabytes(peaks[-1])}"
    return f"{ends} ({row['memory_exponent']:.2f})"


def parts_cluster(result: Result) -> str:
    """Extrapolated cost of a fit on many machines."""
    rows = result["cost"]
    table = Table(rows)
    table.number("records", "n", form=",")
    table.number("processes", "processes", form="d")
    table.number("passes", "passes", form="d")
    table.number("reading, h", "reading_hours", form=".2f")
    table.formatted("largest sum of a rank, MB", "sums_bytes", megabytes)
    table.number("network of 10 Gbit/s, s", "network_s", form=".1f")
    note = "from the rate of the largest fit in one process"
    return with_origin(table, result, rows, note=note)
