r"""Describe text as the commands that prepare data read it.

    python -m data_prep.inspect_text --input_file='my/*.txt'

Reads all text, and refuses what `data_prep.build_tfrecords` refuses. Prints
JSON: the numbers of documents, lines, characters, and ends of wrapped lines,
which are read as spaces; and what a vocabulary without --keep_accents drops.
"""

import json

from albert_tf.config import flags
from albert_tf.records.tokenization import describe_lost_accents
from data_prep.config import CorpusConfig
from data_prep.text import check_inputs, find_inputs


def main(config: CorpusConfig) -> None:
    """Reads and describes the text that the flags name."""
    checked = check_inputs(find_inputs(config), config)
    described = {
        "files": len(checked.digests),
        **checked.counts,
        "lost_accents": describe_lost_accents(checked.beginning),
    }
    print(json.dumps(described, ensure_ascii=False))


if __name__ == "__main__":
    flags.run(main, CorpusConfig)
