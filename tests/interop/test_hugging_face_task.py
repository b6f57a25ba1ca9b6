"""Fine-tuned models are written for Hugging Face, and read from there."""

import json

import pytest

from albert_tf.config import ConvertConfig, TaskHeadConfig
from albert_tf.errors import UserError
from albert_tf.interop import convert, hugging_face
from albert_tf.interop.formats import read_weights
from albert_tf.interop.hugging_face_check import verify
from tests.helpers.hugging_face_folder import assert_equal, change_config
from tests.helpers.tiny_albert import TINY, random_weights

HEADS = {
    "classification": TaskHeadConfig("classification", ("no", "yes", "maybe")),
    "regression": TaskHeadConfig("regression"),
    "multiple_choice": TaskHeadConfig("multiple_choice", num_choices=4),
    "question_answering": TaskHeadConfig("question_answering"),
}
CLASSES = {
    "classification": "AlbertForSequenceClassification",
    "regression": "AlbertForSequenceClassification",
    "multiple_choice": "AlbertForMultipleChoice",
    "question_answering": "AlbertForQuestionAnswering",
}


@pytest.fixture(params=HEADS)
def weights(request):
    return random_weights(TINY, "none", head=HEADS[request.param])


def test_a_fine_tuned_model_is_written_and_read_bit_for_bit(weights, tmp_path):
    hugging_face.write(weights, str(tmp_path))

    read = hugging_face.read(str(tmp_path))

    assert_equal(read, weights)
    assert read.head == weights.head
    assert read.sentence_objective == "none"
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["architectures"] == [CLASSES[weights.head.kind]]
    if weights.head.labels:
        names = {"0": "no", "1": "yes", "2": "maybe"}
        assert stored["id2label"] == names
    card = (tmp_path / "README.md").read_text()
    assert "fill-mask" not in card
    assert "fine-tuned with albert_tf" in card


@pytest.mark.interop
def test_transformers_loads_a_fine_tuned_model(weights, tmp_path):
    """With no missing or unknown weight, and with the same logits."""
    hugging_face.write(weights, str(tmp_path))
    differences = verify(weights, str(tmp_path))
    span = {"start_logits", "end_logits"}
    has_spans = weights.head.kind == "question_answering"
    assert set(differences) == (span if has_spans else {"logits"})
    assert max(differences.values()) < 1e-5


def test_a_pooler_of_old_transformers_is_ignored(tmp_path):
    """A regression model, read as question answering, has an unused pooler,
    which the error does not name."""
    head = HEADS["regression"]
    hugging_face.write(random_weights(TINY, "none", head=head), str(tmp_path))
    change_config(tmp_path, architectures=["AlbertForQuestionAnswering"])
    with pytest.raises(
        UserError, match=r"qa_outputs\.weight is missing"
    ) as error:
        hugging_face.read(str(tmp_path))
    assert "albert.pooler" not in str(error.value)


def test_a_classifier_into_several_classes_at_once_is_refused(tmp_path):
    """Its logits are not those of a softmax."""
    head = HEADS["classification"]
    hugging_face.write(random_weights(TINY, "none", head=head), str(tmp_path))
    change_config(tmp_path, problem_type="multi_label_classification")
    with pytest.raises(UserError, match="problem_type must be single_label"):
        hugging_face.read(str(tmp_path))


def test_the_beam_head_has_no_class_in_transformers(tmp_path):
    head = TaskHeadConfig("question_answering", squad_head="beam")
    with pytest.raises(UserError, match=r"squad_head=beam.*--squad_head=plain"):
        hugging_face.write(
            random_weights(TINY, "none", head=head), str(tmp_path)
        )


@pytest.fixture
def folder_of_transformers(tmp_path):
    """A multiple-choice model without number of choices, and its path."""
    head = HEADS["multiple_choice"]
    weights = random_weights(TINY, "none", head=head)
    hugging_face.write(weights, str(tmp_path / "hf"))
    path = tmp_path / "hf" / "config.json"
    stored = json.loads(path.read_text())
    del stored["num_choices"]
    path.write_text(json.dumps(stored))
    return tmp_path / "hf"


def test_the_number_of_choices_is_a_setting_of_the_conversion(
    folder_of_transformers, tmp_path, caplog
):
    """transformers does not store it."""

    def num_choices(name, **settings):
        run = str(tmp_path / name)
        source = str(folder_of_transformers)
        convert.convert(ConvertConfig(from_=source, to=run, **settings))
        return read_weights(run).head.num_choices

    assert num_choices("a") == 2
    assert "will take 2. Set --num_choices" in caplog.text
    caplog.clear()
    assert num_choices("b", num_choices=5) == 5
    change_config(folder_of_transformers, num_choices=3)
    assert num_choices("c") == 3
    assert "--num_choices" not in caplog.text


def test_the_number_of_choices_is_refused_for_other_models(tmp_path):
    head = HEADS["classification"]
    hugging_face.write(random_weights(TINY, "none", head=head), str(tmp_path))
    with pytest.raises(UserError, match=r"num_choices must be omitted unless"):
        convert.convert(
            ConvertConfig(
                from_=str(tmp_path), to=str(tmp_path / "run"), num_choices=3
            )
        )


def test_a_folder_becomes_a_run_and_back(weights, tmp_path):
    folder, run, back = (tmp_path / name for name in ("hf", "run", "back"))
    hugging_face.write(weights, str(folder))

    convert.convert(ConvertConfig(from_=str(folder), to=str(run)))
    convert.convert(
        ConvertConfig(from_=str(run), to=str(back), to_format="hugging_face")
    )

    read = read_weights(str(run))
    assert_equal(read, weights)
    assert read.head == weights.head
    assert_equal(read_weights(str(back)), weights)
    for source, other in ((run, "hugging_face"), (folder, "run")):
        message = f"cannot be written as published.*--to_format={other}"
        with pytest.raises(UserError, match=message):
            convert.convert(
                ConvertConfig(
                    from_=str(source),
                    to=str(tmp_path / "google"),
                    to_format="auto" if source == run else "published",
                )
            )
