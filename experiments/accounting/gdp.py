"""Gomez2025: its tables and figures (docs/gdp.md), with its package ``gdpnum``.

TopDown (Figure 4) is a composition of discrete Gaussians on counts, for adding or removing a
person: a level of geography gets a part of the total rho (zCDP), split equally over its ten
queries. ``gomez2025``: eight levels and rho 3.65, from the authors' notebook, the budget of 25
August 2022. ``production``: the six levels of the published production settings for persons, rho
2.56 (uscensusbureau/DAS_2020_Redistricting_Production_Code, configs/production/pl94/person_US.ini),
where the split over the queries of a level is unequal.

DP-SGD has the settings of the paper's Tables 4 and 5 (De et al., 2022: CIFAR-10, batches of 16,384
of 50,000, Poisson sampling, add or remove). Figure 5 shows four of Table 4, here those of nominal
epsilon 1, 2, 4 and 8.
"""

import math
from dataclasses import dataclass
from itertools import cycle
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
from gdpnum.converter import gaussian_fdp, get_worst_case_regret
from numpy.typing import NDArray
from scipy import optimize, stats

from dpswd.accounting.pld import LossTooLargeError, Releases, compose_losses, gaussian_delta
from dpswd.sensitivity import ConstantLaw
from experiments.accounting.poisson import update_loss
from experiments.plots import figure
from experiments.results import Result, Row

Array = NDArray[np.float64]

CENSUS_STEP = 1e-3  # discretisation of the loss of TopDown in the authors' notebook
LARGEST_STEP = 1e-3  # of the loss of DP-SGD
DELTA = 1e-5

# DP-SGD at nominal epsilon 8, the setting of Figures 1 and 4.
NOISE = 9.4
RATE = 16_384 / 50_000
UPDATES = 2000

SIGMA = 1.0  # of the Gaussian mechanisms of Figure 2

# Figure 3: noise multipliers with their colours, compositions with the opacity of their lines.
NOISES = {0.7: "C3", 1.0: "C1", 2.0: "C2", 5.0: "C0"}
COMPOSITIONS = {30: 0.25, 100: 0.5, 300: 0.75, 1000: 1.0}
SAMPLING_RATES: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 0.6, 1.0)
LEAST_RATE = 1e-10  # error rate, of a false positive or negative, that counts for mu
LEAST_REGRET = 1e-9  # drawn in place of smaller ones, which a logarithmic axis cannot show

# Table 3.
EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0)
DELTAS = (1e-5, 1e-6, 1e-9)

# Figure 4.
CENSUS_DELTA = 1e-10  # the Census Bureau's
PURE_EPSILON = 2.0
PURE_DELTA = 1e-10
QUERIES = 10  # of a level of geography


@dataclass(frozen=True)
class Census:
    """An allocation of TopDown: the total rho, and the part that each level gets."""

    total_rho: float
    parts: dict[str, float]


_PRODUCTION_UNITS = {
    "US": 104,
    "State": 1440,
    "County": 447,
    "Tract": 687,
    "Block Group": 1256,
    "Block": 165,
}
CENSUSES = {
    "gomez2025": Census(
        3.65,
        {
            "US": 0.02,
            "State": 0.274,
            "County": 0.085,
            "PEPG": 0.131,
            "Tract Subset Group": 0.131,
            "Tract Subset": 0.238,
            "Block Group": 0.118,
            "Block": 0.003,
        },
    ),
    "production": Census(2.56, {level: unit / 4099 for level, unit in _PRODUCTION_UNITS.items()}),
}


@dataclass(frozen=True)
class Setting:
    """A setting of DP-SGD in the paper's Table 4 or 5."""

    nominal_epsilon: int
    noise: float
    updates: int


SETTINGS = {  # by the number of the table
    4: (
        Setting(1, 40.0, 906),
        Setting(2, 24.0, 1156),
        Setting(3, 20.0, 1656),
        Setting(4, 16.0, 1765),
        Setting(6, 12.0, 2007),
        Setting(8, 9.4, 2000),
    ),
    5: (
        Setting(1, 21.1, 250),
        Setting(2, 15.8, 500),
        Setting(4, 12.0, 1000),
        Setting(8, 9.4, 2000),
    ),
}
DRAWN_EPSILONS = (1, 2, 4, 8)

# Table 2: an NF-ResNet-50 on ImageNet, from google-deepmind/jax_privacy,
# experiments/image_classification/configs/imagenet_nf_resnet_50_eps8.py.
IMAGENET = Setting(8, 2.5, 71_589)
IMAGENET_RATE = 16_384 / 1_281_167
IMAGENET_DELTA = 8e-7


# Privacy losses -----------------------------------------------------------------------------------


def dp_sgd(noise: float, rate: float, updates: int) -> PrivacyLossDistribution:
    """Return the loss of DP-SGD.

    Records are sampled by Poisson sampling; neighbours differ by adding or removing a record. The
    discretisation is a fiftieth of ``rate / noise``, about the deviation of the loss of one update,
    and at most ``LARGEST_STEP``.
    """
    step = min(LARGEST_STEP, 0.02 * rate / noise)
    return update_loss(noise, rate, step).self_compose(updates)


def top_down(census: Census, step: float) -> PrivacyLossDistribution:
    """Return the loss of TopDown.

    A level that gets the part ``p`` of rho answers ``QUERIES`` queries by discrete Gaussians with
    ``sigma^2 = QUERIES / (2 p rho)``.
    """
    composed: PrivacyLossDistribution | None = None
    for part in census.parts.values():
        sigma = math.sqrt(QUERIES / (2 * part * census.total_rho))
        query = from_discrete_gaussian_mechanism(
            sigma, value_discretization_interval=step, use_connect_dots=True
        )
        level = query.self_compose(QUERIES)
        if composed is None:
            composed = level
        else:
            composed = composed.compose(level)
    return composed


def randomised_response(epsilon: float) -> PrivacyLossDistribution:
    """Return the loss of randomised response, the worst epsilon-DP mechanism."""
    likely = 1 / (1 + math.exp(-epsilon))
    masses = {-1: 1 - likely, 1: likely}
    loss = pld_pmf.create_pmf(masses, epsilon, 0.0, pessimistic_estimate=True)
    return PrivacyLossDistribution(loss)


# Trade-off curves ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Account:
    """A privacy loss with its trade-off curve, its mu, and the regret of mu."""

    loss: PrivacyLossDistribution
    converter: PLDConverter
    mu: float
    regret: float

    @classmethod
    def of(cls, loss: PrivacyLossDistribution) -> "Account":
        """Return the account of a loss, with mu of all rates above ``LEAST_RATE``.

        Raises:
            ValueError: If no breakpoint of the curve has both error rates above it.
        """
        converter = PLDConverter(loss)
        mu = _least_mu(np.asarray(converter.alphas_symm), np.asarray(converter.betas_symm))
        regret = get_worst_case_regret(converter.alphas_symm, converter.betas_symm, mu)
        return cls(loss, converter, mu, float(regret))

    def epsilon(self, delta: float) -> float:
        """Return the epsilon at ``delta``."""
        return float(self.loss.get_epsilon_for_delta(delta))

    def curve(self, alpha: Array) -> Array:
        """Return the least false-negative rates at false-positive rates ``alpha``."""
        return np.asarray(self.converter.get_beta(alpha))

    def gdp_curve(self, alpha: Array) -> Array:
        """Return the false-negative rates of mu-GDP, which lie below :meth:`curve`."""
        return np.asarray(gaussian_fdp(self.mu)(alpha))

    def pair_curve(self, alpha: Array, delta: float) -> Array:
        """Return the false-negative rates that follow from epsilon at one ``delta`` alone."""
        return curve_of_profile(alpha, np.array([self.epsilon(delta)]), np.array([delta]))


def _least_mu(alphas: Array, betas: Array) -> float:
    """Return the least mu whose curve lies below a trade-off curve.

    ``gdpnum`` leaves out ``LEAST_RATE`` itself, and points that lie less than 1e-10 below the
    diagonal. Both make mu too small at small sampling rates (docs/theory/accounting.md, Proposition
    20).

    Args:
        alphas: False-positive rates (n,) of the breakpoints, ascending.
        betas: False-negative rates (n,) of the breakpoints.

    Raises:
        ValueError: If no breakpoint has both error rates above ``LEAST_RATE``.
    """
    is_inside = (alphas > LEAST_RATE) & (betas > LEAST_RATE)
    if not is_inside.any():
        raise ValueError(f"no breakpoint has both error rates above {LEAST_RATE:g}")
    false_positive = np.append(alphas[is_inside], LEAST_RATE)
    false_negative = np.append(betas[is_inside], np.interp(LEAST_RATE, alphas, betas))
    return float(np.max(stats.norm.isf(false_positive) - stats.norm.ppf(false_negative)))


def zcdp_delta(rho: float, epsilon: Array) -> Array:
    """Return the least delta that rho-zCDP implies, on a grid of orders.

    Source: Canonne, Kamath and Steinke (2020), Proposition 12.
    """
    order = 1 + np.geomspace(1e-3, 1e3, 4000)[:, None]
    exponent = (order - 1) * (order * rho - epsilon)
    log_delta = exponent - np.log(order - 1) + order * np.log1p(-1 / order)
    delta: Array = np.exp(np.minimum(0.0, log_delta.min(axis=0)))
    return delta


def curve_of_profile(alpha: Array, epsilon: Array, delta: Array) -> Array:
    """Return the trade-off curve of (epsilon_i, delta_i)-DP for all i.

    Source: Gomez2025, Corollary 2.8.
    """
    a = alpha[:, None]
    e = epsilon[None]
    d = delta[None]
    steep = 1 - d - np.exp(e) * a
    flat = np.exp(-e) * (1 - d - a)
    beta: Array = np.maximum(steep, flat).max(axis=1)
    return np.maximum(0, beta)


def draw_curves(
    axes: Any, alpha: Array, curves: dict[str, Array], *, logarithmic: bool = False
) -> None:
    """Draw false-negative against false-positive rates, a curve for each label.

    On logarithmic axes points below 1e-6 are cut off.
    """
    styles = cycle(("-", "--", "-.", ":"))
    for label, beta in curves.items():
        axes.plot(alpha, beta, next(styles), label=label)
    if logarithmic:
        axes.set(xscale="log", yscale="log", xlim=(1e-6, 1), ylim=(1e-6, 1.5))
    axes.set(xlabel="false-positive rate", ylabel="false-negative rate")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=7)


# Figures 1 and 2 ----------------------------------------------------------------------------------


def gdp_fig1(out: Path) -> Result:
    """Gomez2025, Figure 1: power of attacks by one pair, by the whole curve, by mu."""
    account = Account.of(dp_sgd(NOISE, RATE, UPDATES))
    epsilon = account.epsilon(DELTA)

    rates = np.array([1e-3, 1e-2, 1e-1])
    powers = _powers(account, rates)
    rows = []
    for i, rate in enumerate(rates.tolist()):
        row: Row = {"false_positive_rate": rate}
        for name, power in powers.items():
            row[name] = float(power[i])
        rows.append(row)

    labels = {
        "power_pair": f"one pair, ({epsilon:.2f}, {DELTA:g})",
        "power_curve": "numerical accountant",
        "power_gdp": f"{account.mu:.2f}-GDP",
    }
    alpha = np.geomspace(1e-6, 1, 400)
    curves = {labels[name]: power for name, power in _powers(account, alpha).items()}
    with figure(out / "gdp_fig1.png", 5, 4.2) as axes:
        draw_curves(axes, alpha, curves)
        axes.set(xscale="log", ylabel="true-positive rate, at most")

    growth = math.exp(epsilon)
    return {
        "rows": rows,
        "epsilon": epsilon,
        "delta": DELTA,
        "mu": account.mu,
        "advantage_pair": (growth - 1 + 2 * DELTA) / (growth + 1),
        "advantage_curve": float(account.converter.get_advantage()),
    }


def _powers(account: Account, alpha: Array) -> dict[str, Array]:
    """Return the largest true-positive rates at ``alpha`` that three statements allow."""
    return {
        "power_pair": 1 - account.pair_curve(alpha, DELTA),
        "power_curve": 1 - account.curve(alpha),
        "power_gdp": 1 - account.gdp_curve(alpha),
    }


def gdp_fig2(out: Path) -> Result:
    """Gomez2025, Figure 2: curves of Gaussian noise from four statements."""
    rates = np.array([1e-4, 1e-2, 1e-1])
    alpha = np.linspace(0, 1, 400)
    rho = 1 / (2 * SIGMA**2)
    mechanisms = {
        "Gaussian": from_gaussian_mechanism,
        "discrete Gaussian": from_discrete_gaussian_mechanism,
    }
    rows: list[Row] = []
    with figure(out / "gdp_fig2.png", 9, 4.2, 1, 2) as panels:
        for axes, (name, distribution) in zip(panels, mechanisms.items(), strict=True):
            account = Account.of(distribution(SIGMA, value_discretization_interval=1e-3))
            curves = _curves_of_statements(account, rho, rates)
            for i, rate in enumerate(rates.tolist()):
                row: Row = {"mechanism": name, "sigma": SIGMA, "mu": account.mu}
                row["false_positive_rate"] = rate
                for statement, beta in curves.items():
                    row[statement] = float(beta[i])
                rows.append(row)
            labels = {
                "beta_pair": f"({account.epsilon(DELTA):.2f}, {DELTA:g})",
                "beta_zcdp": f"{rho:g}-zCDP",
                "beta_accountant": "numerical accountant",
                "beta_gdp": f"{account.mu:.3f}-GDP",
            }
            curves = _curves_of_statements(account, rho, alpha)
            draw_curves(axes, alpha, {labels[key]: beta for key, beta in curves.items()})
            axes.set_title(f"{name}, sigma = {SIGMA:g}")
    return {"rows": rows, "rho": rho, "delta": DELTA}


def _curves_of_statements(account: Account, rho: float, alpha: Array) -> dict[str, Array]:
    """Return the false-negative rates at ``alpha`` that four statements guarantee."""
    epsilons = np.linspace(0, 12, 1000)
    return {
        "beta_pair": account.pair_curve(alpha, DELTA),
        "beta_zcdp": curve_of_profile(alpha, epsilons, zcdp_delta(rho, epsilons)),
        "beta_accountant": account.curve(alpha),
        "beta_gdp": account.gdp_curve(alpha),
    }


# Figure 3 -----------------------------------------------------------------------------------------


def gdp_fig3(out: Path, *, quick: bool = False) -> Result:
    """Gomez2025, Figure 3: regret of DP-SGD, and of ours beside it."""
    noises = list(NOISES)
    numbers = list(COMPOSITIONS)
    rates = SAMPLING_RATES
    if quick:
        noises = noises[2:]
        numbers = numbers[2:]
        rates = rates[1::2]
    rows: list[Row] = []
    for noise in noises:
        for times in numbers:
            rows += [_regrets(rate, noise, times) for rate in rates]
    _draw_regrets(rows, out / "gdp_fig3.png")
    return {"rows": rows}


def _regrets(rate: float, noise: float, times: int) -> Row:
    """Return mu and regret of DP-SGD and of our releases at the same rate and noise."""
    row: Row = {"rate": rate, "noise": noise, "times": times}
    accounts = {
        "poisson": _account_or_none(dp_sgd(noise, rate, times)),
        "ours": _account_of_ours(rate, noise, times),
    }
    for kind, account in accounts.items():
        row[f"mu_{kind}"] = None
        row[f"regret_{kind}"] = None
        if account is not None:
            row[f"mu_{kind}"] = account.mu
            row[f"regret_{kind}"] = account.regret
    return row


def _account_of_ours(rate: float, noise: float, times: int) -> Account | None:
    """Return the account of releases without replacement.

    It is ``None`` where the loss is too large.
    """
    try:
        loss = compose_losses([Releases(ConstantLaw(1.0), 1 / noise, rate, times)]).to_pld()
    except LossTooLargeError:
        return None
    return _account_or_none(loss)


def _account_or_none(loss: PrivacyLossDistribution) -> Account | None:
    """Return the account of a loss, or ``None`` where ``gdpnum`` cannot convert it."""
    try:
        return Account.of(loss)
    except ValueError:  # the loss is too large
        return None
    except AssertionError:  # the curve is at the rounding error
        return None


def _draw_regrets(rows: list[Row], path: Path) -> None:
    """Draw regret against the sampling rate.

    There is a line for each noise and number of releases.
    """
    titles = {
        "poisson": "DP-SGD: Poisson, add or remove",
        "ours": "without replacement, replace-one",
    }
    lines = dict.fromkeys((row["noise"], row["times"]) for row in rows)
    with figure(path, 10, 4.2, 1, 2, dpi=90, sharey=True) as panels:
        for axes, (kind, title) in zip(panels, titles.items(), strict=True):
            for noise, times in lines:
                line = [row for row in rows if (row["noise"], row["times"]) == (noise, times)]
                known = [row for row in line if row[f"regret_{kind}"] is not None]
                regrets = [max(row[f"regret_{kind}"], LEAST_REGRET) for row in known]
                style = {"color": NOISES[noise], "alpha": COMPOSITIONS[times], "markersize": 3}
                label = f"noise {noise:g}, {times} x"
                axes.plot([row["rate"] for row in known], regrets, "o-", label=label, **style)
            axes.axhline(1e-2, color="gray", linestyle=":")
            axes.set(xscale="log", yscale="log", ylim=(1e-6, 0.1))
            axes.set(xlabel="sampling rate", title=title)
        panels[0].set_ylabel("regret")
        panels[0].legend(fontsize=6, ncols=2)


# Figure 4 and Table 3 -----------------------------------------------------------------------------


def gdp_fig4(out: Path) -> Result:
    """Gomez2025, Figure 4: DP-SGD, the 2020 census and pure epsilon-DP as mu-GDP."""
    rows = []
    with figure(out / "gdp_fig4.png", 13, 3.6, 1, 4) as panels:
        account = Account.of(dp_sgd(NOISE, RATE, UPDATES))
        rows.append(_draw_gdp(panels[0], "DP-SGD, noise 9.4", account, DELTA))
        for axes, (name, census) in zip(panels[1:3], CENSUSES.items(), strict=True):
            account = Account.of(top_down(census, CENSUS_STEP))
            row = _draw_gdp(axes, f"TopDown, {name}", account, CENSUS_DELTA)
            row["rho"] = census.total_rho
            row["queries_per_level"] = QUERIES
            row["shares"] = census.parts
            row["mu_continuous"] = math.sqrt(2 * census.total_rho)
            rows.append(row)
        account = Account.of(randomised_response(PURE_EPSILON))
        name = f"pure epsilon = {PURE_EPSILON:g}"
        rows.append(_draw_gdp(panels[3], name, account, PURE_DELTA))
    return {"rows": rows}


def _draw_gdp(axes: Any, name: str, account: Account, delta: float) -> Row:
    """Draw a curve beside that of its mu; return the row of the mechanism."""
    alpha = np.linspace(0, 1, 1001)
    curves = {name: account.curve(alpha), f"{account.mu:.3f}-GDP": account.gdp_curve(alpha)}
    draw_curves(axes, alpha, curves)
    return {
        "mechanism": name,
        "mu": account.mu,
        "regret": account.regret,
        "epsilon": account.epsilon(delta),
        "delta": delta,
    }


def pure_mu(epsilon: float) -> float:
    """Return the least mu for which every epsilon-DP mechanism is mu-GDP.

    Source: Gomez2025, Proposition 6.1.
    """
    return float(-2 * stats.norm.ppf(1 / (1 + math.exp(epsilon))))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the mu of the Gaussian mechanism that is exactly (epsilon, delta)-DP.

    Source: Gomez2025, Eq. 19.
    """

    def gap(mu: float) -> float:
        return float(gaussian_delta(mu, epsilon)) - delta

    return float(optimize.brentq(gap, 1e-6, 50))


def gdp_table3(out: Path) -> Result:
    """Gomez2025, Table 3, Proposition 6.1: from epsilon to mu, Gaussian and pure DP."""
    rows = []
    for epsilon in EPSILONS:
        account = Account.of(randomised_response(epsilon))
        row: Row = {"epsilon": epsilon, "mu_pure": pure_mu(epsilon)}
        row["mu_pure_gdpnum"] = account.mu
        row["regret_pure"] = account.regret
        for delta in DELTAS:
            row[f"mu_gaussian_delta_{delta:g}"] = gaussian_mu(epsilon, delta)
        rows.append(row)
    with figure(out / "gdp_table3.png", 6, 4) as axes:
        axes.plot(EPSILONS, [row["mu_pure"] for row in rows], "o-", label="pure epsilon-DP")
        for delta in DELTAS:
            mus = [row[f"mu_gaussian_delta_{delta:g}"] for row in rows]
            axes.plot(EPSILONS, mus, "-", label=f"Gaussian, delta = {delta:g}")
        axes.set(xlabel="epsilon", ylabel="mu")
        axes.legend(fontsize=8)
        axes.grid(True, alpha=0.3)
    return {"rows": rows}


# Figures 5 and 6 ----------------------------------------------------------------------------------


def gdp_dpsgd(out: Path, *, quick: bool = False) -> Result:
    """Gomez2025, Figures 5 and 6: curves, mu and regret of published DP-SGD settings."""
    rows: list[Row] = []
    with figure(out / "gdp_dpsgd.png", 12, 7.2, 2, 3) as grid:
        for panels, (table, settings) in zip(grid, SETTINGS.items(), strict=True):
            if quick:
                settings = settings[-1:]
            rows += _draw_settings(panels, table, settings)
    return {"rows": rows}


def _draw_settings(panels: Any, table: int, settings: tuple[Setting, ...]) -> list[Row]:
    """Draw the curves of a table's settings in three panels; return their rows."""
    alpha = np.concatenate([np.geomspace(1e-6, 1e-2, 200), np.linspace(1e-2, 1, 800)])
    rows = []
    curves: dict[str, Array] = {}
    differences: dict[str, Array] = {}
    for setting in settings:
        account = Account.of(dp_sgd(setting.noise, RATE, setting.updates))
        beta = account.curve(alpha)
        gaussian = account.gdp_curve(alpha)
        rows.append(
            {
                "table": table,
                "nominal_epsilon": setting.nominal_epsilon,
                "noise_multiplier": setting.noise,
                "updates": setting.updates,
                "sampling_rate": RATE,
                "mu": account.mu,
                "regret": account.regret,
                "epsilon": account.epsilon(DELTA),
                "delta": DELTA,
                "largest_difference": float((beta - gaussian).max()),
            }
        )
        if setting.nominal_epsilon in DRAWN_EPSILONS:
            label = f"noise {setting.noise:g}, {setting.updates} updates"
            curves[label] = beta
            curves[f"{account.mu:.3f}-GDP"] = gaussian
            differences[label] = beta - gaussian
    draw_curves(panels[0], alpha, curves)
    draw_curves(panels[1], alpha, curves, logarithmic=True)
    draw_curves(panels[2], alpha, differences)
    panels[0].set_title(f"Figure {table + 1}: settings of Table {table}")
    panels[2].set(xscale="log", ylabel="difference to f of mu")
    return rows


# Table 2 ------------------------------------------------------------------------------------------


def gdp_table2(out: Path, *, quick: bool = False) -> Result:
    """Gomez2025, Table 2: mu of the rows of De et al. (2022) with known settings.

    The rows are those of Table 1 of De et al.
    """
    rows: list[Row] = []
    names = {4: "CIFAR-10", 5: "CIFAR-10, from ImageNet"}
    for table, settings in SETTINGS.items():
        for setting in settings:
            if setting.nominal_epsilon in DRAWN_EPSILONS:
                loss = dp_sgd(setting.noise, RATE, setting.updates)
                rows.append(_row_of_table2(names[table], setting, loss, RATE, DELTA))
        if quick:
            return {"rows": rows}
    loss = dp_sgd(IMAGENET.noise, IMAGENET_RATE, IMAGENET.updates)
    rows.append(_row_of_table2("ImageNet", IMAGENET, loss, IMAGENET_RATE, IMAGENET_DELTA))
    return {"rows": rows}


def _row_of_table2(
    name: str, setting: Setting, loss: PrivacyLossDistribution, rate: float, delta: float
) -> Row:
    """Return the pair of a cell, the mu of its account, and a Gaussian mu.

    The Gaussian mu is that of Gaussian noise at the pair.
    """
    account = Account.of(loss)
    return {
        "dataset": name,
        "nominal_epsilon": setting.nominal_epsilon,
        "delta": delta,
        "noise_multiplier": setting.noise,
        "updates": setting.updates,
        "sampling_rate": rate,
        "mu": account.mu,
        "regret": account.regret,
        "epsilon": account.epsilon(delta),
        "mu_of_pair": gaussian_mu(setting.nominal_epsilon, delta),
    }


EXPERIMENTS = (gdp_fig1, gdp_fig2, gdp_fig3, gdp_fig4, gdp_table3, gdp_dpsgd, gdp_table2)
