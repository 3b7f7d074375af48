from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from imagelake.errors import ConfigError, ImagelakeError
from imagelake.loader import CorpusDataset
from imagelake.text import Batch, CaptionCollator, draw_caption
from tests.corpus_fixture import SHAPES, make_corpus, sample

pytestmark = pytest.mark.usefixtures("closed_datasets")

EVEN = {"caption": 1, "caption_alt": 1}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    make_corpus(folder)
    return folder


def drawn(values: dict[str, str], weights: dict[str, float], draws: int = 4000, **options: Any) -> Counter[str]:
    """How often each text was drawn, over ids and epochs."""
    options = {"dropout": 0.0, "seed": 1} | options
    return Counter(draw_caption(values | {"id": f"{n % 400:032x}"}, weights, epoch=n // 400, **options) for n in range(draws))


# Which caption


def test_captions_are_drawn_in_proportion_to_their_weights() -> None:
    found = drawn({"a": "A", "b": "B", "c": "C"}, {"a": 6, "b": 3, "c": 1})
    assert [found[text] / 4000 for text in "ABC"] == pytest.approx([0.6, 0.3, 0.1], abs=0.03)


@pytest.mark.parametrize("lacking", [{}, {"b": ""}, {"b": None}])
def test_what_a_sample_lacks_leaves_its_share_to_the_others(lacking: dict[str, Any]) -> None:
    found = drawn({"a": "A", "c": "C"} | lacking, {"a": 6, "b": 3, "c": 2})
    assert set(found) == {"A", "C"}
    assert found["A"] / 4000 == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("values", [{}, {"a": "", "b": ""}, {"a": "", "b": "not wanted"}])
def test_a_sample_without_a_caption_gets_an_empty_one(values: dict[str, str]) -> None:
    assert set(drawn(values, {"a": 1, "b": 0}, draws=50)) == {""}


def test_a_weight_of_0_leaves_a_column_out() -> None:
    assert set(drawn({"a": "A", "b": "B"}, {"a": 0, "b": 1})) == {"B"}


def test_dropout_empties_its_share_and_leaves_the_other_draws_as_they_are() -> None:
    assert drawn({"a": "A"}, {"a": 1}, dropout=0.1)[""] / 4000 == pytest.approx(0.1, abs=0.02)
    assert set(drawn({"a": "A"}, {"a": 1}, dropout=1)) == {""}
    for number in range(200):
        values = {"a": "A", "b": "B", "id": f"{number:032x}"}
        whole, some = (draw_caption(values, {"a": 1, "b": 1}, dropout=dropout, seed=1, epoch=0) for dropout in (0, 0.5))
        assert some in (whole, "")


def test_dropout_and_draw_are_independent() -> None:
    found = drawn({"a": "A", "b": "B"}, {"a": 1, "b": 1}, dropout=0.5)
    assert found["A"] / (found["A"] + found["B"]) == pytest.approx(0.5, abs=0.04)


def test_a_draw_depends_on_seed_epoch_and_id_and_on_nothing_else() -> None:
    def draws(ids: range, seed: int = 1, epoch: int = 0, weights: dict[str, float] | None = None) -> list[str]:
        random.seed(len(ids) + seed + epoch)  # global state must not matter
        texts = {"a": "A", "b": "B", "image": object()}
        return [draw_caption(texts | {"id": str(n)}, weights or {"a": 1, "b": 1}, dropout=0.2, seed=seed, epoch=epoch) for n in ids]

    first = draws(range(64))
    assert draws(range(64)) == first == draws(range(64), weights={"b": 1, "a": 1})
    assert draws(range(63, -1, -1)) == first[::-1]
    assert all(other != first for other in (draws(range(64), seed=2), draws(range(64), epoch=1), draws(range(64, 128))))


def test_a_draw_stays_the_same_from_version_to_version() -> None:
    found = [draw_caption({"a": "A", "b": "B", "id": str(n)}, {"a": 2, "b": 1}, dropout=0.25, seed=9176, epoch=3) for n in range(16)]
    assert "".join(text or "-" for text in found) == "A-B--AAABAABBABA"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": {"caption": -0.1}}, r"weights\['caption'\] is -0.1: a number from 0 up"),
        ({"weights": {"caption": float("nan")}}, r"weights\['caption'\] is nan: a number from 0 up"),
        ({"weights": {"caption": "1"}}, r"weights\['caption'\] is '1': a number from 0 up"),
        ({"weights": {"caption": 0, "caption_alt": 0}}, "none is above 0"),
        ({"weights": {}}, "none is above 0"),
        ({"weights": {"caption": 1, "caption_vlm": 1}}, "no column 'caption_vlm' in this corpus; its texts are .*caption, caption_alt"),
        ({"weights": {"width": 1}}, "no column 'width'"),
        ({"dropout": 1.5}, "dropout is 1.5: a share from 0 to 1"),
        ({"dropout": float("nan")}, "dropout is nan: a share from 0 to 1"),
    ],
)
def test_weights_and_dropout_that_are_not_clear_are_refused(root: Path, arguments: dict[str, Any], message: str) -> None:
    dataset = CorpusDataset(root, batch_size=1)
    CaptionCollator(dataset)
    with pytest.raises(ConfigError, match=message):
        CaptionCollator(dataset, **arguments)


# Batches


def batches(
    root: Path,
    *,
    workers: int = 0,
    epochs: int = 1,
    state: dict[str, Any] | None = None,
    context: str | None = None,
    persistent: bool = False,
) -> list[list[Batch]]:
    dataset = CorpusDataset(root, batch_size=1, batching_method="chunked", tiers=[512])
    if state:
        dataset.load_state_dict(state)
    collate = CaptionCollator(dataset, EVEN, dropout=0.2)
    loader = DataLoader(dataset, batch_size=1, num_workers=workers, collate_fn=collate, multiprocessing_context=context,
                        persistent_workers=persistent)  # fmt: skip
    return [list(loader) for _ in range(epochs)]


def captions(found: list[Batch]) -> dict[str, str]:
    return {key: text for batch in found for key, text in zip(batch.ids, batch.captions, strict=True)}


@pytest.fixture(scope="module")
def two_epochs(root: Path) -> list[dict[str, str]]:
    return [captions(found) for found in batches(root, epochs=2)]


def test_each_caption_is_one_that_its_sample_has(two_epochs: list[dict[str, str]]) -> None:
    possible = {}
    for bucket, number in (("512/1.000", 14), ("512/1.286", 7)):
        for values in (sample(bucket, n, image=b"") for n in range(number)):
            possible[values["id"]] = {values["caption"], values["caption_alt"], ""}
    for epoch in two_epochs:
        assert set(epoch) == set(possible)
        assert all(text in possible[key] for key, text in epoch.items())
    assert {"", "alt"} < set(two_epochs[0].values())


def test_epochs_draw_anew(two_epochs: list[dict[str, str]]) -> None:
    assert two_epochs[0] != two_epochs[1]


@pytest.mark.parametrize(
    "how",
    [{"workers": 1}, {"workers": 2}, {"workers": 2, "persistent": True}, {"workers": 1, "context": "spawn"}],
    ids=["one worker", "two workers", "workers that stay", "a spawned worker"],
)
def test_any_workers_give_the_same_captions(root: Path, two_epochs: list[dict[str, str]], how: dict[str, Any]) -> None:
    assert [captions(found) for found in batches(root, epochs=2, **how)] == two_epochs


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_epoch_goes_on_with_the_same_captions(root: Path, two_epochs: list[dict[str, str]], workers: int) -> None:
    dataset = CorpusDataset(root, batch_size=1, batching_method="chunked", tiers=[512])
    state = dataset.state_dict(0, from_beginning=True) | {"epoch": 1, "sample_in_epoch": 8}
    (rest,) = batches(root, workers=workers, state=state)
    assert len(rest) == 21 - 8
    assert captions(rest).items() <= two_epochs[1].items()


def test_images_are_stacked_as_they_are(root: Path) -> None:
    dataset = CorpusDataset(root, batch_size=2, shuffle=False)
    samples = [dataset[n] for n in range(2)]
    batch = CaptionCollator(dataset)(samples)
    width, height = SHAPES["512/1.000"]
    assert (batch.images.dtype, tuple(batch.images.shape)) == (torch.uint8, (2, 3, height, width))
    for stacked, values in zip(batch.images, samples, strict=True):
        assert tuple(stacked[:, 5, 9].tolist()) == values["image"].getpixel((9, 5))
    assert batch.captions == [values["caption"] for values in samples]
    assert batch.ids == [values["id"] for values in samples]


def test_width_and_height_are_not_mixed_up(root: Path) -> None:
    dataset = CorpusDataset(root, batch_size=1, shuffle=False)
    image = Image.new("RGB", (576, 448))
    assert tuple(CaptionCollator(dataset)([{"id": "1", "image": image}]).images.shape) == (1, 3, 448, 576)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([b"\xff\xd8"], "open the dataset with decode_images=True"),
        ([Image.new("RGB", (8, 9)), Image.new("RGB", (9, 8))], 'images of 8×9, 9×8: open the dataset with batching_method="chunked"'),
    ],
)
def test_images_that_cannot_be_stacked_say_why(root: Path, images: list[Any], message: str) -> None:
    collate = CaptionCollator(CorpusDataset(root, batch_size=1))
    with pytest.raises(ImagelakeError, match=message):
        collate([{"id": str(n), "image": image} for n, image in enumerate(images)])
