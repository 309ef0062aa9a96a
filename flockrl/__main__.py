"""`python -m flockrl` is the command `flockrl`."""

import sys

from flockrl.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
