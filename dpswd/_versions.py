"""Versions of dpswd, Python and the packages that the numbers depend on."""

import importlib.metadata
import platform

from dpswd import __version__

# Packages that the numbers depend on.
_PACKAGES = ("dp-accounting", "autodp", "gdpnum", "numpy", "scipy", "torch", "lightning")


def package_versions() -> dict[str, str | None]:
    """Return version strings by package name, without importing the packages.

    ``None`` stands for a package that is not installed.
    """
    versions: dict[str, str | None] = {"dpswd": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions
