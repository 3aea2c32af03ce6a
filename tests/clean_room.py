"""A process that cannot import our package."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def run_clean_room(script: str, *arguments: str, home: Path) -> subprocess.CompletedProcess:
    """Runs `script` where our package can't be imported, with an empty cache of its own."""
    environment = {**os.environ, "HF_HOME": str(home / "hf"), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    blocker = "import sys; sys.modules['modeling_vit_custom'] = None\n"
    command = [sys.executable, "-c", blocker + textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=300)
