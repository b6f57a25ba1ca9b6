"""A random sample of bounded size from a stream of sentences.

Each sentence has a random priority, keyed by the text of its document. The
sample keeps the sentences of smallest priority. So it depends neither on the
order of documents nor on their distribution over files.
"""

import hashlib
import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from albert_tf.records.keyed_random import random_bits


def draw_priorities(lines: Sequence[str], num_sentences: int) -> list[int]:
    """Returns 64 random bits per sentence, keyed by the text of a document.

    Args:
        num_sentences: Number of sentences of the document.
    """
    content = "\n".join(lines).encode()
    digest = hashlib.blake2b(content, digest_size=8).digest()
    key = np.frombuffer(digest, "<u8")
    bits = random_bits(key.repeat(num_sentences), np.arange(num_sentences))
    return bits.tolist()


class SentenceSample:
    """The sentences of smallest priority, up to a size.

    Args:
        max_sentences: Largest number of sentences.
        max_characters: Largest number of characters of all sentences.

    Attributes:
        threshold: Sentences of this priority or a larger one are dropped.
        num_characters: Number of characters of the kept sentences.

    Example:
        >>> sample = SentenceSample(max_sentences=2, max_characters=99)
        >>> for priority, sentence in [(5, "One."), (9, "Two."), (1, "Three.")]:
        ...     sample.add(priority, sentence)
        >>> list(sample.take()), sample.threshold
        (['Three.', 'One.'], 9)
    """

    def __init__(self, max_sentences: int, max_characters: int) -> None:
        self._max_sentences = max_sentences
        self._max_characters = max_characters
        # Negated priorities, so that the largest priority comes first.
        self._heap: list[tuple[int, str]] = []
        self.threshold = 1 << 64
        self.num_characters = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, priority: int, sentence: str) -> None:
        """Adds a sentence if its priority is below the threshold."""
        if priority >= self.threshold:
            return
        heapq.heappush(self._heap, (-priority, sentence))
        self.num_characters += len(sentence)
        while (
            len(self._heap) > self._max_sentences
            or self.num_characters > self._max_characters
        ):
            self._drop_one()

    def limit(self, threshold: int) -> None:
        """Drops all sentences whose priority is not below `threshold`."""
        self.threshold = min(self.threshold, threshold)
        while self._heap and -self._heap[0][0] >= threshold:
            self._drop_one()

    def take(self) -> Iterator[str]:
        """Yields the sentences by increasing priority, and removes them."""
        self._heap.sort()
        while self._heap:
            yield self._heap.pop()[1]

    def _drop_one(self) -> None:
        negative, sentence = heapq.heappop(self._heap)
        self.threshold = min(self.threshold, -negative)
        self.num_characters -= len(sentence)
