"""Restore blurry photographs: files, folders or patterns in, restored images out.

python sample.py photo.jpg --output restored
python sample.py --help
"""

import sys

from deblur.restoration.command import main

if __name__ == "__main__":
    sys.exit(main())
