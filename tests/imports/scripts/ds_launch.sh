deepspeed --num_nodes 2 --num_gpus 8 finetune.py --model_name_or_path meta-llama/Llama-2-7b-hf \
  --deepspeed ds_zero3.json --bf16 True --output_dir out
