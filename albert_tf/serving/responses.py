"""Prints what an exported model, local or on a server, says about texts."""

from collections.abc import Sequence

from albert_tf.config import TextsConfig
from albert_tf.errors import UserError
from albert_tf.serving.names import (
    FILL_MASK_TEXT,
    PAIR_SUFFIX,
    SENTENCE_SIGNATURES,
)
from albert_tf.serving.task_requests import Client, find_task, print_answers


def print_responses(client: Client, texts: TextsConfig) -> None:
    """Prints the predictions of a model for texts.

    A fine-tuned model solves its task. A pretrained model fills masks or, given
    `text_pair`, says how probable it is that this text follows.

    Raises:
        UserError: If the model does not take these texts.
    """
    signatures = client.list_signatures()
    if task := find_task(signatures):
        print_answers(client, task, texts)
        return
    if texts.question or texts.choice:
        raise UserError(
            "question and choice need a fine-tuned model that takes text",
            received=f"the signatures {', '.join(signatures)}",
            remedy="Omit --question and --choice, or export a fine-tuned run "
            "without --notext_signatures.",
        )
    if texts.text_pair:
        print_order(client, texts.text, texts.second_texts())
    else:
        print_filled(client, texts.text)


def print_filled(client: Client, texts: Sequence[str]) -> None:
    """Prints each text and the most probable pieces of its masks.

    Raises:
        UserError: If the model does not take text.
    """
    signatures = client.list_signatures()
    if FILL_MASK_TEXT not in signatures:
        raise UserError(
            "masks can be filled only by a model with text signatures",
            received=f"the signatures {', '.join(signatures)}",
            remedy="Export the run again without --notext_signatures.",
        )
    answer = client.predict(FILL_MASK_TEXT, {"text": texts})
    for text, *rows in zip(
        texts, answer["top_pieces"], answer["top_probabilities"], strict=True
    ):
        print(text)
        # Rows of 0 pad a text with fewer masks than others.
        found = [row for row in zip(*rows, strict=True) if row[1][0]]
        for row in found:
            pairs = zip(*row, strict=True)
            print("   ", "  ".join(f"{p} {q:.1%}" for p, q in pairs))
        if num_cut_off := text.count("[MASK]") - len(found):
            print(f"    {num_cut_off} [MASK] beyond the model's max_seq_length")


def print_order(
    client: Client, texts: Sequence[str], second_texts: Sequence[str]
) -> None:
    """Prints the probability that each pair of texts is in order.

    For a model with sentence_objective=nsp, it is the probability that the
    second text follows the first one.

    Raises:
        UserError: If the model has no signature for pairs.
    """
    found = client.list_signatures()
    for sentence in SENTENCE_SIGNATURES.values():
        if sentence.name + PAIR_SUFFIX in found:
            break
    else:
        raise UserError(
            "text_pair needs a model with a sentence head and text signatures",
            received=f"the signatures {', '.join(found)}",
            remedy="Export the run again without --notext_signatures. It must "
            "be trained with --sentence_objective=sop or nsp.",
        )
    answer = client.predict(
        sentence.name + PAIR_SUFFIX,
        {"text": texts, "text_pair": second_texts},
    )
    probabilities = answer[sentence.outputs[0]]
    for first, second, probability in zip(
        texts, second_texts, probabilities, strict=True
    ):
        print(f"{probability:.1%} {sentence.statement}: {first} | {second}")
