#!/usr/bin/env bash
# Llama 3 8B with FP8 on one node; strings and quoted arrays.
set -euo pipefail
TP_SIZE=1
CP_SIZE=2
PP_SIZE=1
MICRO_BATCH_SIZE=1
GLOBAL_BATCH_SIZE=128
SEQ_LENGTH=8192
DTYPE="fp8"

MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length "$SEQ_LENGTH"
    --max-position-embeddings 8192
    --position-embedding-type rope
    --rotary-base 500000
    --rotary-percent 1.0
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --swiglu
    --normalization RMSNorm
    --init-method-std 0.0134
    --attention-backend fused
    --apply-layernorm-1p
    --untie-embeddings-and-output-weights
    --disable-bias-linear
)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
        "--fp8-amax-compute-algo max"
        "--fp8-param-gather"
    )
fi
torchrun --nproc_per_node 8 --nnodes 1 \
  pretrain_gpt.py "${MODEL_ARGS[@]}" ${DTYPE_ARGS[@]} \
  --micro-batch-size ${MICRO_BATCH_SIZE} --global-batch-size ${GLOBAL_BATCH_SIZE} \
  --bf16 --grad-reduce-in-bf16 --cross-entropy-loss-fusion --calculate-per-token-loss \
  --tensor-model-parallel-size $TP_SIZE --context-parallel-size $CP_SIZE \
  --pipeline-model-parallel-size $PP_SIZE --sequence-parallel \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B \
  --vocab-size 128256 --train-samples 1000000 --lr 0.00015
