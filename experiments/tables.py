"""Tables of the documentation, made from ``docs/results``: ``python -m experiments.tables`` writes them in place.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->`` in README.md or docs/*.md. A test fails where a page
and the results differ.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.adaptation.adaptation_page import (
    ablation_lines,
    curve_lines,
    digit_lines,
    gap_lines,
    leak_lines,
    office_lines,
    step_lines,
    worth_lines,
)
from experiments.audit.audit_page import canary_lines, game_lines, zoo_lines
from experiments.generation.generation_ablation import change_lines
from experiments.generation.table2_page import celeba_lines, table2_lines

ROOT = Path(__file__).parents[1]
MARKS = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def results(name: str) -> dict[str, Any]:
    """Reads ``docs/results/NAME.json``."""
    return dict(json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text()))


def generation() -> str:
    """Accuracy of classifiers trained on what the shipped generators give: for the README."""
    content = results("generation")
    shown = [
        row
        for row in content["rows"]
        if row["method"] == "real records" or (row["method"].startswith("DP-SWD") and row["epsilon"] >= 1)
    ]
    seeds = sorted({row["seeds"] for row in shown}, reverse=True)
    return "\n".join([*table2_lines(shown), "", _origin(content, " or ".join(map(str, seeds)) + " seeds")])


def generation_compared() -> str:
    """The same beside the class-wise Gaussian, at all budgets."""
    content = results("generation")
    lines = table2_lines(content["rows"], seeds=True)
    return "\n".join([*lines, "", _origin(content, "seeds in the table")])


def generation_ablation() -> str:
    """What each part of the shipped generators brings."""
    content = results("generation_ablation")
    return "\n".join([*change_lines(content["rows"]), "", _origin(content, "one seed")])


def table4() -> str:
    """Noise for epsilon = 10."""
    content = results("table4")
    lines = ["| row of Table 4 | published | exact, Renyi | exact, PLD |", "|---|---|---|---|"]
    for row in content["rows"]:
        if row["published"] is not None:
            lines.append(
                f"| {row['dataset']} | {row['published']:g} | {row['exact_rdp']:.3f} | **{row['exact_pld']:.3f}** |"
            )
    return "\n".join([*lines, "", _origin(content, "deterministic")])


def table2() -> str:
    """Accuracy of every method of Table 2."""
    content = results("table2")
    seeds = content["rows"][0]["seeds"]
    return "\n".join(
        [*table2_lines(content["rows"]), "", _origin(content, "one seed" if seeds == 1 else f"{seeds} seeds")]
    )


def fig6() -> str:
    """Distances of generated faces."""
    content = results("fig6")
    return "\n".join(
        [*celeba_lines(content["rows"]), "", _origin(content, f"N = {content['rows'][0]['sample_size']:,}")]
    )


def audit_games() -> str:
    """Lower bounds of the game next to the claims."""
    content = results("audit")
    return "\n".join([*game_lines(content["rows"]), "", _origin(content, "confidence 0.99, δ = 10^-5")])


def audit_zoo() -> str:
    """Broken mechanisms and their twins."""
    content = results("audit")
    note = f"2 x {content['zoo'][0]['trials']:,} runs, confidence 0.999"
    return "\n".join([*zoo_lines(content["zoo"]), "", _origin(content, note)])


def audit_canaries() -> str:
    """Canaries in one training run."""
    content = results("audit")
    return "\n".join([*canary_lines(content["canaries"]), "", _origin(content, "confidence 0.99, δ = 10^-5")])


def adaptation_digits() -> str:
    """Table 1, digits."""
    content = results("table1")
    seeds = {("," in row["dataset"]): row["seeds"] for row in content["rows"] if "MNIST" in row["dataset"]}
    return "\n".join(
        [*digit_lines(content["rows"]), "", _origin(content, f"{seeds[False]} seeds (as they are: {seeds[True]})")]
    )


def adaptation_office() -> str:
    """Table 1, Office-Caltech-10."""
    content = results("table1")
    return "\n".join([*office_lines(content["rows"]), "", _origin(content, f"{content['rows'][-1]['seeds']} seeds")])


def adaptation_gaps() -> str:
    """Table 1, differences between methods."""
    content = results("table1")
    seeds = {("," in row["dataset"]): row["seeds"] for row in content["comparisons"]}
    note = f"mean and its standard error over {seeds[False]} seeds (as they are: {seeds[True]})"
    return "\n".join([*gap_lines(content["comparisons"]), "", _origin(content, note)])


def fig3() -> str:
    """Accuracy of adaptation against epsilon."""
    content = results("fig3")
    return "\n".join([*curve_lines(content["rows"]), "", _origin(content, f"{content['rows'][0]['seeds']} seeds")])


def adaptation_steps() -> str:
    """More steps than in Table 1."""
    content = results("adaptation_steps")
    seeds = content["rows"][0]["seeds"]
    return "\n".join(
        [*step_lines(content["rows"]), "", _origin(content, "one seed" if seeds == 1 else f"{seeds} seeds")]
    )


def adaptation_worth() -> str:
    """What the guarantees of Table 1 are worth."""
    content = results("table1")
    return "\n".join([*worth_lines(content["rows"]), "", _origin(content, "from μ alone")])


def adaptation_ablation() -> str:
    """What costs accuracy without an adapter."""
    content = results("adaptation_ablation")
    return "\n".join([*ablation_lines(content["rows"]), "", _origin(content, f"{content['rows'][0]['seeds']} seeds")])


def leak() -> str:
    """Lower bounds of the attack on the published gradient."""
    content = results("leak")
    note = f"{content['rows'][0]['trials']:,} runs counted in each world, confidence {content['confidence']}"
    return "\n".join([*leak_lines(content["rows"]), "", _origin(content, note)])


TABLES: dict[str, Callable[[], str]] = {
    "adaptation_ablation": adaptation_ablation,
    "adaptation_digits": adaptation_digits,
    "adaptation_gaps": adaptation_gaps,
    "adaptation_office": adaptation_office,
    "adaptation_steps": adaptation_steps,
    "adaptation_worth": adaptation_worth,
    "leak": leak,
    "audit_canaries": audit_canaries,
    "audit_games": audit_games,
    "audit_zoo": audit_zoo,
    "generation": generation,
    "generation_ablation": generation_ablation,
    "generation_compared": generation_compared,
    "table2": table2,
    "table4": table4,
    "fig3": fig3,
    "fig6": fig6,
}


def _power(value: float) -> str:
    mantissa, exponent = f"{value:e}".split("e")
    assert float(mantissa) == 1
    return f"10^{int(exponent)}"


def _origin(content: dict[str, Any], note: str) -> str:
    cores = content["machine"].get("cores")
    return f"`{content['command']}`, {note}, dpswd {content['version']}, {cores} CPU cores."


def filled(text: str) -> str:
    """Returns a page with every table made anew."""
    return MARKS.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}\n{match[3]}", text)


def pages() -> list[Path]:
    """Returns the pages that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> int:
    """Writes all tables in place."""
    for page in pages():
        text = page.read_text()
        if (new := filled(text)) != text:
            page.write_text(new)
            print(f"Written: {page.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
