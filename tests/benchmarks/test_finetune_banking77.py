import json

from benchmarks.finetune_banking77 import first_questions, results_table


def test_the_first_questions_of_each_class_are_kept_in_order():
    lines = [
        json.dumps({"text": f"question {i}", "category": category})
        for i, category in enumerate("abacabcaa")
    ]
    assert first_questions(lines, 0) == lines
    kept = [json.loads(line)["text"][-1] for line in first_questions(lines, 2)]
    assert kept == list("012356")


def test_the_table_has_the_spread_over_the_seeds():
    """The differences of the seeds are 1, 2 and 6 %: mean 3, deviation
    sqrt(7), standard error sqrt(7 / 3)."""
    text = results_table(
        {"from scratch": [0.5, 0.6, 0.7], "a": [0.51, 0.62, 0.76]}
    )
    assert text.splitlines() == [
        "| start | seed 1 | seed 2 | seed 3 | mean | - from scratch |",
        "| --- | --- | --- | --- | --- | --- |",
        "| from scratch | 50.0% | 60.0% | 70.0% | 60.0% ± 10.0% |  |",
        "| a | 51.0% | 62.0% | 76.0% | 63.0% ± 12.5% | +3.0% ± 1.5% |",
    ]
