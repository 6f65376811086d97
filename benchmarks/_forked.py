"""The end of a forked child: its work, with the output in a file, and its exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn


def finish(work: Callable[[], object], log: Path) -> NoReturn:
    """Do `work` in a child that was just forked, its output at the end of `log`, and leave with its exit code."""
    code = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        work()
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
