"""Gomez2025: its tables and figures (docs/gdp.md), with the package of its authors, ``gdpnum``.

TopDown (Figure 4) is a composition of discrete Gaussians on counts, for adding or removing a person: a level of
geography gets a share of the total rho (zCDP), split equally over its ten queries. ``gomez2025``: eight levels and rho
3.65, from the authors' notebook, the budget of 25 August 2022. ``production``: the six levels of the published
production settings for persons, rho 2.56 (uscensusbureau/DAS_2020_Redistricting_Production_Code,
configs/production/pl94/person_US.ini), where the split over the queries of a level is unequal.

DP-SGD has the settings of the paper's Tables 4 and 5 (De et al., 2022: CIFAR-10, batches of 16,384 of 50,000, Poisson
sampling, add or remove). Figure 5 shows four of Table 4, here those of nominal epsilon 1, 2, 4 and 8.
"""

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_discrete_gaussian_mechanism,
    from_gaussian_mechanism,
)
from gdpnum import PLDConverter
from gdpnum.converter import gaussian_fdp
from numpy.typing import NDArray
from scipy import optimize, stats

from dpswd.accounting.pld import Releases, compose, gaussian_delta
from dpswd.sensitivity import ConstantLaw
from experiments.plots import figure

Array = NDArray[np.float64]
AUTHORS_STEP = 1e-4  # discretisation of the loss in gdpnum's examples
QUERIES = 10  # of a level of geography in TopDown
NOISE, RATE, UPDATES, DELTA, SIGMA = 9.4, 16_384 / 50_000, 2000, 1e-5, 1.0
NOISES = {0.7: "C3", 1.0: "C1", 2.0: "C2", 5.0: "C0"}  # with their colours
COMPOSITIONS = {30: 0.25, 100: 0.5, 300: 0.75, 1000: 1.0}  # with the opacity of their lines
SAMPLING_RATES = (0.01, 0.03, 0.1, 0.3, 0.6, 1.0)
CENSUS_DELTA = 1e-10  # the Census Bureau's
PURE_EPSILON = 2.0
GOMEZ_LEVELS = (
    "US",
    "State",
    "County",
    "PEPG",
    "Tract Subset Group",
    "Tract Subset",
    "Block Group",
    "Block",
)
PRODUCTION = {
    "US": 104,
    "State": 1440,
    "County": 447,
    "Tract": 687,
    "Block Group": 1256,
    "Block": 165,
}
ALLOCATIONS: dict[str, tuple[float, dict[str, float]]] = {
    "gomez2025": (
        3.65,
        dict(
            zip(GOMEZ_LEVELS, (0.02, 0.274, 0.085, 0.131, 0.131, 0.238, 0.118, 0.003), strict=True)
        ),
    ),
    "production": (2.56, {level: share / 4099 for level, share in PRODUCTION.items()}),
}
EPSILONS, DELTAS = (0.1, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0), (1e-5, 1e-6, 1e-9)
SETTINGS = {  # table of the paper: nominal epsilon, noise multiplier, updates
    4: (
        (1, 40.0, 906),
        (2, 24.0, 1156),
        (3, 20.0, 1656),
        (4, 16.0, 1765),
        (6, 12.0, 2007),
        (8, 9.4, 2000),
    ),
    5: ((1, 21.1, 250), (2, 15.8, 500), (4, 12.0, 1000), (8, 9.4, 2000)),
}
SHOWN = (1, 2, 4, 8)


def dp_sgd(
    noise: float, rate: float, updates: int, step: float | None = None
) -> PrivacyLossDistribution:
    """Return the loss of DP-SGD: Poisson sampling, neighbours by adding or removing a record.

    The default discretisation is a fifth of the deviation of the loss of one update, about ``rate / noise``, and at
    least 1e-3: ``dp_accounting`` takes second differences of delta, whose rounding error grows as ``1e-16 / step^2``
    per update and replaces the tail of the composed loss where the step is too small.
    """
    chosen = step or max(1e-3, 0.2 * rate / noise)
    loss = from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=chosen)
    return loss.self_compose(updates)


def top_down(total_rho: float, shares: dict[str, float], step: float) -> PrivacyLossDistribution:
    """Return the loss of TopDown: per level ``QUERIES`` discrete Gaussians of ``sigma^2 = QUERIES / (2 share rho)``."""
    total: PrivacyLossDistribution | None = None
    for share in shares.values():
        sigma = math.sqrt(QUERIES / (2 * share * total_rho))
        level = from_discrete_gaussian_mechanism(
            sigma, value_discretization_interval=step
        ).self_compose(QUERIES)
        total = level if total is None else total.compose(level)
    assert total is not None
    return total


def randomised_response(epsilon: float) -> PrivacyLossDistribution:
    """Return the loss of randomised response, the worst epsilon-DP mechanism: two points."""
    likely = 1 / (1 + math.exp(-epsilon))
    loss = pld_pmf.create_pmf({-1: 1 - likely, 1: likely}, epsilon, 0.0, pessimistic_estimate=True)
    return PrivacyLossDistribution(loss)


def zcdp_delta(rho: float, epsilon: Array) -> Array:
    """Return the least delta that rho-zCDP implies on a grid of orders (Canonne, Kamath, Steinke 2020, Prop. 12)."""
    order = 1 + np.geomspace(1e-3, 1e3, 4000)[:, None]
    log_delta = (
        (order - 1) * (order * rho - epsilon) - np.log(order - 1) + order * np.log1p(-1 / order)
    )
    delta: Array = np.exp(np.minimum(0.0, log_delta.min(axis=0)))
    return delta


def curve_of_profile(alpha: Array, epsilon: Array, delta: Array) -> Array:
    """Return the trade-off curve of (epsilon_i, delta_i)-DP for all i (Gomez2025, Corollary 2.8)."""
    a, e, d = alpha[:, None], epsilon[None], delta[None]
    beta: Array = np.maximum(1 - d - np.exp(e) * a, np.exp(-e) * (1 - d - a)).max(axis=1)
    return np.maximum(0, beta)


def by_gdp(loss: PrivacyLossDistribution) -> tuple[PLDConverter, float, float]:
    """Return the converter of a loss, its mu, and the regret of mu."""
    converter = PLDConverter(loss)
    mu, regret = converter.get_mu_and_regret()
    return converter, float(mu), float(regret)


def draw_curves(
    axes: Any, alpha: Array, curves: dict[str, Array], *, logarithmic: bool = False
) -> None:
    """Draw false-negative against false-positive rates; on logarithmic axes points below 1e-6 are cut off."""
    for (label, beta), style in zip(curves.items(), ("-", "--", "-.", ":") * 4, strict=False):
        axes.plot(alpha, beta, style, label=label)
    if logarithmic:
        axes.set(xscale="log", yscale="log", xlim=(1e-6, 1), ylim=(1e-6, 1.5))
    axes.set(xlabel="false-positive rate", ylabel="false-negative rate")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=7)


def gdp_fig1(out: Path) -> dict[str, Any]:
    """Gomez2025, Figure 1: power of attacks by one (epsilon, delta) pair, by the whole curve, by mu-GDP."""
    loss = dp_sgd(NOISE, RATE, UPDATES, AUTHORS_STEP)
    converter = PLDConverter(loss)
    mu, epsilon = float(converter.get_mu()), float(loss.get_epsilon_for_delta(DELTA))
    names = {
        "power_pair": f"one pair, ({epsilon:.2f}, {DELTA:g})",
        "power_curve": "numerical accountant",
        "power_gdp": f"{mu:.2f}-GDP",
    }

    def powers(alpha: Array) -> dict[str, Array]:
        betas = (
            curve_of_profile(alpha, np.array([epsilon]), np.array([DELTA])),
            converter.get_beta(alpha),
            gaussian_fdp(mu)(alpha),
        )
        return {name: 1 - beta for name, beta in zip(names, betas, strict=True)}

    rates = np.array([1e-3, 1e-2, 1e-1])
    columns = {"false_positive_rate": rates, **powers(rates)}
    rows = [{name: float(values[i]) for name, values in columns.items()} for i in range(len(rates))]
    alpha = np.geomspace(1e-6, 1, 400)
    with figure(out / "gdp_fig1.png", 5, 4.2) as axes:
        draw_curves(axes, alpha, {names[name]: power for name, power in powers(alpha).items()})
        axes.set(xscale="log", ylabel="true-positive rate, at most")
    return {
        "rows": rows,
        "epsilon": epsilon,
        "delta": DELTA,
        "mu": mu,
        "advantage_pair": (math.exp(epsilon) - 1 + 2 * DELTA) / (math.exp(epsilon) + 1),
        "advantage_curve": float(converter.get_advantage()),
    }


def gdp_fig2(out: Path) -> dict[str, Any]:
    """Gomez2025, Figure 2: curves of Gaussian noise from (epsilon, delta), zCDP, accountant and GDP."""
    rates, alpha, epsilons = (
        np.array([1e-4, 1e-2, 1e-1]),
        np.linspace(0, 1, 400),
        np.linspace(0, 12, 1000),
    )
    rho = 1 / (2 * SIGMA**2)
    by_zcdp = zcdp_delta(rho, epsilons)
    rows = []
    mechanisms = {
        "Gaussian": from_gaussian_mechanism,
        "discrete Gaussian": from_discrete_gaussian_mechanism,
    }
    with figure(out / "gdp_fig2.png", 9, 4.2, 1, 2) as panels:
        for axes, (name, distribution) in zip(panels, mechanisms.items(), strict=True):
            loss = distribution(SIGMA, value_discretization_interval=1e-3)
            converter = PLDConverter(loss)
            mu, epsilon = float(converter.get_mu()), float(loss.get_epsilon_for_delta(DELTA))
            both = np.concatenate([rates, alpha])
            curves = {
                "beta_pair": curve_of_profile(both, np.array([epsilon]), np.array([DELTA])),
                "beta_zcdp": curve_of_profile(both, epsilons, by_zcdp),
                "beta_accountant": converter.get_beta(both),
                "beta_gdp": gaussian_fdp(mu)(both),
            }
            for i, rate in enumerate(rates.tolist()):
                row = {"mechanism": name, "sigma": SIGMA, "mu": mu, "false_positive_rate": rate}
                rows.append(row | {key: float(beta[i]) for key, beta in curves.items()})
            labels = (
                f"({epsilon:.2f}, {DELTA:g})",
                f"{rho:g}-zCDP",
                "numerical accountant",
                f"{mu:.3f}-GDP",
            )
            shown = (beta[len(rates) :] for beta in curves.values())
            draw_curves(axes, alpha, dict(zip(labels, shown, strict=True)))
            axes.set_title(f"{name}, sigma = {SIGMA:g}")
    return {"rows": rows, "rho": rho, "delta": DELTA}


def gdp_fig3(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Gomez2025, Figure 3: regret of DP-SGD against rate, noise and compositions; ours beside it."""
    rows: list[dict[str, Any]] = []
    first, rates = (2, SAMPLING_RATES[1::2]) if quick else (0, SAMPLING_RATES)
    titles = {
        "poisson": "DP-SGD: Poisson, add or remove",
        "ours": "without replacement, replace-one",
    }
    with figure(out / "gdp_fig3.png", 10, 4.2, 1, 2, dpi=90, sharey=True) as panels:
        for noise, colour in list(NOISES.items())[first:]:
            for times, opacity in list(COMPOSITIONS.items())[first:]:
                same = [_regrets(rate, noise, times) for rate in rates]
                rows += same
                for axes, kind in zip(panels, titles, strict=True):
                    known = [row for row in same if row[f"regret_{kind}"] is not None]
                    points = (
                        [row["rate"] for row in known],
                        [max(row[f"regret_{kind}"], 1e-9) for row in known],
                    )
                    label = f"noise {noise:g}, {times} x"
                    axes.plot(*points, "o-", color=colour, alpha=opacity, markersize=3, label=label)
        for axes, title in zip(panels, titles.values(), strict=True):
            axes.axhline(1e-2, color="gray", linestyle=":")
            axes.set(
                xscale="log", yscale="log", ylim=(1e-6, 0.1), xlabel="sampling rate", title=title
            )
        panels[0].set_ylabel("regret")
        panels[0].legend(fontsize=6, ncols=2)
    return {"rows": rows}


def _regrets(rate: float, noise: float, times: int) -> dict[str, Any]:
    row: dict[str, Any] = {"rate": rate, "noise": noise, "times": times}
    losses = {
        "poisson": lambda: dp_sgd(noise, rate, times),
        "ours": lambda: compose([Releases(ConstantLaw(1.0), 1 / noise, rate, times)]),
    }
    for kind, loss in losses.items():
        mu, regret = None, None
        with suppress(
            ValueError, AssertionError
        ):  # the loss is too large, or its curve is at the rounding error
            _, mu, regret = by_gdp(loss())
        row |= {f"mu_{kind}": mu, f"regret_{kind}": regret}
    return row


def gdp_fig4(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Gomez2025, Figure 4: DP-SGD, the 2020 census and pure epsilon-DP as mu-GDP."""
    rows: list[dict[str, Any]] = []
    losses: dict[str, tuple[PrivacyLossDistribution, float, dict[str, Any]]] = {
        "DP-SGD, noise 9.4": (dp_sgd(NOISE, RATE, UPDATES, AUTHORS_STEP), DELTA, {})
    }
    for name, (rho, shares) in ALLOCATIONS.items():
        facts = {
            "rho": rho,
            "queries_per_level": QUERIES,
            "shares": shares,
            "mu_continuous": math.sqrt(2 * rho),
        }
        losses[f"TopDown, {name}"] = (
            top_down(rho, shares, 1e-3 if quick else 5e-5),
            CENSUS_DELTA,
            facts,
        )
    losses[f"pure epsilon = {PURE_EPSILON:g}"] = (randomised_response(PURE_EPSILON), 1e-10, {})
    alpha = np.linspace(0, 1, 1001)
    with figure(out / "gdp_fig4.png", 13, 3.6, 1, 4) as panels:
        for axes, (name, (loss, delta, facts)) in zip(panels, losses.items(), strict=True):
            converter, mu, regret = by_gdp(loss)
            epsilon = float(loss.get_epsilon_for_delta(delta))
            rows.append(
                {
                    "mechanism": name,
                    "mu": mu,
                    "regret": regret,
                    "epsilon": epsilon,
                    "delta": delta,
                    **facts,
                }
            )
            draw_curves(
                axes,
                alpha,
                {name: converter.get_beta(alpha), f"{mu:.3f}-GDP": gaussian_fdp(mu)(alpha)},
            )
    return {"rows": rows}


def pure_mu(epsilon: float) -> float:
    """Return the least mu for which every epsilon-DP mechanism is mu-GDP (Gomez2025, Proposition 6.1)."""
    return float(-2 * stats.norm.ppf(1 / (1 + math.exp(epsilon))))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the mu of the Gaussian mechanism that is exactly (epsilon, delta)-DP (Gomez2025, Eq. 19)."""
    return float(optimize.brentq(lambda mu: float(gaussian_delta(mu, epsilon)) - delta, 1e-6, 50))


def gdp_table3(out: Path) -> dict[str, Any]:
    """Gomez2025, Table 3, Proposition 6.1: from epsilon to mu, Gaussian noise and pure DP."""
    rows = []
    for epsilon in EPSILONS:
        _, mu, regret = by_gdp(randomised_response(epsilon))
        row = {
            "epsilon": epsilon,
            "mu_pure": pure_mu(epsilon),
            "mu_pure_gdpnum": mu,
            "regret_pure": regret,
        }
        rows.append(
            row | {f"mu_gaussian_delta_{delta:g}": gaussian_mu(epsilon, delta) for delta in DELTAS}
        )
    lines = {"mu_pure": "pure epsilon-DP"}
    lines |= {f"mu_gaussian_delta_{delta:g}": f"Gaussian, delta = {delta:g}" for delta in DELTAS}
    with figure(out / "gdp_table3.png", 6, 4) as axes:
        for name, label in lines.items():
            axes.plot(
                EPSILONS,
                [row[name] for row in rows],
                "o-" if name == "mu_pure" else "-",
                label=label,
            )
        axes.set(xlabel="epsilon", ylabel="mu")
        axes.legend(fontsize=8)
        axes.grid(True, alpha=0.3)
    return {"rows": rows}


def gdp_dpsgd(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Gomez2025, Figures 5 and 6: curves, mu and regret of published DP-SGD settings."""
    alpha = np.concatenate([np.geomspace(1e-6, 1e-2, 200), np.linspace(1e-2, 1, 800)])
    rows: list[dict[str, Any]] = []
    with figure(out / "gdp_dpsgd.png", 12, 7.2, 2, 3) as grid:
        for panels, (table, settings) in zip(grid, SETTINGS.items(), strict=True):
            curves: dict[str, Array] = {}
            differences: dict[str, Array] = {}
            for nominal, noise, updates in settings[-1:] if quick else settings:
                loss = dp_sgd(noise, RATE, updates, AUTHORS_STEP)
                converter, mu, regret = by_gdp(loss)
                row = {
                    "table": table,
                    "nominal_epsilon": nominal,
                    "noise_multiplier": noise,
                    "updates": updates,
                }
                row |= {"sampling_rate": RATE, "mu": mu, "regret": regret}
                row |= {"epsilon": float(loss.get_epsilon_for_delta(DELTA)), "delta": DELTA}
                beta, gaussian = converter.get_beta(alpha), gaussian_fdp(mu)(alpha)
                rows.append(row | {"largest_difference": float((beta - gaussian).max())})
                if nominal in SHOWN:
                    label = f"noise {noise:g}, {updates} updates"
                    curves |= {label: beta, f"{mu:.3f}-GDP": gaussian}
                    differences[label] = beta - gaussian
            draw_curves(panels[0], alpha, curves)
            draw_curves(panels[1], alpha, curves, logarithmic=True)
            draw_curves(panels[2], alpha, differences)
            panels[0].set_title(f"Figure {table + 1}: settings of Table {table}")
            panels[2].set(xscale="log", ylabel="difference to f of mu")
    return {"rows": rows}


EXPERIMENTS = (gdp_fig1, gdp_fig2, gdp_fig3, gdp_fig4, gdp_table3, gdp_dpsgd)
