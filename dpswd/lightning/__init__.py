"""Lightning modules, callbacks and command line for training by DP-SWD.

Public names are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # explicit names, for type checkers
    from dpswd.lightning.adaptation import AdaptationModule as AdaptationModule
    from dpswd.lightning.adaptation_data import AdaptationData as AdaptationData
    from dpswd.lightning.adaptation_data import SourceLoader as SourceLoader
    from dpswd.lightning.budget import PrivacyBudget as PrivacyBudget
    from dpswd.lightning.callbacks import ClassifierFile as ClassifierFile
    from dpswd.lightning.callbacks import GeneratorFile as GeneratorFile
    from dpswd.lightning.callbacks import SampleGrid as SampleGrid
    from dpswd.lightning.data import PrivateDataModule as PrivateDataModule
    from dpswd.lightning.module import GeneratorModule as GeneratorModule
    from dpswd.lightning.module import MomentModule as MomentModule

_MODULES = {
    "AdaptationData": "adaptation_data",
    "AdaptationModule": "adaptation",
    "ClassifierFile": "callbacks",
    "GeneratorFile": "callbacks",
    "GeneratorModule": "module",
    "MomentModule": "module",
    "PrivacyBudget": "budget",
    "PrivateDataModule": "data",
    "SampleGrid": "callbacks",
    "SourceLoader": "adaptation_data",
}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dpswd.lightning' has no attribute {name!r}")
    return getattr(import_module(f"dpswd.lightning.{_MODULES[name]}"), name)
