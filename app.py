"""A local page to restore photographs and to compare before and after in a browser.

python app.py
python app.py --help
"""

import sys

from deblur.tools.web.command import main

if __name__ == "__main__":
    sys.exit(main())
