"""Small text models with random weights, saved as the real ones are: to try the text side of training offline and without a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

HEADS, HEAD_DIM = 4, 32


def make_qwen3_vl(folder: Path, texts: Iterable[str], *, hidden: int = 64, layers: int = 2, tokens: int = 2000) -> Path:
    """A Qwen3-VL checkpoint with a byte-level BPE tokenizer trained on `texts`; returns its folder. `tokens` bounds the vocabulary."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer, bpe.decoder = byte_level, tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=tokens, special_tokens=special, initial_alphabet=byte_level.alphabet(), show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = transformers.Qwen2TokenizerFast(tokenizer_object=bpe, additional_special_tokens=special[1:], padding_side="left")
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in special}
    vision = {
        "depth": 1,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_heads": 4,
        "out_hidden_size": hidden,
        "deepstack_visual_indexes": [0],
    }
    config = transformers.Qwen3VLConfig(
        text_config={
            **_text(hidden, layers, len(tokenizer)),
            "rope_scaling": {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True},
        },
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    return _saved(folder, tokenizer, transformers.Qwen3VLForConditionalGeneration, config)


def make_t5gemma(folder: Path, texts: Iterable[str], *, hidden: int = 64, layers: int = 2, tokens: int = 2000) -> Path:
    """A T5Gemma checkpoint with a BPE tokenizer that starts each text with <bos>; returns its folder."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>"))
    bpe.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.Split("▁", "merged_with_next")
    bpe.decoder = tokenizers.decoders.Replace("▁", " ")
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=tokens, special_tokens=special, show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    tokenizer = transformers.GemmaTokenizerFast(tokenizer_object=bpe)
    module = _text(hidden, layers, len(tokenizer)) | {"sliding_window": 512, "query_pre_attn_scalar": HEAD_DIM, "pad_token_id": 0}
    config = transformers.T5GemmaConfig(encoder=module, decoder=module, vocab_size=len(tokenizer))
    return _saved(folder, tokenizer, transformers.T5GemmaForConditionalGeneration, config)


def _text(hidden: int, layers: int, vocabulary: int) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS // 2,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 4096,
    }


def _saved(folder: Path, tokenizer: Any, model_class: Any, config: Any) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model_class(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
