#!/bin/bash
# Pretraining on several SLURM nodes: sbatch examples/cluster/slurm.sh run.toml
# The token store and the run folder (data and out of run.toml) must be on a disk that all nodes share.
#SBATCH --job-name=bertkit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@600
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

run=${1:?usage: sbatch slurm.sh run.toml}
processes=${PROCESSES:-4} # on each node
port=${PORT:-29500}
# Which network card the nodes talk through; without it gloo takes the one that the host name belongs to.
# export GLOO_SOCKET_IFNAME=eth0
export OMP_NUM_THREADS=$((${SLURM_CPUS_PER_TASK:-32} / processes))
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes%%$'\n'*} # the first; a pipe into `head` would now and then end the script (SIGPIPE under pipefail)

# Ten minutes before the end, SLURM sends SIGTERM: the run saves after its step and exits. torchrun waits for that as
# long as --shutdown-timeout says; a step must be shorter. A job that ran out of time or lost a node is requeued.
code=0
srun --kill-on-bad-exit=1 torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "$processes" \
  --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$head:$port" \
  --max-restarts 10 --shutdown-timeout 500 \
  -m bertkit pretrain --config "$run" --threads "$OMP_NUM_THREADS" --resume || code=$?

if [ "$code" -ne 0 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "${REQUEUES:-20}" ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
