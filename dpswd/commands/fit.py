"""``dpswd fit``: the command line of Lightning, with errors in one line."""

import re
import signal
import warnings
from collections.abc import Sequence

from jsonargparse import ArgumentError
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException

from dpswd._distributed import lost
from dpswd.commands.configs import config_path
from dpswd.errors import DpswdError, InputError
from dpswd.lightning.cli import PrivateCLI


def fit(arguments: Sequence[str]) -> PrivateCLI:
    """Run ``fit`` and return the LightningCLI."""
    _quiet()
    try:
        return PrivateCLI(_with_config_paths(arguments))
    except SystemExit as left:  # of Lightning, after Ctrl-C
        raise (
            left.__context__ if isinstance(left.__context__, KeyboardInterrupt) else left
        ) from None
    except SIGTERMException:  # Lightning would exit with status 0
        raise SystemExit(128 + signal.SIGTERM) from None
    except (ArgumentError, MisconfigurationException) as error:
        said = " ".join(str(error).split())
        said = re.sub(
            r".*NestedArg\(key=('[^']*').*", r"Option \1 is not accepted", said
        )  # of jsonargparse 4.40
        said = (re.findall(r"Option '[^']*' is not accepted", said) or [said])[
            -1
        ]  # of a page about all types
        raise _cause(error) or InputError(
            f"Expected a valid config, got: {said} (dpswd fit --help)."
        ) from None
    except ValueError as error:
        raise (
            _cause(error) or error
        ) from None  # jsonargparse wraps the errors of the classes that it instantiates
    except RuntimeError as error:
        words = (
            "gloo",
            "NCCL",
            "onnection closed",
        )  # torch.distributed has no exception class for a lost connection
        if isinstance(error, DpswdError) or not any(word in str(error) for word in words):
            raise
        raise lost(error) from None


def _cause(error: BaseException | None) -> DpswdError | None:
    """Return the error of this package that another exception was raised from, or while handling."""
    while error is not None and not isinstance(error, DpswdError):
        error = error.__cause__ or error.__context__
    return error


def _with_config_paths(arguments: Sequence[str]) -> list[str]:
    """Replace the name of a shipped config by its path."""
    result = list(arguments)
    for i, argument in enumerate(result):
        if argument == "--config" and i + 1 < len(result):
            result[i + 1] = str(config_path(result[i + 1]))
        elif argument.startswith("--config="):
            result[i] = f"--config={config_path(argument.removeprefix('--config='))}"
    return result


def _quiet() -> None:
    """Hide warnings of Lightning about settings that are intended."""
    for message in (
        ".*does not have many workers.*",  # batches are handles
        ".*LightningCLI's args parameter is intended.*",  # main() passes its arguments
        ".*isinstance.treespec, LeafSpec.. is deprecated.*",  # inside Lightning
        ".*is smaller than the logging interval.*",
        ".*Checkpoint directory .* exists and is not empty.*",  # a resumed run
        ".*find_unused_parameters=True was specified.*",  # needed by modules that train a part of their parameters
    ):
        warnings.filterwarnings("ignore", message=message)
