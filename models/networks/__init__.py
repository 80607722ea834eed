"""The networks: predictors and denoisers."""
