"""Minimal pairs and the linear probe."""

import json
import pathlib
import random

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import evaluate
from albert_tf.config import EvaluateConfig
from albert_tf.errors import UserError
from albert_tf.io import shipped
from albert_tf.runs.log import read_metrics
from albert_tf.training.train import train
from albert_tf.training.yardsticks import LinearProbe, MinimalPairs
from tests.helpers.tiny_run import build_records, make_config

BLIMP = pathlib.Path(__file__).parents[1] / "testdata" / "blimp"
STRATEGY = tf.distribute.get_strategy()


@pytest.fixture(scope="module")
def loaded():
    return albert_tf.load("albert_mini_en")


def _write_pairs(path, pairs):
    """With a byte order mark and a blank line."""
    lines = [
        json.dumps({"sentence_good": a, "sentence_bad": b}, ensure_ascii=False)
        for a, b in pairs
    ]
    path.write_text("\n\n".join(lines), "utf-8-sig")
    return (str(path),)


def _opens_word(pieces, i):
    """By spaces and punctuation; "isn't" is "isn" and "'t"."""
    return pieces[i].startswith("▁") or not pieces[i][0].isalnum()


def score_by_transformers(folder, texts):
    """Log probabilities of texts by word-l2r and plain, from the formulas."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AlbertForMaskedLM.from_pretrained(
        folder, dtype=torch.float32
    )
    scores = {"word_l2r": [], "plain": []}
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
        pieces = tokenizer.convert_ids_to_tokens(ids)
        last = len(ids) - 1
        for rule, values in scores.items():
            rows = ids.repeat(last - 1, 1)
            for i in range(1, last):
                end = i + 1
                while (
                    rule == "word_l2r"
                    and end < last
                    and not _opens_word(pieces, end)
                ):
                    end += 1
                rows[i - 1, i:end] = tokenizer.mask_token_id
            with torch.inference_mode():
                logits = model(rows).logits
            found = logits.log_softmax(-1).double()
            i = torch.arange(1, last)
            values.append(found[i - 1, i, ids[i]].sum().item())
    return {rule: np.reshape(v, [2, -1]) for rule, v in scores.items()}


@pytest.mark.interop
def test_scores_are_those_of_transformers(loaded):
    """With its tokenizer, too. docs/log.md has a thousand pairs."""
    model, tokenizer = loaded
    files = (f"{BLIMP}/*.jsonl",)
    pairs = MinimalPairs(files, tokenizer, 512, pairs_per_file=1)
    measured = pairs.scores(model, STRATEGY)
    assert measured["plain"].shape == (2, 3)
    # The rules differ, since some words have several tokens.
    assert (measured["word_l2r"] < measured["plain"] - 0.1).any()
    folder = shipped.find("albert_mini_en", shipped.MODEL)
    texts = [p.good for p in pairs._pairs] + [p.bad for p in pairs._pairs]
    for rule, expected in score_by_transformers(folder, texts).items():
        np.testing.assert_allclose(measured[rule], expected, atol=1e-4)


def test_equal_scores_count_a_half(loaded, tmp_path):
    model, tokenizer = loaded
    swapped = [("A dog\u2028sees.", "A dog\u2028sees."), ("Yes.", "No.")]
    forward = MinimalPairs(
        _write_pairs(tmp_path / "a.jsonl", swapped), tokenizer, 512
    )
    backward = MinimalPairs(
        _write_pairs(tmp_path / "b.jsonl", [(b, g) for g, b in swapped]),
        tokenizer,
        512,
    )
    results = forward.compare(model, STRATEGY)["word_l2r"]
    assert results[0] == 0.5 and results[1] in (0, 1)
    np.testing.assert_array_equal(
        1 - results, backward.compare(model, STRATEGY)["word_l2r"]
    )


def test_a_constant_scorer_is_at_chance(tmp_path):
    model, tokenizer = albert_tf.load("albert_mini_en")
    for variable in model.variables:
        variable.assign(tf.zeros_like(variable))
    texts = ["I see the old dog.", "I see the dog old."] * 3
    random.Random(1).shuffle(texts)
    pairs = MinimalPairs(
        _write_pairs(
            tmp_path / "a.jsonl", zip(texts, texts[::-1], strict=True)
        ),
        tokenizer,
        512,
    )
    assert pairs.measure(model, STRATEGY) == {
        "minimal_pairs_accuracy": 0.5,
        "minimal_pairs_plain_accuracy": 0.5,
    }
    model.variables[0].assign(model.variables[0] * np.nan)
    with pytest.raises(UserError, match="must be finite"):
        pairs.measure(model, STRATEGY)


def test_the_command_measures_pairs_by_paradigm_and_a_probe(tmp_path, capsys):
    # The words of both classes are in all five parts of the file.
    words = ["apple", "bread", "cheese", "stone", "tower", "window"]
    rows = [
        f"I {verb} the {word}.,{words.index(word) < 3}\n"
        for word in words
        for verb in ("see", "like", "sold", "drew", "lost")
    ]
    probe = tmp_path / "probe.csv"
    probe.write_text("text,is_food\n" + "".join(rows))
    evaluate.main(
        EvaluateConfig(
            model="albert_mini_en",
            minimal_pairs=(f"{BLIMP}/*.jsonl",),
            pairs_per_file=4,
            probe=str(probe),
        )
    )
    found = json.loads(capsys.readouterr().out)
    assert found["probe_accuracy"] > 0.9
    pairs = found["minimal_pairs"]
    assert pairs["pairs"] == 12
    means = pairs["by_paradigm"]
    assert [*means] == sorted(path.stem for path in BLIMP.iterdir())
    assert pairs["accuracy"] == pytest.approx(sum(means.values()) / 3)
    # Two of the paradigms are of one field.
    assert (
        pairs["by_field"]["morphology"] == means["determiner_noun_agreement_1"]
    )


def test_a_run_measures_at_each_evaluation(tmp_path):
    records = build_records(tmp_path)
    probe = tmp_path / "probe.jsonl"
    probe.write_text(
        "".join(
            json.dumps({"text": f"{n} {word}", "label": word}) + "\n"
            for word in ("cat", "dog")
            for n in range(5)
        )
    )
    config = make_config(records, tmp_path / "run").replace(
        eval_minimal_pairs=(f"{BLIMP}/*.jsonl",),
        eval_pairs_per_file=2,
        eval_probe=str(probe),
    )
    assert train(config) == 0
    lines = [m for m in read_metrics(tmp_path / "run") if m["split"] == "eval"]
    assert lines
    for line in lines:
        # Six pairs; two or more in each paradigm.
        assert (line["minimal_pairs_accuracy"] * 12) % 1 == pytest.approx(0)
        assert 0 <= line["probe_accuracy"] <= 1


def test_a_pattern_without_files_is_refused(loaded):
    with pytest.raises(UserError, match="minimal pairs must match files"):
        MinimalPairs((f"{BLIMP}/*.jsonl", "no*.jsonl"), loaded.tokenizer, 32)


# By name: the content of the file, the yardstick, and words of the refusal.
REFUSALS = {
    "no JSON": ("no json", "pairs", "line 1 of .* must be a JSON object"),
    "other fields": ('{"good": "a"}', "pairs", "sentence_good"),
    "no pairs": ("\n", "pairs", "with no pair"),
    "Latin-1": ("\xe9", "pairs", "must be UTF-8"),
    "open quote": ('text,label\n"x,1\nx,2\n', "probe", "unexpected end"),
    "short row": ("text,label\nx\n", "probe", "row 1 .* text and label"),
    "no object": ('{"text": "x", "label": 1}\n[1]', "probe", "row 2 of"),
    "no value": ('{"text": "x", "label": null}', "probe", "row 1 of"),
    "too long": (
        json.dumps({"sentence_good": "a " * 99, "sentence_bad": "a"}),
        "pairs",
        "all longer than 32 tokens",
    ),
    "no label": ("text\nx\n", "probe", "columns text and label"),
    "damaged JSON": ('{"text": 1', "probe", "JSON lines or CSV"),
    "one class": ("text,label\n" + "x,1\n" * 9, "probe", "1 classes"),
    "few texts": ("text,label\nx,1\nx,2\n", "probe", "smallest has 1"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_data_that_measures_nothing_is_refused(case, loaded, tmp_path):
    content, yardstick, message = REFUSALS[case]
    path = tmp_path / "data"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=message):
        if yardstick == "pairs":
            MinimalPairs((str(path),), loaded.tokenizer, 32)
        else:
            LinearProbe(str(path), loaded.tokenizer, 32)
