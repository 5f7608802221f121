"""Sphinx configuration.

``scripts/docs`` builds the site with warnings as errors; no page needs a network. The pages are
ordinary Markdown, which GitHub shows as it is. What the site has besides is made here: the sidebar
from comments ``sidebar`` and ``children``, the reference from the names in ``api/index.md``, and
links from full names in code, such as ``dpswd.PrivateGenerator``, to the reference.
"""

import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

import dpswd

sys.path.insert(0, str(Path(__file__).parent))
from examples import cells_of, notebook_of, pages

project = "dpswd"
copyright = "the dpswd authors"
version = release = dpswd.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "myst_parser",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "_templates", "results", "figures"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}
templates_path = ["_templates"]
suppress_warnings = ["config.cache"]

myst_enable_extensions = ["dollarmath", "tasklist"]
myst_heading_anchors = 3

names = Path(__file__).parent / "_build" / "names.rst"  # read before any page is
autosummary_generate = [str(names)]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = True
napoleon_use_ivar = True

highlight_language = "none"  # of blocks without a language: what a command prints
html_math_renderer = "mathml"
html_theme = "furo"
html_title = "dpswd"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _display(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def _keep_underscores(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    lines[:] = [
        re.sub(r"^(:ivar \w+)_:", r"\1\\_:", line) for line in lines
    ]  # NAME_ is a reference otherwise


SIDEBAR = re.compile(r"<!-- sidebar: (.+) -->\n\n((?:- .*\n)+)")
CHILDREN = "<!-- children -->"  # the pages of all links after it are below this one
REFERENCE = re.compile(r"(?:^- `dpswd\.[\w.]+`.*\n)+", re.MULTILINE)


def _directives(app: Sphinx, name: str, source: list[str]) -> None:
    """Add to the ordinary Markdown of a page what the site alone has."""
    text = source[0]
    if name == "changelog":
        text = Path(app.srcdir, "..", "CHANGELOG.md").read_text()
    if name == "api/index":
        text = REFERENCE.sub(lambda match: _reference(match[0]), text)
    trees = [_tree(entries, f":caption: {caption}") for caption, entries in SIDEBAR.findall(text)]
    if CHILDREN in text:
        trees.append(_tree(text.partition(CHILDREN)[2]))
    source[0] = text + "".join(trees)


def _write_names() -> None:
    """Write the lists of names that the pages of the reference are made from.

    Sphinx reads them in a file, before the lists in ``api/index.md`` become directives.
    """
    folder = Path(__file__).parent / "api"
    lists = REFERENCE.findall((folder / "index.md").read_text())
    text = "".join(_reference(entries) for entries in lists)
    text = text.replace(":toctree: generated", f":toctree: {folder / 'generated'}")
    names.parent.mkdir(exist_ok=True)
    names.write_text(text)


def _tree(text: str, *options: str) -> str:
    """Return the hidden table of contents of the pages that a text links to."""
    targets = dict.fromkeys(re.findall(r"\]\(([\w/-]+)\.md\)", text))
    return "\n".join(["\n```{toctree}", ":hidden:", *options, "", *targets, "```\n"])


def _reference(entries: str) -> str:
    """Return the summary of the names of a list."""
    names = re.findall(r"^- `dpswd\.([\w.]+)`", entries, re.MULTILINE)
    lines = [f"   ~{name}" if "." in name else f"   {name}" for name in names]
    options = ["   :toctree: generated", "   :nosignatures:", ""]
    head = ["```{eval-rst}", ".. currentmodule:: dpswd", "", ".. autosummary::", *options]
    return "\n".join([*head, *lines, "```\n"])


def _link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Make full names in code, such as ``dpswd.PrivateGenerator``, links to the reference."""
    for literal in list(doctree.findall(nodes.literal)):
        name = literal.astext()
        is_linked = isinstance(literal.parent, nodes.reference | pending_xref)
        if is_linked or not re.fullmatch(r"dpswd(\.\w+)+", name):
            continue
        link = pending_xref("", literal.deepcopy(), refdomain="py", reftype="obj", reftarget=name)
        link["refdoc"] = app.env.docname
        link["refwarn"] = False
        literal.replace_self(link)


def _is_example(name: str) -> bool:
    return name.startswith("gallery/") and name != "gallery/index"


def _write_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Write each example as a notebook with its outputs beside its page, which links to it."""
    if error is not None:
        return
    folder = Path(app.outdir, "gallery")
    folder.mkdir(exist_ok=True)
    for name in pages():
        text = Path(app.srcdir, "gallery", f"{name}.md").read_text()
        nbformat.write(notebook_of(cells_of(text)), folder / f"{name}.ipynb")


def _link_notebook(
    app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Put a link to its notebook above each example."""
    if _is_example(name):
        file = f"{name.removeprefix('gallery/')}.ipynb"
        link = f'<a href="{file}" download>Download this page as a notebook, with its outputs</a>'
        context["body"] = f'<p class="notebook">{link}</p>\n{context["body"]}'


def setup(app: Sphinx) -> None:
    """Register MathML, which browsers render without scripts, and what the site has besides."""
    _write_names()
    app.connect("source-read", _directives)
    app.connect("doctree-read", _link_names)
    app.connect("build-finished", _write_notebooks)
    app.connect("html-page-context", _link_notebook)
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    app.connect("autodoc-process-docstring", _keep_underscores, priority=900)  # after napoleon
