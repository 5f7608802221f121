"""Rakotomamonjy2021, Table 4: the noise for epsilon = 10, as printed, as recomputed, and as it should be."""

from pathlib import Path
from typing import Any

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.calibrate import calibrate_sigma
from experiments.accounting.published import TABLE4, Table4Row, published_sigma

HELP = "Rakotomamonjy2021, Table 4: sigma for epsilon = 10, published, recomputed, corrected, exact"

EPSILON = 10.0
FEATURES = 320  # what the digits networks project: 20 maps of 4 x 4, not the 784 pixels (docs/errata.md, 3)
COLUMNS = ("published", "recomputed", "lemma2_rdp", "clt_rdp", "exact_rdp", "exact_pld")


def _row(setting: Table4Row) -> dict[str, Any]:
    size, releases, delta = setting.sample_size, setting.n_releases, setting.delta
    budget = {"target_epsilon": EPSILON, "target_delta": delta}
    bernstein = setting.mechanism.replace(bound="bernstein")
    clt = setting.mechanism.replace(bound="clt")
    sigma = calibrate_sigma(setting.mechanism, size, releases, **budget)
    accountant = PrivacyAccountant().step(setting.mechanism.replace(sigma=sigma), sample_size=size, n_releases=releases)
    mu, regret = accountant.get_mu_and_regret()
    optimistic = accountant.pld(pessimistic=False).get_epsilon_for_delta(delta)
    return {
        "dataset": setting.name,
        "dim": setting.dim,
        "n_projections": setting.n_projections,
        "sample_size": size,
        "batch_size": setting.batch_size,
        "n_releases": releases,
        "epsilon": EPSILON,
        "delta": delta,
        "published": setting.sigma,
        "recomputed": published_sigma(bernstein, size, releases, **budget),
        "lemma2_rdp": calibrate_sigma(bernstein, size, releases, **budget, accountant="rdp"),
        "clt_rdp": calibrate_sigma(clt, size, releases, **budget, accountant="rdp"),
        "exact_rdp": calibrate_sigma(setting.mechanism, size, releases, **budget, accountant="rdp"),
        "exact_pld": sigma,
        "exact_pld_epsilon": accountant.get_epsilon(delta),
        "exact_pld_epsilon_optimistic": float(optimistic),
        "exact_pld_mu": mu,
        "exact_pld_regret": regret,
    }


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Calibrates every row in every way; draws ``table4.png``."""
    from matplotlib.figure import Figure

    settings = list(TABLE4[:3] if quick else TABLE4)
    settings += [row._replace(name=f"{row.name}, d = {FEATURES}", dim=FEATURES, sigma=None) for row in TABLE4[:2]]
    rows = [_row(setting) for setting in settings]

    print(f"{'sigma for epsilon = 10':26}" + "".join(f"{name:>12}" for name in COLUMNS))
    for row in rows:
        cells = ["-" if row[name] is None else f"{row[name]:.3f}" for name in COLUMNS]
        print(f"{row['dataset']:26}" + "".join(f"{cell:>12}" for cell in cells))

    figure = Figure(figsize=(8, 0.6 * len(rows) + 1.4), layout="constrained")
    axes = figure.subplots()
    markers = dict(zip(COLUMNS, "x+sd^o", strict=True))
    for name in COLUMNS:
        known = [(row[name], i) for i, row in enumerate(rows) if row[name] is not None]
        axes.plot([x for x, _ in known], [y for _, y in known], markers[name], label=name.replace("_", " "))
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [row["dataset"] for row in rows])
    axes.invert_yaxis()
    ticks = (0.3, 0.5, 1, 2, 4, 8)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("sigma for epsilon = 10, where rows move by at most 1")
    axes.grid(True, axis="x", which="both", alpha=0.3)
    axes.legend(fontsize=8, ncols=2)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "table4.png", dpi=80)
    return {"rows": rows}
