"""The commands of ``dpswd``: every module has ``add_arguments``, ``run`` (what --json prints) and ``show``."""
