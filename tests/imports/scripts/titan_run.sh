#!/usr/bin/bash
NGPU=${NGPU:-"8"}
CONFIG_FILE=${CONFIG_FILE:-"./titan.toml"}
torchrun --nproc_per_node=${NGPU} --nnodes 32 -m torchtitan.train \
  --job.config_file ${CONFIG_FILE} --parallelism.context_parallel_degree 2 --training.seq_len=16384
