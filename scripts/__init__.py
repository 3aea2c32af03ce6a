"""What a person runs: training, prediction, figures. Run from a checkout as `python -m scripts.NAME`."""
