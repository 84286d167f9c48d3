# NeMo: settings as section.name=value.
python examples/nlp/language_modeling/megatron_gpt_pretraining.py \
  trainer.num_nodes=8 trainer.devices=8 trainer.precision=bf16 trainer.max_steps=100 \
  model.micro_batch_size=1 model.global_batch_size=256 \
  model.tensor_model_parallel_size=4 model.pipeline_model_parallel_size=4 \
  model.virtual_pipeline_model_parallel_size=5 model.context_parallel_size=1 \
  model.encoder_seq_length=4096 model.max_position_embeddings=4096 \
  model.num_layers=80 model.hidden_size=8192 model.ffn_hidden_size=28672 \
  model.num_attention_heads=64 model.num_query_groups=8 model.activation=fast-swiglu \
  model.normalization=rmsnorm model.bias=False model.position_embedding_type=rope \
  model.share_embeddings_and_output_weights=False model.sequence_parallel=True \
  model.optim.name=distributed_fused_adam model.optim.lr=2e-4 \
  ++model.rotary_base=10000 model.activations_checkpoint_granularity=full \
  model.activations_checkpoint_method=block model.activations_checkpoint_num_layers=2 \
  model.vocab_size=32000 exp_manager.exp_dir=/results
