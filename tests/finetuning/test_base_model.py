"""The model that a run starts from."""

import numpy as np

from albert_tf.finetuning import base_model
from albert_tf.interop.formats import read_weights
from tests.helpers import tiny_task
from tests.helpers.conversion import (
    converted,
    make_archive,
    write_published,
)


def test_a_run_starts_from_a_model_of_any_format(tiny_tasks, tmp_path):
    """With the same weights, architecture and vocabulary."""
    model = tiny_tasks / "model"
    published, folder = tmp_path / "published", tmp_path / "folder"
    write_published(read_weights(str(model)), published)
    converted(model, folder, "hugging_face")
    archive = make_archive(tmp_path / "model.tar.gz", published)

    first, *others = (
        base_model.find(
            tiny_task.make_config(
                "classification",
                tiny_tasks,
                tmp_path / "run",
                init_checkpoint=str(source),
            ),
            [str(tmp_path / "run")],
        )
        for source in (model, published, archive, folder)
    )

    for found in others:
        assert found.config == first.config
        assert found.describe_vocabulary() == first.describe_vocabulary()
        for path, values in first.weights.values.items():
            np.testing.assert_array_equal(found.weights.values[path], values)
