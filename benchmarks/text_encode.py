"""Captions to latents, by the batch, as a training step pays for it.

    python benchmarks/text_encode.py [--model FOLDER | --model OWNER/NAME --revision COMMIT] [--batch 64] [--batches 2] [--rounds 3]
                                     [--dtype bfloat16] [--device cuda]

Captions: 4 of 5 have 100 to 200 words, as a captioner is asked to write, the others 3 to 20, as an alt text has; of made words, some 1.4
tokens each with the model made here. Without --model that is a Qwen3-VL with random weights, 2 layers of 256: its figures compare ways on
one machine, and say nothing of the real models' cost.

encode_ms_per_batch, tokens_per_s (padding not counted), truncated_share: TextEncoder, all of `encode`.
padded_ratio: the plain way's seconds over ours, on the same weights: each batch padded to max_tokens and run at once. longest_ratio: the
same for each batch padded to its own longest caption. The ways take turns; a time is a batch's best of the rounds, a ratio is of the sums
over batches. On the CPU one thread is used, and its own time counts. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from demo.textmodels import make_qwen3_vl
from imagelake.text import MAX_TOKENS, TextEncoder


def made_captions(count: int, seed: int) -> list[str]:
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ["".join(np.random.default_rng([0, n]).choice(syllables, n % 3 + 1)) for n in range(4000)]
    random = np.random.default_rng(seed)
    # Few words make up most of a text, as in languages.
    places = (words[min(n, len(words)) - 1] for n in random.zipf(1.2, 200 * count))
    lengths = np.where(random.random(count) < 0.8, random.integers(100, 201, count), random.integers(3, 21, count))
    return [" ".join(next(places) for _ in range(length)) for length in lengths]


@torch.no_grad()
def plain(encoder: TextEncoder, captions: Sequence[str], padding: str) -> torch.Tensor:
    tokens = encoder.tokenizer(list(captions), padding=padding, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
    ids, mask = (tokens[name].to(encoder.device) for name in ("input_ids", "attention_mask"))
    latents: torch.Tensor = encoder.tower(input_ids=ids, attention_mask=mask).last_hidden_state
    return latents


def seconds(encoder: TextEncoder, way: Callable[[], object]) -> float:
    """On a GPU until it is done; on the CPU those of the process, which has one thread, so that other load does not count."""
    if encoder.device.type != "cuda":
        started = time.process_time()
        way()
        return time.process_time() - started
    torch.cuda.synchronize(encoder.device)
    started = time.perf_counter()
    way()
    torch.cuda.synchronize(encoder.device)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--revision")
    parser.add_argument("--batch", type=int, default=64, help="captions a batch")
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--device")
    parser.add_argument("--work", type=Path, default=Path("build/bench-text"))
    args = parser.parse_args()
    model = args.model or str(make_qwen3_vl(args.work / "model", made_captions(500, 1), hidden=256, layers=2, tokens=400))
    encoder = TextEncoder(model, revision=args.revision, dtype=args.dtype, device=args.device)
    if encoder.device.type == "cpu":
        torch.set_num_threads(1)
    batches = [made_captions(args.batch, 2 + number) for number in range(args.batches)]
    encoder.encode(batches[0])  # kernels are chosen and memory is taken on the first call
    encoder.captions = encoder.truncated = encoder.tokens = 0
    rounds = [
        [
            seconds(encoder, lambda: encoder.encode(captions)),  # noqa: B023
            seconds(encoder, lambda: plain(encoder, captions, "max_length")),  # noqa: B023
            seconds(encoder, lambda: plain(encoder, captions, "longest")),  # noqa: B023
        ]
        for captions in batches
        for _ in range(args.rounds)
    ]
    best = np.array(rounds).reshape(args.batches, args.rounds, 3).min(axis=1)
    ours, padded, longest = best.mean(axis=0)
    print(f"{encoder.tokens / encoder.captions:.0f} tokens a caption, {args.batch} captions a batch, {args.dtype} on {encoder.device}")
    for name, found in (("ours", ours), ("padded to max_tokens", padded), ("padded to the longest", longest)):
        print(f"{name:22} {1000 * found:9.1f} ms a batch")
    if args.model is None:
        shutil.rmtree(args.work)
    figures = {
        "encode_ms_per_batch": round(1000 * ours, 2),
        "tokens_per_s": round(encoder.tokens / args.rounds / args.batches / ours),
        "truncated_share": round(encoder.truncated_share, 4),
        "padded_ratio": round(padded / ours, 3),
        "longest_ratio": round(longest / ours, 3),
        "batch": args.batch,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
