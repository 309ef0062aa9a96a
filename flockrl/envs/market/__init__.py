"""Markets: making one alone, as Avellaneda and Stoikov do, and in competition."""

from flockrl.envs.market.making import MarketMaking

ENVIRONMENTS = {"making": MarketMaking}
