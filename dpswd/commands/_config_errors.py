"""Messages of jsonargparse about classes in a config, as one sentence.

jsonargparse tries every type that a config may have and prints a page about all of them. The part
that a user can act on is the first class that it could not make: its key, its ``class_path`` and
the reason.
"""

import inspect
import re
from importlib import import_module
from typing import Any, get_args, get_type_hints

__all__ = ["other_parameters", "refused_class"]

# Lines between the names of keys and classes that say nothing about the config.
_FRAME = re.compile(r"Does not validate against|Subtypes: |Errors:|Expected a <class 'NoneType'>")
_KEY = re.compile(r'Parser key "([^"]*)":?')
_CLASS = re.compile(r"Problem with given class_path '([^']*)':?")

# Reasons, in words of several versions of jsonargparse.
_NO_MODULE = re.compile(r"No module named '([^']*)'")
_NO_NAME = re.compile(r"module '([^']*)' has no attribute '([^']*)'")
_NO_CLASS = re.compile(r"Expected a (?:config )?path but (\S+) either not accessible or invalid")
_NO_SUBCLASS = re.compile(r"Import path (\S+) does not correspond to a subclass of (\w+)")
_NO_PATH = re.compile(r"Expected a dot import path string: (\S+)")
_REQUIRED = re.compile(
    r"arguments are required: (?P<names>.+)|[Kk]ey ['\"](?P<key>\w+)['\"] is required"
)
_SYNTAX = re.compile(r"(?P<reason>.+) \((?P<file>\S+\.py), line (?P<line>\d+)\)")
_NO_OPTION = re.compile(r"(?:Option|Key) '([^']*)' is not (?:accepted|expected)")

# Words of torch about a checkpoint of another network.
_OTHER_NETWORK = "Error(s) in loading state_dict"
_OTHER_SIZE = re.compile(
    r"size mismatch for (\S+): copying a param with shape torch.Size\((\[.*?\])\) "
    r"from checkpoint, the shape in current model is torch.Size\((\[.*?\])\)"
)
_MISSING = re.compile(r"Missing key\(s\) in state_dict: \"([^\"]*)\"")
_FURTHER = re.compile(r"Unexpected key\(s\) in state_dict: \"([^\"]*)\"")


def other_parameters(message: str) -> str | None:
    """Return how a checkpoint and a network differ first, if a message says so.

    Args:
        message: A message of torch.

    Example:
        >>> message = 'Error(s) in loading state_dict for A: Missing key(s) in state_dict: "w". '
        >>> other_parameters(message)
        'without its parameter w'
    """
    if not message.startswith(_OTHER_NETWORK):
        return None
    size = _OTHER_SIZE.search(message)
    if size:
        return f"whose parameter {size[1]} has shape {size[2]} and not {size[3]}"
    missing = _MISSING.search(message)
    if missing:
        return f"without its parameter {missing[1]}"
    further = _FURTHER.search(message)
    if further:
        return f"which also has the parameter {further[1]}"
    return "whose parameters differ"


def refused_class(message: str) -> str | None:
    """Return what a message says about the class of a key, if it names one.

    Args:
        message: A message of jsonargparse.
    """
    keys: list[str] = []
    class_path = ""
    for line in message.splitlines():
        text = line.strip().removeprefix("- ")
        key = _KEY.match(text)
        if key:
            keys.append(key[1])
            text = text[key.end() :].strip()
        named_class = _CLASS.match(text)
        if named_class:
            class_path = named_class[1]
            text = text[named_class.end() :].strip()
        if not text or _FRAME.match(text):
            continue
        break
    else:
        return None
    path = ".".join(keys)
    syntax = _SYNTAX.match(text)
    if syntax:
        return (
            f"{path}: {syntax['file']} has a syntax error in line {syntax['line']}: "
            f"{syntax['reason']}; correct that line"
        )
    no_subclass = _NO_SUBCLASS.match(text)
    if no_subclass:
        base = _path_of_base(no_subclass[2], class_path, path, message)
        reason = f"{no_subclass[1]} is no subclass of {base}; derive it from that class"
    elif class_path:
        reason = _reason(text, class_path)
    else:
        return None
    return f"{path}: {reason}"


def _path_of_base(name: str, class_path: str, path: str, message: str) -> str:
    """Return the import path of the class that an option expects, or its name.

    Args:
        name: Name of that class.
        class_path: The class that has the option; empty for options of the config itself.
        path: The option as a path of keys.
        message: Message of jsonargparse, which names the types of an option with several ones.
    """
    hints = _hints_of(_class_at(class_path))
    for expected in _classes_in(hints.get(path.rpartition(".")[2])):
        if expected.__name__ == name:
            return f"{expected.__module__}.{name}"
    named = re.search(rf"<class '([\w.]+\.{name})'>", message)
    if named:
        return named[1]
    return name


def _reason(text: str, class_path: str) -> str:
    """Return why a class was not made."""
    module_name = class_path.rpartition(".")[0]
    no_module = _NO_MODULE.search(text)
    if no_module:
        name = no_module[1]
        if f"{module_name}.".startswith(f"{name}."):
            return (
                f"no module '{name}' in this folder (class_path {class_path}); correct its name, "
                "put it there, or install its package"
            )
        return f"module '{module_name}' imports '{name}', which is not installed"
    no_name = _NO_NAME.search(text)
    if no_name:
        known = _classes_of(no_name[1])
        return f"module '{no_name[1]}' has no class '{no_name[2]}'{known} (class_path {class_path})"
    no_class = _NO_CLASS.search(text)
    if no_class:
        return (
            f"{no_class[1]} is neither a class that can be imported nor a file; check the module "
            f"and the name (class_path {class_path})"
        )
    no_path = _NO_PATH.search(text)
    if no_path:
        return f"{no_path[1]} is no import path; write its module before it, as in mynet.Small"
    required = _REQUIRED.search(text)
    if required:
        names = required["names"] or required["key"]
        return f"{class_path} needs {names}; add it to init_args of that class"
    no_option = _NO_OPTION.search(text)
    if no_option:
        name = no_option[1]
        options = _options_of(class_path)
        return f"Option '{name}' is not accepted by {class_path}{options}; correct or remove it"
    return f"{text.rstrip('.')} (class_path {class_path})"


def _classes_of(module_name: str) -> str:
    """Return the classes that a module defines as a clause; empty without any."""
    try:
        module = import_module(module_name)
    except ImportError:
        return ""
    names = []
    for name, value in vars(module).items():
        if inspect.isclass(value) and value.__module__ == module_name:
            names.append(name)
    if not names:
        return ""
    return f"; it has {', '.join(names)}"


def _options_of(class_path: str) -> str:
    """Return the options of a class as a clause; empty for a class that is not found."""
    try:
        signature = inspect.signature(_class_at(class_path))
    except (TypeError, ValueError):
        return ""
    names = []
    more = ""
    for option, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            more = ", and others (dpswd fit --help all)"
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            names.append(option)
    if not names:
        return "; it has no options"
    return f"; it has {', '.join(names)}{more}"


def _class_at(class_path: str) -> Any:
    """Return the class of an import path; ``None`` for one that is not found."""
    module_name, _, name = class_path.rpartition(".")
    try:
        return getattr(import_module(module_name), name)
    except (ImportError, AttributeError, ValueError):
        return None


def _hints_of(owner: Any) -> dict[str, Any]:
    """Return the types of the options of a class; empty where they are not known."""
    try:
        return get_type_hints(owner.__init__)
    except (AttributeError, NameError, TypeError):
        return {}


def _classes_in(hint: Any) -> list[type]:
    """Return the classes that a type hint such as ``A | None`` or ``list[A]`` has."""
    if inspect.isclass(hint) and not get_args(hint):
        return [hint]
    classes = []
    for part in get_args(hint):
        classes.extend(_classes_in(part))
    return classes
