"""`python -m albert_tf.score`: pseudo-log-likelihoods of lines."""

import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import albert_tf
from albert_tf.config import ScoreConfig
from albert_tf.errors import UserError
from albert_tf.io import shipped
from albert_tf.records.tokenization import encode
from albert_tf.score import main
from tests.helpers.exports import write_task_run

BLIMP = pathlib.Path(__file__).parents[1] / "testdata" / "blimp"


def score_file(tmp_path, content, **settings):
    """The output of the command for the content of a file."""
    lines, scores = tmp_path / "lines.txt", tmp_path / "scores.jsonl"
    lines.write_bytes(content.encode())
    files = {"input_file": str(lines), "output_file": str(scores)}
    main(ScoreConfig(**files, **settings))
    return [json.loads(line) for line in scores.read_text().splitlines()]


def test_tokens_are_scored_under_masks(run_dir, tmp_path):
    """Each token by itself; a piece with the mark "▁" begins a word."""
    model, tokenizer = albert_tf.load(str(run_dir))
    long = "a" * 2 * model.config.max_position_embeddings
    content = f"\ufeffthe mat\r\n\n{long}\n\u0301\n"
    settings = {"model": str(run_dir)}
    found = score_file(tmp_path, content, **settings)
    (plain, *_) = score_file(tmp_path, content, plain=True, **settings)
    inputs = encode(tokenizer, "the mat")
    pieces = [tokenizer.id_to_piece(int(i)) for i in inputs.input_ids[0]]
    last = len(pieces) - 1
    begins = [i for i in range(1, last) if pieces[i].startswith("▁")]
    assert 1 < len(begins) < last - 1  # words of several tokens

    def nats_of(position, masked):
        ids = inputs.input_ids.copy()
        ids[0, masked] = 4
        batch = inputs._replace(input_ids=ids)._asdict()
        batch["masked_lm_positions"] = np.array([[position]])
        logits = np.asarray(model(batch)["mlm_logits"], np.float64)[0, 0]
        token = inputs.input_ids[0, position]
        return np.log(np.exp(logits).sum()) - logits[token]

    positions = range(1, last)
    ends = [min([b for b in begins if b > i] or [last]) for i in positions]
    by_word = [
        nats_of(i, range(i, end))
        for i, end in zip(positions, ends, strict=True)
    ]
    alone = [nats_of(i, [i]) for i in positions]
    for row, nats in (found[0], by_word), (plain, alone):
        assert row["text"] == "the mat"
        assert (row["tokens"], row["cut_tokens"]) == (last - 1, 0)
        assert row["log_likelihood"] == pytest.approx(-sum(nats), abs=1e-4)
        assert row["nats_per_token"] == pytest.approx(np.mean(nats), abs=1e-4)
        order = np.argsort(nats)[::-1][:5]
        assert [piece for piece, _ in row["worst"]] == [
            pieces[i + 1] for i in order
        ]
        assert [value for _, value in row["worst"]] == pytest.approx(
            [nats[i] for i in order], abs=1e-4
        )
    assert abs(sum(alone) - sum(by_word)) > 1e-2
    _, cut, empty = found
    fits = model.max_seq_length - 2  # of the training
    assert (cut["tokens"], len(cut["worst"])) == (fits, 5)
    assert cut["cut_tokens"] == len(tokenizer.encode_batch([long]).ids) - fits
    assert (empty["tokens"], empty["nats_per_token"]) == (0, 0)


def test_a_file_or_model_without_scores_is_refused(run_dir, tmp_path):
    with pytest.raises(UserError, match="must have text"):
        score_file(tmp_path, "\n \n", model=str(run_dir))
    write_task_run("regression", tmp_path / "run")
    with pytest.raises(UserError, match="must fill masks"):
        score_file(tmp_path, "a", model=str(tmp_path / "run"))


def score_by_transformers(folder, texts):
    """Log probabilities of texts by word-l2r and plain, from the formulas."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AlbertForMaskedLM.from_pretrained(
        folder, dtype=torch.float32
    )

    def opens_word(piece):
        """By spaces and punctuation; "isn't" is "isn" and "'t"."""
        return piece.startswith("▁") or not piece[0].isalnum()

    scores = {False: [], True: []}
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
        pieces = tokenizer.convert_ids_to_tokens(ids)
        last = len(ids) - 1
        for plain, values in scores.items():
            rows = ids.repeat(last - 1, 1)
            for i in range(1, last):
                end = i + 1
                while not plain and end < last and not opens_word(pieces[end]):
                    end += 1
                rows[i - 1, i:end] = tokenizer.mask_token_id
            with torch.inference_mode():
                logits = model(rows).logits
            found = logits.log_softmax(-1).double()
            i = torch.arange(1, last)
            values.append(found[i - 1, i, ids[i]].sum().item())
    return scores


@pytest.mark.interop
def test_scores_are_those_of_transformers(tmp_path):
    """With its tokenizer, too."""
    texts = []
    for path in sorted(BLIMP.iterdir()):
        with path.open() as file:
            pair = json.loads(next(file))
        texts += [pair["sentence_good"], pair["sentence_bad"]]
    folder = shipped.find("albert_mini_en", shipped.MODEL)
    for plain, expected in score_by_transformers(folder, texts).items():
        rows = score_file(
            tmp_path, "\n".join(texts), model="albert_mini_en", plain=plain
        )
        found = [row["log_likelihood"] for row in rows]
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.slow
def test_the_example_of_the_documents_scores_minimal_pairs(tmp_path):
    """As written, on eight pairs of each of three paradigms."""
    root = pathlib.Path(__file__).parents[2]
    page = (root / "docs" / "results.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "blimp").mkdir()
    (tmp_path / "blimp" / "data").symlink_to(BLIMP)
    commands = os.path.dirname(sys.executable)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root), "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    accuracy = float(done.stdout)
    assert accuracy * 24 % 1 == pytest.approx(0, abs=1e-6)
    assert 0 < accuracy < 1
