"""The commands of ``dpswd``.

Every module has ``add_arguments``, ``run`` (what --json prints) and ``show``.
"""
