"""The Multi-Agent Particle Environments, compiled. Settings have the same names as in `mpe2`."""

from flockrl.envs.mpe.collect_treasure import collect_treasure
from flockrl.envs.mpe.simple import simple
from flockrl.envs.mpe.simple_adversary import simple_adversary
from flockrl.envs.mpe.simple_crypto import simple_crypto
from flockrl.envs.mpe.simple_formation import simple_formation
from flockrl.envs.mpe.simple_line import simple_line
from flockrl.envs.mpe.simple_push import simple_push
from flockrl.envs.mpe.simple_reference import simple_reference
from flockrl.envs.mpe.simple_speaker_listener import simple_speaker_listener
from flockrl.envs.mpe.simple_spread import simple_spread
from flockrl.envs.mpe.simple_tag import simple_tag
from flockrl.envs.mpe.simple_world_comm import simple_world_comm

ENVIRONMENTS = {
    builder.__name__: builder
    for builder in (
        simple,
        simple_adversary,
        simple_crypto,
        simple_formation,
        simple_line,
        simple_push,
        simple_reference,
        simple_speaker_listener,
        simple_spread,
        simple_tag,
        simple_world_comm,
        collect_treasure,
    )
}
