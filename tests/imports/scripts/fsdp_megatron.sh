NPROC_PER_NODE=8
NNODES=4
ARGS="--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params \
 --no-gradient-accumulation-fusion --ckpt-format fsdp_dtensor --use-distributed-optimizer"
ARGS="$ARGS --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32"
ARGS+=" --seq-length 4096 --max-position-embeddings 4096 --swiglu --normalization RMSNorm"
ARGS+=" --disable-bias-linear --untie-embeddings-and-output-weights"
ARGS+=" --position-embedding-type rope --micro-batch-size 2 --global-batch-size 256 --bf16"
ARGS+=" --overlap-grad-reduce --overlap-param-gather --recompute-granularity full"
ARGS+=" --recompute-method uniform --recompute-num-layers 1 --tokenizer-type Llama2Tokenizer"
torchrun --nproc_per_node ${NPROC_PER_NODE} --nnodes ${NNODES} pretrain_gpt.py $ARGS
