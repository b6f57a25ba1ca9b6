"""Writes scores of SQuAD's official scripts for awkward predictions.

The scripts are those in TensorFlow Model Garden, which calls their best scores
`final_`. Run it after a prediction is added:

    pip install --no-deps tf-models-official==2.20.0
    python -m tests.helpers.make_squad_scores
"""

import json
import pathlib
import random
import unicodedata

EXCERPTS = pathlib.Path(__file__).parents[1] / "testdata" / "finetuning"
DATA_FILE = EXCERPTS / "squad-v2.0-excerpt.json"
SCORES_FILE = EXCERPTS / "squad-scores.json"
NUM_FILES = 6


def read_questions(path=DATA_FILE):
    """The questions of a file, as its dictionaries."""
    data = json.loads(path.read_text())["data"]
    paragraphs = [p for article in data for p in article["paragraphs"]]
    return [
        entry | {"context": paragraph["context"]}
        for paragraph in paragraphs
        for entry in paragraph["qas"]
    ]


def make_predictions(questions, seed):
    """Answers and null odds by question id, each in an order of its own.

    Answers are right, empty, or articles or punctuation alone; or right answers
    in other spellings, cut, repeated, or of other questions. Few null odds are
    distinct, and some are infinite.
    """
    rng = random.Random(seed)
    golds = [a["text"] for q in questions for a in q["answers"]]

    def answer(question):
        own = [a["text"] for a in question["answers"]] or golds
        gold = rng.choice(own)
        if question["answers"] and rng.random() < 0.4:
            return gold
        words = gold.split()
        begin = rng.randrange(len(question["context"]))
        return rng.choice(
            [
                *("", "the", " A, an; THE ", "...", "\u2014", "\u3000", "_"),
                *(gold, gold.upper(), f"“{gold}”", f"the {gold}.", gold[1:]),
                *(gold.replace(" ", "\u00a0"), gold.replace(" ", "-")),
                *(" ".join(words[::-1]), " ".join(words[:-1]), gold + gold),
                f"{gold} {words[0]}",
                unicodedata.normalize("NFKD", gold) + "\u0301",
                rng.choice(golds),
                question["context"][begin : begin + rng.randrange(40)],
            ]
        )

    # Lower for most questions that have an answer.
    odds = [-float("inf"), *sorted(rng.gauss(0, 3) for _ in range(9)), 100]

    def null_odds_of(question):
        return rng.choice(odds[:7] if question["answers"] else odds[4:])

    predictions, null_odds = (
        {q["id"]: make(q) for q in rng.sample(questions, k=len(questions))}
        for make in (answer, null_odds_of)
    )
    return predictions, null_odds


def without_some(questions, predictions, seed):
    """The answerable questions, and predictions for most of them."""
    rng = random.Random(seed)
    answerable = [q for q in questions if q["answers"]]
    kept = {
        q["id"]: predictions[q["id"]] for q in answerable if rng.random() < 0.9
    }
    return answerable, kept


def official_scores(questions, seed):
    """The scores of version 1.1, and of 2.0 without and with null odds."""
    from official.nlp.tools import squad_evaluate_v1_1, squad_evaluate_v2_0

    predictions, null_odds = make_predictions(questions, seed)
    answerable, kept = without_some(questions, predictions, seed)
    one = squad_evaluate_v1_1.evaluate(_articles(answerable), kept)
    two, with_odds = (
        {
            name.replace("final_", "best_"): value
            for name, value in squad_evaluate_v2_0.evaluate(
                _articles(questions), predictions, odds
            ).items()
            if not name.startswith("pr_") and (odds or "final" not in name)
        }
        for odds in (None, null_odds)
    )
    return {
        "1.1": {
            "exact": 100 * one["exact_match"],
            "f1": 100 * one["final_f1"],
            "total": len(answerable),
        },
        "2.0": two,
        "2.0 with null odds": with_odds,
    }


def _articles(questions):
    return [{"paragraphs": [{"qas": questions}]}]


if __name__ == "__main__":
    scores = [official_scores(read_questions(), n) for n in range(NUM_FILES)]
    SCORES_FILE.write_text(json.dumps(scores, indent=1) + "\n")
