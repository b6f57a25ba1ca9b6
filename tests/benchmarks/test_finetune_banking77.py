import json

from benchmarks.finetune_banking77 import first_questions


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
