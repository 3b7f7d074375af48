"""The text side of a training loop: which caption a sample is trained with, and the captions' latents, computed on the fly.

collate = CaptionCollator(dataset, {"caption": 0.8, "caption_alt": 0.2}, dropout=0.1)
loader = torch.utils.data.DataLoader(dataset, batch_size=32, num_workers=8, collate_fn=collate)
encoder = TextEncoder("Qwen/Qwen3-VL-2B-Instruct", revision="<commit>", dtype="bfloat16")
for images, captions, ids in loader:
    latents, mask = encoder.encode(captions)

Needs torch; the encoder needs transformers too.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from imagelake import textmodel
from imagelake.errors import ConfigError, ImagelakeError

if TYPE_CHECKING:
    from imagelake.loader import CorpusDataset

CAPTION_SEED = 9176
# What PRX trains with: 100 to 200 words, of which the longest do not fit.
MAX_TOKENS = 256


class Batch(NamedTuple):
    """images: uint8 [B, 3, H, W], channels last in memory. captions, ids: B texts each."""

    images: torch.Tensor
    captions: list[str]
    ids: list[str]


class CaptionCollator:
    """Makes a Batch of a list of a CorpusDataset's samples; a DataLoader's collate_fn.

    weights: caption column -> its share, any positive scale. Of each sample one column is drawn, from those that have a text there;
        a sample that has none gets "". Default: "caption" alone.
    dropout: share of samples that get "", for classifier-free guidance.
    seed: together with the epoch and the sample's id it decides both draws, so neither a resume nor the number of ranks or workers
        changes a caption, and each epoch draws anew. A changed dropout leaves the columns drawn as they were.

    Raises ConfigError for weights and a dropout that are not clear, and for columns that the corpus has not.
    """

    def __init__(
        self, dataset: CorpusDataset, weights: Mapping[str, float] | None = None, *, dropout: float = 0.0, seed: int = CAPTION_SEED
    ) -> None:
        self.weights = dict({"caption": 1.0} if weights is None else weights)
        texts = [name for name, encoding in dataset.release.columns.items() if encoding == "str"]
        check_draw(self.weights, dropout, texts)
        self.dataset, self.dropout, self.seed = dataset, dropout, seed

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> Batch:
        """Raises ImagelakeError where images are not decoded, or differ in size."""
        # A DataLoader's worker has this collator and the dataset that it iterates from one and the same copy.
        epoch = self.dataset.worker_epoch
        captions = [draw_caption(sample, self.weights, dropout=self.dropout, seed=self.seed, epoch=epoch) for sample in samples]
        return Batch(stack_images([sample["image"] for sample in samples]), captions, [sample["id"] for sample in samples])


def check_draw(weights: Mapping[str, float], dropout: float, columns: Iterable[str]) -> None:
    """Raises ConfigError unless `weights` name columns, are numbers from 0 up and not all 0, and dropout is in 0 … 1."""
    unknown = sorted(set(weights) - set(columns))
    if unknown:
        raise ConfigError(f"weights: no column {', '.join(map(repr, unknown))} in this corpus; its texts are {', '.join(columns)}")
    for name, weight in weights.items():
        if not (isinstance(weight, int | float) and math.isfinite(weight) and weight >= 0):
            raise ConfigError(f"weights[{name!r}] is {weight!r}: a number from 0 up is needed")
    if not any(weights.values()):
        raise ConfigError("weights: none is above 0, so every caption would be empty; for that, set dropout to 1")
    if not (isinstance(dropout, int | float) and 0 <= dropout <= 1):
        raise ConfigError(f"dropout is {dropout!r}: a share from 0 to 1 is needed")


def draw_caption(sample: Mapping[str, Any], weights: Mapping[str, float], *, dropout: float, seed: int, epoch: int) -> str:
    """The sample's caption in an epoch: a function of the arguments alone, whatever the order of `weights`."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{sample['id']}".encode(), digest_size=16).digest()
    # Two independent numbers in [0, 1), of 53 bits each, as many as a float holds.
    dropped, drawn = ((word >> 11) * 2.0**-53 for word in struct.unpack("<2Q", digest))
    present = sorted(name for name, weight in weights.items() if weight and sample.get(name))
    if dropped < dropout or not present:
        return ""
    place = drawn * sum(weights[name] for name in present)
    for name in present[:-1]:
        place -= weights[name]
        if place < 0:
            return str(sample[name])
    return str(sample[present[-1]])


def stack_images(images: Sequence[Any]) -> torch.Tensor:
    """PIL images of one size as uint8 [B, 3, H, W]. Raises ImagelakeError for what can't be stacked."""
    if any(isinstance(image, bytes) for image in images):
        raise ImagelakeError("a sample's image is bytes: open the dataset with decode_images=True, its default")
    sizes = sorted({f"{image.width}×{image.height}" for image in images})
    if len(sizes) > 1:
        raise ImagelakeError(f'one batch has images of {", ".join(sizes)}: open the dataset with batching_method="chunked"')
    return torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2)


class TextEncoder:
    """A frozen text tower: captions -> latents and mask. Qwen3-VL's language model, or T5Gemma's encoder.

    As PRX does it: the caption alone, without a template; the last hidden state, after the final norm; padding on the right.

    model: a folder, or "owner/name" with `revision`, the commit's 40 hex digits: a branch may change under a run.
    max_tokens: what is longer is cut at the end, and counted in `truncated`.
    dtype: of weights and latents, a torch dtype or its name. device: default the current CUDA device, else the CPU.
    group: captions at once, taken by length, so that short ones are not padded to the longest of a large batch.

    width: D, the numbers of a token's latent. captions, truncated: how many were encoded, and how many of them were cut. tokens: how many
        were encoded, padding left out.
    Raises ConfigError for a model that cannot be had or is of another family, and for arguments that are not clear.
    """

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        max_tokens: int = MAX_TOKENS,
        dtype: torch.dtype | str = "bfloat16",
        device: torch.device | str | None = None,
        group: int = 16,
    ) -> None:
        if max_tokens < 1 or group < 1:
            raise ConfigError(f"max_tokens is {max_tokens}, group is {group}: each must be 1 or more")
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
        if not (isinstance(self.dtype, torch.dtype) and self.dtype.is_floating_point):
            raise ConfigError(f"dtype is {dtype!r}: bfloat16, float16 or float32 is needed")
        self.max_tokens, self.group = max_tokens, group
        self.tokenizer, self.tower = textmodel.load(model, revision, self.dtype, self.device)
        self.width = int(self.tower.config.hidden_size)
        self.captions = self.truncated = self.tokens = 0

    @property
    def truncated_share(self) -> float:
        """Share of the captions so far that were cut to max_tokens; 0 before the first."""
        return self.truncated / self.captions if self.captions else 0.0

    @torch.no_grad()  # not inference_mode: its tensors may not be saved for the backward pass of what is trained on them
    def encode(self, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents [B, L, D] and mask, bool [B, L], True on tokens; L is the longest caption's tokens. Latents are 0 beside the tokens.

        An empty caption keeps one token, so that attention over it has something to attend to: all-False rows turn softmax into NaN.
        """
        if not captions:
            raise ConfigError("encode: no captions; a batch has one at least")
        rows = self.token_ids(captions)
        lengths = [len(row) for row in rows]
        latents = torch.zeros(len(rows), max(lengths), self.width, dtype=self.dtype, device=self.device)
        mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).to(self.device)
        by_length = sorted(range(len(rows)), key=lengths.__getitem__)
        for first in range(0, len(rows), self.group):
            places = by_length[first : first + self.group]
            longest = lengths[places[-1]]
            ids = torch.tensor([rows[place] + [self.tokenizer.pad_token_id] * (longest - lengths[place]) for place in places])
            at = torch.tensor(places, device=self.device)
            # A trainer's autocast would give latents of another dtype.
            with torch.autocast(self.device.type, enabled=False):
                found = self.tower(input_ids=ids.to(self.device), attention_mask=mask[at, :longest]).last_hidden_state
            latents[at, :longest] = found.masked_fill(~mask[at, :longest, None], 0)
        return latents, mask

    def token_ids(self, captions: Sequence[str]) -> list[list[int]]:
        """Each caption's tokens, at least one and at most max_tokens of them; counts them."""
        found = self.tokenizer(
            list(captions),
            truncation=True,
            max_length=self.max_tokens,
            # A caption is text: "<|im_end|>" in it is what the picture shows, not the end of a message.
            split_special_tokens=True,
        )
        rows = [row or [self.tokenizer.pad_token_id] for row in found["input_ids"]]
        self.captions += len(rows)
        self.truncated += sum(bool(encoding.overflowing) for encoding in found.encodings)
        self.tokens += sum(map(len, rows))
        return rows
