"""PRX's dataset without what the skip lists beside the shards name: what `imagelake loader-config` names as `_target_`.

PRX's own class reads whole shards, so what was put on a list after an export would be trained on. Needs PRX (github.com/Photoroom/PRX).
"""

from __future__ import annotations

from prx.dataset import mds_dataset

from imagelake.skipping import SidecarStream


class KeptStream(SidecarStream, mds_dataset.PatchedStream):  # type: ignore[misc]
    """PRX's stream, which shows the kept samples of each shard."""


class StreamingProcessedDataset(mds_dataset.StreamingProcessedDataset):  # type: ignore[misc]
    """PRX's dataset over such streams."""


# PRX names its class of streams there.
mds_dataset.PatchedStream = KeptStream
