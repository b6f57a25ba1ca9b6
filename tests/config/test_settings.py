import dataclasses

import pytest

from albert_tf.config import (
    FinetuningConfig,
    PretrainingConfig,
    setting,
    settings_by_path,
)
from data_prep.config import RecordsConfig, TokenizerConfig

# Commands whose work can be continued or found complete.
CONTINUED = (
    PretrainingConfig,
    FinetuningConfig,
    RecordsConfig,
    TokenizerConfig,
)

# What `affects` must declare. tests/runs/test_directory.py tests which changes
# of a run are refused.
BUILDS = {
    RecordsConfig: {
        "result": """input_format text_field sentence_breaker language
            on_bad_utf8 do_lower_case max_seq_length max_predictions_per_seq
            packing max_examples_per_row masked_lm_prob ngram
            sentence_objective masking deduplicate
            short_seq_prob dupe_factor holdout_fraction num_shards
            num_eval_shards seed""",
        "nothing": """input_file tfds tfds_split tfds_data_dir output_dir
            spm_model_file num_workers runner dask_scheduler scratch_dir
            overwrite""",
    },
    TokenizerConfig: {
        "result": """input_format tfds tfds_split tfds_data_dir text_field
            sentence_breaker language on_bad_utf8 do_lower_case vocab_size
            vocabulary_kind character_coverage byte_fallback
            input_sentence_size input_characters holdout_fraction""",
        "nothing": "input_file model_prefix overwrite",
    },
}


@pytest.mark.parametrize("config_class", CONTINUED)
def test_every_setting_declares_what_its_change_affects(config_class):
    undeclared = [
        name
        for name, field in settings_by_path(config_class).items()
        if field.metadata["affects"] is None
    ]
    assert not undeclared


@pytest.mark.parametrize(
    ("config_class", "affects"),
    [(build, kind) for build, kinds in BUILDS.items() for kind in kinds],
)
def test_settings_of_builds_affect_the_result_or_nothing(config_class, affects):
    declared = {
        name
        for name, field in settings_by_path(config_class).items()
        if field.metadata["affects"] == affects
    }
    assert declared == set(BUILDS[config_class][affects].split())


@pytest.mark.parametrize("config_class", BUILDS)
def test_a_build_is_described_by_the_settings_of_its_result(config_class):
    """In the order of the fields, which PREFIX.json keeps."""
    described = config_class().result_settings()
    if config_class is RecordsConfig:
        packed = RecordsConfig(packing="best_fit", max_examples_per_row=3)
        # Apart from the packing, the build has the same examples.
        assert packed.result_settings() == described
        assert RecordsConfig().packing_settings() == {}
        described |= packed.packing_settings()
    wanted = BUILDS[config_class]["result"].split()
    names = [f.name for f in dataclasses.fields(config_class)]
    assert sorted(described) == sorted(wanted)
    in_order = [n for n in names if n in config_class().result_settings()]
    assert list(config_class().result_settings()) == in_order


def test_all_settings_of_the_architecture_affect_the_model():
    settings = settings_by_path(PretrainingConfig)
    affecting = {
        name
        for name, field in settings.items()
        if field.metadata["affects"] == "model"
    }
    architecture = {name for name in settings if name.startswith("model.")}
    assert affecting == architecture | {"training.sentence_objective"}


def test_an_unknown_declaration_is_refused():
    with pytest.raises(ValueError, match="affects must be one of"):
        setting(1, "Help.", affects="results")
