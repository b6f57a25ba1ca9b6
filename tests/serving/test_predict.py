"""`python -m albert_tf.predict`: answers of exported models."""

import datetime
import decimal
import json
import re
import tracemalloc

import pyarrow.parquet
import pytest

from albert_tf.config import PredictConfig, TextsConfig
from albert_tf.errors import UserError
from albert_tf.predict import main
from albert_tf.serving import predict
from albert_tf.serving.predict import ExportedModel, print_responses
from tests.helpers.exports import answer_as_served, filled_lines

pytestmark = pytest.mark.text


class Signatures:
    """A model that has these signatures."""

    def __init__(self, *names):
        self.names = ["serving_default", *names]

    def warn_of_cut(self, rows):
        pass

    def list_signatures(self):
        return self.names


# Signatures, texts, and the error.
REFUSED = [
    (
        *("score_spans", {}),
        "question answering must be given text, question. Received: text. "
        "Set --text=... --question=...",
    ),
    (
        *("classify_text_pair", {}),
        "of pairs must be given text, text_pair. Received: text. "
        "Set --text=... --text_pair=...",
    ),
    (
        *("classify_text", {"text_pair": ("b",)}),
        "must be given text. Received: text, text_pair. Set --text=..., and "
        "omit --text_pair",
    ),
    ("fill_mask", {}, "Export the run again without --notext_signatures."),
    (
        *("fill_mask_text", {"text_pair": ("b",)}),
        "filling masks must be given text. Received: text, text_pair.",
    ),
    (
        *("fill_mask_text", {"question": ("b",)}),
        "Received: text, question. Set --text=..., and omit --question.",
    ),
]


@pytest.mark.parametrize(("signature", "texts", "message"), REFUSED)
def test_texts_that_a_model_does_not_take_are_refused(
    signature, texts, message
):
    texts = TextsConfig(**{"text": ("a [MASK]",)} | texts)
    with pytest.raises(UserError, match=re.escape(message)):
        print_responses(Signatures(signature), texts)


def test_an_empty_question_is_one():
    texts = TextsConfig(text=("a",), question=("", "b"))
    questions = [row["question"] for row in predict.rows_of(texts)]
    assert questions == ["", "b"]


def test_a_directory_that_is_no_export_is_refused():
    with pytest.raises(UserError, match="must be a SavedModel of albert_tf"):
        ExportedModel("tests")
    with pytest.raises(UserError, match=r"once per text. Received: 2 for 3"):
        PredictConfig(text=("a", "b", "c"), text_pair=("d", "e"))


@pytest.mark.slow
def test_another_number_of_choices_is_refused(exported_task):
    model = exported_task("multiple_choice").model
    texts = TextsConfig(text=("a",), question=("b",), choice=("c", "d"))
    message = "choices must have 3 entries for each question.* Received: 2"
    with pytest.raises(UserError, match=message):
        print_responses(model, texts)


@pytest.mark.parametrize(
    ("objective", "signature", "word"),
    [
        ("sop", "sentence_order_text_pair", "in order"),
        pytest.param(
            "nsp", "next_sentence_text_pair", "next", marks=pytest.mark.slow
        ),
    ],
)
def test_a_pretrained_model_judges_pairs(
    exported, capsys, objective, signature, word
):
    saved_model_dir = str(exported(objective))
    first, second = "She opened the door.", "It was dark inside."
    config = PredictConfig(
        saved_model_dir=saved_model_dir, text=(first, second), text_pair=("It",)
    )
    main(config)
    outputs = ExportedModel(saved_model_dir).predict(
        signature, {"text": [first, second], "text_pair": ["It", "It"]}
    )
    told, turned = outputs[word.replace(" ", "_")]
    assert told != turned
    assert capsys.readouterr().out.splitlines() == [
        f"{told:.1%} {word}: {first} | It",
        f"{turned:.1%} {word}: {second} | It",
    ]


def test_masks_are_filled_by_requests_of_bounded_size(
    exported, served, capsys, monkeypatch
):
    """A line for each mask; the texts have different numbers of masks."""
    texts = ("[MASK]", "a [MASK] b [MASK].", "no", "[MASK]?", "c [MASK]")
    sizes, ask_once = [], ExportedModel.predict

    def count(model, signature, inputs):
        sizes.extend(map(len, inputs.values()))
        return ask_once(model, signature, inputs)

    monkeypatch.setattr(ExportedModel, "predict", count)
    monkeypatch.setattr(predict, "_MAX_ROWS", 2)
    main(PredictConfig(texts, saved_model_dir=str(exported("sop"))))
    assert capsys.readouterr().out.splitlines() == filled_lines(served, texts)
    assert sizes == [2, 2, 1]


# --- files --------------------------------------------------------------------


def test_rows_of_a_file_are_answered(
    exported, served, tmp_path, capsys, monkeypatch
):
    """In their order, from requests of bounded size and similar lengths."""
    texts = ["[MASK] sat on the mat and the dog", "[MASK]", "a", "Café, [MASK]"]
    source, output = tmp_path / "in.txt", tmp_path / "out" / "answers.jsonl"
    source.write_text("\ufeff" + "\r\n\n".join(texts) + "\n")
    sizes, ask_once = [], ExportedModel.predict

    def record(model, signature, inputs):
        sizes.append([len(text) for text in inputs["text"]])
        return ask_once(model, signature, inputs)

    monkeypatch.setattr(ExportedModel, "predict", record)
    monkeypatch.setattr(predict, "_MAX_ROWS", 2)
    config = PredictConfig(saved_model_dir=str(exported("sop")))
    main(config.replace(input_file=str(source), output_file=str(output)))
    assert sizes == [[6, 1], [33, 12]]
    answer = answer_as_served(served, "fill_mask_text", {"text": texts})
    for i, line in enumerate(output.read_text().splitlines()):
        row = json.loads(line)
        pieces = [piece.decode() for piece in answer["top_pieces"][i, 0]]
        masks = [list(mask) for mask in row["predicted_masks"]]
        assert (row["text"], masks) == (texts[i], [pieces] * (i != 2))

    pairs = tmp_path / "pairs.csv"
    pairs.write_text('id,text_pair,text\n7,b,"a, the ""cat"""\n8,,sat\n')
    capsys.readouterr()
    main(config.replace(input_file=str(pairs)))
    inputs = {"text": ['a, the "cat"', "sat"], "text_pair": ["b", ""]}
    answer = answer_as_served(served, "sentence_order_text_pair", inputs)
    for i, line in enumerate(capsys.readouterr().out.splitlines()):
        row = json.loads(line)
        names = ("in_order", "swapped")
        found = [row.pop(f"predicted_{name}") for name in names]
        assert found == pytest.approx(
            [answer[name][i] for name in names], rel=1e-5
        )
        assert row == {"id": "78"[i]} | {n: v[i] for n, v in inputs.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multiple_choice", "question_answering"])
def test_questions_of_a_file_are_answered_like_those_of_flags(
    name, exported_task, tmp_path, capsys
):
    texts = ("Basel lies on the Rhine.", "The Café is in Zürich.")
    choice = ("wet", "dry", "new") if name == "multiple_choice" else ()
    questions = ("Where is Basel?", "Where is it?")
    config = PredictConfig(
        saved_model_dir=exported_task(name).saved_model_dir,
        question=questions,
        choice=choice,
    )
    main(config.replace(text=texts))
    expected = list(map(json.loads, capsys.readouterr().out.splitlines()))
    lines, rows = tmp_path / "in.txt", tmp_path / "in.jsonl"
    lines.write_text("\n".join(texts))
    whole = [
        {"text": text, "question": question, "choice": list(choice)}
        for text in texts
        for question in questions
    ]
    rows.write_text("\n".join(map(json.dumps, whole)))
    for path, settings in [(lines, {}), (rows, {"question": (), "choice": ()})]:
        main(config.replace(input_file=str(path), **settings))
        found = list(map(json.loads, capsys.readouterr().out.splitlines()))
        assert len(found) == 4
        for row, answer, asked in zip(found, expected, whole, strict=True):
            for key, value in answer.items():
                is_text = isinstance(value, str)
                wanted = value if is_text else pytest.approx(value, rel=1e-5)
                assert row[f"predicted_{key}"] == wanted
            assert row["text"] == asked["text"]
            assert row["question"] == asked["question"]


# Ending of the file, content, and the error.
FILES_REFUSED = [
    ("csv", "sentence\na\n", "with text. Received: line 2: no text. Name the"),
    ("csv", "text,text_pair\na,b\nc\n", "line 3: 1 columns instead of 2"),
    ("jsonl", '{"text": "a"}\n{"text": 5}', "Received: line 2: text is 5"),
    ("jsonl", '{"text": "\\ud800"}', "line 1: text has an unpaired surrogate"),
    ("jsonl", '{"text": "a"}\n{"text"', "Received: line 2: Expecting ':'"),
    (
        "jsonl",
        '{"text": "a"}\n{"text": "b", "text_pair": "c"}',
        "Received: line 2: text_pair, which the first row lacks",
    ),
    ("txt", "\n \n", "in.txt must have rows. Received: none"),
    (
        "xml",
        "a",
        "must end in .tsv, .csv, .jsonl, .json or .parquet. Received: ",
    ),
]


@pytest.mark.parametrize(("ending", "content", "message"), FILES_REFUSED)
def test_bad_rows_are_refused_before_anything_is_written(
    ending, content, message, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "albert_tf.predict.ExportedModel",
        lambda _: Signatures("classify_text", "classify_text_pair"),
    )
    source, output = tmp_path / f"in.{ending}", tmp_path / "out.jsonl"
    source.write_text(content)
    files = {"input_file": str(source), "output_file": str(output)}
    with pytest.raises(UserError, match=re.escape(message)):
        main(PredictConfig(saved_model_dir="export", **files))
    assert [*tmp_path.iterdir()] == [source]
    for given, error in [
        ({"text": ("a",)}, "input_file must be given without text"),
        ({"input_file": ""}, "output_file needs input_file"),
    ]:
        with pytest.raises(UserError, match=error):
            PredictConfig(**files | given)


QUESTIONS = (
    '{"text": "a", "question": "b", "choice": ["c", "d"]}\n'
    '{"text": "e", "choice": ["f", "g"]}\n'
)


def test_each_row_has_as_many_choices_as_the_first(tmp_path, monkeypatch):
    """A question of a row takes the place of those of the flag."""
    source = tmp_path / "in.jsonl"
    model = Signatures("choose_text")
    monkeypatch.setattr("albert_tf.predict.ExportedModel", lambda _: model)
    asked = []

    def answer(_, rows):
        asked.extend((row["text"], row["question"]) for row in rows)
        return [{}] * len(rows)

    monkeypatch.setattr("albert_tf.predict.answer_rows", answer)
    config = PredictConfig(
        saved_model_dir="export", input_file=str(source), question=("1?", "2?")
    )
    source.write_text(QUESTIONS)
    main(config)
    assert asked == [("a", "b"), ("e", "1?"), ("e", "2?")]
    source.write_text(QUESTIONS.replace('"g"', '"g", "h"'))
    with pytest.raises(UserError, match="line 2: 3 choices, and 2 in the fir"):
        main(config)
    assert len(asked) == 3


def test_flags_that_a_model_does_not_take_are_refused_beside_a_file(
    tmp_path, monkeypatch
):
    model = Signatures("classify_text")
    monkeypatch.setattr("albert_tf.predict.ExportedModel", lambda _: model)
    source = tmp_path / "in.txt"
    source.write_text("a\n")
    config = PredictConfig(
        saved_model_dir="export", input_file=str(source), question=("why?",)
    )
    with pytest.raises(UserError, match="and omit --question"):
        main(config)


class Lengths:
    """A model whose answer is the length of a text; refuses "stop"."""

    def warn_of_cut(self, rows):
        pass

    def list_signatures(self):
        return ["predict_value_text"]

    def predict(self, signature, inputs):
        if "stop" in inputs["text"]:
            raise UserError("the model must answer", received="nothing")
        return {"value": [len(text) / 1 for text in inputs["text"]]}


@pytest.mark.parametrize("ending", ["txt", "tsv", "csv", "jsonl"])
def test_files_are_answered_in_bounded_memory(ending, tmp_path, monkeypatch):
    """16 MB, of which a part is in memory; an error leaves no output file."""
    monkeypatch.setattr("albert_tf.predict.ExportedModel", lambda _: Lengths())
    source, output = tmp_path / f"in.{ending}", tmp_path / "out.jsonl"
    form = '{{"text": "{}"}}' if ending == "jsonl" else "{}"
    texts = [f"{i:04} " * 400 for i in range(8_000)]
    header = [] if ending in ("txt", "jsonl") else ["text"]
    lines = [*header, *map(form.format, texts)]
    source.write_text("\n".join(lines))
    config = PredictConfig(
        saved_model_dir="export",
        input_file=str(source),
        output_file=str(output),
    )
    tracemalloc.start()
    main(config)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12e6  # the reader of CSV keeps 6.6 MB, for any size of file
    with open(output) as file:
        for line, text in zip(file, texts, strict=True):
            found = {"text": text, "predicted_value": len(text)}
            assert json.loads(line) == found
    output.unlink()
    with open(source, "a") as file:
        file.write("\n" + form.format("stop"))
    with pytest.raises(UserError, match="the model must answer"):
        main(config)
    assert not output.exists()


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_values_of_the_user_stay_beside_the_answers(
    ending, tmp_path, monkeypatch
):
    """A file of predictions replaced labels, in the user's own file, too."""
    monkeypatch.setattr("albert_tf.predict.ExportedModel", lambda _: Lengths())
    source, output = tmp_path / f"in.{ending}", tmp_path / "out.jsonl"
    given = {"text": "four", "label": "good", "value": "by hand"}
    rows = {
        "csv": "\n".join(map(",".join, (given.keys(), given.values()))),
        "jsonl": json.dumps(given),
    }
    source.write_text(rows[ending])
    config = PredictConfig(saved_model_dir="export", input_file=str(source))
    main(config.replace(output_file=str(output)))
    found = json.loads(output.read_text())
    assert found == {**given, "predicted_value": 4}
    with pytest.raises(UserError, match="output_file must not be input_file"):
        main(config.replace(output_file=f"{tmp_path}/./{source.name}"))
    assert source.read_text() == rows[ending]
    with pytest.raises(UserError, match=r"names of answers.*predicted_value"):
        main(config.replace(input_file=str(output)))


def test_a_table_has_the_delimiter_that_gives_the_texts(tmp_path, monkeypatch):
    """As in fine-tuning, e.g. that of Excel in Germany."""
    monkeypatch.setattr("albert_tf.predict.ExportedModel", lambda _: Lengths())
    source, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
    source.write_text("id;text\n7;a, b\n")
    files = {"input_file": str(source), "output_file": str(output)}
    main(PredictConfig(saved_model_dir="export", **files))
    found = {"id": "7", "text": "a, b", "predicted_value": 4}
    assert json.loads(output.read_text()) == found


def test_columns_of_any_kind_stay_beside_the_answers(tmp_path, monkeypatch):
    monkeypatch.setattr("albert_tf.predict.ExportedModel", lambda _: Lengths())
    source, output = tmp_path / "in.parquet", tmp_path / "out.jsonl"
    columns = {
        "text": ["four"],
        "day": [datetime.date(1905, 7, 1)],
        "image": [b"\xff\xd8"],
        "price": [decimal.Decimal("0.5")],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), source)
    files = {"input_file": str(source), "output_file": str(output)}
    main(PredictConfig(saved_model_dir="export", **files))
    found = json.loads(output.read_bytes())
    image = found.pop("image").encode(errors="surrogateescape")
    assert image == columns["image"][0]
    answer = {"text": "four", "predicted_value": 4}
    assert found == answer | {"day": "1905-07-01", "price": "0.5"}


def test_texts_without_a_mask_are_counted(exported, tmp_path, caplog):
    source = tmp_path / "in.txt"
    source.write_text("A broken <mask>.\nA [MASK] lamp.\nA lamp.\n")
    config = PredictConfig(saved_model_dir=str(exported("sop")))
    main(config.replace(input_file=str(source)))
    assert "2 of 3 texts have no [MASK]" in caplog.text
    main(config.replace(text=("A lamp.",)))
    assert "1 of 1 texts have no [MASK]" in caplog.text
    caplog.clear()
    main(config.replace(text=("A [MASK].",)))
    assert not caplog.text


def test_a_mask_that_was_cut_off_is_reported(exported, capsys):
    """17 positions, two of them [CLS] and [SEP]."""
    config = PredictConfig(
        saved_model_dir=str(exported("sop")), text=("[MASK]" * 17,)
    )
    main(config)
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 15
    assert last == "    2 [MASK] beyond the model's max_seq_length"


def test_texts_that_are_cut_are_counted(exported, caplog):
    model = ExportedModel(str(exported("sop")))
    length = model.serving["max_seq_length"]
    rows = [{"text": f"a{' a' * number}"} for number in (0, 2, length)]
    predict.answer_rows(model, rows)
    assert f"1 of 3 texts have more than {length} tokens" in caplog.text
