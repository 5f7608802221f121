"""Tables on accounting and notions of privacy.

They stand in docs/reproductions.md, gdp.md and notions.md.
"""

from experiments.results import Result, Row
from experiments.tables.markdown import Pivot, Table, with_origin
from experiments.tables.values import number, select


def table4_all(result: Result) -> str:
    """Rakotomamonjy2021, Table 4: noise for epsilon = 10 by every account."""
    rows = result["rows"]
    table = Table(rows)
    table.text("row", "dataset")
    table.number("printed", "published", form="g")
    table.number("recomputed", "recomputed", form=".3f")
    table.number("corrected", "corrected", form=".3f")
    table.number("every release", "bound_rdp", form=".3f")
    table.number("exact", "exact_pld", form=".3f")
    return with_origin(table, result, rows)


def fig1(result: Result) -> str:
    """Rakotomamonjy2021, Figure 1: law of the squared sensitivity and its bounds."""
    rows = result["rows"]
    table = Table(rows)
    table.text("quantity", "quantity")
    table.number("exact", "exact", form=".4f")
    table.number("10,000 draws", "simulated", form=".4f")
    table.number("Bernstein", "bernstein", form=".2f")
    table.number("CLT", "clt", form=".4f")
    return with_origin(table, result, rows, note="one seed")


def fig2(result: Result) -> str:
    """Rakotomamonjy2021, Figure 2: distances of two normal laws against their shift."""
    rows = select(result["rows"], n=(100, 10000), shift=(0.0, 1.0))
    table = Pivot("σ", "n")
    for row in rows:
        line = [f"{row['sigma']:g}", f"{row['n']:,}"]
        distances = f"{row['swd']:.2f} / {row['dp_swd']:.2f} / {row['block_means']:.2f}"
        table.add(line, column=f"c = {row['shift']:g}", cell=distances)
    note = f"SWD / DP-SWD / debiased block means, mean of {rows[0]['draws']} draws"
    return with_origin(table, result, rows, note=note)


def gdp_fig1(result: Result) -> str:
    """Gomez2025, Figure 1: power of attacks by three statements."""
    rows = result["rows"]
    table = Table(rows)
    table.number("false-positive rate", "false_positive_rate", form="g")
    table.number("power by (ε, δ)", "power_pair", form=".3f")
    table.number("by the accountant", "power_curve", form=".3f")
    table.number("by μ", "power_gdp", form=".3f")
    return with_origin(table, result, rows)


def gdp_fig2(result: Result) -> str:
    """Gomez2025, Figure 2: least false-negative rates by four statements."""
    rows = select(result["rows"], false_positive_rate=0.01)
    table = Table(rows)
    table.text("mechanism", "mechanism")
    table.number("(ε, δ)", "beta_pair", form=".3f")
    table.number("zCDP", "beta_zcdp", form=".3f")
    table.number("accountant", "beta_accountant", form=".3f")
    table.number("GDP", "beta_gdp", form=".3f")
    rate = rows[0]["false_positive_rate"]
    note = f"least false-negative rates at a false-positive rate of {rate:g}"
    return with_origin(table, result, rows, note=note)


def gdp_fig3(result: Result) -> str:
    """Gomez2025, Figure 3: regret of DP-SGD against rate, noise and compositions."""
    rows = select(result["rows"], noise=(1.0, 2.0, 5.0), times=(300, 1000), rate=(0.03, 0.1, 1.0))
    table = Pivot("noise", "compositions")
    for row in rows:
        line = [f"{row['noise']:g}", f"{row['times']:,}"]
        regret = number(row["regret_poisson"], ".1e")
        table.add(line, column=f"q = {row['rate']:g}", cell=regret)
    return with_origin(table, result, rows, note="regret of DP-SGD")


def gdp_fig4(result: Result) -> str:
    """Gomez2025, Figure 4: mu and regret of DP-SGD, the 2020 census and pure DP."""
    rows = result["rows"]
    table = Table(rows)
    table.text("mechanism", "mechanism")
    table.number("μ", "mu", form=".4f")
    table.number("regret", "regret", form=".1e")
    table.number("ε", "epsilon", form=".2f")
    table.number("at δ", "delta", form="g")
    return with_origin(table, result, rows)


def gdp_table3(result: Result) -> str:
    """Gomez2025, Table 3 and Proposition 6.1: from epsilon to mu."""
    rows = select(result["rows"], epsilon=(0.1, 1.0, 2.0, 10.0))
    table = Table(rows)
    table.number("ε", "epsilon", form="g")
    table.number("δ = 1e-5", "mu_gaussian_delta_1e-05", form=".2f")
    table.number("δ = 1e-6", "mu_gaussian_delta_1e-06", form=".2f")
    table.number("δ = 1e-9", "mu_gaussian_delta_1e-09", form=".2f")
    table.number("pure ε-DP", "mu_pure", form=".3f")
    table.number("its regret", "regret_pure", form=".1e")
    return with_origin(table, result, rows)


def gdp_dpsgd(result: Result) -> str:
    """Gomez2025, Figures 5 and 6: mu and regret of published DP-SGD settings."""
    rows = select(result["rows"], nominal_epsilon=(1, 8))
    table = Table(rows)
    table.number("table", "table", form="d")
    table.number("nominal ε", "nominal_epsilon", form="d")
    table.number("noise", "noise_multiplier", form="g")
    table.number("updates", "updates", form=",")
    table.number("μ", "mu", form=".3f")
    table.number("regret", "regret", form=".1e")
    table.number("ε at δ = 1e-5", "epsilon", form=".2f")
    table.number("f - f_μ at most", "largest_difference", form=".1e")
    return with_origin(table, result, rows)


def gdp_table2(result: Result) -> str:
    """Gomez2025, Table 2: from (epsilon, delta) to mu for published DP-SGD."""
    rows = result["rows"]
    table = Table(rows)
    table.text("data set", "dataset")
    table.number("ε, as printed", "nominal_epsilon", form="d")
    table.number("δ", "delta", form="g")
    table.number("μ", "mu", form=".2f")
    table.number("regret", "regret", form=".1e")
    table.number("μ of Gaussian noise at (ε, δ)", "mu_of_pair", form=".2f")
    return with_origin(table, result, rows)


def gdp_selection(result: Result) -> str:
    """Gomez2025, open question: mu of two mechanisms of selection.

    They are the exponential mechanism and report-noisy-max.
    """
    rows = result["rows"]
    table = Table(rows)
    table.number("ε", "epsilon", form="g")
    table.number("by Proposition 6.1", "mu_pure", form=".3f")
    table.number("exponential mechanism", "mu_exponential", form=".3f")
    table.number("report-noisy-max, at least", "mu_noisy_max_least", form=".3f")
    return with_origin(table, result, rows, note="μ")


def wdp_fig2(result: Result) -> str:
    """Yang2024, Figures 2 and 4: three accountants on Weibull gradients."""
    rows = select(result["rows"], quantile=(0.05, 0.5, 0.99), unit=1.0)
    table = Table(rows)
    table.number("figure", "figure", form="d")
    table.number("quantile of C", "quantile", form="g")
    table.number("noise / C", "noise", form="g")
    table.number("DP ε, order 16", "dp_epsilon", form=",.0f")
    table.number("DP ε, least of ten orders", "least_dp_epsilon", form=",.2f")
    table.number("Bayesian ε, order 16", "bdp_epsilon", form=",.2f")
    table.number("Bayesian ε, least of ten orders", "least_bdp_epsilon", form=",.2f")
    table.number("WDP", "wdp_diagnostic", form=",.1f")
    return with_origin(table, result, rows, note="last step")


def wdp_table2(result: Result) -> str:
    """Yang2024, Table 2: DP-SGD under DP, Bayesian DP and Wasserstein DP."""
    rows = result["rows"]
    table = Table(rows)
    table.text("data set", "dataset")
    table.number("noise", "noise_multiplier", form="g")
    table.number("epochs", "epochs", form="d")
    table.number("accuracy", "accuracy", form=".1f")
    table.column("DP, δ = 1e-5", _epsilon_and_probability)
    table.number("BDP, δ = 1e-10", "bdp", form=",.2f")
    table.number("WDP, sum", "wdp_sum", form=",.2f")
    table.number("WDP, mean", "wdp_mean", form=".2f")
    return with_origin(table, result, rows, note="one seed")


def _epsilon_and_probability(row: Row) -> str:
    """Format the DP epsilon, and the probability of a right guess that it allows."""
    if "dp" not in row:  # trained without noise
        return "-"
    return f"{row['dp']:,.2f} ({row['p_attack_dp']:.3f})"


def tangent(result: Result) -> str:
    """Ying2024: tangent DP of a Gibbs head on digits."""
    rows = select(result["rows"], beta=(300.0, 3000.0), loss=("savage", "tangent"))
    table = Table(rows)
    table.text("loss", "loss")
    table.number("β", "beta", form="g")
    table.number("accuracy", "accuracy", form=".1f")
    table.number("tangent DP (Def. 2)", "tangent_dp", "total_variation", "exact", form=",.0f")
    table.number("true ln change", "removal_log", form=".3g")
    table.number("bound 2N / n", "removal_log_bound", form=".3g")
    table.number("Def. 1", "differentiability", "total_variation", "exact", form=".3g")
    table.number("true TV", "removal_tv", form=".3g")
    table.number("ε of one draw", "dp_epsilon_of_one_draw", form=".2g")
    return with_origin(table, result, rows, note=f"n = {rows[0]['n_private']}")
