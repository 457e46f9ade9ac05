# What all others use; is the package there at all? A folder moved with its .venv has lost it.
import ast
import atexit
import functools
import os
import re
import shutil
import sys
from pathlib import Path

try:
    import inference_lab.errors
except ModuleNotFoundError:
    way_out = (
        "was the folder moved with its .venv? Make it anew: rm -r .venv && uv sync"
    )
    print(f"snakemake: inference_lab is not installed here; {way_out}", file=sys.stderr)
    raise SystemExit(2)
from inference_lab.commands import status as lab_status
from inference_lab.config import experiments as lab_config
from inference_lab.config.yaml_file import read_yaml
from inference_lab.errors import LabError
from inference_lab.records import plan as lab_plan
from inference_lab.records import receipts as lab_receipts
from inference_lab.records import files as lab_files
from inference_lab.records import installed as lab_installed
from inference_lab.records import stages as lab_stages
from inference_lab.records import locks as lab_locks
