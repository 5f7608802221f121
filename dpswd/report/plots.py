"""Plot of a report as SVG, in the light colours of page.html, which inverts them for a dark page."""

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpswd.errors import InputError
from dpswd.report.gdp import TradeOff

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, SOFT, GRID, CURVE, GAUSS = "#1d1c1a", "#6d6a64", "#dedad2", "#2a6fb0", "#c0501c"
_STYLE = {
    "svg.hashsalt": "dpswd",  # the same ids at every run
    "font.size": 11,
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), SOFT),
    **dict.fromkeys(("axes.labelcolor", "text.color", "xtick.labelcolor", "ytick.labelcolor"), INK),
    "grid.color": GRID,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "mathtext.default": "regular",
}


def draw(curve: TradeOff) -> bytes:
    """Return an SVG of the trade-off curve: all error rates, and the small false-positive rates."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "Expected matplotlib for the plots, got none; pip install 'dpswd[train]'."
        ) from None

    file = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9, 3.9), layout="constrained")
        for axes, small_rates in zip(figure.subplots(1, 2), (False, True), strict=True):
            _curves(axes, curve, small_rates=small_rates)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return file.getvalue()


def _curves(axes: "Axes", curve: TradeOff, *, small_rates: bool) -> None:
    """Draw blind guessing, the run and mu-GDP: FNR against FPR, or TPR against FPR on logarithmic axes."""
    fpr = np.geomspace(1e-10, 1, 301) if small_rates else np.linspace(0, 1, 401)

    def plot(fnr: NDArray[np.float64], **style: Any) -> None:
        axes.plot(fpr, 1 - fnr if small_rates else fnr, **style)

    plot(1 - fpr, color=SOFT, linewidth=1, linestyle=(0, (1, 2)), label="blind guessing")
    plot(curve.fnr(fpr), color=CURVE, linewidth=4.5, alpha=0.75, label="this run")
    plot(curve.gaussian_fnr(fpr), color=GAUSS, linewidth=1.5, linestyle=(0, (3, 3)), label="μ-GDP")
    if small_rates:
        axes.set(xscale="log", yscale="log", xlim=(1e-10, 1), ylim=(1e-10, 1.5))
        axes.set(xlabel="non-members accused (share)", ylabel="members found (share), at most")
    else:
        axes.set(
            xlim=(0, 1),
            ylim=(0, 1),
            xlabel="false-positive rate",
            ylabel="false-negative rate, at least",
        )
        axes.set_aspect("equal")
    axes.minorticks_off()
    axes.legend(loc="lower right" if small_rates else "upper right")
