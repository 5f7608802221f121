"""``python -m dpswd``: the same as the command ``dpswd``."""

import sys

from dpswd.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
