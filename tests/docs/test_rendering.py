"""Every page is ordinary Markdown: what GitHub shows has no raw directive and no broken link."""

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
PAGES = [page for page in PAGES if not {"_build", "generated"} & set(page.parts)]
GALLERY = [page for page in PAGES if page.parent == DOCS / "gallery" and page.stem != "index"]
PLAIN = MarkdownIt("commonmark").enable("table")
ALERTS = ("[!NOTE]", "[!TIP]", "[!IMPORTANT]", "[!WARNING]", "[!CAUTION]")


def tokens_of(text):
    """Return the tokens of a page, those of its paragraphs and cells included."""
    tokens = PLAIN.parse(text)
    return [*tokens, *(child for token in tokens for child in token.children or ())]


def raw_directives(text):
    """Return what a reader of the rendered page sees of directives, roles and front matter."""
    seen = ["---"] if text.startswith("---\n") else []
    for token in tokens_of(text):
        if token.type == "fence" and token.info.startswith("{"):
            seen.append(token.info)
        if token.type == "text":
            seen += re.findall(r"\{[a-z:]+\}$|:::+\{?|^\+\+\+$|^\([\w-]+\)=$", token.content)
    return seen


def anchors_of(text):
    """Return the anchors that GitHub gives to the headings of a page."""
    tokens = PLAIN.parse(text)
    headings = [
        tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"
    ]
    words = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {word.replace(" ", "-") for word in words}


def broken_links(text, folder):
    """Return the relative links and pictures of a page that lead nowhere."""
    targets = []
    for token in tokens_of(text):
        targets += [token.attrs[name] for name in ("href", "src") if token.attrs.get(name)]
        if token.type in ("html_block", "html_inline"):
            targets += re.findall(r"""(?:href|src)=["']([^"']+)""", token.content)
    broken = []
    for target in targets:
        if re.match("(https?|mailto):", target):
            continue
        name, _, anchor = target.partition("#")
        path = folder / name
        if name and not path.exists():
            broken.append(target)
        elif anchor and anchor not in anchors_of(path.read_text() if name else text):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_shows_no_raw_directive(page):
    assert raw_directives(page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_has_no_broken_relative_link(page):
    assert broken_links(page.read_text(), page.parent) == []


@pytest.mark.parametrize(
    "text",
    [
        "```{toctree}\nindex\n```\n",
        "See {doc}`index`.\n",
        "| a |\n|---|\n| {class}`Budget` |\n",
        ":::{note}\nText.\n:::\n",
        "(label)=\n\n# Title\n",
        "---\nkernelspec: python3\n---\n\n# Title\n",
    ],
)
def test_raw_directives_are_recognised(text):
    assert raw_directives(text)


@pytest.mark.parametrize(
    "text",
    [
        "[a](no-such-page.md)",
        "![a](figures/no-such.png)",
        "[a](#no-heading)",
        "[a](audit.md#no)",
        "[a](project:audit.md)",
        'The picture <img src="figures/no-such.png"> is missing.',
    ],
)
def test_broken_links_are_recognised(text):
    assert broken_links(f"# Title\n\n{text}\n", DOCS)


def test_every_page_is_in_the_sidebar():
    listed = {DOCS / "index.md"}
    for page in DOCS.rglob("*.md"):
        text = page.read_text()
        entries = re.findall(r"<!-- sidebar: .+ -->\n\n((?:- .*\n)+)", text)
        entries.append(text.partition("<!-- children -->")[2])
        targets = re.findall(r"\]\(([\w/-]+\.md)\)", "".join(entries))
        listed |= {(page.parent / target).resolve() for target in targets}
    assert {page for page in PAGES if DOCS in page.parents} - listed == set()


@pytest.mark.parametrize("page", GALLERY, ids=lambda page: page.stem)
def test_example_has_its_outputs_beside_it(page):
    text = page.read_text()
    assert f"../figures/gallery/{page.stem}-1.png" in text
    assert re.search(r"^```text$", text, re.MULTILINE)


def test_cards_of_the_gallery_have_the_titles_of_the_pages():
    cards = re.findall(r"\) \[(.+?)\]\((\w+\.md)\)", (DOCS / "gallery" / "index.md").read_text())
    titles = {page.name: page.read_text().partition("\n")[0].removeprefix("# ") for page in GALLERY}
    assert {name: title for title, name in cards} == titles


def test_every_picture_of_the_gallery_is_shown():
    text = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    pictures = [path.name for path in (DOCS / "figures" / "gallery").glob("*.png")]
    assert [name for name in pictures if f"figures/gallery/{name}" not in text] == []
