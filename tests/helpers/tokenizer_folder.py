"""A Hugging Face folder of a vocabulary, read by transformers and by us."""

from albert_tf.interop import hugging_face
from albert_tf.records.tokenization import Tokenizer

FILES = {"tokenizer.json", "spiece.model"}  # either may hold the vocabulary


def write_and_read(vocabulary, directory, stored):
    """Writes the folder, and leaves only one of FILES in it.

    Returns:
        The tokenizer of transformers, which reads both; and the path of the
        vocabulary that we find, and whether its text stays cased.
    """
    import transformers

    tokenizer = Tokenizer(vocabulary)
    files = hugging_face.tokenizer_files(tokenizer, vocabulary, 512)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    for name in FILES - {stored}:
        (directory / name).unlink()
    return theirs, *hugging_face._find_vocabulary(str(directory))
