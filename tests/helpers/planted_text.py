"""Text with planted structure, and how much of it a model has learned.

A document is two sentences of an opening, a name, a subject, one to three
fillers and a verb.

- Copies: both sentences have the same name.
- Agreement at a distance: the verb belongs to the class of the subject.
  Fillers stand between them, and the other sentence has a class of its own.
- Order: each sentence has openings of its own.

All else is independent and uniform, so that a model that knows only the
frequency of the words is right by chance.
"""

import itertools
import pathlib
import random
from typing import NamedTuple

import numpy as np

from albert_tf.interop.formats import LoadedModel
from albert_tf.records.features import MASK_ID
from albert_tf.records.tokenization import encode

WORDS = [a + b for a, b in itertools.product("bdfgkl", "aeiou")]
NAMES = WORDS[:8]
SUBJECTS = WORDS[8:11], WORDS[11:14]
VERBS = WORDS[14:16], WORDS[16:18]
OPENINGS = WORDS[18:20], WORDS[20:22]
FILLERS = WORDS[22:]
# Special pieces, letters and 30 words.
VOCAB_SIZE = 56


class Document(NamedTuple):
    """The words of two sentences.

    Attributes:
        first, second: The sentences.
        name: The name in both.
        verb_class: The class of subject and verb of the first sentence.
    """

    first: list[str]
    second: list[str]
    name: str
    verb_class: int


def make_documents(number: int, seed: int) -> list[Document]:
    """Makes random documents."""
    rng = random.Random(seed)
    documents = []
    for _ in range(number):
        name = rng.choice(NAMES)
        classes = rng.choices(range(2), k=2)
        first, second = (
            [
                rng.choice(OPENINGS[place]),
                name,
                rng.choice(SUBJECTS[verb_class]),
                *rng.choices(FILLERS, k=rng.randint(1, 3)),
                rng.choice(VERBS[verb_class]),
            ]
            for place, verb_class in enumerate(classes)
        )
        documents.append(Document(first, second, name, classes[0]))
    return documents


def write_text(path: pathlib.Path, documents: list[Document]) -> None:
    """Writes one sentence per line, a blank line between documents."""
    path.write_text(
        "\n".join(
            f"{' '.join(d.first)}\n{' '.join(d.second)}\n" for d in documents
        )
    )


def write_vocabulary_text(path: pathlib.Path) -> None:
    """Writes text from which SentencePiece makes a piece of each word.

    SentencePiece only takes pieces that several words contain, here a word and
    its form with an s.
    """
    line = " ".join(form for word in WORDS for form in (word, word + "s"))
    path.write_text(f"{line}\n" * 20)


class Learned(NamedTuple):
    """Accuracies; chance is 1/8, 1/2 and 1/2.

    Attributes:
        copies: Fraction of masked names predicted, from the other name.
        agreement: Fraction of masked verbs predicted to be of the class of
            their subject.
        order: Fraction of pairs whose order is predicted.
    """

    copies: float
    agreement: float
    order: float


def measure(loaded: LoadedModel, documents: list[Document]) -> Learned:
    """Masks one word of each document, and swaps every second pair."""

    def predict(place: int) -> list[str]:
        inputs = encode(
            loaded.tokenizer,
            [
                " ".join([*d.first[:place], "[MASK]", *d.first[place:][1:]])
                for d in documents
            ],
            [" ".join(d.second) for d in documents],
        )
        positions = (inputs.input_ids == MASK_ID).argmax(axis=1)[:, None]
        outputs = loaded.model(
            {**inputs._asdict(), "masked_lm_positions": positions}
        )
        pieces = outputs["mlm_logits"].numpy()[:, 0].argmax(axis=-1)
        return [loaded.tokenizer.id_to_piece(int(i)).strip("▁") for i in pieces]

    names, verbs = predict(1), predict(-1)
    swapped = np.arange(len(documents)) % 2
    pairs = [
        (d.second, d.first) if swap else (d.first, d.second)
        for d, swap in zip(documents, swapped, strict=True)
    ]
    inputs = encode(
        loaded.tokenizer,
        [" ".join(a) for a, _ in pairs],
        [" ".join(b) for _, b in pairs],
    )
    order = loaded.model.encode(inputs._asdict())["sentence_logits"].numpy()
    rows = list(zip(documents, names, verbs, strict=True))
    return Learned(
        copies=np.mean([name == d.name for d, name, _ in rows]),
        agreement=np.mean([verb in VERBS[d.verb_class] for d, _, verb in rows]),
        order=np.mean(order.argmax(axis=-1) == swapped),
    )
