"""python -m tools.batch"""

import sys

from deblur.tools.batch.command import main

sys.exit(main())
