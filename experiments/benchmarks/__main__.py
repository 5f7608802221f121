"""``python -m experiments.benchmarks``: measures everything, or some parts, and prints the page; ``--page`` writes the page only.

Results go to ``--out`` (docs/results/benchmarks.json), where parts that were not run stay as they are; the page
beside it, docs/performance.md, and its picture are made from them. All of it takes less than 15 minutes; the
results of a part are written when it ends, so that a run that breaks off goes on with ``--parts``.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpswd import __version__
from experiments.benchmarks import compiled, cost, distances, growth, page, picture, startup, training

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "experiments.benchmarks.json"
PAGE = ROOT / "docs" / "performance.md"
PICTURE = ROOT / "docs" / "figures" / "scaling.png"
PARTS: dict[str, Callable[[bool, int], list[dict[str, Any]]]] = {
    "startup": startup.startup,
    "account": startup.account,
    "sort": growth.sort,
    "distance": distances.distance,
    "step": distances.step,
    "training": training.training,
    "scaling": growth.scaling,
    "large": distances.large,
    "sketch": growth.sketch,
    "cost": cost.cost,
    "compiled": compiled.compiled,
}


def machine() -> dict[str, Any]:
    """Describes what was measured on, without naming the host."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    versions = {package: version(package) for package in ("torch", "numpy", "POT", "lightning", "dp-accounting")}
    return {"processor": model, "cores": os.cpu_count(), "python": platform.python_version(), **versions}


def main(argv: list[str] | None = None) -> int:
    """Runs the parts that are wanted; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure (default: all)")
    parser.add_argument("--rounds", type=int, default=9, help="measured rounds after the warm-up")
    parser.add_argument("--tiny", action="store_true", help="sizes that take a second, for the tests")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    parser.add_argument("--page", action="store_true", help="measure nothing, write docs/performance.md")
    arguments = parser.parse_args(argv)
    before = json.loads(arguments.out.read_text())["rows"] if arguments.out.exists() else []
    if not arguments.page:
        for part in arguments.parts:
            started = time.perf_counter()
            sys.stderr.write(f"measuring: {part}\n")
            rows = PARTS[part](arguments.tiny, arguments.rounds)
            before = [row for row in before if row["part"] != part] + rows
            facts = {"command": "python -m experiments.benchmarks", "version": __version__, "machine": machine()}
            arguments.out.write_text(json.dumps({**facts, "rows": before}, indent=1) + "\n")
            sys.stderr.write(f"{part}: {time.perf_counter() - started:.0f} s\n")
    text = page.write(json.loads(arguments.out.read_text()))
    if arguments.out == RESULTS:
        PAGE.write_text(text)
        picture.draw(json.loads(RESULTS.read_text())["rows"], PICTURE)
    if not arguments.page:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
