"""Reading images, layouts of datasets, pairs, and synthetic blur."""

from deblur.moved import require_new_name

require_new_name(__name__)
