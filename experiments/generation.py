"""The generators that ship as configs: accuracy of classifiers trained on their output, over some seeds."""

import json
import tempfile
import time
from collections import defaultdict
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from dpswd.cli import fit
from dpswd.files import write_json

HELP = "shipped generator configs: downstream accuracy over three seeds (one with --quick, five with --full; minutes)"

CONFIGS = Path(__file__).parents[1] / "configs"
# the seed decides weights, latent codes and the classifiers' data; noise and directions are fresh in any case
RUNS = (("demo", 10.0), ("demo", 1.0), ("mnist", 10.0), ("mnist", 1.0), ("fashion", 10.0), ("fashion", 1.0))


def _one(config: str, epsilon: float, seed: int, data: Path | None, directory: Path) -> dict[str, Any]:
    arguments = ["fit", "--config", str(CONFIGS / f"{config}.yaml")]
    if config != "demo" and epsilon <= 1:
        arguments += ["--config", str(CONFIGS / "overlays" / "small_budget.yaml")]
    arguments += ["--trainer.default_root_dir", str(directory)]
    arguments += ["--privacy.target_epsilon", str(epsilon), "--seed_everything", str(seed)]
    arguments += ["--trainer.enable_progress_bar", "false", "--trainer.logger", "false"]
    if data is not None:
        arguments += ["--data.init_args.root", str(data)]
    started = time.monotonic()
    with redirect_stdout(StringIO()):
        fit(arguments)
    seconds = time.monotonic() - started
    downstream = json.loads((directory / "downstream.json").read_text())
    facts = json.loads((directory / "privacy.json").read_text())
    return {"seconds": seconds - downstream["seconds"], "rows": downstream["rows"], "facts": facts}


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Trains every config and returns one row for each data set, budget and classifier, and for real records."""
    seeds = 1 if quick else 5 if full else 3
    finished = out / "generation-runs"  # a run that was interrupted goes on after the last of these
    rows = []
    for config, epsilon in RUNS[:1] if quick else RUNS:
        results = []
        for seed in range(seeds):
            result = finished / f"{config}-{epsilon:g}-{seed}.json"
            if not result.is_file():
                with tempfile.TemporaryDirectory() as directory:
                    write_json(result, _one(config, epsilon, seed, data, Path(directory) / "run"))
            results.append(json.loads(result.read_text()))
            print(f"{config} epsilon={epsilon:g} seed={seed}: {results[-1]['seconds']:.0f} s", flush=True)
        rows += _summarise(results, epsilon)
    _show(rows)
    return {"rows": rows}


def _summarise(results: list[dict[str, Any]], epsilon: float) -> list[dict[str, Any]]:
    facts = results[0]["facts"]
    accuracies: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for result in results:
        for row in result["rows"]:
            accuracies[row["dataset"], row["train"], row["classifier"]].append(row["accuracy"])
    return [
        {
            "dataset": dataset,
            "method": "DP-SWD" if train == "synthetic" else "real records",
            "release": facts["mechanism"]["release"] if train == "synthetic" else None,
            "epsilon": epsilon if train == "synthetic" else None,
            "delta": facts["delta"] if train == "synthetic" else None,
            "mu": facts["mu"] if train == "synthetic" else None,
            "sound": facts["sound"] if train == "synthetic" else None,
            "classifier": classifier,
            "mean": round(mean(values), 1),
            "std": round(stdev(values), 1) if len(values) > 1 else None,
            "seeds": len(values),
            "train_seconds": round(mean(result["seconds"] for result in results)) if train == "synthetic" else None,
        }
        for (dataset, train, classifier), values in accuracies.items()
        if train == "synthetic" or epsilon == RUNS[0][1]  # real records do not depend on the budget: once is enough
    ]


def _show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        budget = f"({row['epsilon']:g}, {row['delta']:g})" if row["epsilon"] else "no privacy"
        spread = f" ± {row['std']}" if row["std"] is not None else ""
        print(f"{row['dataset']:<13} {row['method']:<13} {budget:<12} {row['classifier']:<7} {row['mean']}{spread}")
