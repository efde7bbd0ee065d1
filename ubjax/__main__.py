"""`python -m ubjax`."""

import sys

from ubjax.cli import main

if __name__ == "__main__":
    sys.exit(main())
