r"""Describe text as the commands that prepare data read it.

    python -m data_prep.inspect_text --input_file='my/*.txt'

Reads all text, and refuses what `data_prep.build_tfrecords` refuses. Prints
JSON: the numbers of documents, lines, characters, and ends of wrapped lines,
which are read as spaces; and what a vocabulary without --keep_accents drops.
"""

import json
from collections import Counter

from albert_tf.config import flags
from albert_tf.records.tokenization import describe_lost_accents
from data_prep import text
from data_prep.config import CorpusConfig
from data_prep.processes import show_progress


def main(config: CorpusConfig) -> None:
    """Reads and describes the text that the flags name."""
    sources = text.find_inputs(config)
    num_bytes = sum(source.num_bytes for source in sources)
    counts: Counter[str] = Counter()
    beginning = ""
    with show_progress("reading text", num_bytes) as bar:
        reading = text.Reading(config, bar.update, Counter(), [])
        for source in sources:
            is_open = False  # whether a document has begun
            for line in source.read_texts(reading):
                counts["documents"] += bool(line) and not is_open
                counts["lines"] += bool(line)
                counts["characters"] += len(line)
                is_open = bool(line)
                if len(beginning) < text.JUDGED_CHARACTERS:
                    beginning += f"{line}\n"
    described = {
        "files": len(sources),
        "documents": counts["documents"],
        "lines": counts["lines"],
        "characters": counts["characters"],
        "joined_lines": reading.skipped[text.JOINED_LINES],
        "lost_accents": describe_lost_accents(beginning),
    }
    print(json.dumps(described, ensure_ascii=False))


if __name__ == "__main__":
    flags.run(main, CorpusConfig)
