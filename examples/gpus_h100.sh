# One GPU: what it is sold as, what software sees of it, and who says so.
astra gpus h100
