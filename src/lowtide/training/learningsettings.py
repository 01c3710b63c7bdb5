"""How weights are changed: the settings of optimizers, as one group of those of `lowtide train`.

No torch here, so that help is quick; settinggroups.py has the other groups, and how to add one.
"""

from __future__ import annotations

from math import inf
from typing import Literal

from lowtide.quickclasses import dataclass
from lowtide.settings import require
from lowtide.training.schedule import Schedule
from lowtide.training.settingchecks import at_least_one, below_one, more_than_zero, zero_or_more

__all__ = ["FirstEmbedding", "LearningSettings", "OptimizerName"]

OptimizerName = Literal["auto", "muon", "adamw"]
FirstEmbedding = Literal["auto", "random", "cooccurrence", "frequency"]


@dataclass(frozen=True)
class LearningSettings:
    """How weights are changed: optimizer, learning rate, decay, clipping."""

    optimizer: OptimizerName = "auto"
    """muon: Muon for matrices, AdamW for the rest; auto: muon where its extra arithmetic costs
    little."""
    use_8bit_optimizer: bool = False
    """Keep AdamW's moments in 8 bits (bitsandbytes): 2 bytes a parameter instead of 8."""
    learning_rate: float | None = None
    """Peak learning rate; chosen by the number of parameters if not given."""
    schedule: Schedule = "cosine"
    """Learning rate schedule after warm-up; linear-decay: constant, then linear decay to the
    end."""
    warmup: float = 0.05
    """Warm-up of the learning rate: a number of steps, or below 1 a share of the run."""
    final_learning_rate: float = 0.1
    """Learning rate at the end, as a share of the peak."""
    decay_fraction: float = 0.4
    """Share of the run in which linear-decay lowers the learning rate."""
    weight_decay: float = 0.1
    """Weight decay of matrices; gains and biases have none."""
    cautious_decay: bool = False
    """Muon: decay only the weights whose update moves them towards zero anyway."""
    embedding_rate: float | None = None
    """Learning rate of embeddings and output matrix, as a multiple of the learning rate; 1 if not
    given, 3 with --target-params up to 30M (AdamW: 1M) and a vocabulary of more tokens than the
    width."""
    embedding_decay: float | None = None
    """Weight decay of embeddings and output matrix; --weight-decay if not given."""
    embedding_decay_to: Literal["zero", "first"] = "zero"
    """What weight decay pulls the embedding towards: zero, or its initial rows, such as counts
    (--first-embedding) or those of the model that is adapted."""
    decay_schedule: Literal["rate", "root"] = "rate"
    """Weight decay of a step is proportional to the learning rate, or to its square root, so that
    it stays stronger towards the end."""
    spelling_rate: float = 0.0
    """Share embedding parameters between tokens with similar spelling; this is their learning rate
    as a multiple of the embedding's; 1 suits the tide layout, 0.5 others; 0 turns it off."""
    beta1: float = 0.9
    """AdamW's beta1, the decay rate of the first moment."""
    beta2: float | None = None
    """AdamW's beta2, the decay rate of the second moment; 0.95 if not given, 0.99 with
    --target-params up to 30M (AdamW: 1M) and a vocabulary of more tokens than the width."""
    ahead_weight: float = 0.0
    """Multi-token prediction: learn the second and third next token too, at this weight and half of
    it, falling to zero by two thirds of the run; losses shown are those of the next token."""
    early_cap: float = 0.0
    """Cap logits softly to this size in the first tenth of a run, then less and less, and no more
    after two fifths; the tide layout has a cap of its own."""
    confidence: float = 1.0
    """Size of the finished network's logits, as a share of those that it is trained with; below 1
    if text is seen several times, since networks are then too sure of what comes next."""
    average_over: float = 0.0
    """Save, evaluate and sample from a running average of the weights over this share of the run;
    0.1 helps if text is seen several times."""
    momentum: float | None = None
    """Momentum of Muon; 0.95 if not given, 0.9 with --target-params up to 30M and a vocabulary of
    more tokens than the width."""
    momentum_warmup: int = 0
    """Steps over which Muon's momentum rises to --momentum, starting 0.1 below it."""
    zero_init: bool = False
    """Initialize the output matrices of blocks to zero, so that blocks add nothing at first."""
    first_embedding: FirstEmbedding = "auto"
    """Initial embedding: random; cooccurrence: from counts of neighbouring tokens; frequency: the
    same, and how frequent each token is; auto: frequency with --target-params up to 30M and a
    vocabulary of more tokens than the width, else random."""
    grad_clip: float = 1.0
    """Gradient clipping: largest norm of the gradient; 0 turns clipping off."""
    max_bad_steps: int = 20
    """Stop after this many steps in a row with a loss or gradient that is not finite."""
    seed: int = 1337
    """Random seed of the initial weights, the order of the data and dropout."""

    def __post_init__(self) -> None:
        at_least_one(self, "max_bad_steps")
        more_than_zero(self, "learning_rate", "embedding_rate")
        below_one(self, "beta1", "beta2")
        zero_or_more(
            self,
            "warmup",
            "momentum_warmup",
            "weight_decay",
            "grad_clip",
            "embedding_decay",
            "spelling_rate",
            "seed",
        )
        weight, final, share = self.ahead_weight, self.final_learning_rate, self.decay_fraction
        require(0 <= weight <= 0.5, "ahead_weight", weight, "from 0 to 0.5")
        cap = self.early_cap
        require(cap == 0 or 1 <= cap < inf, "early_cap", cap, "0 for none, or 1 and more")
        require(0.5 <= self.confidence <= 1, "confidence", self.confidence, "from 0.5 to 1")
        over = self.average_over
        require(0 <= over <= 1, "average_over", over, "from 0 to 1: a share of the run")
        require(0 <= final <= 1, "final_learning_rate", final, "from 0 to 1: a share of the peak")
        momentum = self.momentum
        require(
            momentum is None or 0.1 <= momentum < 1, "momentum", momentum, "from 0.1 to below 1"
        )
        require(0 < share <= 1, "decay_fraction", share, "more than 0, at most 1")
