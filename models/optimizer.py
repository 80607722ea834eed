"""The optimizer of training and the schedule of its learning rate."""

import math
from dataclasses import dataclass

from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR


@dataclass(frozen=True)
class Optimizer:
    """AdamW with a linear warm-up and a final cosine decay of its learning rate.

    Args:
        lr: peak learning rate.
        weight_decay: of AdamW.
        betas: of AdamW.
        warmup_steps: steps of linear warm-up.
        decay_steps: length of the decay to zero, which ends at trainer.max_steps. The learning rate stays at its peak
            before it, so a run can be made longer until the decay begins (Hägele et al. 2024). none: the decay starts
            after the warm-up.
    """

    lr: float = 2e-4
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    warmup_steps: int = 1000
    decay_steps: int | None = None

    def build(self, parameters: list[nn.Parameter], max_steps: int) -> tuple[AdamW, LambdaLR]:
        """The optimizer of parameters, and the scheduler of its learning rate, which steps once per step."""
        fused = all(parameter.device.type in ("cuda", "cpu") for parameter in parameters) or None
        optimizer = AdamW(parameters, self.lr, self.betas, weight_decay=self.weight_decay, fused=fused)

        def factor(step: int) -> float:
            if step < self.warmup_steps:
                return (step + 1) / self.warmup_steps
            decay = max_steps - self.warmup_steps if self.decay_steps is None else self.decay_steps
            return 0.5 * (1 + math.cos(math.pi * max(0, step - (max_steps - decay)) / max(1, decay)))

        return optimizer, LambdaLR(optimizer, factor)
