"""train.py: the run around the module that is trained."""
