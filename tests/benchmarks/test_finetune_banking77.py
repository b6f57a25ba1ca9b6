import json

from benchmarks.finetune_banking77 import first_questions, tables


def test_the_first_questions_of_each_class_are_kept_in_order(tmp_path):
    categories = "abacabcaa"
    lines = [
        json.dumps({"text": f"question {i}", "category": category})
        for i, category in enumerate(categories)
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")

    assert first_questions(tmp_path, 0) == lines
    kept = [json.loads(line) for line in first_questions(tmp_path, 2)]
    assert [q["text"][-1] for q in kept] == list("012356")
    assert "".join(q["category"] for q in kept) == "abacbc"


def test_the_tables_have_the_spread_over_the_seeds():
    """The differences of the seeds are 1, 2 and 6 %: mean 3, deviation
    sqrt(7), standard error sqrt(7 / 3)."""
    text = tables(
        {"a": [0.51, 0.62, 0.76], "from scratch": [0.5, 0.6, 0.7]},
    )
    rows = text.splitlines()

    assert rows[0] == "| start | seed 1 | seed 2 | seed 3 | mean | deviation |"
    assert rows[2] == "| a | 51.0% | 62.0% | 76.0% | 63.0% | 12.5% |"
    assert rows[3] == "| from scratch | 50.0% | 60.0% | 70.0% | 60.0% | 10.0% |"
    assert rows[-1] == "| a - from scratch | +3.0% | 1.5% |"
