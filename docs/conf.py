"""Sphinx configuration. ``scripts/docs`` builds the site with warnings as errors; no page needs a network."""

import os
import re
import shutil
from pathlib import Path

from docutils import nodes
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
    """Copy the first picture that each example makes to ``_static/gallery/NAME.png``, which the cards show."""
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


def setup(app: Sphinx) -> None:
    """Register MathML, which browsers render without scripts, and the pictures of the gallery."""
    app.connect("build-finished", _copy_thumbnails)
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    app.connect("autodoc-process-docstring", _keep_underscores, priority=900)  # after napoleon
