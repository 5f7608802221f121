"""Versions of dpswd, Python and the packages that the numbers depend on."""

import importlib.metadata
import platform

from dpswd import __version__


def package_versions() -> dict[str, str | None]:
    """Return version strings by package name, ``None`` for a package that is not installed. Imports none of them."""
    versions: dict[str, str | None] = {"dpswd": __version__, "python": platform.python_version()}
    for name in ("dp-accounting", "autodp", "gdpnum", "numpy", "scipy", "torch", "lightning"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions
