"""Plots of a report as SVG whose colours are CSS variables of the page (light, dark, print).

matplotlib is imported when a plot is drawn.
"""

import io
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from gdpnum.converter import gaussian_fdp
from numpy.typing import NDArray

from dpswd.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# placeholder colours for matplotlib, and the variables of report.css that replace them
INK, SOFT, GRID, CURVE, GAUSS = "#010101", "#020202", "#030303", "#040404", "#050505"
_VARIABLES = {INK: "--ink", SOFT: "--soft", GRID: "--line", CURVE: "--curve", GAUSS: "--gauss"}
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dpswd",
    "font.size": 11,
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), SOFT),
    **dict.fromkeys(("axes.labelcolor", "text.color", "xtick.labelcolor", "ytick.labelcolor"), INK),
    "grid.color": GRID,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


def draw(report: dict[str, Any], curve: dict[str, list[float]]) -> dict[str, str]:
    """Return SVG elements: ``trade_off`` curve, ``attack`` at small false-positive rates, privacy ``profile``."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("Expected matplotlib for the plots, got none; pip install 'dpswd[train]'.") from None

    pictures: dict[str, str] = {}
    with matplotlib.rc_context(_STYLE):
        for name in ("trade_off", "attack", "profile"):
            figure = Figure(figsize=(4.4, 3.7), layout="constrained")
            if name == "profile":
                _profile(figure.add_subplot(), report["guarantee"])
            else:
                _curves(figure.add_subplot(), curve, report["guarantee"]["mu"], small_rates=name == "attack")
            pictures[name] = _svg(figure, name)
    return pictures


def _curves(axes: "Axes", curve: dict[str, list[float]], mu: float, *, small_rates: bool) -> None:
    """Draw blind guessing, the run and mu-GDP: FNR against FPR, or TPR against FPR on logarithmic axes."""
    fpr, fnr = np.asarray(curve["fpr"]), np.asarray(curve["fnr"])
    grid = np.geomspace(1e-10, 1, 301) if small_rates else np.linspace(0, 1, 401)
    if small_rates:
        fpr, fnr = fpr[fpr >= 1e-10], fnr[fpr >= 1e-10]

    def height(fnr: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.maximum(1 - fnr, 1e-10) if small_rates else fnr

    axes.plot(grid, height(1 - grid), color=SOFT, linewidth=1, linestyle=(0, (1, 2)), label="blind guessing")
    axes.plot(fpr, height(fnr), color=CURVE, linewidth=4.5, alpha=0.75, label="this run")
    axes.plot(grid, height(gaussian_fdp(mu)(grid)), color=GAUSS, linewidth=1.5, linestyle=(0, (3, 3)), label="μ-GDP")
    if not small_rates:
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="false-positive rate", ylabel="false-negative rate, at least")
        axes.set_aspect("equal")
        axes.legend(loc="upper right")
        return
    axes.set(xscale="log", yscale="log", xlim=(1e-10, 1), ylim=(1e-10, 1.5))
    axes.set(xlabel="non-members accused (share)", ylabel="members found (share), at most")
    ticks = range(-10, 1, 2)
    axes.set_xticks([10.0**n for n in ticks], [_power(n) for n in ticks])
    axes.set_yticks([10.0**n for n in ticks], [_power(n) for n in ticks])
    axes.minorticks_off()
    axes.legend(loc="lower right")


def _profile(axes: "Axes", guarantee: dict[str, Any]) -> None:
    epsilon = [point["epsilon"] for point in guarantee["profile"]]
    delta = [max(point["delta"], 1e-300) for point in guarantee["profile"]]
    axes.plot(epsilon, delta, color=CURVE, linewidth=2.4)
    target = next(row for row in guarantee["epsilon_delta"] if row["target"])
    point = (target["epsilon_pld"], target["delta"])
    if point[0] is not None and point[0] <= epsilon[-1]:
        axes.plot(*point, "o", color=GAUSS, markersize=6)
        axes.annotate("target", point, xytext=(7, 5), textcoords="offset points", color=INK)
    low = max(-12, int(np.floor(np.log10(max(min(delta), 1e-12)))))
    ticks = range(0, low - 1, -2 if low < -3 else -1)
    axes.set(yscale="log", ylim=(10.0**low, 1.5), xlim=(0, epsilon[-1]), xlabel="ε", ylabel="δ(ε)")
    axes.set_yticks([10.0**n for n in ticks], [_power(n) for n in ticks])
    axes.minorticks_off()


def _power(exponent: int) -> str:
    return "1" if exponent == 0 else "10" + str(exponent).translate(SUPERSCRIPTS)


def _svg(figure: "Figure", name: str) -> str:
    """Return a scalable SVG element with unique ids and with colours from the page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", text, count=1)
    text = text.replace("*{stroke-linejoin", "svg *{stroke-linejoin")
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return text.strip()
