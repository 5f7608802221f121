"""Rule for a rare class of two, chosen by a simulation of the release.

A generator with the rule for rare classes is fitted. Records that it draws take the place of the
private ones: both kinds of release are made of them, with fresh noise, and a logistic regression of
each kind is tested on further draws. The kind with the larger balanced accuracy is chosen. Of the
private records the simulation reads only how many each class has, in place of the released numbers.
Sizes and constants are those of
:mod:`experiments.generation.imbalance`.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev

import torch

from dpswd.data import Benchmark
from dpswd.mixture import moments
from dpswd.networks.generator import Generator, draw
from dpswd.records import Records
from experiments import cells
from experiments.generation.imbalance import (
    N_RECORDS,
    N_SYNTHETIC,
    drawn_records,
    two_classes,
)
from experiments.generation.training import SHIPPED, accuracies, train_mixture
from experiments.results import Result

RULES = {"as released": 0.0, "by the rule": moments.RARE}
SETTINGS = (("digits", 10.0), ("USPS", 1.0), ("MNIST", 1.0), ("FashionMNIST", 1.0))
N_SEEDS = 3
N_DRAWS = 2  # simulated releases of each kind
N_TEST = 2000  # synthetic records on which a classifier of a simulation is tested


@dataclass(frozen=True)
class Cell(cells.Cell):
    """A data set with a budget and a seed."""

    dataset: str
    epsilon: float
    seed: int


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> Result:
    """Rule for a rare class, chosen by a simulation (10 minutes; resumes)."""
    planned = [Cell(*setting, seed) for setting in SETTINGS for seed in range(N_SEEDS)]
    if quick:
        planned = planned[:1]
    results = cells.run_cells(planned, partial(measure, data=data), out / "simulated_choice")
    rows = []
    for dataset, epsilon in SETTINGS:
        of_setting = [
            result
            for cell, result in zip(planned, results, strict=True)
            if (cell.dataset, cell.epsilon) == (dataset, epsilon)
        ]
        if of_setting:
            rows.append({"dataset": dataset, "epsilon": epsilon} | summarise(of_setting))
    return {"rows": rows}


def summarise(results: list[Result]) -> Result:
    """Return the accuracies of both kinds and of the chosen one.

    ``"n_rule"`` counts the seeds for which the rule was chosen.
    """
    chosen_accuracies = []
    n_rule = 0
    for result in results:
        simulated = result["simulated"]
        chosen = max(RULES, key=lambda name: simulated[name])
        chosen_accuracies.append(result["real"][chosen])
        n_rule += int(chosen == "by the rule")
    summary: Result = {}
    for name in RULES:
        summary[name] = round(mean(result["real"][name] for result in results), 1)
        summary[f"{name}, simulated"] = round(
            mean(result["simulated"][name] for result in results), 1
        )
    summary |= {"chosen": round(mean(chosen_accuracies), 1), "n_rule": n_rule}
    differences = [
        result["simulated"]["by the rule"] - result["simulated"]["as released"]
        for result in results
    ]
    summary |= {"seeds": len(results), "differences": [round(value, 1) for value in differences]}
    if len(results) > 1:
        summary["std_of_difference"] = round(stdev(differences), 1)
    return summary


def measure(cell: Cell, data: Path | None = None) -> Result:
    """Return balanced accuracies of logistic regression in percent.

    They are those on real test records, and those of the simulations, by the kind of release.
    """
    loaded = two_classes(cell.dataset, data)
    frequent, rare = drawn_records(loaded.train.labels, N_RECORDS[cell.dataset], cell.seed)
    private = loaded.train.select(torch.cat([frequent, rare]))
    generators = {name: _fitted(private, cell, part) for name, part in RULES.items()}
    real = {name: _score(generator, loaded) for name, generator in generators.items()}

    base = generators["by the rule"]
    drawn = Records(draw(base, private.labels), private.labels)
    test_labels = torch.arange(N_TEST) % 2
    test = Records(draw(base, test_labels), test_labels)
    stand_in = replace(loaded, train=drawn, test=test)
    simulated = {}
    for name, part in RULES.items():
        draws = [_score(_fitted(drawn, cell, part), stand_in) for _ in range(N_DRAWS)]
        simulated[name] = round(mean(draws), 1)
    return {"real": real, "simulated": simulated}


def _fitted(records: Records, cell: Cell, rare_part: float) -> Generator:
    """Fit a generator with fresh noise.

    Args:
        records: The records, which play the private ones.
        cell: The data set and the budget.
        rare_part: Part of the mean count below which a class is rare; 0 for no rare class.
    """
    trained = train_mixture(
        records.private(classes=[0, 1]),
        SHIPPED[cell.dataset],
        epsilon=cell.epsilon,
        seed=cell.seed,
        rare=rare_part,
    )
    return trained.generator


def _score(generator: Generator, loaded: Benchmark) -> float:
    """Return the balanced accuracy of a logistic regression of synthetic records."""
    labels = torch.arange(N_SYNTHETIC) % 2
    images = draw(generator, labels)
    scores = accuracies(("logreg",), images, labels, loaded, "balanced_accuracy")
    return round(scores["logreg"], 1)
