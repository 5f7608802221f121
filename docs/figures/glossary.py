"""Draw two classes, one direction, and their slices in blocks: the picture of the glossary."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

rng = np.random.default_rng(0)
classes = {
    "class A": rng.normal(size=(100, 2)) * [0.5, 1.0] + [-1, 0],
    "class B": rng.normal(size=(100, 2)) * [0.8, 0.4] + [1, 0.5],
}
direction = np.array([0.8, 0.6])
figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
for name, rows in classes.items():
    left.scatter(*rows.T, s=8, label=name)
    blocks = np.sort(rows @ direction).reshape(5, 20).mean(1)
    right.plot(range(1, 6), blocks, "o-", label=name)
left.annotate("", 2.5 * direction, -2.5 * direction, arrowprops={"arrowstyle": "->"})
left.set_title("rows of two classes, and one direction", fontsize=9)
left.set_aspect("equal")
left.legend(fontsize=8)
right.set_title("their slices: sorted projections, means of 20", fontsize=9)
right.set_xlabel("block")
right.set_xticks(range(1, 6))
figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)
