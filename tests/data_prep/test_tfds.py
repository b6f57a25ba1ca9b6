import collections
import gzip
import shutil

import numpy as np
import pytest

from albert_tf.errors import UserError
from data_prep import build_tfrecords
from data_prep.config import CorpusConfig
from data_prep.text import check_inputs, find_inputs
from tests.data_prep.conftest import DEMO, read_text
from tests.helpers.small_builds import make_config as make_build

pytestmark = pytest.mark.tfds

NAME = "tiny_articles"


@pytest.fixture(scope="module")
def articles():
    """Short documents of the demo."""
    with gzip.open(DEMO, "rt", encoding="utf-8") as file:
        lines = file.read(120_000).split("\n")
    documents = ("\n".join(lines[i : i + 6]) for i in range(0, len(lines), 6))
    return [d.strip() for d in documents if "\n\n" not in d and d.strip()]


def prepare(directory, texts, num_shards):
    """Prepares a dataset of texts, and returns its builder."""
    import tensorflow_datasets as tfds

    return tfds.dataset_builders.store_as_tfds_dataset(
        name=NAME,
        config="en",
        version="1.2.0",
        data_dir=directory,
        features=tfds.features.FeaturesDict(
            {
                "title": tfds.features.Text(),
                "text": tfds.features.Text(),
                "year": np.int64,
                "meta": {"body": tfds.features.Text()},
                "parts": tfds.features.Sequence(tfds.features.Text()),
            }
        ),
        split_datasets={
            "train": [
                (
                    i,
                    {
                        "title": str(i),
                        "text": text,
                        "year": i,
                        "meta": {"body": text},
                        "parts": [text],
                    },
                )
                for i, text in enumerate(texts)
            ]
        },
        download_config=tfds.download.DownloadConfig(num_shards=num_shards),
    )


@pytest.fixture(scope="module")
def data_dir(articles, tmp_path_factory):
    """A prepared dataset of the articles, in three files."""
    directory = tmp_path_factory.mktemp("tfds")
    builder = prepare(directory, articles, 3)
    assert builder.info.splits["train"].num_shards == 3
    return directory


@pytest.fixture
def make_config(monkeypatch):
    """Makes the settings for a directory of datasets."""
    import tensorflow_datasets as tfds

    def make(data_dir, **settings):
        # The variable is read at import, here and in processes of a build.
        monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))
        monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(data_dir))
        return CorpusConfig(**{"tfds": f"{NAME}/en", **settings})

    return make


def read(config):
    """Documents, and the digest of the dataset."""
    checked, documents, _ = read_text(config)
    (digest,) = checked.digests.values()
    return documents, digest


def test_each_element_is_a_document(articles, data_dir, make_config):
    """Of a split, or of a part of it, and of any field that holds text."""
    documents, digest = read(make_config(data_dir))
    expected = [a.split("\n") for a in articles]
    key = "\n".join
    assert sorted(documents, key=key) == sorted(expected, key=key)
    assert read(make_config(data_dir)) == (documents, digest)
    half, of_half = read(make_config(data_dir, tfds_split="train[:50%]"))
    assert half == documents[: len(half)]
    assert abs(len(half) - len(articles) / 2) <= 1
    _, other = read(make_config(data_dir, tfds_split="train[:40%]"))
    assert len({digest, of_half, other}) == 3
    titles, _ = read(make_config(data_dir, text_field="title"))
    assert sorted(int(t) for (t,) in titles) == list(range(len(articles)))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"tfds": "no_such_dataset"}, "tfds must name.*no_such_dataset"),
        ({"tfds": f"{NAME}/fr"}, "tfds must name.*tiny_articles/fr"),
        ({"tfds_split": "test"}, "tfds_split must be.*test.*train"),
        ({"text_field": "body"}, "text_field must be.*body.*title"),
        ({"text_field": "year"}, "text_field must be.*year.*title"),
        ({"text_field": "parts"}, "text_field must be.*parts.*title"),
        ({"tfds_split": "train[:0]"}, "tfds_split must be.*no examples"),
        ({"tfds_split": "train[9:2]"}, "tfds_split must be.*no examples"),
        ({"tfds_split": "train["}, r"tfds_split must be.*train\["),
    ],
)
def test_unknown_names_are_refused(data_dir, make_config, settings, expected):
    with pytest.raises(UserError, match=f"(?s){expected}"):
        read(make_config(data_dir, **settings))


def test_a_damaged_or_changed_dataset_is_refused(tmp_path, make_config):
    builder = prepare(tmp_path, ["One.", "Two.", "Three."] * 9, 1)
    config = make_config(tmp_path)
    checked = check_inputs(find_inputs(config), config)
    (path,) = builder.info.splits["train"].filepaths
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"train.* of tiny_.*corrupted.*again"):
        read(config)
    prepare(tmp_path / "other", ["One.", "Two.", "Six!!!"] * 9, 1)
    shutil.copy(next((tmp_path / "other").rglob("*tfrecord*")), path)
    with pytest.raises(UserError, match=r"tiny_.* must not change"):
        list(checked.read_documents("reading", collections.Counter()))


def test_bytes_that_are_not_utf8_are_named_replaced_or_skipped(
    tmp_path, make_config
):
    prepare(tmp_path, [b"caf\xe9 au lait"], 1)
    message = r"element 0 of tiny_.* must be UTF-8.*0xe9 at character 3"
    with pytest.raises(UserError, match=message):
        read(make_config(tmp_path))
    documents, _ = read(make_config(tmp_path, on_bad_utf8="replace"))
    assert documents == [["caf\ufffd au lait"]]
    config = make_config(tmp_path, on_bad_utf8="skip")
    _, documents, skipped = read_text(config)
    assert documents == []
    assert skipped == {"documents that are not Unicode": 1}


def test_dataset_and_text_files_give_the_same_records(
    articles, data_dir, tmp_path, make_config
):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(articles), encoding="utf-8")
    dataset = {"tfds": make_config(data_dir).tfds}
    made = []
    for name, paths, settings in (
        ("files", [path], {}),
        ("dataset", [], dataset),
    ):
        config = make_build(tmp_path / name, *paths, **settings)
        build_tfrecords.main(config)
        shards = sorted((tmp_path / name).rglob("*.tfrecord"))
        made.append([shard.read_bytes() for shard in shards])
    assert made[0] == made[1]
    assert len(made[0]) == 4
