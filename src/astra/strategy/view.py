"""A table of plans with what every later room needs of it, worked out once."""

from dataclasses import dataclass

import numpy as np

from astra.hardware.topology import even_share
from astra.strategy.held import Held, held_parameters
from astra.strategy.plans import Ints, Plans, Task
from astra.strategy.stages import Stages, stages_of


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Plans of one task, stage by stage."""

    plans: Plans
    task: Task
    stages: Stages
    held: Held
    domain: Ints  # GPUs of the job in each link domain. (pipeline, slot, plan)
    node: Ints  # and in each node


def view_of(plans: Plans, task: Task, every_stage: bool = False) -> View:
    """The view of a table; with `every_stage`, one run per stage."""
    stages = stages_of(plans, task.model, every_stage)
    domain, node = _places(plans, task)
    return View(
        plans=plans,
        task=task,
        stages=stages,
        held=held_parameters(plans, stages, task),
        domain=domain,
        node=node,
    )


def _places(plans: Plans, task: Task) -> tuple[Ints, Ints]:
    """GPUs of the job in each link domain and in each node, for every slot."""
    domain, node = np.ones_like(plans.stages), np.ones_like(plans.stages)
    counts = plans.stages * plans.tp * plans.dp
    for row, pool in enumerate(task.cluster.pools):
        here = plans.gpu == row
        used = np.maximum(np.where(here, counts, 0).sum(axis=(0, 1)) * plans.cp, 1)
        domain = np.where(here, even_share(used, pool.gpu.link.domain_gpus), domain)
        node = np.where(here, even_share(used, pool.gpu.node.gpus), node)
    return domain, node
