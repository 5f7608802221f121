"""Tables of README.md and docs/*.md, made from ``docs/results``: ``python -m experiments tables``.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``. A test fails where a page and the results differ.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import norm

from dpswd._files import write_json
from experiments.generation.stand_ins import BUDGETS, of_all_records

ROOT = Path(__file__).parents[1]
STAND_INS = ROOT / "dpswd" / "mixture" / "stand_ins.json"  # read by ``dpswd forecast``
MARKS = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Row = dict[str, Any]
Cell = str | Callable[[Row], str]  # a format string over the keys of a row, or a function of the row


@dataclass(frozen=True)
class Table:
    """Rows of a result and how to show them.

    Attributes:
        source: ``docs/results/SOURCE.json``.
        columns: Heading and cell of every column.
        note: Format string over the keys of the first row and of the file, shown with the command of the file.
        part: Key of the list of rows.
        where: Rows to keep.
        spread: Heading and cell of further columns, one for each distinct heading. Rows that agree in ``columns`` make
            one line; a row whose heading is empty fills all of them.
        last: Columns after the spread ones, made from all rows of a line.
        also: ``docs/results/ALSO.json``, whose rows come after those of ``source``.
    """

    source: str
    columns: dict[str, Cell]
    note: str = ""
    part: str = "rows"
    where: Callable[[Row], bool] = lambda row: True
    spread: tuple[Cell, Cell] | None = None
    last: dict[str, Callable[[list[Row]], str]] | None = None
    also: str | None = None

    def render(self, content: dict[str, Any] | None = None) -> str:
        """Return the table in Markdown with a line on its origin."""
        content = content or _result(self.source)
        files = [content] if self.also is None else [content, _result(self.also)]
        rows = [row for file in files for row in file[self.part] if self.where(row)]
        lines: dict[tuple[str, ...], list[Row]] = {}
        for i, row in enumerate(rows):
            key = tuple(_show(cell, row) for cell in self.columns.values())
            lines.setdefault(key if self.spread else (*key, str(i)), []).append(row)
        if not self.spread:
            table = [list(self.columns), *(list(key[:-1]) for key in lines)]
        else:
            table = self._spread(rows, lines)
        shown = ["| " + " | ".join(cells) + " |" for cells in table]
        shown.insert(1, "|" + "---|" * len(table[0]))
        note = self.note.format_map({**content, **rows[0]})
        cores = content["machine"].get("cores")
        commands = " and ".join(f"`{file['command']}`" for file in files)
        versions = " and ".join(dict.fromkeys(file["version"] for file in files))
        facts = [commands, note, f"dpswd {versions}", f"{cores} CPU cores."]
        return "\n".join([*shown, "", ", ".join(fact for fact in facts if fact)])

    def _spread(self, rows: list[Row], lines: dict[tuple[str, ...], list[Row]]) -> list[list[str]]:
        assert self.spread is not None
        heading, cell = self.spread
        headings = [each for each in dict.fromkeys(_show(heading, row) for row in rows) if each]
        last = self.last or {}
        table = [[*self.columns, *headings, *last]]
        for key, same in lines.items():
            found = {_show(heading, row): _show(cell, row) for row in same}
            cells = [found.get(each, found.get("", "-")) for each in headings]
            table.append([*key, *cells, *(show(same) for show in last.values())])
        return table


def _result(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())
    return result


class _Value:
    """A value in a format string: ``ms`` and ``MB`` are units of seconds and bytes; what is missing is a dash."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, key: Any) -> "_Value":
        return _Value(self.value[int(key) if isinstance(self.value, list) else key])

    def __format__(self, form: str) -> str:
        if self.value is None:
            return "-"
        if form == "ms":
            return f"{self.value * 1e3:,.0f}" if self.value > 0.1 else f"{self.value * 1e3:.3g}"
        return f"{self.value / 1e6:,.0f}" if form == "MB" else format(self.value, form)


class _Values(dict[str, Any]):
    def __missing__(self, key: str) -> _Value:
        return _Value(None)


def _show(cell: Cell, row: Row) -> str:
    if not isinstance(cell, str):
        return cell(row)
    return cell.format_map(_Values({key: _Value(value) for key, value in row.items()}))


# Cells --------------------------------------------------------------------------------------------------------------


def columns(spec: str, *cells: Cell) -> dict[str, Cell]:
    """Columns from ``"HEADING -> FORMAT | HEADING -> *"``, where the cells replace the asterisks in their order."""
    rest = iter(cells)
    pairs = (column.split(" -> ") for column in spec.split(" | "))
    return {heading: next(rest) if form == "*" else form for heading, form in pairs}


def ratio(top: str, bottom: str, holds: Callable[[Row, float], bool] = lambda row, value: True) -> Cell:
    """A quotient of two keys, marked where it misses its target."""

    def cell(row: Row) -> str:
        value = row[top] / row[bottom]
        return f"{value:.2f}" + ("" if holds(row, value) else " **(missed)**")

    return cell


def score(row: Row) -> str:
    """An accuracy in percent with its standard deviation; ``-`` for what was not run."""
    if row["mean"] is None:
        return "-"
    return f"{row['mean']:.1f}" + (f" ± {row['std']:.1f}" if row["std"] is not None else "")


def printed(rows: list[Row]) -> str:
    """The accuracies that Rakotomamonjy2021 prints for a method."""
    found = {row["classifier"]: row["printed"] for row in rows if row.get("printed")}
    return f"{found['logreg']} / {found['mlp']}" if found else "-"


def guarantee(row: Row, form: str = ".3g") -> str:
    """The guarantee of a trained model, or what an unsound method claims."""
    if row["epsilon"] is None:
        return "none"
    if not row["sound"]:
        return f"ε = {row['epsilon']:g} claimed" + (", **unsound**" if row["sound"] is False else "")
    return f"ε = {row['epsilon']:g}, μ = {row['mu']:{form}}"


METHODS = {
    "SWD, adapter": "ours without noise",
    "DP-SWD, adapter": "**DP-SWD, adapter (ours)**",
    "DP-SWD, features": "DP-SWD, encoder's features (ours)",
    "image map, real target": "image map, real target: NOT PRIVATE",
    "image map, synthetic target": "**image map, synthetic target (ours)**",
}


def method(row: Row) -> str:
    """A method of Table 1."""
    return METHODS.get(str(row["method"]), str(row["method"]))


def problem(row: Row) -> str:
    """A problem of Table 1."""
    return row["dataset"] if "," in row["dataset"] or "MNIST" not in row["dataset"] else f"{row['dataset']}, framed"


def gap(row: Row) -> str:
    """A difference with its standard error."""
    error = row["standard_error"]
    return f"{row['gap']:+.2f}" + (f" ± {error:.2f}" if error is not None else "")


def compared(row: Row) -> str:
    """What ours is compared with."""
    name = {"SWD, adapter": "itself without noise", "DP-SWD, adapter": "itself"}.get(
        str(row["method"]), str(row["method"])
    )
    return name + (f" at ε = {row['epsilon']:g}" if row["epsilon"] else "")


def power_at(rate: float) -> Cell:
    """The largest true-positive rate that mu-GDP allows at a false-positive rate."""
    return lambda row: f"{100 * norm.cdf(norm.ppf(rate) + row['mu']):.0f} %"


def with_d(limit: float, above: float) -> Callable[[Row, float], bool]:
    """A least ratio for d <= 784 and another one above."""
    return lambda row, value: value >= (limit if row["d"] <= 784 else above)


def with_n(limit: float, below: float) -> Callable[[Row, float], bool]:
    """A least ratio for n >= 1,000 and another one below."""
    return lambda row, value: value >= (limit if row["n"] >= 1000 else below)


def per_step(row: Row) -> float:
    """Seconds of training steps, without a single release, the account and the checkpoints."""
    return float(row["total_s"] - _once(row) - row["epsilon_s"] - row["saving_s"])


def _once(row: Row) -> float:
    return 0.0 if "rows" in row["config"] or row["release_s"] >= 0.5 * row["total_s"] else float(row["release_s"])


def vectors(source: str, group: str, cell: Cell = score) -> Table:
    """Table of adaptation methods on the problems of one group of vectors."""
    columns = {"method": "{method}", "ε": "{epsilon:g}"}
    return Table(source, columns, "{seeds} seeds", where=lambda row: row["group"] == group, spread=("{dataset}", cell))


def share(key: str, target: float) -> Cell:
    """Share of the time of the steps, marked above its target; releases count as loss where every step makes one."""

    def cell(row: Row) -> str:
        seconds = row[key] + (row["release_s"] if key == "loss_s" and not _once(row) else 0.0)
        value = seconds / per_step(row)
        return f"{value:.0%}" + ("" if value <= target else " **(missed)**")

    return cell


def part(*names: str) -> Callable[[Row], bool]:
    """Keep rows of parts of the benchmark."""
    return lambda row: row["part"] in names


def changes(row: Row) -> str:
    """The settings of a run that differ from the printed ones."""
    return ", ".join(f"{key} {value}".replace("_", " ") for key, value in row["changed"].items())


OFFICE = ("A-W", "A-D", "W-A", "W-D", "D-A", "D-W")
OURS = ("MNIST-USPS", "A-W")  # problems whose guarantees are explained
OF_THE_PAPER = ("SWD", "DP-SWD-b", "DP-SWD-c", "DP-MERF with", "GS-WGAN", "DP-CGAN")  # rows of Table 2 as printed

IMAGES: dict[str, Cell] = {"data set": "{dataset}", "method": "{method}", "guarantee": guarantee}
TIMES = {"training": lambda rows: "-" if rows[0]["train_seconds"] is None else f"{rows[0]['train_seconds']} s"}
HEADINGS = {
    "logreg": "LogReg",
    "mlp": "MLP",
    "cnn": "CNN",
    "larger_cnn": "larger CNN",
    "best": "best network",
    "mean": "mean of networks",
}
CLASSIFIER = lambda row: HEADINGS[row["classifier"]]  # noqa: E731

TABLES: dict[str, Table] = {
    "generation": Table(
        "generation",
        {"data set": "{dataset}"},
        where=lambda row: (
            row["classifier"] == "cnn"
            and (row["method"] == "real records" or (row["method"] == "one-shot mixture" and row["epsilon"] >= 1))
        ),
        spread=(lambda row: f"ε = {row['epsilon']:g}" if row["epsilon"] else "real records", score),
        last={"seeds": lambda rows: " / ".join(str(row["seeds"]) for row in rows)},
    ),
    "generation_compared": Table(
        "generation",
        IMAGES,
        "seeds in the table",
        spread=(CLASSIFIER, score),
        last=TIMES
        | {"seeds": lambda rows: str(rows[0]["seeds"]), "version": lambda rows: rows[0].get("version", "0.2.0")},
    ),
    "imagebench": Table(
        "imagebench",
        IMAGES,
        spread=(CLASSIFIER, score),
        last=TIMES | {"seeds": lambda rows: str(rows[0]["seeds"] or "-")},
    ),
    "imagebench_fidelity": Table(
        "imagebench",
        columns(
            "data set -> {dataset} | images -> {method} | guarantee -> * | Fréchet distance -> {frechet:.3g} | "
            "precision -> {precision:.2f} | recall -> {recall:.2f} | FID -> {fid:.1f} | seeds -> {seeds}",
            guarantee,
        ),
        part="fidelity",
    ),
    "forecast": Table(
        "forecast",
        {"data set": "{dataset}", "records": "{n_records:,}", "ε": "{epsilon:g}"},
        spread=(
            lambda row: row["release"].replace("_", " "),
            lambda row: f"{row['forecast']:.3g} / {row['realised']:.3g}",
        ),
    ),
    "stand_ins": Table(
        "stand_ins",
        {"data set": "{dataset}", "ε": "{epsilon:g}"},
        "one seed",
        spread=(lambda row: f"{row['n_records']:,}", lambda row: f"{row['accuracy']:.1f}"),
    ),
    "generation_ablation": Table(
        "generation_ablation",
        columns("data set -> {dataset} | changed -> {change} | seeds -> {seeds}"),
        spread=(CLASSIFIER, score),
        last={"Fréchet distance": lambda rows: f"{rows[0]['frechet']:.4f}"},
    ),
    "table2": Table(
        "table2",
        IMAGES,
        "one seed",
        spread=(CLASSIFIER, score),
        last=TIMES,
    ),
    "table2_0_2_0": Table(
        "table2_0_2_0",
        IMAGES,
        "one seed",
        where=lambda row: row["method"].startswith(OF_THE_PAPER),
        spread=(CLASSIFIER, score),
        last={"printed, LogReg / MLP": printed} | TIMES,
    ),
    "table1_published": Table(
        "table1_published",
        columns(
            "problem -> {dataset} | method -> {method} | noise -> * | σ -> {sigma:g} | guarantee -> * | "
            "accuracy -> * | printed -> {printed:g} | training -> {train_seconds:d} s",
            lambda row: "-" if row["epsilon"] is None else row["noise"],
            guarantee,
            score,
        ),
        "one seed",
    ),
    "table1_gap": Table(
        "table1_gap",
        columns(
            "problem -> * | method -> {method} | σ -> {sigma:g} | what was changed -> * | accuracy -> * | "
            "printed -> {printed:g} | seeds -> {seeds} | along the run -> *",
            lambda row: row["dataset"].split(",")[0],
            changes,
            score,
            lambda row: " ".join(f"{value:.0f}" for value in row["curve"]),
        ),
        "and the same command with the settings of a row",
    ),
    "table2_gap": Table(
        "table2_gap",
        columns(
            "method -> {method} | grouping -> {grouping} | learning rate -> {lr:g} | steps -> {steps:,} | "
            "classifier -> * | accuracy -> * | printed -> {printed:g} | seeds -> {seeds} | "
            "training, s -> {train_seconds:d}",
            lambda row: HEADINGS[row["classifier"]],
            score,
        ),
        "MNIST, and the same command with the settings of a row",
    ),
    "table2_signal": Table(
        "table2_signal",
        {"method": "{method}", "σ": "{sigma:g}"},
        "MNIST, {draws} gradients for each cell",
        spread=("{grouping}", lambda row: "-" if row["steps"] is None else f"{row['steps']:.3g}"),
    ),
    "fig6": Table(
        "fig6",
        columns(
            "images -> {method} | N -> {sample_size:,} | guarantee -> * | "
            "Fréchet distance -> {frechet:.3g} | precision -> {precision:.2f} | recall -> {recall:.2f} | "
            "training, s -> {train_seconds:d}",
            guarantee,
        ),
        "one seed",
    ),
    "audit_games": Table(
        "audit",
        columns(
            "setting -> {setting} | q -> {q:g} | releases -> {n_releases} | runs -> 2 x {trials:,} | "
            "μ at least -> {mu_lower:.2f} | μ claimed -> {mu_claimed:.2f} | ratio -> * | "
            "allowed there -> {mu_claimed_at_fpr:.2f} | ε at least -> {epsilon_lower:.2f} | "
            "ε claimed -> {epsilon_claimed:.2f} | verdict -> *",
            ratio("mu_lower", "mu_claimed"),
            lambda row: "passed" if row["passed"] else "REFUTED",
        ),
        "confidence 0.99, δ = 10^-5",
    ),
    "audit_zoo": Table(
        "audit",
        columns(
            "broken -> {name} | what the attack looks at -> {leak} | μ claimed -> {mu_claimed_at_fpr:.2f} | "
            "μ at least -> {mu_lower:.2f} | verdict -> * | twin: μ at least -> {twin_mu_lower:.2f} | "
            "false alarms -> {twin_false_alarms} in {twin_runs} runs",
            lambda row: "caught" if row["caught"] else "MISSED",
        ),
        "2 x {trials:,} runs, confidence 0.999",
        part="zoo",
    ),
    "audit_canaries": Table(
        "audit",
        columns(
            "what was given out -> {what} | slots -> {slots} | "
            "ε provable at best -> {best_provable_epsilon:.2f} | guesses right -> * | "
            "ε at least -> {epsilon_lower:.2f} | ε claimed -> {epsilon_claimed:g} | verdict -> *",
            lambda row: f"{100 * row['guessed_right']:.1f} %",
            lambda row: "passed" if row["passed"] else "REFUTED",
        ),
        "confidence 0.99, δ = 10^-5",
        part="canaries",
    ),
    "leak": Table(
        "leak",
        {"what is published": "{variant}", "attacker sees": "{seen}"},
        "{trials:,} runs counted in each world, confidence {confidence}",
        spread=(
            "claim μ = {mu_claimed:g}",
            lambda row: f"{row['mu_lower']:.2f}" + (" **caught**" if row["caught"] else ""),
        ),
    ),
    "adaptation_digits": Table(
        "table1",
        {"method": method, "guarantee": lambda row: guarantee(row, ".2f")},
        "10 seeds (as they are: 3)",
        where=lambda row: "MNIST" in row["dataset"],
        spread=(problem, score),
        also="adaptation_images",
    ),
    "adaptation_office": Table(
        "table1",
        {"method": method, "guarantee": lambda row: guarantee(row).split(", μ")[0]},
        "{seeds} seeds",
        where=lambda row: row["dataset"] in OFFICE,
        spread=("{dataset}", score),
        last={"mean": lambda rows: f"{sum(row['mean'] for row in rows) / len(rows):.1f}"},
    ),
    "adaptation_gaps": Table(
        "table1",
        {"ours at ε = 10 minus": compared},
        "mean and its standard error over 10 seeds (as they are: 3)",
        part="comparisons",
        spread=(problem, gap),
    ),
    "adaptation_worth": Table(
        "table1",
        columns(
            "problem -> {dataset} | ε, δ -> {epsilon:g}, {delta:g} | μ -> {mu:.2f} | "
            "true positives at 5 % false ones, at most -> * | at 1 % -> *",
            power_at(0.05),
            power_at(0.01),
        ),
        "from μ alone",
        where=lambda row: row["dataset"] in OURS and row["method"] == "DP-SWD, adapter",
    ),
    "fig3": Table(
        "fig3",
        {"problem": problem, "method": method},
        "{seeds} seeds",
        spread=(lambda row: "" if row["epsilon"] is None else f"ε = {row['epsilon']:g}", score),
        also="adaptation_images",
    ),
    "pixel_vectors": vectors("pixel_vectors", "pixels"),
    "pixel_vectors_office": vectors("pixel_vectors_office", "Office-Caltech-10"),
    "fallback_errors": Table(
        "fallback",
        columns(
            "pairs -> {group} | ε -> {epsilon:g} | adapted, though worse -> {wrongly_adapted:g} of {n_worse} | "
            "kept, though worse -> {wrongly_kept:g} of {n_better} | plain -> {plain:.1f} | always adapted -> "
            "{always:.1f} | the adapter's choice -> {result:.1f} | the better one -> {best:.1f}"
        ),
        "mean accuracies over all pairs of a line",
        part="errors",
    ),
    "fallback": Table(
        "fallback",
        columns(
            "pair -> {dataset} | normalise -> * | ε -> {epsilon:g} | plain -> {plain:.1f} | always adapted -> "
            "{always:.1f} | shift -> {shift:.1f} | choice -> *",
            lambda row: "yes" if row["normalise"] else "no",
            lambda row: "adapted" if row["adapted"] else "plain",
        ),
        "{seeds} seed",
        where=lambda row: row["group"] != "chosen on",
    ),
    "adaptation_steps": Table(
        "adaptation_steps",
        {"problem": "{dataset}"},
        "{seeds} seeds",
        spread=(lambda row: f"{row['method'].removesuffix(', adapter')}, {row['steps']:,} steps", score),
    ),
    "adaptation_ablation": Table(
        "adaptation_ablation",
        {"step": "{step}"},
        "{seeds} seeds",
        spread=(lambda row: row["dataset"].split(",")[0], "{mean:.1f}"),
    ),
    "table4_all": Table(
        "table4",
        columns(
            "row -> {dataset} | "
            "d, k, N, B, T -> {dim:,}, {n_projections:,}, {sample_size:,}, {batch_size}, {n_releases:,} | "
            "δ -> {delta:g} | bound -> {bound} | printed -> {published:g} | recomputed -> {recomputed:.3f} | "
            "corrected -> {corrected:.3f} | bound at every release -> {bound_rdp:.3f} | "
            "exact, RDP -> {exact_rdp:.3f} | exact, PLD -> {exact_pld:.3f}",
        ),
        "deterministic",
    ),
    "fig1": Table(
        "fig1",
        columns(
            "quantity -> {quantity} | exact -> {exact:.4f} | 10,000 draws -> {simulated:.4f} | "
            "Bernstein -> {bernstein:.2f} | CLT -> {clt:.4f}",
        ),
        "one seed",
    ),
    "fig2": Table(
        "fig2",
        {"σ": "{sigma:g}", "n": "{n:,}"},
        "SWD / DP-SWD / debiased block means, mean of {draws} draws",
        where=lambda row: round(row["shift"], 6) in (0, 0.5, 1),
        spread=("c = {shift:g}", "{swd:.2f} / {dp_swd:.2f} / {block_means:.2f}"),
    ),
    "gdp_fig1": Table(
        "gdp_fig1",
        columns(
            "false-positive rate -> {false_positive_rate:g} | power by (ε, δ) -> {power_pair:.3f} | "
            "by the accountant -> {power_curve:.3f} | by μ -> {power_gdp:.3f}",
        ),
        "deterministic",
    ),
    "gdp_fig2": Table(
        "gdp_fig2",
        columns(
            "mechanism -> {mechanism}, σ = {sigma:g} | false-positive rate -> {false_positive_rate:g} | "
            "(ε, δ) -> {beta_pair:.3f} | zCDP -> {beta_zcdp:.3f} | accountant -> {beta_accountant:.3f} | "
            "GDP -> {beta_gdp:.3f}",
        ),
        "least false-negative rates, deterministic",
    ),
    "gdp_fig3": Table(
        "gdp_fig3",
        {"noise": "{noise:g}", "compositions": "{times:,}"},
        "regret of DP-SGD, deterministic",
        spread=("q = {rate:g}", "{regret_poisson:.1e}"),
    ),
    "gdp_fig4": Table(
        "gdp_fig4",
        columns(
            "mechanism -> {mechanism} | μ -> {mu:.4f} | regret -> {regret:.1e} | ε -> {epsilon:.2f} | "
            "at δ -> {delta:g}",
        ),
        "deterministic",
    ),
    "gdp_table3": Table(
        "gdp_table3",
        columns(
            "ε -> {epsilon:g} | δ = 1e-5 -> {mu_gaussian_delta_1e-05:.2f} | "
            "δ = 1e-6 -> {mu_gaussian_delta_1e-06:.2f} | δ = 1e-9 -> {mu_gaussian_delta_1e-09:.2f} | "
            "pure ε-DP -> {mu_pure:.3f} | its regret -> {regret_pure:.1e}",
        ),
        "deterministic",
    ),
    "gdp_dpsgd": Table(
        "gdp_dpsgd",
        columns(
            "table -> {table} | nominal ε -> {nominal_epsilon} | noise -> {noise_multiplier:g} | "
            "updates -> {updates:,} | μ -> {mu:.3f} | regret -> {regret:.1e} | ε at δ = 1e-5 -> {epsilon:.2f}",
        ),
        "deterministic",
    ),
    "benchmark_distance": Table(
        "benchmarks",
        columns(
            "(n, d, k) -> ({n:,}, {d:,}, {k:,}) | device, threads -> {device}, {threads} | "
            "ours, ms -> {ours_s:ms} | POT / ours -> * | "
            "naive / ours -> * | ours / floor -> * | value differs by -> {difference:.0e} | "
            "rounds: ours, POT, naive -> {ours_rounds}, {pot_rounds}, {naive_rounds}",
            ratio("pot_s", "ours_s", with_d(3, 1.4)),
            ratio("naive_s", "ours_s", with_n(1.5, 1)),
            ratio("ours_s", "floor_s", lambda row, value: value <= 1.3 or row["n"] < 1000),
        ),
        where=part("distance", "large"),
    ),
    "benchmark_memory": Table(
        "benchmarks",
        columns(
            "(n, d, k) -> ({n:,}, {d:,}, {k:,}) | ours, MB -> {ours_bytes:MB} | POT, MB -> {pot_bytes:MB} | "
            "naive, MB -> {naive_bytes:MB}",
        ),
        where=lambda row: "ours_bytes" in row,
    ),
    "benchmark_step": Table(
        "benchmarks",
        columns(
            "(n, d, k) -> ({n:,}, {d:,}, {k:,}) | threads -> {threads} | rows, ms -> {rows_s:ms} | "
            "block means, ms -> {quantiles_s:ms} | paper, ms -> {paper_s:ms} | "
            "of which our directions, ms -> {directions_s:ms} | paper / rows -> * | paper / block means -> *",
            ratio("paper_s", "rows_s", with_n(1.5, 1)),
            ratio("paper_s", "quantiles_s", with_n(1.5, 1)),
        ),
        where=part("step"),
    ),
    "benchmark_sort": Table(
        "benchmarks",
        columns(
            "n -> {n:,} | torch, down the columns -> {torch_dim0_s:ms} | torch, contiguous -> {torch_s:ms} | "
            "NumPy argsort -> {numpy_argsort_s:ms} | values and order (packed) -> {ours_order_s:ms} | "
            "values only (NumPy) -> {ours_values_s:ms}",
        ),
        "milliseconds",
        where=part("sort"),
    ),
    "benchmark_training": Table(
        "benchmarks",
        columns(
            "config -> `{config}` | steps -> {steps:,} | step, ms -> * | loss -> * | checks -> * | Lightning -> * | "
            "releases, s -> {release_s:.2f} | accounts, s -> {epsilon_s:.2f} | saving, s -> {saving_s:.2f}",
            lambda row: f"{_Value(per_step(row) / row['steps']):ms}",
            share("loss_s", 0.2),
            share("checks_s", 0.02),
            share("rest_s", 0.1),
        ),
        where=part("training"),
    ),
    "benchmark_startup": Table(
        "benchmarks", {"what": "`{what}`", "seconds": "{seconds:.2f}"}, where=part("startup", "account")
    ),
    "benchmark_scaling": Table(
        "benchmarks",
        columns(
            "what -> {what}, against {variable} | sizes -> {sizes[0]:,} to {sizes[-1]:,} | "
            "milliseconds -> {seconds[0]:ms} to {seconds[-1]:ms} | exponent -> {exponent:.2f}",
        ),
        where=lambda row: row["part"] == "scaling" and row["what"].startswith("distance"),
    ),
    "benchmark_cost": Table(
        "benchmarks",
        columns(
            "against -> * | the others -> * | sizes -> {sizes[0]:,} to {sizes[-1]:,} | "
            "time, ms -> {cpu_seconds[0]:ms} to {cpu_seconds[-1]:ms} | exponent of time -> {time_exponent:.2f} | "
            "memory above the inputs, MB -> {above_bytes[0]:MB} to {above_bytes[-1]:MB} | "
            "exponent of memory -> {memory_exponent:.2f} | peak, GB -> *",
            lambda row: {"N": "N = B (one shot)", "T": "T (account)"}.get(row["variable"], str(row["variable"])),
            lambda row: ", ".join(
                f"{name} = {value:,}" for name, value in row["base"].items() if row["variable"] + name != "NB"
            ),
            lambda row: (
                f"{max(row['peak_bytes']) / 1e9:.2f}" + ("" if max(row["peak_bytes"]) <= 4e9 else " **(missed)**")
            ),
        ),
        where=part("cost"),
    ),
    "benchmark_sketch": Table(
        "benchmarks",
        columns(
            "rows -> {n:,} x {d:,} | directions -> {k:,} | seconds -> {seconds:.0f} | "
            "peak memory of the process, GB -> *",
            lambda row: f"{row['peak_bytes'] / 1e9:.2f}",
        ),
        where=part("sketch"),
    ),
    "parts": Table(
        "parts",
        columns(
            "images -> {n:,} | processes -> {processes} | whole fit, s -> {seconds:.0f} | "
            "releases, s -> {releases_s:.0f} | a record in a pass, µs -> * | memory of a process, GB -> *",
            lambda row: f"{1e6 * row['record_pass_s']:.0f}",
            lambda row: f"{row['peak_bytes'] / 1e9:.2f}",
        ),
        "largest memory of all processes, each from its start to its end",
    ),
    "parts_cost": Table(
        "parts",
        columns(
            "records -> {n:,} | machines -> {processes} | passes -> {passes} | reading, hours -> {reading_hours:.1f} | "
            "network, s -> * | sums of a machine, MB -> *",
            lambda row: f"{3600 * row['network_hours']:.1f}",
            lambda row: f"{row['sums_bytes'] / 1e6:.0f}",
        ),
        "extrapolated",
        part="cost",
    ),
    "benchmark_compiled": Table(
        "benchmarks",
        columns(
            "(n, d, k) -> ({n:,}, {d:,}, {k:,}) | naive, ms -> {naive_s:ms} | "
            "naive, compiled, ms -> {compiled_s:ms} | compiling, s -> {compile_s:.0f} | ours, ms -> {ours_s:ms}",
        ),
        where=part("compiled"),
    ),
}


def fill(text: str) -> str:
    """Return a page with every table made anew."""
    return MARKS.sub(lambda match: f"{match[1]}{TABLES[match[2]].render()}\n{match[3]}", text)


def pages() -> Sequence[Path]:
    """List the pages that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def stand_ins() -> dict[str, Any]:
    """Return the rows of the experiment of this name for the package, with those of all records of this version."""
    rows = [
        of_all_records(row)
        for row in _result("generation")["rows"]
        if row["classifier"] == "logreg" and "mixture" in row["method"] and row["epsilon"] in BUDGETS
        if "version" not in row  # of an earlier version
    ]
    return {"rows": [*_result("stand_ins")["rows"], *rows]}


def write_tables() -> None:
    """Write all tables in place, and the rows that ``dpswd forecast`` reads."""
    write_json(STAND_INS, stand_ins())
    for page in pages():
        text = page.read_text()
        if (new := fill(text)) != text:
            page.write_text(new)
            print(f"Written: {page.relative_to(ROOT)}")
