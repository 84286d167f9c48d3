"""One rank of a tiny job of plain PyTorch: a decoder whose parameters FSDP2 shards, on CPU.

Reads the plan; prints one line of JSON: the losses, and what this rank holds and does.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from astra.model.shape import Model
from astra.strategy.plan_file import read_plan

STEPS = 4
SEED = 7


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and a gated MLP, each behind a norm."""

    def __init__(self, shape: Model) -> None:
        super().__init__()
        hidden, heads = shape.hidden, shape.heads * shape.head_dim
        self.heads = shape.heads
        self.norms = nn.ModuleList([nn.RMSNorm(hidden), nn.RMSNorm(hidden)])
        self.queries = nn.Linear(hidden, 3 * heads, bias=False)
        self.out = nn.Linear(heads, hidden, bias=False)
        self.up = nn.Linear(hidden, 2 * shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.queries(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, -1))
        gate, up = self.up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(nn.functional.silu(gate) * up)


def main() -> None:
    plan = read_plan(Path(sys.argv[1]))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    copies = plan.dp // plan.shard_group
    mesh = init_device_mesh(
        "cpu", (copies, plan.shard_group), mesh_dim_names=("replicate", "shard")
    )
    mesh = mesh if copies > 1 else mesh["shard"]
    torch.manual_seed(SEED)
    shape = plan.model
    layers = [Layer(shape) for _ in range(shape.layers)]
    model = nn.Sequential(
        nn.Embedding(shape.vocab, shape.hidden),
        *layers,
        nn.RMSNorm(shape.hidden),
        nn.Linear(shape.hidden, shape.vocab, bias=False),
    )
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=plan.sharding == "parameters")
    fully_shard(model, mesh=mesh)
    held = sum(weight.to_local().numel() for weight in model.parameters())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    maker = torch.Generator().manual_seed(SEED + rank)
    count = plan.pipelines[0].micro_batches
    size = (plan.micro_batch, plan.seq_len + 1)
    batches = [torch.randint(0, shape.vocab, size, generator=maker) for _ in range(count)]
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for row, tokens in enumerate(batches):
            model.set_requires_gradient_sync(row == count - 1)
            logits = model(tokens[:, :-1]).flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten()) / count
            loss.backward()
            total += float(loss)
        optimizer.step()
        losses.append(total)
    whole = sum(weight.numel() for weight in model.parameters())
    told = {"world": world, "held": held, "whole": whole, "micro_batches": count, "losses": losses}
    sys.stdout.write(json.dumps(told) + "\n")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
