# A model with latent attention, dense first layers and a layout of its own.
NNODES=32; GPUS_PER_NODE=8
torchrun --nproc-per-node=$GPUS_PER_NODE --nnodes=$NNODES pretrain_gpt.py \
  --num-layers=61 --hidden-size=7168 --ffn-hidden-size=18432 --num-attention-heads=128 \
  --multi-latent-attention --q-lora-rank=1536 --kv-lora-rank=512 --qk-head-dim=128 \
  --qk-pos-emb-head-dim=64 --v-head-dim=128 --qk-layernorm \
  --num-experts=256 --moe-ffn-hidden-size=2048 --moe-router-topk=8 \
  --moe-shared-expert-intermediate-size=2048 --moe-layer-freq="([0]*3+[1]*58)" \
  --moe-router-score-function=sigmoid --moe-router-enable-expert-bias \
  --moe-token-dispatcher-type=flex --moe-flex-dispatcher-backend=deepep --moe-grouped-gemm \
  --mtp-num-layers=1 --seq-length=4096 --max-position-embeddings=163840 \
  --position-embedding-type=rope --rotary-base=10000 --swiglu --normalization=RMSNorm \
  --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size=129280 \
  --tensor-model-parallel-size=1 --pipeline-model-parallel-size=8 \
  --expert-model-parallel-size=32 --expert-tensor-parallel-size=1 \
  --pipeline-model-parallel-layout="Et*3|(tt|)*29m|L" \
  --recompute-granularity=selective --recompute-modules mla_up_proj layernorm moe_act \
  --micro-batch-size=1 --global-batch-size=2048 --bf16 --use-distributed-optimizer \
  --overlap-grad-reduce --overlap-param-gather --train-iters=100 --lr=1e-4
