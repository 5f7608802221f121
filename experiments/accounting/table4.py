"""Rakotomamonjy2021, Table 4: the noise for epsilon = 10 as printed, recomputed, corrected, and by the exact law."""

from pathlib import Path
from typing import Any

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.calibrate import calibrate_sigma
from experiments.accounting.published import TABLE4, Table4Row
from experiments.plots import figure

EPSILON = 10.0
FEATURES = 320  # what the digits networks project: 20 maps of 4 x 4, not the 784 pixels (docs/errata.md, 3)
COLUMNS = {
    "published": "printed",
    "recomputed": "recomputed",
    "corrected": "corrected",
    "bound_rdp": "same bound, charged at every release",
    "exact_rdp": "exact, RDP",
    "exact_pld": "exact, PLD",
}


def _row(setting: Table4Row, published: float | None) -> dict[str, Any]:
    size, releases, delta = setting.sample_size, setting.n_releases, setting.delta
    budget: dict[str, Any] = {"sample_size": size, "n_releases": releases}
    budget |= {"target_epsilon": EPSILON, "target_delta": delta}
    exact = setting.mechanism
    sigma = calibrate_sigma(exact, **budget)
    accountant = PrivacyAccountant().step(
        exact.replace(sigma=sigma), sample_size=size, n_releases=releases
    )
    mu, regret = accountant.get_mu_and_regret()
    return {
        "dataset": setting.name,
        "dim": setting.dim,
        "n_projections": setting.n_projections,
        "sample_size": size,
        "batch_size": setting.batch_size,
        "n_releases": releases,
        "epsilon": EPSILON,
        "delta": delta,
        "bound": setting.bound,
        "published": published,
        "recomputed": setting.recomputed(),
        "corrected": setting.recomputed(corrected=True),
        "bound_rdp": calibrate_sigma(
            exact.replace(bound=setting.bound), **budget, accountant="rdp"
        ),
        "exact_rdp": calibrate_sigma(exact, **budget, accountant="rdp"),
        "exact_pld": sigma,
        "exact_pld_epsilon": accountant.get_epsilon(delta),
        "exact_pld_mu": mu,
        "exact_pld_regret": regret,
    }


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Rakotomamonjy2021, Table 4: sigma for epsilon = 10, printed, recomputed, corrected, exact."""
    settings: list[tuple[Table4Row, float | None]] = [(row, row.sigma) for row in TABLE4]
    visda = next(row for row in TABLE4 if row.name == "VisDA")
    settings.append((visda._replace(name="VisDA, delta = 1e-6", delta=1e-6), None))
    settings += [
        (row._replace(name=f"{row.name}, d = {FEATURES}", dim=FEATURES), None) for row in TABLE4[:2]
    ]
    rows = [_row(*setting) for setting in (settings[:1] if quick else settings)]

    ticks = (0.1, 0.3, 0.5, 1, 2, 4, 8)
    with figure(out / "table4.png", 8, 0.45 * len(rows) + 1.6) as axes:
        for (name, label), marker in zip(COLUMNS.items(), "x+1sdo", strict=True):
            known = [(row[name], i) for i, row in enumerate(rows) if row[name] is not None]
            axes.plot([x for x, _ in known], [y for _, y in known], marker, label=label)
        axes.set_xscale("log")
        axes.set_yticks(range(len(rows)), [row["dataset"] for row in rows])
        axes.invert_yaxis()
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("sigma for epsilon = 10, where a row moves by at most 1")
        axes.grid(True, axis="x", which="both", alpha=0.3)
        axes.figure.legend(
            *axes.get_legend_handles_labels(), fontsize=8, ncols=3, loc="outside lower center"
        )
    return {"rows": rows}
