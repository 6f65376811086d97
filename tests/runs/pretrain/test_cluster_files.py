"""The files for SLURM and Kubernetes: their syntax, and that what they run is a command that exists."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bertkit.commands.parser import Command

CLUSTER = Path(__file__).resolve().parents[3] / "examples/cluster"


def torchrun_parser():
    from torch.distributed.run import get_args_parser

    return get_args_parser()


def check(words: list[str]) -> None:
    """torchrun knows its options, and bertkit the command that follows."""
    parsed = torchrun_parser().parse_args(words[1:])
    assert words[0] == "torchrun" and parsed.module and parsed.training_script == "bertkit"
    verb, *rest = parsed.training_script_args
    assert Command(verb).parse(rest)["resume"] is True, "a restarted job must continue, not refuse or start over"


def slurm(tmp_path: Path, torchrun: str, **more: str) -> tuple[list[str], list[str], int]:
    """torchrun's words, the requeued jobs and the exit code of the script, with stand-ins for SLURM's programs."""
    programs = {
        "scontrol": f'[ "$1" = show ] && printf "node7\\nnode8\\n" || echo "$2" >> {tmp_path}/requeued',
        "srun": 'shift; exec "$@"',
        "torchrun": f'printf "%s\\n" torchrun "$@" > {tmp_path}/words; {torchrun}',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "42", "SLURM_CPUS_PER_TASK": "32"}
    done = subprocess.run(
        ["bash", str(CLUSTER / "slurm.sh"), "run.toml"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"} | job | more,
        capture_output=True, text=True,
    )  # fmt: skip
    requeued = tmp_path / "requeued"
    return (
        (tmp_path / "words").read_text().splitlines(),
        requeued.read_text().split() if requeued.exists() else [],
        done.returncode,
    )


def test_the_slurm_script_is_bash_and_asks_for_what_it_uses() -> None:
    subprocess.run(["bash", "-n", str(CLUSTER / "slurm.sh")], check=True)
    lines = (CLUSTER / "slurm.sh").read_text("utf-8").splitlines()
    asked = dict(line.removeprefix("#SBATCH --").partition("=")[::2] for line in lines if line.startswith("#SBATCH"))
    assert asked["ntasks-per-node"] == "1", "torchrun starts the processes of a node"
    assert "requeue" in asked and asked["signal"].startswith("TERM@")
    notice = int(asked["signal"].partition("@")[2])
    assert f"--shutdown-timeout {notice - 100}" in "\n".join(lines), "torchrun must not kill what is still saving"


def test_the_slurm_script_starts_a_command_that_exists_on_the_first_nodes_address(tmp_path: Path) -> None:
    words, requeued, code = slurm(tmp_path, "exit 0")
    check(words)
    assert words[words.index("--rdzv-endpoint") + 1] == "node7:29500"
    assert words[words.index("--threads") + 1] == "8", "32 cores for 4 processes"
    assert (requeued, code) == ([], 0)


def test_a_slurm_job_that_was_stopped_is_requeued_but_not_for_ever(tmp_path: Path) -> None:
    assert slurm(tmp_path, "exit 143")[1:] == (["42"], 143)
    (tmp_path / "requeued").unlink()
    assert slurm(tmp_path, "exit 143", SLURM_RESTART_COUNT="20")[1:] == ([], 143)


def test_the_kubernetes_job_restarts_into_the_same_shared_run() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    job = yaml.safe_load((CLUSTER / "pytorchjob.yaml").read_text("utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    elastic, worker = job["spec"]["elasticPolicy"], job["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert elastic["rdzvBackend"] == "c10d" and elastic["maxRestarts"] > 0 and worker["restartPolicy"] == "OnFailure"
    assert elastic["minReplicas"] == elastic["maxReplicas"] == worker["replicas"]
    pod = worker["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "pytorch"
    check(container["command"])
    words = dict(word.partition("=")[::2] for word in container["command"])
    assert int(words["--shutdown-timeout"]) < pod["terminationGracePeriodSeconds"]
    threads = int(words["--threads"])
    assert threads * int(job["spec"]["nprocPerNode"]) <= int(container["resources"]["limits"]["cpu"])
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert all(any(Path(words[name]).is_relative_to(at) for at in mounted) for name in ("--config", "--data", "--out"))
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert all(isinstance(entry["value"], str) for entry in container["env"]), "Kubernetes takes only strings"
