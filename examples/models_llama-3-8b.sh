# One model of the zoo in full: its shape, its parameters and what a token costs.
astra models llama-3-8b
