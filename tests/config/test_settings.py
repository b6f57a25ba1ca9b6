import dataclasses

import pytest

from albert_tf.config import (
    PretrainingConfig,
    setting,
    settings_by_path,
)
from data_prep.config import RecordsConfig, TokenizerConfig

# Settings of builds whose change leaves the result as it is.
# tests/runs/test_directory.py tests which changes of a run are refused.
NO_EFFECT = {
    RecordsConfig: """input_file tfds tfds_split tfds_data_dir output_dir
        spm_model_file num_workers runner dask_scheduler scratch_dir
        overwrite""",
    TokenizerConfig: "input_file model_prefix overwrite",
}


@pytest.mark.parametrize("config_class", NO_EFFECT)
def test_a_build_is_described_by_the_settings_of_its_result(config_class):
    """By all others, in the order of the fields, which PREFIX.json keeps."""
    described = config_class().result_settings()
    names = [field.name for field in dataclasses.fields(config_class)]
    assert list(described) == [name for name in names if name in described]
    if config_class is RecordsConfig:
        packed = RecordsConfig(packing="best_fit", max_examples_per_row=3)
        # Apart from the packing, the build has the same examples.
        assert packed.result_settings() == described
        size = RecordsConfig().packing_settings()["max_examples_per_row"]
        assert size == 1
        described |= packed.packing_settings()
    no_effect = set(NO_EFFECT[config_class].split())
    assert described.keys() == set(names) - no_effect


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
