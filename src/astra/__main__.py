"""`python -m astra` is the command `astra`."""

import sys

from astra.cli.main import main

sys.exit(main())
