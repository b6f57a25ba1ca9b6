"""What each weight is called: here, by google-research/albert, by Hugging Face.

No TensorFlow is imported: the table is a function of the architecture alone.

Reference:
    The graph of google-research/albert (modeling.py) and `AlbertForPreTraining`
    of Hugging Face transformers; `tests/` hold real models of all three
    against this table.
"""

from typing import NamedTuple

from albert_tf.config import ModelConfig

MODEL_NAME = "albert"  # the first part of every path of ours


class Weight(NamedTuple):
    """A variable of the model.

    Attributes:
        path: Our variable's path.
        shape: Its shape.
        published: Its name in checkpoints of google-research/albert, where it
            has this shape, too.
        hugging_face: Its name in `AlbertForPreTraining`.
        transposed: Whether Hugging Face holds it as `(outputs, inputs)`.
    """

    path: str
    shape: tuple[int, ...]
    published: str
    hugging_face: str
    transposed: bool = False


def list_weights(
    config: ModelConfig, sentence_objective: str = "sop"
) -> list[Weight]:
    """All variables of a model, in no order that matters.

    Args:
        config: The architecture. Where its layers share only a part, or
            nothing, the names elsewhere are empty: see
            `model_weights.ModelWeights.regrouped`.
        sentence_objective: "none" is a model without pooler and sentence
            head.
    """
    embedding_size, hidden_size = config.embedding_size, config.hidden_size
    weights = [
        Weight(
            f"{MODEL_NAME}/embeddings/{table}",
            (rows, embedding_size),
            f"bert/embeddings/{table}",
            f"albert.embeddings.{table}.weight",
        )
        for table, rows in (
            ("word_embeddings", config.vocab_size),
            ("token_type_embeddings", config.type_vocab_size),
            ("position_embeddings", config.max_position_embeddings),
        )
    ]
    weights += _layer_norm(
        "embeddings/layer_norm",
        embedding_size,
        "bert/embeddings/LayerNorm",
        "albert.embeddings.LayerNorm",
    )
    if embedding_size != hidden_size:
        weights += _dense(
            "encoder/embedding_hidden_mapping_in",
            (embedding_size, hidden_size),
            "bert/encoder/embedding_hidden_mapping_in",
            "albert.encoder.embedding_hidden_mapping_in",
        )
    for inner in range(config.inner_group_num):
        for kind in ("attention", "ffn"):
            for owner, number in _owners(config, kind):
                block = _attention if kind == "attention" else _feed_forward
                named = block(
                    config,
                    f"encoder/{owner}_{number}_inner_group_{inner}_{kind}",
                    "bert/encoder/transformer/"
                    f"group_{number}/inner_group_{inner}",
                    f"albert.encoder.albert_layer_groups.{number}"
                    f".albert_layers.{inner}",
                )
                if config.parameter_sharing != "all":
                    named = [
                        w._replace(published="", hugging_face="") for w in named
                    ]
                weights += named
    weights += _dense(
        "masked_lm/transform",
        (hidden_size, embedding_size),
        "cls/predictions/transform/dense",
        "predictions.dense",
    )
    weights += _layer_norm(
        "masked_lm/layer_norm",
        embedding_size,
        "cls/predictions/transform/LayerNorm",
        "predictions.LayerNorm",
    )
    weights.append(
        Weight(
            f"{MODEL_NAME}/masked_lm/output_bias",
            (config.vocab_size,),
            "cls/predictions/output_bias",
            "predictions.bias",
        )
    )
    if sentence_objective != "none":
        weights += _dense(
            "pooler",
            (hidden_size, hidden_size),
            "bert/pooler/dense",
            "albert.pooler",
        )
        weights += [
            Weight(
                f"{MODEL_NAME}/sentence/{ours}",
                shape,
                f"cls/seq_relationship/{ours}",
                f"sop_classifier.classifier.{theirs}",
            )
            for ours, theirs, shape in (
                ("output_weights", "weight", (2, hidden_size)),
                ("output_bias", "bias", (2,)),
            )
        ]
    return weights


def _owners(config: ModelConfig, kind: str) -> list[tuple[str, int]]:
    """Groups or layers that have sublayers of a kind of their own."""
    if config.parameter_sharing in ("all", kind):
        return [("group", i) for i in range(config.num_hidden_groups)]
    return [("layer", i) for i in range(config.num_hidden_layers)]


def _attention(
    config: ModelConfig, path: str, published: str, hugging_face: str
) -> list[Weight]:
    square = (config.hidden_size, config.hidden_size)
    weights = []
    for name in ("query", "key", "value"):
        weights += _dense(
            f"{path}/{name}",
            square,
            f"{published}/attention_1/self/{name}",
            f"{hugging_face}.attention.{name}",
        )
    weights += _dense(
        f"{path}/output",
        square,
        f"{published}/attention_1/output/dense",
        f"{hugging_face}.attention.dense",
    )
    return weights + _layer_norm(
        f"{path}/layer_norm",
        config.hidden_size,
        f"{published}/LayerNorm",
        f"{hugging_face}.attention.LayerNorm",
    )


def _feed_forward(
    config: ModelConfig, path: str, published: str, hugging_face: str
) -> list[Weight]:
    return [
        *_dense(
            f"{path}/intermediate",
            (config.hidden_size, config.intermediate_size),
            f"{published}/ffn_1/intermediate/dense",
            f"{hugging_face}.ffn",
        ),
        *_dense(
            f"{path}/output",
            (config.intermediate_size, config.hidden_size),
            f"{published}/ffn_1/intermediate/output/dense",
            f"{hugging_face}.ffn_output",
        ),
        *_layer_norm(
            f"{path}/layer_norm",
            config.hidden_size,
            f"{published}/LayerNorm_1",
            f"{hugging_face}.full_layer_layer_norm",
        ),
    ]


def _dense(
    path: str, shape: tuple[int, int], published: str, hugging_face: str
) -> list[Weight]:
    path = f"{MODEL_NAME}/{path}"
    return [
        Weight(
            f"{path}/kernel",
            shape,
            f"{published}/kernel",
            f"{hugging_face}.weight",
            transposed=True,
        ),
        Weight(
            f"{path}/bias",
            shape[1:],
            f"{published}/bias",
            f"{hugging_face}.bias",
        ),
    ]


def _layer_norm(
    path: str, size: int, published: str, hugging_face: str
) -> list[Weight]:
    return [
        Weight(
            f"{MODEL_NAME}/{path}/{name}",
            (size,),
            f"{published}/{name}",
            f"{hugging_face}.{theirs}",
        )
        for name, theirs in (("gamma", "weight"), ("beta", "bias"))
    ]
