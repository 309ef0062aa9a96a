"""Level-based foraging, compiled: the rules of lbforaging 2, and its names without `Foraging-` and `-v3`."""

from flockrl.envs.foraging.field import field, named

ENVIRONMENTS = {
    "8x8-2p-2f": named(8, 2, 2),
    "8x8-2p-2f-coop": named(8, 2, 2, coop=True),
    "2s-8x8-2p-2f-coop": named(8, 2, 2, coop=True, sight=2),
    "10x10-3p-3f": named(10, 3, 3),
    "2s-10x10-3p-3f": named(10, 3, 3, sight=2),
    "15x15-3p-5f": named(15, 3, 5),
    "15x15-4p-3f": named(15, 4, 3),
    "15x15-4p-5f": named(15, 4, 5),
    "field": field,
}
