"""sample.py: files in, files out."""

from deblur.moved import require_new_name

require_new_name(__name__)
