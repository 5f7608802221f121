"""Tables of docs/audit.md, from docs/results/audit.json; :mod:`experiments.tables` puts them in place."""

from typing import Any

__all__ = ["canary_lines", "game_lines", "zoo_lines"]

Row = dict[str, Any]


def game_lines(rows: list[Row]) -> list[str]:
    """Lower bounds of the game next to the claims."""
    lines = [
        "| setting | q | releases | runs | μ at least | μ claimed | ratio | allowed there | ε at least | ε claimed | "
        "verdict |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        numbers = (row["mu_lower"], row["mu_claimed"], row["mu_lower"] / row["mu_claimed"], row["mu_claimed_at_fpr"])
        lines.append(
            f"| {row['setting']} | {row['q']:g} | {row['n_releases']} | 2 x {row['trials']:,} | "
            + " | ".join(f"{number:.2f}" for number in (*numbers, row["epsilon_lower"], row["epsilon_claimed"]))
            + f" | {'passed' if row['passed'] else 'REFUTED'} |"
        )
    return lines


def zoo_lines(rows: list[Row]) -> list[str]:
    """Broken mechanisms and their twins."""
    lines = [
        "| broken | what the attack looks at | μ claimed | μ at least | verdict | twin: μ at least | false alarms |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['name']} | {row['leak']} | {row['mu_claimed_at_fpr']:.2f} | {row['mu_lower']:.2f} | "
        f"{'caught' if row['caught'] else 'MISSED'} | {row['twin_mu_lower']:.2f} | "
        f"{row['twin_false_alarms']} in {row['twin_runs']} runs |"
        for row in rows
    ]
    return lines


def canary_lines(rows: list[Row]) -> list[str]:
    """Canaries in one training run."""
    lines = [
        "| what was given out | slots | ε provable at best | guesses right | ε at least | ε claimed | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['what']} | {row['slots']} | {row['best_provable_epsilon']:.2f} | {100 * row['guessed_right']:.1f} % | "
        f"{row['epsilon_lower']:.2f} | {row['epsilon_claimed']:g} | {'passed' if row['passed'] else 'REFUTED'} |"
        for row in rows
    ]
    return lines
