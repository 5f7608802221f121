"""Sphinx configuration.

``scripts/docs`` builds the site with warnings as errors; no page needs a network.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from jupyter_cache import get_cache
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

import dpswd

os.environ.pop("MPLBACKEND", None)  # otherwise the pictures of the notebooks are not shown

project = "dpswd"
copyright = "the dpswd authors"
version = release = dpswd.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "_templates", "results", "figures"]
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb"}
templates_path = ["_templates"]
suppress_warnings = ["config.cache"]

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 180

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = True
napoleon_use_ivar = True

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


def _copy_thumbnails(app: Sphinx, error: Exception | None) -> None:
    """Copy the first picture that each example makes to ``_static/gallery/NAME.png``.

    The cards show these pictures.
    """
    if error is not None:
        return
    without = []
    for name in sorted(app.env.found_docs):
        if name.startswith("gallery/") and name != "gallery/index":
            first = next(iter(app.env.get_doctree(name).findall(nodes.image)), None)
            if first is None:
                without.append(name)
                continue
            target = Path(app.outdir, "_static", f"{name}.png")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(app.srcdir, first["candidates"]["*"]), target)
    if without:
        message = "no picture for the cards of %s: execute the notebooks (nb_execution_mode)"
        logging.getLogger(__name__).warning(message, ", ".join(without))


def _is_example(name: str) -> bool:
    return name.startswith("gallery/") and name != "gallery/index"


def _plain_text(markdown: str) -> str:
    """Replace links of the site, which a notebook elsewhere cannot follow, by their text."""
    return re.sub(r"\{\w+\}`~?([^`<]*[^`<\s])\s*(?:<[^>`]*>)?`", r"\1", markdown)


def _copy_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Write each example as a notebook with its outputs beside its page, which links to it.

    myst-nb leaves the cells in ``jupyter_execute``, and their outputs in its cache.
    """
    if error is not None:
        return
    build = Path(app.outdir).parent
    cache = get_cache(build / ".jupyter_cache")
    for name in sorted(filter(_is_example, app.env.found_docs)):
        cells = nbformat.read(build / "jupyter_execute" / f"{name}.ipynb", as_version=4)
        try:
            _, notebook = cache.merge_match_into_notebook(cells)
        except KeyError:
            message = "no outputs in the notebook of %s: execute it (nb_execution_mode = cache)"
            logging.getLogger(__name__).warning(message, name)
            notebook = cells
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = _plain_text(cell.source)
        nbformat.write(notebook, Path(app.outdir, f"{name}.ipynb"))


def _link_notebook(
    app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Put a link to its notebook above each example."""
    if _is_example(name):
        file = f"{name.removeprefix('gallery/')}.ipynb"
        link = f'<a href="{file}" download>Download this page as a notebook, with its outputs</a>'
        context["body"] = f'<p class="notebook">{link}</p>\n{context["body"]}'


def setup(app: Sphinx) -> None:
    """Register MathML, which browsers render without scripts, and what the gallery shows."""
    app.connect("build-finished", _copy_thumbnails)
    app.connect("build-finished", _copy_notebooks)
    app.connect("html-page-context", _link_notebook)
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    app.connect("autodoc-process-docstring", _keep_underscores, priority=900)  # after napoleon
