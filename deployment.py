"""python -m deployment.export and deployment.predict have other names since version 0.4.0.

Python imports this before it would look for them.
"""

import sys

sys.exit("python -m deployment.export is now python -m tools.export_onnx, and deployment.predict is tools.predict")
