"""train.py: the run around the module that is trained."""

from deblur.moved import require_new_name

require_new_name(__name__)
