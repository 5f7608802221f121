"""Gomez2025, Figure 3: the regret of reporting only mu, against sampling rate, noise and compositions.

Once as there (DP-SGD: Poisson sampling, add or remove) and once for this library's releases (fixed-size
subsets without replacement, replace-one, sensitivity 1).
"""

from pathlib import Path
from typing import Any

from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from gdpnum import PLDConverter

from dpswd.accounting.pld import Releases, compose
from dpswd.sensitivity import ConstantLaw

HELP = "Gomez2025, Figure 3: regret against sampling rate, noise and compositions"

BASE = {"rate": 0.1, "noise": 2.0, "times": 300}
SWEEPS = {
    "rate": (0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 1.0),
    "noise": (0.7, 1.0, 1.5, 2.0, 3.0, 5.0),
    "times": (1, 10, 30, 100, 300, 1000),
}


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Sweeps one parameter at a time; draws ``gdp_fig3.png``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    rows: list[dict[str, Any]] = []
    print(f"{'swept':>8} {'rate':>8} {'noise':>6} {'times':>6} {'Poisson: mu, regret':>22} {'ours: mu, regret':>22}")
    for axes, (name, values) in zip(figure.subplots(1, 3), SWEEPS.items(), strict=True):
        mine = []
        for value in values[1:-1:2] if quick else values:
            setting = {**BASE, name: value}
            # a tenth of the deviation of the loss of one update, about rate / noise
            step = min(1e-3, 0.1 * setting["rate"] / setting["noise"])
            poisson = from_gaussian_mechanism(
                setting["noise"], sampling_prob=setting["rate"], value_discretization_interval=step
            ).self_compose(int(setting["times"]))
            part = Releases(ConstantLaw(1.0), 1 / setting["noise"], setting["rate"], int(setting["times"]))
            row: dict[str, Any] = {"swept": name, **setting}
            for kind, loss in (("poisson", poisson), ("ours", compose([part]))):
                try:
                    mu, regret = PLDConverter(loss).get_mu_and_regret()
                except ValueError:  # both error rates below gdpnum's floor everywhere
                    mu, regret = None, None
                row |= {f"mu_{kind}": None if mu is None else float(mu), f"regret_{kind}": regret}
            mine.append(row)
            cells = ""
            for kind in ("poisson", "ours"):
                mu, regret = row[f"mu_{kind}"], row[f"regret_{kind}"]
                cells += f"{'-':>23}" if mu is None else f"{mu:12.4f} {regret:10.2e}"
            print(f"{name:>8} {row['rate']:8g} {row['noise']:6g} {row['times']:6g} {cells}")
        for kind, label in (
            ("poisson", "Poisson, add or remove"),
            ("ours", "without replacement, replace-one"),
        ):
            known = [row for row in mine if row[f"mu_{kind}"] is not None]
            axes.loglog(
                [row[name] for row in known],
                [max(row[f"regret_{kind}"], 1e-9) for row in known],
                "o-",
                label=label,
            )
        axes.set_xticks(values, [f"{value:g}" for value in values], fontsize=8)
        axes.set_xticks([], minor=True)
        axes.axhline(1e-2, color="gray", linestyle=":")
        axes.set_xlabel({"rate": "sampling rate", "noise": "noise multiplier", "times": "compositions"}[name])
        rows += mine
    figure.axes[0].set_ylabel("regret")
    figure.axes[0].legend(fontsize=8)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "gdp_fig3.png", dpi=80)
    return {"rows": rows, "base": BASE}
