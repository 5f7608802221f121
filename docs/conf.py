"""Sphinx configuration. ``scripts/docs`` builds the site with warnings as errors; no page needs a network."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxTranslator

import dpswd

project = "dpswd"
copyright = "the dpswd authors"  # noqa: A001  (the name that Sphinx reads)
version = release = dpswd.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "myst_nb",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "results", "figures"]
source_suffix = {".md": "myst-nb", ".rst": "restructuredtext"}
suppress_warnings = ["config.cache"]

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 180

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True

html_theme = "furo"
html_title = "dpswd"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False


def _mathml(translator: SphinxTranslator, node: nodes.Element) -> None:
    """Writes a formula as MathML, which browsers render themselves."""
    block = isinstance(node, nodes.math_block)
    markup = convert(node.astext(), display="block" if block else "inline")
    translator.body.append(f'<div class="formula">{markup}</div>' if block else markup)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Registers the formula renderer."""
    app.add_node(nodes.math, override=True, html=(_mathml, None))
    app.add_node(nodes.math_block, override=True, html=(_mathml, None))
