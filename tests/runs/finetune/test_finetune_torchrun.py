"""Fine-tuning in two processes: they save together, and a signal to either of them stops both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bertkit.config import build, to_plain, to_toml
from bertkit.settings.finetune import FinetuneSettings
from bertkit.training.checkpoints import list_generations, newest_generation
from tests.support import toy

# Each process writes what became of it, since torchrun's own exit code does not tell.
PROCESS = """
import json, os, signal, sys
from pathlib import Path
from bertkit.config import build, read_toml
from bertkit.errors import Stopped
from bertkit.runs.finetune.run import finetune
from bertkit.settings.finetune import FinetuneSettings
from bertkit.training.loop import Training
from bertkit.training.run_folder import RunFolder

folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
saves, enter, save, step = [], RunFolder.__enter__, RunFolder.save, Training._step

def entered(self):
    enter(self)
    self.last_save -= 3600 * rank  # by the clock of rank 1 a save is overdue, by that of rank 0 it is not
    return self

def saved(self, training, *rest):
    saves.append(training.done)
    save(self, training, *rest)

def signalled(self, batches):
    if rank == 1 and self.done == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    return step(self, batches)

RunFolder.__enter__, RunFolder.save, Training._step = entered, saved, signalled
try:
    finetune(build(FinetuneSettings, read_toml(folder / "settings.toml")))
    outcome = [0, "finished"]
except Stopped as stopped:
    outcome = [128 + stopped.signal, str(stopped)]
(folder / f"outcome-{rank}.json").write_text(json.dumps([*outcome, saves]))
"""


@pytest.fixture
def outcomes(runs, tmp_path: Path) -> list[tuple[int, str, list[int]]]:
    """Exit code, message and saved steps of each rank; rank 1 alone gets SIGTERM, during its fourth step."""
    values = toy.files(runs.folder, "classify", train=40) | {"model": str(runs.model), "out": tmp_path / "run"}
    settings = build(FinetuneSettings, toy.SMALL | values | {"task": "classify", "steps": 8, "batch": 8, "evals": 2})
    (tmp_path / "settings.toml").write_text(to_toml(to_plain(settings)), "utf-8")
    (tmp_path / "process.py").write_text(PROCESS, "utf-8")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(tmp_path / "process.py"), str(tmp_path),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    torchrun = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        errors = torchrun.communicate(timeout=600)[1]
    except subprocess.TimeoutExpired:
        os.killpg(torchrun.pid, signal.SIGKILL)  # both ranks too: they wait for each other
        pytest.fail("the ranks wait on different collectives")
    assert torchrun.returncode == 0, errors[-3000:]
    return [tuple(json.loads((tmp_path / f"outcome-{rank}.json").read_text())) for rank in (0, 1)]


@pytest.mark.slow
def test_ranks_save_at_the_same_steps_and_a_signal_to_one_stops_both(outcomes, tmp_path):
    (code, message, saves), (other_code, other_message, other_saves) = outcomes
    assert saves == other_saves == [1, 4], (
        "one rank's clock asks for a save after the first step, the signal for another"
    )
    assert code == other_code == 128 + 15
    assert message == other_message and "saved at step 4 of 8" in message
    assert newest_generation(tmp_path / "run/checkpoints").step == 4
    assert len(list_generations(tmp_path / "run/checkpoints")) == 2
