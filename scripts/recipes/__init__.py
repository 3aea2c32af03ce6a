"""
One file for each recipe. Its docstring is its contract: source, expected metric, hardware and hours, command.

    python -m scripts.train --recipe NAME [--set path=value ...]
"""
