"""Versions of dpswd, Python and the packages that the numbers depend on."""

import functools
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
        versions[name] = _version(name)
    return versions


@functools.cache
def _version(package: str) -> str | None:
    """Return the version of a package; it is read once, since every run states it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
