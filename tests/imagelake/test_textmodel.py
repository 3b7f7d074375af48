from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from demo.textmodels import make_qwen3_vl, make_t5gemma
from imagelake.errors import ConfigError
from imagelake.text import TextEncoder

TEXTS = ["a brown dog on grass", "two cats sleep on a red sofa beside a window", "rain", "a bicycle leans against a brick wall at noon"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def qwen3_vl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3_vl(tmp_path_factory.mktemp("qwen3_vl"), TEXTS)


@pytest.fixture(scope="module")
def t5gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_t5gemma(tmp_path_factory.mktemp("t5gemma"), TEXTS)


@pytest.fixture(params=["qwen3_vl", "t5gemma"])
def model(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue(request.param)
    return folder


def encoder_of(folder: Path, **options: Any) -> TextEncoder:
    return TextEncoder(str(folder), **{"dtype": "float32", "device": "cpu"} | options)


def reference(folder: Path, text: str) -> torch.Tensor:
    """The last hidden state of one caption by itself, [L, D], by the whole model as transformers runs it."""
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    if "qwen" in folder.name:
        run = transformers.Qwen3VLForConditionalGeneration.from_pretrained(folder).eval().model
    else:
        run = transformers.T5GemmaForConditionalGeneration.from_pretrained(folder).eval().get_encoder()
    with torch.no_grad():
        latents: torch.Tensor = run(**tokens).last_hidden_state[0]
    return latents


def test_latents_are_the_last_hidden_state_of_each_caption_by_itself(model: Path) -> None:
    latents, mask = encoder_of(model).encode(TEXTS)
    assert latents.shape == (4, mask.shape[1], 64) and latents.dtype == torch.float32
    assert mask.dtype == torch.bool and mask.shape == latents.shape[:2]
    for text, row, valid in zip(TEXTS, latents, mask, strict=True):
        expected = reference(model, text)
        assert int(valid.sum()) == len(expected)
        torch.testing.assert_close(row[: len(expected)], expected, atol=1e-5, rtol=1e-5)


def test_padding_is_on_the_right_and_its_latents_are_0(model: Path) -> None:
    latents, mask = encoder_of(model).encode(["rain", TEXTS[1]])
    short = int(mask[0].sum())
    assert 0 < short < mask.shape[1]
    assert mask[0].tolist() == [True] * short + [False] * (mask.shape[1] - short) and mask[1].all()
    assert not latents[0, short:].any() and latents[0, :short].any(dim=1).all()


@pytest.mark.parametrize("group", [1, 2, 3])
def test_captions_in_groups_have_the_latents_of_all_at_once(model: Path, group: int) -> None:
    texts = [TEXTS[1], "rain", "", TEXTS[3], "a dog", TEXTS[0], "rain"]
    expected, expected_mask = encoder_of(model).encode(texts)
    latents, mask = encoder_of(model, group=group).encode(texts)
    assert torch.equal(mask, expected_mask)
    torch.testing.assert_close(latents, expected, atol=1e-5, rtol=1e-5)


def test_a_group_is_padded_to_its_own_longest_caption(model: Path) -> None:
    encoder, shapes = encoder_of(model, group=2), []
    encoder.tower.register_forward_pre_hook(lambda _, args, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True)
    texts = [TEXTS[1], "rain", TEXTS[3], ""]
    lengths = sorted(len(row) for row in encoder.token_ids(texts))
    encoder.encode(texts)
    assert shapes == [(2, lengths[1]), (2, lengths[3])]


@pytest.mark.parametrize("texts", [[""], ["", ""], ["rain", ""]])
def test_an_empty_caption_keeps_one_token_to_attend_to(model: Path, texts: list[str]) -> None:
    latents, mask = encoder_of(model).encode(texts)
    assert mask[-1].tolist() == [True] + [False] * (mask.shape[1] - 1)
    assert latents.isfinite().all()


def test_what_is_too_long_is_cut_at_the_end_and_counted(model: Path) -> None:
    encoder = encoder_of(model)
    tokens = encoder.token_ids([TEXTS[1]])[0]
    exact, less = (encoder_of(model, max_tokens=len(tokens) - cut) for cut in (0, 1))
    for counted, truncated in ((exact, 0), (less, 1)):
        latents, _ = counted.encode([TEXTS[1], "rain"])
        assert latents.shape[1] == counted.max_tokens
        assert (counted.captions, counted.truncated, counted.truncated_share) == (2, truncated, truncated / 2)
    assert less.token_ids([TEXTS[1]]) == [tokens[:-1]]
    assert (less.captions, less.truncated) == (3, 2)
    assert encoder_of(model).truncated_share == 0


def test_tokens_are_counted_without_padding(model: Path) -> None:
    encoder = encoder_of(model)
    _, mask = encoder.encode(TEXTS)
    assert encoder.tokens == int(mask.sum()) < mask.numel()


def test_names_of_special_tokens_in_a_caption_are_text(model: Path) -> None:
    encoder = encoder_of(model)
    special = set(encoder.tokenizer.all_special_ids) - {encoder.tokenizer.bos_token_id, encoder.tokenizer.unk_token_id}
    (row,) = encoder.token_ids([f"a {' '.join(encoder.tokenizer.all_special_tokens)} dog"])
    assert special and special.isdisjoint(row)
    assert row.count(encoder.tokenizer.bos_token_id) == (1 if encoder.tokenizer.bos_token == "<bos>" else 0)


def test_latents_can_be_trained_on_but_the_tower_is_frozen(model: Path) -> None:
    encoder = encoder_of(model)
    assert not encoder.tower.training
    assert not any(weight.requires_grad for weight in encoder.tower.parameters())
    latents, _ = encoder.encode(TEXTS)
    assert not latents.requires_grad
    head = torch.nn.Linear(64, 1)
    head(latents).sum().backward()
    assert head.weight.grad is not None and head.weight.grad.any()


def test_latents_have_the_dtype_asked_for_within_autocast_too(model: Path) -> None:
    plain, _ = encoder_of(model).encode(TEXTS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        within, _ = encoder_of(model).encode(TEXTS)
    assert torch.equal(plain, within)
    half = encoder_of(model, dtype=torch.bfloat16)
    assert half.encode(TEXTS)[0].dtype == torch.bfloat16
    assert next(half.tower.parameters()).dtype == torch.bfloat16


# Models that can't be had


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "Qwen/Qwen3-VL-2B-Instruct"}, r"pin it by revision, the 40 hex digits of a commit \(not None\)"),
        ({"model": "Qwen/Qwen3-VL-2B-Instruct", "revision": "main"}, r"pin it by revision.*\(not 'main'\)"),
        ({"model": "/no/such/folder", "revision": COMMIT}, "neither a folder that is there nor an owner/name"),
        ({"model": "FOLDER", "revision": COMMIT}, "is a folder, which has no revision"),
        ({"model": "FOLDER", "max_tokens": 0}, "max_tokens is 0"),
        ({"model": "FOLDER", "group": 0}, "group is 0"),
        ({"model": "FOLDER", "dtype": "int8"}, "dtype is 'int8': bfloat16, float16 or float32"),
        ({"model": "FOLDER", "dtype": "fp32"}, "dtype is 'fp32': bfloat16, float16 or float32"),
    ],
)
def test_arguments_that_are_not_clear_are_refused(qwen3_vl: Path, arguments: dict[str, Any], message: str) -> None:
    arguments["model"] = arguments["model"].replace("FOLDER", str(qwen3_vl))
    with pytest.raises(ConfigError, match=message):
        TextEncoder(**arguments)


def edited_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def without_a_weight(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    del weights["model.language_model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path, {"format": "pt"})


def cut_in_half(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: edited_config(folder, model_type="bert"), "is of type 'bert'; text towers are known of qwen3_vl, t5gemma"),
        (lambda folder: (folder / "config.json").unlink(), "has no config.json that names its type"),
        (lambda folder: (folder / "model.safetensors").unlink(), "it can't be loaded: .*model.safetensors"),
        (cut_in_half, "it can't be loaded"),
        (without_a_weight, "1 weights of its text tower are missing, model.language_model.layers.1.mlp.up_proj.weight first"),
    ],
)
def test_a_model_that_cannot_be_had_says_why_in_one_line(
    tmp_path: Path, qwen3_vl: Path, harm: Callable[[Path], object], message: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(qwen3_vl, folder)
    encoder_of(folder)
    harm(folder)
    with pytest.raises(ConfigError, match=message) as caught:
        encoder_of(folder)
    assert "\n" not in str(caught.value)


def test_a_transformers_without_the_model_says_what_is_needed(t5gemma: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.T5GemmaForConditionalGeneration", None)
    with pytest.raises(ConfigError, match=r"needs T5GemmaForConditionalGeneration, which transformers .* has not"):
        encoder_of(t5gemma)


def test_a_hub_model_is_asked_for_by_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def get_config_dict(name: str, **place: Any) -> Any:
        asked.append({"name": name} | place)
        raise OSError("no network in a test\nand more")

    monkeypatch.setattr("transformers.PretrainedConfig.get_config_dict", get_config_dict)
    with pytest.raises(ConfigError, match=r"model owner/name: it can't be loaded: no network in a test$"):
        TextEncoder("owner/name", revision=COMMIT)
    assert asked == [{"name": "owner/name", "revision": COMMIT}]
