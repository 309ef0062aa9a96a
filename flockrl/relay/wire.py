"""The format of messages: an Arrow IPC stream with flockrl's schema and one record batch, as bytes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from flockrl.data.frames import BATCH, SCHEMA, frames
from flockrl.data.schema import BadData


def pack(batch: pa.RecordBatch) -> pa.Buffer:
    """A record batch as a message."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def unpack(data: Any) -> pa.RecordBatch:
    """The record batch in a message, with all its offsets checked but not its values. Raises `BadData`."""
    size = memoryview(data).nbytes
    source = pa.BufferReader(data)
    found = [frame for _, frame in zip(range(3), frames(source, size, size), strict=False)]
    if [frame.kind for frame in found] != [SCHEMA, BATCH]:
        raise BadData("A message must be an Arrow stream of one schema and one record batch, without dictionaries.")
    if found[1].compressed:
        raise BadData("Compressed record batches are not taken.")
    found[1].unpacked()
    try:
        batch = pa.ipc.read_record_batch(found[1].data, pa.ipc.read_schema(found[0].data))
        batch.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadData(f"Arrow cannot read the message: {str(error)[:200]}") from error
    return batch
