"""Messages of bits that are learned by gradients: DIAL (Foerster et al. 2016, arXiv 1605.06676)."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from flockrl.comm.exchange import straight_through
from flockrl.comm.few import Who
from flockrl.comm.sharing import ShareObs
from flockrl.core.types import Array
from flockrl.nets.torsos import Dense

SIGMA = 2.0
"""Deviation of the noise on messages while agents learn where the channel says nothing of it, as in the paper."""


class Dial(ShareObs):
    """Agents send bits and hear them a step later, before they remember, so that what was heard can be passed on.

        train: m = sigmoid(M h + e), e ~ N(0, 2^2);   test: m = 1 where M h > 0, else 0

    Noise makes values between 0 and 1 unreliable, so that learning drives logits apart until rounding them changes
    nothing; the more of it (`noise` of the channel), the farther. With `bits=1` agents send bits while they learn too:
    1 where M h + e > 0, with the gradient of the sigmoid, so that rounding has nothing to lose. Gradients reach the
    sender through its message and through time. Listeners add up f(W (2 m_j - 1) + b), so that hearing a 0 differs from
    hearing nothing.
    """

    speaks: ClassVar = "features"

    def build(self) -> None:
        super().build()
        self.encode = Dense(self.size, 1.0)

    def speak(self, h: Array) -> Array:
        return self.encode(h)

    def listen(self, h: Array, said: Array, own: Array, there: Array, possible: Array, who: Who = None) -> Array:
        return super().listen(h, 2 * said - 1, own, there, possible, who)


def regularised(logit: Array, noise: Array, hard: Array, sigma: float = SIGMA, rounded: bool = False) -> Array:
    """The discretise/regularise unit for logits [..., N, C]: bits where `hard` [...] holds, else noisy sigmoids, which
    are `rounded` to bits if so wanted, with their gradient."""
    soft = jax.nn.sigmoid(logit + sigma * noise)
    if rounded:
        soft = straight_through((soft > 0.5).astype(soft.dtype), soft)
    return jnp.where(hard[..., None, None], (logit > 0).astype(logit.dtype), soft)
