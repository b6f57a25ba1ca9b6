"""Writes the tables of the documents that the code knows.

    python docs/generate.py

A table stands between `<!-- generated: NAME -->` and `<!-- end -->`.
`tests/repository/test_documents.py` fails if one is stale.
"""

import ast
import pathlib
import re
import sys
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from albert_tf.config import (  # noqa: E402
    PretrainingConfig,
    flag_name,
    flags,
    settings_by_path,
)


def table(header: str, rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table, with a blank line before and after."""
    lines = [header, "|" + "---|" * (header.count("|") - 1)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n" + "\n".join(lines) + "\n\n"


def read_recipe(name: str) -> PretrainingConfig:
    """The settings of a recipe in configs/pretrain."""
    path = ROOT / "configs" / "pretrain" / f"{name}.flags"
    return flags.parse_line(PretrainingConfig, [f"--flagfile={path}"])


def dropout(config: PretrainingConfig) -> str:
    """The dropout rate of a run, or its schedule if it changes."""
    schedule = config.training.dropout_schedule
    if "," in schedule:
        return f"`{schedule}`"
    rate = float(schedule.split(":")[-1] or config.model.hidden_dropout_prob)
    return f"{rate:g}"


def recipes() -> str:
    """The size and the length of the recipes with the batches of the paper."""
    rows = []
    for path in sorted((ROOT / "configs" / "pretrain").glob("*.flags")):
        config = read_recipe(path.stem)
        model, data = config.model, config.data
        if (data.global_batch_size, data.max_seq_length) != (4096, 512):
            continue
        rows.append(
            [
                f"`{path.stem}`",
                f"{model.num_hidden_layers} x {model.hidden_size}",
                f"{config.training.num_train_steps:,}",
                dropout(config),
            ]
        )
    return "\nA step takes 4,096 examples of 512 tokens.\n" + table(
        "| recipe | layers x width | steps | dropout |", rows
    )


def changes() -> str:
    """What a changed setting does to a run that is continued."""
    found: dict[str, list[str]] = {}
    for path, field in settings_by_path(PretrainingConfig).items():
        if field.metadata["has_flag"] and not path.startswith("model."):
            name = f"`--{flag_name(field.name)}`"
            found.setdefault(field.metadata["affects"], []).append(name)
    never = ["`--albert_config_file`, `--model`"]
    never += found["model"] + found["start"]
    found["result"].insert(0, "other records")
    return table(
        "| Change | Settings |",
        [
            ["never", ", ".join(never)],
            ["only with `--allow_config_change`", ", ".join(found["result"])],
            ["at any time", "all others"],
        ],
    )


def retries() -> str:
    """What errors with exit status 75 say, from the code that makes them."""
    found = set()
    for folder in ("albert_tf", "data_prep"):
        for path in ROOT.glob(f"{folder}/**/*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                if not isinstance(node, ast.Call):
                    continue
                if "RetryError" in ast.unparse(node.func):
                    found.add(wording(node.args[0]))
    return "\n" + "".join(f"- `{text}`\n" for text in sorted(found)) + "\n"


def wording(message: ast.expr) -> str:
    """The text of a message, with `...` for values that it names."""
    parts = message.values if isinstance(message, ast.JoinedStr) else [message]
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else "..."
        for part in parts
    )


TABLES = {
    "retries": retries,
    "recipes": recipes,
    "changes": changes,
}
_TABLE = re.compile("(<!-- generated: (.*?) -->\n).*?(<!-- end -->)", re.S)


def generate(text: str) -> str:
    """The text of a document with present tables."""
    return _TABLE.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)


def main() -> None:
    """Writes the tables of all documents."""
    for path in sorted(ROOT.glob("docs/*.md")):
        text = path.read_text(encoding="utf-8")
        new = generate(text)
        if new != text:
            path.write_text(new, encoding="utf-8")
            print(f"updated {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
