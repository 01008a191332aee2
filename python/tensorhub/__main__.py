"""`python -m tensorhub`: as the command `tensorhub`."""

import sys

from tensorhub.command import main

sys.exit(main())
