from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from imagelake import config
from imagelake.config import Config
from imagelake.errors import ConfigError
from imagelake.paths import CONF


def leaves(values: dict[str, object], model: type[BaseModel] = Config, prefix: str = "") -> dict[str, object]:
    """Dotted key -> value of everything that is no section of the model."""
    found: dict[str, object] = {}
    for name, value in values.items():
        section = model.model_fields[name].annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            assert isinstance(value, dict)
            found |= leaves(value, section, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def test_base_yaml_has_every_key_with_the_models_default() -> None:
    base = yaml.safe_load((CONF / "base.yaml").read_text(encoding="utf-8"))
    assert leaves(base) == leaves(Config().model_dump(mode="json"))


def test_known_keys_are_the_sections_and_the_leaves() -> None:
    known = set(config.known_keys())
    assert set(leaves(Config().model_dump())) < known
    assert {"filter", "filter.min_pixels", "sources"} <= known


@pytest.mark.parametrize("name", ["local.yaml", "cluster.yaml"])
def test_the_environments_that_we_ship_load(name: str) -> None:
    cfg = config.load([CONF / name])
    assert (CONF / cfg.spark.properties).is_file()


def test_later_files_and_overrides_win(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("filter: {min_pixels: 10, min_side: 3}\nlake: {root: /somewhere}\n")
    cfg = config.load([file], ["filter.min_pixels=20"])
    assert (cfg.filter.min_pixels, cfg.filter.min_side, cfg.lake.root) == (20, 3, "/somewhere")
    assert cfg.corpus.root == "build/corpus"


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("")
    assert config.load([file]) == config.load()


def test_set_takes_lists_nulls_and_text_with_signs() -> None:
    cfg = config.load(overrides=["geometry.tiers=[1024,512]", "filter.licenses=[CC0-1.0]", "lake.root=/data/a=b", "filter.min_side=null"])
    assert cfg.geometry.tiers == (512, 1024)
    assert cfg.filter.licenses == ("CC0-1.0",)
    assert cfg.lake.root == "/data/a=b"
    assert cfg.filter.min_side is None


@pytest.mark.parametrize("override", ["filter.min_pixels", "=3", ""])
def test_set_without_key_or_value_is_explained(override: str) -> None:
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        config.load(overrides=[override])


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("filter.min_pixel=3", "filter.min_pixels"),
        ("fliter.min_pixels=3", "filter.min_pixels"),
        ("curate.backgroud=3", "curate.background"),
        ("lake.rot=x", "lake.root"),
        ("sorces=x", "sources"),
        ("min_pixels=3", "filter.min_pixels"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(override: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(overrides=[override])
    section, _, _ = override.partition("=")[0].partition(".")
    # A section that is misspelt is the fault, whatever stands in it.
    expected = nearest if section in Config.model_fields or "." not in override else nearest.split(".")[0]
    assert section in str(caught.value)
    assert f"did you mean '{expected}'?" in str(caught.value)


def test_an_unknown_key_like_nothing_lists_its_section() -> None:
    with pytest.raises(ConfigError, match=r"unknown configuration key 'filter\.zzzzqqqq'.*min_pixels"):
        config.load(overrides=["filter.zzzzqqqq=1"])


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("filter.min_pixels=many", "filter.min_pixels"),
        ("filter.min_pixels=-1", "filter.min_pixels"),
        ("filter.max_aspect_ratio=0.5", "filter.max_aspect_ratio"),
        ("geometry.tiers=[300]", "geometry.tiers"),
        ("geometry.tiers=[]", "geometry.tiers"),
        ("geometry.out_of_range=stretch", "geometry.out_of_range"),
        ("curate.background=[0,0,300]", "curate.background"),
        ("curate.background=[0,0]", "curate.background"),
        ("curate.jpeg_quality=0", "curate.jpeg_quality"),
        ("caption.column=image", "caption.column"),
        ("caption.engine=oracle", "caption.engine"),
        ("export.shard_bytes=4294967296", "export.shard_bytes"),
        ("verify.workers=0", "verify.workers"),
        ("filter=3", "filter"),
    ],
)
def test_a_bad_value_names_its_key(override: str, key: str) -> None:
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        config.load(overrides=[override])


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(overrides=["filter.min_pixels=many", "verify.workers=0"])
    assert "filter.min_pixels" in str(caught.value)
    assert "verify.workers" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such configuration file"):
        config.load([tmp_path / "nowhere.yaml"])


@pytest.mark.parametrize("text", ["filter: [", "- a\n- b\n", "\x00"])
def test_a_file_that_is_no_configuration_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"odd\.yaml"):
        config.load([file])


def test_a_configuration_cannot_be_changed() -> None:
    cfg = config.load()
    with pytest.raises(ValidationError):
        cfg.filter.min_pixels = 3  # type: ignore[misc]
    with pytest.raises(ValidationError):
        cfg.sources = "x"  # type: ignore[misc]


def test_the_digest_is_the_same_for_the_same_values(tmp_path: Path) -> None:
    file = tmp_path / "same.yaml"
    file.write_text("filter:\n  min_pixels: 147456\nverify: {workers: 2}\n")
    assert config.load([file]).digest() == config.load().digest() == Config().digest()
    # Stored in every run row: a change of its meaning would make every stage run again.
    assert len(Config().digest()) == 16
    assert config.digest_of({"b": [1, "ü"], "a": None}) == config.digest_of({"a": None, "b": [1, "ü"]}) == "8d1f3edceb9d452c"


@pytest.mark.parametrize("override", ["filter.min_pixels=147457", "lake.root=other", "geometry.tiers=[512]", "filter.licenses=[]"])
def test_every_value_changes_the_digest(override: str) -> None:
    assert config.load(overrides=[override]).digest() != config.load().digest()


def test_the_digest_of_a_section_sees_that_section_only() -> None:
    plain, changed = config.load(), config.load(overrides=["filter.min_pixels=3"])
    assert plain.digest(["dedup"]) == changed.digest(["dedup"])
    assert plain.digest(["filter"]) != changed.digest(["filter"])


def test_single_spark_properties_can_be_set_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "spark.yaml"
    file.write_text("spark:\n  conf:\n    spark.driver.memory: 8g\n    spark.sql.shuffle.partitions: '64'\n")
    assert config.load([file]).spark.conf == {"spark.driver.memory": "8g", "spark.sql.shuffle.partitions": "64"}


def test_spark_properties_are_set_by_their_dotted_names() -> None:
    cfg = config.load(overrides=["spark.conf.spark.driver.memory=8g", "spark.conf.spark.speculation=true"])
    assert cfg.spark.conf == {"spark.driver.memory": "8g", "spark.speculation": "true"}


def test_what_is_not_yaml_is_named_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("filter:\n  min_pixels: 1: 2\nsources: x")
    with pytest.raises(ConfigError, match=r"c\.yaml: not YAML: line 2, column \d+: "):
        config.load([tmp_path / "c.yaml"])
    with pytest.raises(ConfigError, match=r"--set filter\.licenses=\[: not YAML: line \d+"):
        config.load(overrides=["filter.licenses=["])
