"""Plot of a report as SVG.

The colours are those of page.html on a light screen; the page inverts them on a dark one.
"""

import io
import math
from typing import TYPE_CHECKING

import numpy as np

from dpswd.errors import InputError
from dpswd.report.gdp import Array, TradeOff
from dpswd.report.sentences import SUPERSCRIPTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#1d1c1a"
SOFT = "#6d6a64"
GRID = "#dedad2"
CURVE = "#2a6fb0"
GAUSS = "#c0501c"

_STYLE = {
    "svg.hashsalt": "dpswd",  # the same ids at every run
    "font.size": 11,
    "axes.edgecolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "mathtext.default": "regular",
}

_MARGINS = {"left": 0.05, "right": 0.975, "bottom": 0.14, "top": 0.97, "wspace": 0.16}

_DOTTED = (0, (1, 2))
_DASHED = (0, (3, 3))


def draw(curve: TradeOff) -> bytes:
    """Return an SVG of the trade-off curve.

    On the left are all error rates, on the right the small false-positive rates.

    Raises:
        InputError: If matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "Expected matplotlib for the plots, got none; pip install 'dpswd[train]'."
        ) from None

    file = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9, 3.9))
        # fixed margins: a layout that measures every text takes longer than the drawing
        left, right = figure.subplots(1, 2, gridspec_kw=_MARGINS)
        _draw_error_rates(left, curve)
        _draw_small_rates(right, curve)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return file.getvalue()


def _draw_error_rates(axes: "Axes", curve: TradeOff) -> None:
    """Draw false-negative rates against false-positive rates."""
    fpr = np.linspace(0, 1, 401)
    _draw_curves(axes, fpr, 1 - fpr, curve.fnr(fpr), curve.gaussian_fnr(fpr))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set(xlabel="false-positive rate", ylabel="false-negative rate, at least")
    axes.set_aspect("equal")
    axes.minorticks_off()
    axes.legend(loc="upper right")


def _draw_small_rates(axes: "Axes", curve: TradeOff) -> None:
    """Draw true-positive rates against false-positive rates, on logarithmic axes."""
    fpr = np.geomspace(1e-10, 1, 301)
    guessed_fnr = 1 - fpr
    _draw_curves(axes, fpr, 1 - guessed_fnr, 1 - curve.fnr(fpr), 1 - curve.gaussian_fnr(fpr))
    axes.set(xscale="log", yscale="log", xlim=(1e-10, 1), ylim=(1e-10, 1.5))
    axes.set(xlabel="non-members accused (share)", ylabel="members found (share), at most")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_power_of_ten)
    axes.minorticks_off()
    axes.legend(loc="lower right")


def _power_of_ten(value: float, _: float) -> str:
    """Return the label of a tick, such as 10⁻⁴; LaTeX would take longer to draw."""
    exponent = str(round(math.log10(value)))
    return "10" + exponent.translate(SUPERSCRIPTS)


def _draw_curves(axes: "Axes", fpr: Array, guessing: Array, run: Array, gaussian: Array) -> None:
    """Draw the rates of blind guessing, the run and mu-GDP, each (n,) like ``fpr``."""
    axes.plot(fpr, guessing, color=SOFT, linewidth=1, linestyle=_DOTTED, label="blind guessing")
    axes.plot(fpr, run, color=CURVE, linewidth=4.5, alpha=0.75, label="this run")
    axes.plot(fpr, gaussian, color=GAUSS, linewidth=1.5, linestyle=_DASHED, label="μ-GDP")
