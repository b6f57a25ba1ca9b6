"""What a served model answers: the functions of a SavedModel by name.

`export_saved_model` describes them. All call one function, so that the model's
graph is in the file once.
"""

import tensorflow as tf

from albert_tf.modeling.pretrainer import AlbertPretrainer
from albert_tf.records.features import MASK_ID
from albert_tf.serving.text_tokenizer import PackedTexts, TextTokenizer, pack

# By objective, the signature and its two answers, in the order of labels.
SENTENCE_SIGNATURES = {
    "sop": ("sentence_order", ("in_order", "swapped")),
    "nsp": ("next_sentence", ("next", "random")),
}

# Of a signature, the variant that takes text, and of that one, two texts.
TEXT_SUFFIX = "_text"
PAIR_SUFFIX = "_text_pair"

Signatures = dict[str, tf.types.experimental.PolymorphicFunction]
Answers = dict[str, tf.Tensor]


def make_signatures(
    pretrainer: AlbertPretrainer,
    top_k: int,
    max_seq_length: int,
    text_tokenizer: TextTokenizer | None = None,
) -> Signatures:
    """The serving functions by name.

    Args:
        pretrainer: The model, built and restored.
        top_k: Pieces answered for each mask.
        max_seq_length: Pieces after which text is cut off.
        text_tokenizer: Its vocabulary; None leaves out what takes text.
    """
    model = _ServedModel(pretrainer, top_k)
    signatures = _make_id_signatures(model)
    if text_tokenizer is not None:
        signatures |= _make_text_signatures(
            model, text_tokenizer, max_seq_length
        )
    return signatures


class _ServedModel:
    """The model and what is read off its outputs.

    Args:
        pretrainer: The model, built and restored.
        top_k: Pieces answered for each mask.
    """

    def __init__(self, pretrainer: AlbertPretrainer, top_k: int) -> None:
        self._pretrainer = pretrainer
        self._top_k = top_k
        self._answers: tuple[str, ...]
        self.sentence_signature, self._answers = SENTENCE_SIGNATURES.get(
            pretrainer.sentence_objective, ("", ())
        )
        max_length = pretrainer.config.max_position_embeddings

        @tf.function(input_signature=[_ids("")] * 3)
        def forward(
            input_ids: tf.Tensor,
            input_mask: tf.Tensor,
            segment_ids: tf.Tensor,
        ) -> Answers:
            tf.debugging.assert_less_equal(
                tf.shape(input_ids)[1],
                max_length,
                f"input_ids must be at most {max_length} pieces long",
            )
            outputs = pretrainer(
                {
                    "input_ids": input_ids,
                    "input_mask": input_mask,
                    "segment_ids": segment_ids,
                }
            )
            return {k: tf.cast(v, tf.float32) for k, v in outputs.items()}

        self._forward = forward

    def encode(self, packed: PackedTexts) -> Answers:
        """`sequence_output` and, where there is one, `pooled_output`."""
        outputs = self._forward(*packed)
        return {
            name: outputs[name]
            for name in ("sequence_output", "pooled_output")
            if name in outputs
        }

    def fill_mask(
        self, packed: PackedTexts, positions: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Ids of the likeliest pieces and their log probabilities.

        Args:
            packed: Texts.
            positions: int32, `(batch, predictions)`.

        Returns:
            int32 and float32, `(batch, predictions, top_k)`.
        """
        hidden = self._forward(*packed)["sequence_output"]
        logits = self._pretrainer.masked_lm(
            tf.gather(hidden, positions, batch_dims=1),
            self._pretrainer.embeddings.word_embeddings,
        )
        top = tf.math.top_k(tf.nn.log_softmax(logits), self._top_k)
        return top.indices, top.values

    def classify_sentences(self, packed: PackedTexts) -> Answers:
        """The two probabilities by name: float32, `(batch,)`."""
        outputs = self._forward(*packed)
        probabilities = tf.nn.softmax(outputs["sentence_logits"])
        columns = tf.unstack(probabilities, axis=-1)
        return dict(zip(self._answers, columns, strict=True))


def _make_id_signatures(model: _ServedModel) -> Signatures:
    """Those for whoever tokenizes elsewhere."""
    pieces = [_ids(name) for name in PackedTexts._fields]

    @tf.function(input_signature=pieces)
    def encode(
        input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> Answers:
        return model.encode(PackedTexts(input_ids, input_mask, segment_ids))

    @tf.function(input_signature=[*pieces, _ids("masked_lm_positions")])
    def fill_mask(
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        segment_ids: tf.Tensor,
        masked_lm_positions: tf.Tensor,
    ) -> Answers:
        top_ids, log_probabilities = model.fill_mask(
            PackedTexts(input_ids, input_mask, segment_ids),
            masked_lm_positions,
        )
        return {
            "top_ids": top_ids,
            "top_log_probabilities": log_probabilities,
        }

    @tf.function(input_signature=pieces)
    def classify_sentences(
        input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> Answers:
        return model.classify_sentences(
            PackedTexts(input_ids, input_mask, segment_ids)
        )

    signatures = {
        "serving_default": encode,
        "encode": encode,
        "fill_mask": fill_mask,
    }
    if model.sentence_signature:
        signatures[model.sentence_signature] = classify_sentences
    return signatures


def _make_text_signatures(
    model: _ServedModel, tokenizer: TextTokenizer, max_seq_length: int
) -> Signatures:
    """Those that take strings."""

    def with_ids(packed: PackedTexts) -> Answers:
        return model.encode(packed) | {
            "input_ids": packed.input_ids,
            "input_mask": packed.input_mask,
        }

    @tf.function(input_signature=[_strings("text")])
    def encode(text: tf.Tensor) -> Answers:
        return with_ids(pack(max_seq_length, tokenizer.encode(text)))

    @tf.function(input_signature=[_strings("text"), _strings("text_pair")])
    def encode_pair(text: tf.Tensor, text_pair: tf.Tensor) -> Answers:
        return with_ids(
            pack(
                max_seq_length,
                tokenizer.encode(text),
                tokenizer.encode(text_pair),
            )
        )

    @tf.function(input_signature=[_strings("text")])
    def fill_mask(text: tf.Tensor) -> Answers:
        ids = tokenizer.encode_with_masks(text)
        packed = pack(max_seq_length, ids)
        positions, is_kept = _find_masks(ids, packed.input_ids)
        top_ids, log_probabilities = model.fill_mask(packed, positions)
        is_kept = is_kept[:, :, tf.newaxis]
        return {
            "top_pieces": tf.where(is_kept, tokenizer.spell(top_ids), ""),
            "top_probabilities": tf.where(
                is_kept, tf.exp(log_probabilities), 0.0
            ),
        }

    @tf.function(input_signature=[_strings("text"), _strings("text_pair")])
    def classify_sentences(text: tf.Tensor, text_pair: tf.Tensor) -> Answers:
        return model.classify_sentences(
            pack(
                max_seq_length,
                tokenizer.encode(text),
                tokenizer.encode(text_pair),
            )
        )

    signatures = {
        "encode" + TEXT_SUFFIX: encode,
        "encode" + PAIR_SUFFIX: encode_pair,
        "fill_mask" + TEXT_SUFFIX: fill_mask,
    }
    if model.sentence_signature:
        name = model.sentence_signature + PAIR_SUFFIX
        signatures[name] = classify_sentences
    return signatures


def _find_masks(
    ids: tf.RaggedTensor, input_ids: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Where masks are.

    Args:
        ids: int32, `(batch, pieces)`, whole texts.
        input_ids: int32, `(batch, length)`, the same, packed.

    Returns:
        int32, `(batch, masks)`, positions in `input_ids`, and bool,
        `(batch, masks)`; False for a mask that was cut off, and where other
        texts have more masks.
    """
    masks = tf.reduce_sum(tf.cast(ids == MASK_ID, tf.int32), axis=1)
    positions = tf.ragged.boolean_mask(
        tf.zeros_like(input_ids) + tf.range(tf.shape(input_ids)[1]),
        input_ids == MASK_ID,
    )
    shape = [-1, tf.reduce_max(masks)]
    padded = positions.to_tensor(0, shape=shape)
    is_kept = tf.ones_like(positions).to_tensor(0, shape=shape)
    return padded, is_kept > 0


def _ids(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None, None], tf.int32, name=name or None)


def _strings(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None], tf.string, name=name)
