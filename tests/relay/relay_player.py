"""A player of examples/relay_game.py that writes down what it recorded and what was acknowledged. Run by test_faults.

python relay_player.py SERVER QUEUE NOTES [drain]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import pyarrow as pa
import relay_game

from flockrl.relay import actor, client, outbox

server, queue, notes = sys.argv[1:4]


def note(name, ids):
    with open(f"{notes}.{name}", "a") as file:
        file.write("".join(f"{x}\n" for x in ids))


def put(self, message, real=client.Client.put):
    ids = pa.ipc.open_stream(message).read_next_batch().column("trajectory").unique().to_pylist()
    answer = real(self, message)
    note("acknowledged", ids)
    return answer


def add(self, episode, identity="", real=outbox.Outbox.add):
    real(self, episode, identity)
    note("recorded", episode.id.tolist())


client.Client.put = put
outbox.Outbox.add = add
if sys.argv[4:] == ["drain"]:
    assert actor.Actor(server=server, queue=queue).close(timeout=120)
else:
    relay_game.play(server, queue)
