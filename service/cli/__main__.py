"""`python -m polyrank.service.cli`: the command, where the console script is not on the path."""

import sys

from polyrank.service.cli import main

sys.exit(main())
