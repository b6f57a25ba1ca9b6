"""Fine-tuning gives the logits and losses of Hugging Face's models.

Both train 50 steps of AdamW from the same weights on the same batches. Two
replicas train the model of multiple choice here.
"""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.interop.weight_names import list_weights
from tests.helpers.step_program import make_dataset
from tests.helpers.tiny_albert import HEADS
from tests.helpers.tiny_task import LENGTH, make_random_task

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.helpers import paired_training, pytorch_training  # noqa: E402

pytestmark = pytest.mark.interop


CLASSES = {
    "classification": transformers.AlbertForSequenceClassification,
    "regression": transformers.AlbertForSequenceClassification,
    "multiple_choice": transformers.AlbertForMultipleChoice,
    "question_answering": transformers.AlbertForQuestionAnswering,
    "token_classification": transformers.AlbertForTokenClassification,
    "multi_label_classification": transformers.AlbertForSequenceClassification,
}
TWO_REPLICAS = {"strategy": "mirrored", "num_logical_cpus": 2}


def batches_of(task):
    dataset = make_dataset(*task)
    return dataset(tf.distribute.InputContext())


def first_outputs(task, initial):
    """The outputs of our model for the first batch."""
    model = task.objective.make_model()
    for variable in model.variables:
        variable.assign(initial[variable.path])
    batch = next(iter(batches_of(task)))
    return {name: v.numpy() for name, v in model(batch).items()}


def train_in_pytorch(task, initial):
    """Trains with PyTorch; returns each loss, and the first batch's outputs."""
    config = task.config
    model = make_pytorch_model(config, initial)
    recipe = pytorch_training.recipe_of(config)
    parameters = dict(model.named_parameters())
    moments = pytorch_training.zero_moments(parameters)
    losses, first = [], {}
    batches = batches_of(task).take(config.training.num_train_steps)
    for step, batch in enumerate(batches.as_numpy_iterator()):
        model.zero_grad()
        outputs = run_pytorch(model, config.head, batch)
        if not step:
            first = {
                name: outputs[name].detach().numpy()
                for name in ("logits", "start_logits", "end_logits")
                if name in outputs
            }
        outputs.loss.backward()
        losses.append(outputs.loss.item())
        with torch.no_grad():
            pytorch_training.update(parameters, moments, recipe, step)
    return np.array(losses), first


def make_pytorch_model(config, values):
    """Hugging Face's model of the kind, with given weights."""
    head = config.head
    settings = {}
    if head.kind != "question_answering":
        settings["num_labels"] = head.num_outputs
    if head.kind == "multi_label_classification":
        settings["problem_type"] = head.kind
    model = CLASSES[head.kind](
        pytorch_training.make_config(config.model, **settings)
    )
    weights = list_weights(config.model, head=head)
    pytorch_training.assign(model, weights, values)
    # PyTorch would not train the embedding of padding. The plain head scores
    # padding, too, so that its embedding has a gradient.
    model.albert.embeddings.word_embeddings.padding_idx = None
    return model.train()


def run_pytorch(model, head, batch):
    """The outputs of Hugging Face's model, with the loss."""
    shape = (-1, LENGTH)
    if head.kind == "multiple_choice":
        shape = (-1, head.num_choices, LENGTH)
    ids, mask, segments = (
        torch.tensor(batch[name].reshape(shape)).long()
        for name in ("input_ids", "input_mask", "segment_ids")
    )
    names = {"labels": "label"}
    if head.kind == "question_answering":
        names = {
            "start_positions": "start_position",
            "end_positions": "end_position",
        }
    labels = {
        theirs: torch.tensor(batch[ours][:, 0])
        for theirs, ours in names.items()
        if ours in batch
    }
    if head.kind == "multi_label_classification":
        labels = {"labels": torch.tensor(batch["labels"])}
    elif head.kind == "token_classification":
        tags = np.where(batch["word_numbers"], batch["token_labels"], -100)
        labels = {"labels": torch.tensor(tags).long()}
    elif head.kind != "regression":
        labels = {name: values.long() for name, values in labels.items()}
    return model(
        input_ids=ids, attention_mask=mask, token_type_ids=segments, **labels
    )


@pytest.mark.parametrize("kind", CLASSES)
def test_logits_and_fifty_steps_are_those_of_hugging_face(kind, tmp_path):
    changes = TWO_REPLICAS if kind == "multiple_choice" else {}
    task = make_random_task(HEADS[kind], tmp_path, **changes)
    trained = paired_training.train(*task, ("loss",))

    theirs, outputs = train_in_pytorch(task, trained.initial)

    ours = first_outputs(task, trained.initial)
    assert outputs.keys() <= ours.keys()
    for name, values in outputs.items():
        np.testing.assert_allclose(ours[name], values, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(trained.losses[:, 0], theirs, rtol=1e-4)
    # The losses must change, or their agreement would prove little.
    assert theirs[-5:].mean() < 0.8 * theirs[:5].mean()
