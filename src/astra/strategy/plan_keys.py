"""What makes two plans different: in a list for people, and at all."""

from astra.strategy.plans import Plans

PlanKey = tuple[int, ...]


def plan_family(plans: Plans) -> list[PlanKey]:
    """What makes two plans different in a list: degrees, micro-batch, sharding, traffic.

    Of several replica groups the degrees of the first, and of all by their sums over replicas.
    """
    groups = [(plans.replicas * degree).sum(axis=0) for degree in (1, plans.tp[:, 0], plans.pp)]
    columns = (plans.tp[0, 0], plans.pp[0], *groups, plans.cp, plans.ep, plans.etp)
    more = (plans.micro_batch, plans.sharding)
    return list(zip(*(column.tolist() for column in (*columns, *more)), strict=True))


def plan_key(plans: Plans, row: int) -> PlanKey:
    """All columns of one plan: equal for no two plans of a space."""
    used = plans.used[..., row]  # tables differ in how many slots they leave unused
    values = [column[..., row] for column in plans.columns().values()]
    return tuple(hash((v[used] if v.ndim == 2 else v).tobytes()) for v in values)
