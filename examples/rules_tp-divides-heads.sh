# One rule of Megatron-LM in full: who refuses the plan, where, and what it speaks of.
astra rules tp-divides-heads
