"""Tables of README.md and docs/*.md, made from ``docs/results``.

``python -m experiments tables`` makes them. A table stands between ``<!-- table NAME -->`` and
``<!-- end -->`` on a page. Its name is a key of :data:`TABLES`, which gives the result and the
function from the content of the result to Markdown. A test fails where a page and the results
differ.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpswd._files import write_json
from experiments.generation.stand_ins import BUDGETS, of_all_records
from experiments.results import RESULTS, ROOT, Result, read_result
from experiments.tables import (
    accounting,
    adaptation,
    audit,
    columns,
    evaluation,
    generation,
    performance,
)

STAND_INS = ROOT / "dpswd" / "mixture" / "stand_ins.json"  # read by ``dpswd forecast``
MARKS = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Source:
    """The name of a table's result, and the function that formats it."""

    result: str
    markdown: Callable[[Result], str]

    def exists(self) -> bool:
        """Whether the experiment was run."""
        return (RESULTS / f"{self.result}.json").exists()


TABLES = {
    "adaptation_module": Source("adaptation_module", adaptation.adaptation_module),
    "adaptation_sizes": Source("adaptation_module", adaptation.adaptation_sizes),
    "evaluation_images": Source("evaluation_examples", evaluation.evaluation_images),
    "photographs": Source("photographs", evaluation.photographs),
    "evaluation_tables": Source("evaluation_examples", evaluation.evaluation_tables),
    "front": Source("generation", generation.front),
    "front_printed": Source("generation", generation.front_printed),
    "generation_compared": Source("generation", generation.generation_compared),
    "generation_baselines": Source("generation", generation.generation_baselines),
    "shapes": Source("shapes", generation.shapes),
    "slices": Source("slices", generation.slices),
    "own_network": Source("own_network", generation.own_network),
    "paper_mechanism": Source("rows", generation.paper_mechanism),
    "networks": Source("networks", generation.networks),
    "networks_start": Source("networks", generation.networks_start),
    "networks_faces": Source("networks", generation.networks_faces),
    "imagebench": Source("imagebench", generation.imagebench),
    "imagebench_fidelity": Source("imagebench", generation.imagebench_fidelity),
    "imbalance": Source("imbalance", generation.imbalance),
    "simulated_choice": Source("simulated_choice", generation.simulated_choice),
    "generation_ablation": Source("generation_ablation", generation.generation_ablation),
    "spread": Source("spread", generation.spread),
    "units": Source("units", generation.units),
    "table2": Source("table2", generation.table2),
    "table2_published": Source("table2_published", generation.table2_published),
    "table2_gap": Source("table2_gap", generation.table2_gap),
    "fig6": Source("fig6", generation.fig6),
    "table1_gap": Source("table1_gap", adaptation.table1_gap),
    "table1": Source("table1", adaptation.table1),
    "table1_office": Source("table1_office", adaptation.table1_office),
    "image_map": Source("image_map", adaptation.image_map),
    "fig3": Source("fig3", adaptation.fig3),
    "figure3": Source("figure3", adaptation.figure3),
    "gs_wgan_cost": Source("gs_wgan_cost", generation.gs_wgan_cost),
    "table2_gans": Source("table2_gans", generation.table2_gans),
    "table_pairs": Source("table_pairs", adaptation.table_pairs),
    "fallback_errors": Source("fallback", adaptation.fallback_errors),
    "audit_games": Source("audit", audit.audit_games),
    "audit_zoo": Source("audit", audit.audit_zoo),
    "audit_canaries": Source("audit", audit.audit_canaries),
    "leak": Source("leak", audit.leak),
    "table4_all": Source("table4", accounting.table4_all),
    "fig1": Source("fig1", accounting.fig1),
    "fig2": Source("fig2", accounting.fig2),
    "gdp_fig1": Source("gdp_fig1", accounting.gdp_fig1),
    "gdp_fig2": Source("gdp_fig2", accounting.gdp_fig2),
    "gdp_fig3": Source("gdp_fig3", accounting.gdp_fig3),
    "gdp_fig4": Source("gdp_fig4", accounting.gdp_fig4),
    "gdp_table3": Source("gdp_table3", accounting.gdp_table3),
    "gdp_table2": Source("gdp_table2", accounting.gdp_table2),
    "gdp_selection": Source("gdp_selection", accounting.gdp_selection),
    "gdp_dpsgd": Source("gdp_dpsgd", accounting.gdp_dpsgd),
    "wdp_fig2": Source("wdp_fig2", accounting.wdp_fig2),
    "wdp_table2": Source("wdp_table2", accounting.wdp_table2),
    "tangent": Source("tangent", accounting.tangent),
    "benchmark_distance": Source("benchmarks", performance.benchmark_distance),
    "benchmark_step": Source("benchmarks", performance.benchmark_step),
    "structured_steps": Source("structured_slices", performance.structured_steps),
    "structured_distances": Source("structured_slices", performance.structured_distances),
    "structured_classes": Source("structured_slices", performance.structured_classes),
    "benchmark_compiled": Source("benchmarks", performance.benchmark_compiled),
    "benchmark_startup": Source("benchmarks", performance.benchmark_startup),
    "benchmark_cost": Source("benchmarks", performance.benchmark_cost),
    "parts": Source("parts", performance.parts),
    "parts_growth": Source("parts", performance.parts_growth),
    "parts_cluster": Source("parts", performance.parts_cluster),
    "wide_rows": Source("wide_rows", columns.wide_rows),
    "tables_adult": Source("tables_adult", columns.tables_adult),
    "tables_mixed": Source("tables_mixed", columns.tables_mixed),
    "tables_mst": Source("tables_mst", columns.tables_mst),
    "tables_rand": Source("tables_rand", columns.tables_rand),
    "tables_small": Source("tables_small", columns.tables_small),
}


def render(name: str) -> str:
    """Return a table in Markdown with a line on its origin."""
    source = TABLES[name]
    return source.markdown(read_result(source.result))


def fill(page: str) -> str:
    """Return a page with every table made anew.

    A table without a result stays as it is.
    """

    def filled(match: re.Match[str]) -> str:
        start, name, end = match.groups()
        if not TABLES[name].exists():
            return match[0]
        return f"{start}{render(name)}\n{end}"

    return MARKS.sub(filled, page)


def pages() -> list[Path]:
    """List the pages that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def stand_ins() -> dict[str, Any]:
    """Return the rows that ``dpswd forecast`` reads.

    They are those of the experiment ``stand_ins``, and those of all records from ``run
    generation``.
    """
    rows = read_result("stand_ins")["rows"]
    for row in read_result("generation")["rows"]:
        is_generator = "mixture" in row["method"] and row["epsilon"] in BUDGETS
        is_of_this_version = "version" not in row
        if is_generator and is_of_this_version and row["classifier"] == "logreg":
            rows.append(of_all_records(row))
    return {"rows": rows}


def write_tables() -> None:
    """Write all tables in place, and the rows that ``dpswd forecast`` reads."""
    write_json(STAND_INS, stand_ins())
    for page in pages():
        text = page.read_text()
        filled = fill(text)
        if filled != text:
            page.write_text(filled)
            print(f"Written: {page.relative_to(ROOT)}")
