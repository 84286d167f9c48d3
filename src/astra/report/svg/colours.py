"""The colours of all pictures, light and dark, each with the name of its CSS variable.

A colour always means the same. Light ones stand in the SVG itself; a page that sets the variables
has its own. Colours that lie side by side are told apart by every kind of colour blindness
(`tests/report/svg/test_colours.py`).
"""

from typing import NamedTuple


class Colour(NamedTuple):
    """A CSS variable and what it is without a page around it."""

    variable: str
    light: str
    dark: str


SURFACES = {
    "panel": Colour("panel", "#ffffff", "#1b1b20"),
    "line": Colour("line", "#e3e0d9", "#2e2e36"),
    "ink": Colour("ink", "#1c1b1f", "#f1f0f4"),
    "ink2": Colour("ink2", "#55525a", "#b9b7c1"),
    "ink3": Colour("ink3", "#6d6a72", "#9b99a5"),
    "axis": Colour("line2", "#cfcbc2", "#44444e"),
    "sunk": Colour("sunk", "#f1efea", "#232329"),
    "on_forward": Colour("on-fwd", "#12284d", "#12284d"),
    "on_backward": Colour("on-bwd", "#ffffff", "#ffffff"),
}
STEP_PARTS = {
    "forward": Colour("fwd", "#8fb8f0", "#a9ccfb"),
    "backward": Colour("bwd", "#2f66c9", "#3e73d5"),
    "recompute": Colour("rec", "#1d3f82", "#23407f"),
    "tensor_comm": Colour("tensor", "#f2b03a", "#f5b94c"),
    "context_comm": Colour("context", "#fbe0a8", "#fdecc9"),
    "expert_comm": Colour("expert", "#cb7516", "#cf7f22"),
    "pipeline_comm": Colour("links", "#a3470c", "#ad5016"),
    "data_comm": Colour("data", "#6e2d08", "#84380f"),
    "optimizer": Colour("opt", "#5d6a72", "#86949c"),
    "other": Colour("other", "#b9bcc0", "#5d5f67"),
}
WAITING = {  # a ground with a hatch on it
    "waiting": Colour("idle", "#e9e6df", "#26262c"),
    "hatch": Colour("hatch", "#c9c4ba", "#43434d"),
}
MEMORY_CAUSES = {
    "weights": Colour("weights", "#14584e", "#1f7d6f"),
    "gradients": Colour("gradients", "#52ab9b", "#4fb3a1"),
    "optimizer_states": Colour("states", "#a5d8cd", "#b4e4da"),
    "activations": Colour("activations", "#7a55b8", "#9a78d8"),
    "logits": Colour("logits", "#c3abe6", "#d3c0f0"),
    "buffers": Colour("buffers", "#a79d86", "#57565c"),
    "runtime": Colour("runtime", "#625d55", "#9a978f"),
    "slack": Colour("slack", "#d3cdc1", "#3c3c45"),
}
RISKS = {
    "safe": Colour("ok", "#0a6b55", "#5fd0b0"),
    "tight": Colour("warn", "#8a5200", "#f0b95b"),
    "risky": Colour("bad", "#b3261e", "#ff8f84"),
}
GPU_TYPES = {  # in the order of a picture's legend
    "gpu_1": Colour("g0", "#2f66c9", "#6aa0ff"),
    "gpu_2": Colour("g1", "#d98014", "#eda145"),
    "gpu_3": Colour("g2", "#14584e", "#93e6d3"),
    "gpu_4": Colour("g3", "#cf6aa8", "#c0609c"),
}
ON_SEGMENTS = {  # words inside of a segment
    "on_weights": Colour("on-weights", "#ffffff", "#ffffff"),
    "on_gradients": Colour("on-gradients", "#04201b", "#04201b"),
    "on_optimizer_states": Colour("on-states", "#04201b", "#04201b"),
    "on_activations": Colour("on-activations", "#ffffff", "#150c26"),
    "on_logits": Colour("on-logits", "#150c26", "#150c26"),
    "on_tensor_comm": Colour("on-tensor", "#2b1a00", "#2b1a00"),
}
COLOURS = SURFACES | STEP_PARTS | WAITING | MEMORY_CAUSES | RISKS | GPU_TYPES | ON_SEGMENTS


def paint(name: str) -> str:
    """What stands in `fill` and `stroke`.

    >>> paint("forward")
    'var(--fwd, #8fb8f0)'
    """
    colour = COLOURS[name]
    return f"var(--{colour.variable}, {colour.light})"


def variables(theme: str) -> str:
    """All colours of a theme, `light` or `dark`, as CSS declarations for a page around pictures.

    >>> variables("dark")[:31]
    '--panel:#1b1b20;--line:#2e2e36;'
    """
    return "".join(f"--{each.variable}:{getattr(each, theme)};" for each in COLOURS.values())
