"""Records of six builds keep their bytes.

`tests/testdata/golden-records.sha256` lists their digests, in the format of
`sha256sum`. A change of the records' bytes makes the records that people
already have differ from the ones that the same command builds, so such a
change needs a new file of digests and an entry in CHANGELOG.md:

    python -m tests.data_prep.test_golden_records DIRECTORY
"""

import gzip
import hashlib
import itertools
import pathlib
import re
import sys

import pytest

from data_prep import build_tfrecords
from data_prep.config import RecordsConfig

TESTS = pathlib.Path(__file__).parents[1]
DIGESTS = TESTS / "testdata" / "golden-records.sha256"
CORPUS = TESTS.parent / "data_prep" / "sample_corpus" / "wiki-books-demo.txt.gz"
GOOGLE_ALBERT = TESTS / "testdata" / "30k-clean.model"
SELF_CONTAINED = TESTS / "testdata" / "self-contained-500.model"

BUILDS = {
    "static": {"dupe_factor": 2},
    "dynamic": {"masking": "dynamic"},
    "nsp": {"sentence_objective": "nsp"},
    "none": {"sentence_objective": "none", "ngram": 1},
    "self_contained": {
        "spm_model_file": str(SELF_CONTAINED),
        "deduplicate": True,
    },
    "packed": {"packing": "best_fit", "max_examples_per_row": 4},
}


def build(name: str, directory: pathlib.Path) -> pathlib.Path:
    """Builds records of the first lines of the sample corpus."""
    with gzip.open(CORPUS, "rt", encoding="utf-8") as file:
        lines = [line for line in itertools.islice(file, 500) if line.strip()]
    # Short documents, so that some are held out; three of them twice.
    documents = ["".join(lines[i : i + 12]) for i in range(0, len(lines), 12)]
    text = directory / "text.txt"
    text.write_text("\n".join(documents + documents[:3]), encoding="utf-8")
    settings = {
        "input_file": (str(text),),
        "output_dir": str(directory / name),
        "spm_model_file": str(GOOGLE_ALBERT),
        "max_seq_length": 64,
        "max_predictions_per_seq": 10,
        "dupe_factor": 1,
        "holdout_fraction": 0.2,
        "num_shards": 2,
        "num_workers": 1,
        **BUILDS[name],
    }
    build_tfrecords.main(RecordsConfig(**settings))
    return directory / name


def digest_files(name: str, records: pathlib.Path) -> dict[str, str]:
    """SHA-256 of each shard and metadata file, by path."""
    digests = {}
    for path in sorted(records.rglob("*")):
        if path.suffix not in (".tfrecord", ".json"):
            continue
        content = path.read_bytes()
        if path.name == "metadata.json":
            # The last digit of a logarithm may differ between processors.
            content = re.sub(rb' *"unigram_entropy_nats": .*\n', b"", content)
        relative = path.relative_to(records).as_posix()
        digests[f"{name}/{relative}"] = hashlib.sha256(content).hexdigest()
    return digests


@pytest.mark.parametrize("name", BUILDS)
def test_records_have_the_bytes_of_earlier_versions(name, tmp_path):
    expected = {
        path: digest
        for digest, path in map(str.split, DIGESTS.read_text().splitlines())
        if path.startswith(f"{name}/")
    }
    assert len(expected) == 5
    assert digest_files(name, build(name, tmp_path)) == expected


if __name__ == "__main__":
    for build_name in BUILDS:
        built = build(build_name, pathlib.Path(sys.argv[1]))
        for file_path, sha256 in digest_files(build_name, built).items():
            print(f"{sha256}  {file_path}")
