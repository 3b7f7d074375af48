"""Loads the text tower of a Hugging Face model: its tokenizer, and the part of it that makes latents of tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from imagelake.errors import ConfigError


class Family(NamedTuple):
    """The class that a model type's checkpoints are saved from, and where the text tower lies in it."""

    model_class: str
    tower: str


# Loading by the class that was saved: a base class may take none of the weights, and say so in a warning only.
FAMILIES: Mapping[str, Family] = {
    "qwen3_vl": Family("Qwen3VLForConditionalGeneration", "model.language_model"),
    "t5gemma": Family("T5GemmaForConditionalGeneration", "model.encoder"),
}
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def load(model: str, revision: str | None, dtype: torch.dtype, device: torch.device) -> tuple[Any, Any]:
    """The tokenizer (padding and truncation on the right) and the text tower, frozen, in evaluation mode, on `device`.

    Raises ConfigError for a model that is not there, is of an unknown family, or lacks some of the tower's weights.
    """
    import transformers
    from safetensors import SafetensorError

    place = located(model, revision)
    try:
        described, _ = transformers.PretrainedConfig.get_config_dict(model, **place)
        family = family_of(model, described.get("model_type"))
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, padding_side="right", truncation_side="right", **place)
        whole, report = getattr(transformers, family.model_class).from_pretrained(
            model, dtype=dtype, use_safetensors=True, output_loading_info=True, **place
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"model {model}: it can't be loaded: {str(error).strip().splitlines()[0]}") from error
    missing = sorted(name for name in report["missing_keys"] if name.startswith(family.tower + "."))
    if missing:
        raise ConfigError(f"model {model}: {len(missing)} weights of its text tower are missing, {missing[0]} first; fetch it again")
    if not tokenizer.is_fast or tokenizer.pad_token_id is None:
        raise ConfigError(f"model {model}: a tokenizer.json with a padding token is needed beside it")
    tower = whole.get_submodule(family.tower)
    tower.config.use_cache = False
    return tokenizer, tower.eval().requires_grad_(False).to(device)


def located(model: str, revision: str | None) -> dict[str, Any]:
    """Keywords that make from_pretrained read this folder alone, or this commit alone."""
    if Path(model).is_dir():
        if revision is not None:
            raise ConfigError(f"model {model} is a folder, which has no revision {revision!r}; leave it out")
        return {"local_files_only": True}
    if not _HUB_NAME.fullmatch(model):
        raise ConfigError(f"model {model!r} is neither a folder that is there nor an owner/name of the hub")
    if revision is None or not _COMMIT.fullmatch(revision):
        raise ConfigError(
            f"model {model}: pin it by revision, the 40 hex digits of a commit (not {revision!r}), or name a folder that is there"
        )
    return {"revision": revision}


def family_of(model: str, model_type: object) -> Family:
    """Raises ConfigError for a type that is not one of FAMILIES, or that the installed transformers lacks."""
    import transformers

    family = FAMILIES.get(str(model_type))
    if family is None:
        what = f"is of type {model_type!r}" if model_type else "has no config.json that names its type"
        raise ConfigError(f"model {model} {what}; text towers are known of {', '.join(FAMILIES)}")
    if getattr(transformers, family.model_class, None) is None:
        raise ConfigError(
            f"model {model} needs {family.model_class}, which transformers {transformers.__version__} has not; install a newer one below 5"
        )
    return family
