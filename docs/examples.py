"""Examples of the gallery: ordinary Markdown with the outputs of their code beside it.

``python docs/examples.py write NAME ...`` executes pages of ``docs/gallery`` and writes what they
print and draw below their blocks. ``python docs/examples.py check`` executes all of them and
compares: texts up to their numbers, since noise has no seed, and pictures by their names.
"""

import base64
import re
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

DOCS = Path(__file__).parent
PICTURES = "../figures/gallery"
CODE = re.compile(r"^```(python|bash)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"\n```text\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
DRAWN = re.compile(rf"\n!\[[^\]]*\]\({PICTURES}/([^)]+)\)\n")
SECONDS = 600
PROCESSES = 2  # pages that are checked at the same time
# Lines of Lightning and of its dependencies, which say nothing about the example.
FRAMEWORK = re.compile(
    r"GPU available|TPU |Tip: |^`Trainer|IPKernelApp|site-packages/lightning/.*\.py:\d+: "
)
# A warning, as Python writes it: file, line and category, then the line of code.
WARNING = re.compile(r"^/.*: \w*Warning: .*\n  .*\n", re.MULTILINE)


@dataclass
class Cell:
    """A block of a page: text, or code with what it prints and the names of its pictures."""

    language: str  # markdown, python or bash
    source: str
    printed: str = ""
    pictures: list[str] = field(default_factory=list)


def pages() -> list[str]:
    """Return the names of all examples."""
    return sorted(path.stem for path in (DOCS / "gallery").glob("*.md") if path.stem != "index")


def cells_of(text: str) -> list[Cell]:
    """Return the blocks of a page."""
    cells, position = [], 0
    while match := CODE.search(text, position):
        cells.append(Cell("markdown", text[position : match.start()]))
        cell = Cell(match[1], match[2])
        position = match.end()
        printed = PRINTED.match(text, position)
        if printed:
            cell.printed = printed[1]
            position = printed.end()
        drawn = DRAWN.match(text, position)
        while drawn:
            cell.pictures.append(drawn[1])
            position = drawn.end()
            drawn = DRAWN.match(text, position)
        cells.append(cell)
    return [*cells, Cell("markdown", text[position:])]


def text_of(cells: list[Cell]) -> str:
    """Return the page of blocks."""
    title = re.match("# (.*)", cells[0].source)[1]
    parts = []
    for cell in cells:
        if cell.language == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```{cell.language}\n{cell.source}```\n")
        if cell.printed:
            parts.append(f"\n```text\n{cell.printed}```\n")
        parts += [f"\n![{title}]({PICTURES}/{name})\n" for name in cell.pictures]
    return "".join(parts)


def _code(cell: Cell) -> str:
    """Return the code of a block as a notebook has it."""
    source = cell.source.rstrip("\n")
    if cell.language == "python":
        return source
    return "\n".join(f"!{line}" for line in source.splitlines())


def notebook_of(cells: list[Cell]) -> nbformat.NotebookNode:
    """Return the page as a notebook with its outputs."""
    notebook = nbformat.v4.new_notebook()
    for cell in cells:
        if cell.language == "markdown":
            if cell.source.strip():
                words = re.sub(r"\[([^\]]+)\]\([^)]+\.md[^)]*\)", r"\1", cell.source.strip())
                notebook.cells.append(nbformat.v4.new_markdown_cell(words))
            continue
        code = nbformat.v4.new_code_cell(_code(cell))
        if cell.printed:
            code.outputs.append(nbformat.v4.new_output("stream", name="stdout", text=cell.printed))
        for name in cell.pictures:
            data = base64.b64encode((DOCS / "figures" / "gallery" / name).read_bytes()).decode()
            picture = nbformat.v4.new_output("display_data", data={"image/png": data})
            code.outputs.append(picture)
        notebook.cells.append(code)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # a random one would change with every build
    return notebook


def execute(name: str) -> tuple[list[Cell], dict[str, bytes]]:
    """Return the blocks of a page with what their code prints, and the pictures by name."""
    from nbclient import NotebookClient

    cells = cells_of((DOCS / "gallery" / f"{name}.md").read_text())
    code = [cell for cell in cells if cell.language != "markdown"]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(_code(cell)) for cell in code]
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "matplotlibrc").write_text("figure.dpi: 120\n")
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=SECONDS, resources=resources).execute()
    pictures: dict[str, bytes] = {}
    for cell, executed in zip(code, notebook.cells, strict=True):
        _collect(name, cell, executed.outputs, pictures)
    return cells, pictures


def _collect(
    name: str, cell: Cell, outputs: list[nbformat.NotebookNode], pictures: dict[str, bytes]
) -> None:
    """Put the outputs of one block into it, and its pictures beside those of the others."""
    texts, cell.pictures = [], []
    is_drawn = any("image/png" in output.get("data", {}) for output in outputs)
    for output in outputs:
        if output.output_type == "stream":
            texts.append(output.text)
        elif "image/png" in output.data:
            picture = f"{name}-{len(pictures) + 1}.png"
            pictures[picture] = base64.b64decode(output.data["image/png"])
            cell.pictures.append(picture)
        elif not is_drawn:  # a picture also returns the text of its last artist
            texts.append(output.data["text/plain"] + "\n")
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", "".join(texts))
    lines = WARNING.sub("", text).splitlines()
    lines = [line for line in lines if not FRAMEWORK.search(line)]
    cell.printed = "".join(f"{line.rstrip()}\n" for line in lines)


def _shape(printed: str) -> list[str]:
    """Return the sorted lines of a text without digests, numbers and the spaces beside them.

    The two output streams of a block arrive in an order of their own. Of a row of a drawn table,
    such as "2 2024-06-16 eye no", nothing is left, since its words are drawn, too.
    """
    text = re.sub(r"^\d+ .*$", "row", printed, flags=re.MULTILINE)
    text = re.sub(r"\b[0-9a-f]{12,}\b", "#", text)
    text = re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?", "#", text)
    return sorted(re.sub(r"\s+", " ", line).strip() for line in text.splitlines())


def differences(name: str) -> list[str]:
    """Execute a page; return one line for each output that is not the one beside its code."""
    committed = cells_of((DOCS / "gallery" / f"{name}.md").read_text())
    cells, _ = execute(name)
    lines = []
    for old, new in zip(committed, cells, strict=True):
        first = old.source.splitlines()[0] if old.source else ""
        if _shape(old.printed) != _shape(new.printed):
            lines.append(f"{name}: {first}\n--- page\n{old.printed}--- run\n{new.printed}")
        if old.pictures != new.pictures:
            lines.append(f"{name}: {first}: pictures {old.pictures}, run {new.pictures}")
    return lines


def repeated_differences(name: str) -> list[str]:
    """Return the differences that two executions of a page have.

    The noise has no seed. What it does once in a hundred runs is no fault of the page.
    """
    lines = differences(name)
    if lines:
        lines = differences(name)
    return lines


def write(name: str) -> None:
    """Execute a page, and write its outputs."""
    cells, pictures = execute(name)
    folder = DOCS / "figures" / "gallery"
    folder.mkdir(exist_ok=True)
    for old in folder.glob(f"{name}-[0-9].png"):
        old.unlink()
    for picture, data in pictures.items():
        (folder / picture).write_bytes(data)
    (DOCS / "gallery" / f"{name}.md").write_text(text_of(cells))


def main(words: list[str]) -> int:
    """Write or check pages; return the exit status."""
    if not words or words[0] not in ("write", "check"):
        sys.stderr.write("Expected write or check, and names of pages, or none for all.\n")
        return 2
    task, names = words[0], words[1:] or pages()
    if task == "write":
        for name in names:
            sys.stderr.write(f"{task} {name}\n")
            write(name)
        return 0
    faults = []
    with ProcessPoolExecutor(PROCESSES) as pool:
        for name, lines in zip(names, pool.map(repeated_differences, names), strict=True):
            sys.stderr.write(f"{task} {name}\n")
            faults += lines
    sys.stderr.write("".join(f"{fault}\n" for fault in faults))
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
