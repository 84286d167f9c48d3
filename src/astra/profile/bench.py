"""What every timed case needs of torch: operands, number formats, gradients, the compiler."""

from collections.abc import Callable, Sequence
from typing import Any

from astra.profile.measurement import Measurement
from astra.profile.timer import Run


class Bench:
    """torch on one device. Operands are random: a GPU spends less power on zeros."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch = torch
        self.device = device
        torch.manual_seed(0)

    def dtype(self, name: str) -> Any:
        torch = self.torch
        return {
            "bf16": torch.bfloat16,
            "fp16": torch.float16,
            "fp32": torch.float32,
            "tf32": torch.float32,
            "uint8": torch.uint8,
        }[name]

    def allow_tf32(self, allowed: bool) -> None:
        self.torch.backends.cuda.matmul.allow_tf32 = allowed

    def normal(self, *shape: int, dtype: Any = None) -> Any:
        kind = dtype or self.torch.bfloat16
        return self.torch.randn(*shape, device=self.device, dtype=kind)

    def empty(self, *shape: int, dtype: Any = None) -> Any:
        return self.torch.empty(*shape, device=self.device, dtype=dtype or self.torch.bfloat16)

    def zeros(self, *shape: int, dtype: Any = None) -> Any:
        return self.torch.zeros(*shape, device=self.device, dtype=dtype or self.torch.bfloat16)

    def ones(self, *shape: int, dtype: Any = None) -> Any:
        return self.torch.ones(*shape, device=self.device, dtype=dtype or self.torch.bfloat16)

    def integers(self, below: int, *shape: int) -> Any:
        return self.torch.randint(0, below, shape, device=self.device)

    def steps(self, count: int, size: int) -> Any:
        """Where each of `count` groups of `size` rows ends."""
        ends = self.torch.arange(1, count + 1, device=self.device, dtype=self.torch.int32)
        return ends * size

    def without_grad(self, call: Callable[[], Any]) -> Run:
        def run() -> object:
            with self.torch.no_grad():
                return call()

        return run

    def backward_of(self, forward: Callable[[], Any], inputs: Sequence[Any]) -> Run:
        """The backward pass alone: the forward pass has run once, and is kept."""
        out = forward()
        grad = self.torch.randn_like(out)
        return lambda: self.torch.autograd.grad(out, inputs, grad, retain_graph=True)

    def compiled(self, call: Callable[..., Any], one: Measurement) -> Callable[..., Any]:
        """The function itself, or what torch.compile makes of it for this very shape."""
        if one.how != "compiled":
            return call
        import torch._dynamo
        import torch._functorch.config as functorch

        torch._dynamo.reset()  # else the ninth shape silently runs uncompiled
        if hasattr(functorch, "donated_buffer"):
            functorch.donated_buffer = False  # the backward pass runs many times here
        made: Callable[..., Any] = torch.compile(call, dynamic=False)
        return made
