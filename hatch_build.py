"""Metadata that depends on where the project is published: links of the README, and project URLs.

The package index shows the README without the files beside it. With the address of the repository
(``DPSWD_REPOSITORY``, or what GitHub sets in its workflows) relative links and pictures become
absolute. Without one, a link becomes its text and the name of its file, and a picture is left out
with its caption.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# A picture, and the caption below it.
PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)]+\)\n\n(\*[^*]+\*\n\n)?")
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")
PAPERS = {
    "Paper (Rakotomamonjy2021)": "https://arxiv.org/abs/2107.01848",
    "Reporting (Gomez2025)": "https://arxiv.org/abs/2503.10945",
}


def repository() -> str:
    """Return the address of the repository; empty if it is not known."""
    server = os.environ.get("GITHUB_SERVER_URL", "")
    name = os.environ.get("GITHUB_REPOSITORY", "")
    published = f"{server}/{name}" if server and name else ""
    return os.environ.get("DPSWD_REPOSITORY", published).rstrip("/")


def with_absolute_links(text: str, address: str) -> str:
    """Return the README as a reader elsewhere can follow it."""
    if not address:
        text = PICTURE.sub("", text)

    def replaced(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        if not address:
            return f"{words} (`{target}`)"
        kind = "raw" if mark else "blob"
        return f"{mark}[{words}]({address}/{kind}/main/{target})"

    return LINK.sub(replaced, text)


class Published(MetadataHookInterface):
    """Sets ``readme`` and ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields."""
        address = repository()
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = with_absolute_links(text, address)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        urls = dict(PAPERS)
        if address:
            urls["Source"] = address
            urls["Documentation"] = f"{address}/blob/main/docs/index.md"
            urls["Changelog"] = f"{address}/blob/main/CHANGELOG.md"
        metadata["urls"] = urls
