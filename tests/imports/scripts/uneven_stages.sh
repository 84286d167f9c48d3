# First and last stage lighter, offloaded optimizer, states in bf16; backslashes only.
torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py \
  --num-layers 126 --hidden-size 16384 --ffn-hidden-size 53248 --num-attention-heads 128 \
  --group-query-attention --num-query-groups 8 --seq-length 8192 \
  --max-position-embeddings 131072 --position-embedding-type rope --rotary-base 500000 \
  --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights \
  --vocab-size 128256 --tensor-model-parallel-size 8 --sequence-parallel --tp-comm-overlap \
  --pipeline-model-parallel-size 8 --num-virtual-stages-per-pipeline-rank 8 \
  --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split \
  --micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer \
  --overlap-grad-reduce --overlap-param-gather --optimizer-cpu-offload \
  --optimizer-offload-fraction 0.5 --use-precision-aware-optimizer \
  --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 --main-grads-dtype bf16 --lr 8e-5
