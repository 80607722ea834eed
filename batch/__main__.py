"""python -m batch"""

import sys

from batch.command import main

sys.exit(main())
