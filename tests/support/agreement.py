"""Rules and a framework's own verdict, counted plan by plan: where they differ, and how often."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from astra.strategy.plan import Plan


@dataclass
class Agreement:
    """What was seen of legal and illegal plans, and the rules that stood alone."""

    seen: Counter[str] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, seed: int, plan: Plan, broken: set[str], refused: str | None) -> None:
        """One plan: the rules it breaks, and why the framework refuses it."""
        self.seen["illegal" if broken else "legal"] += 1
        if bool(broken) != bool(refused):
            self.wrong.append(f"{seed} {plan.summary()}: {sorted(broken)} against {refused}")
        if len(broken) == 1:
            self.alone.update(broken)

    def check(self, claims: Iterable[str]) -> None:
        """Both agree on a thousand plans at least, and each claim was once the only reason."""
        wrong, seen, missing = self.wrong, self.seen, sorted({*claims} - set(self.alone))
        assert not wrong, f"{len(wrong)} disagreements:\n" + "\n".join(wrong[:20])
        assert seen["legal"] >= 300 and seen["illegal"] >= 300 and seen.total() >= 1_000, seen
        assert not missing, missing
