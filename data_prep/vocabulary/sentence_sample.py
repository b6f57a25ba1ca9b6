"""A random sample of sentences of bounded size, drawn while they stream by.

Each sentence has random bits of its own, and the sample is those with the
smallest ones, as many as there is room for. So it depends neither on the
order of documents nor on their number in a file.
"""

import hashlib
import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from albert_tf.records.keyed_random import random_bits


def draw_priorities(lines: Sequence[str], num_sentences: int) -> list[int]:
    """Random bits for each sentence of a document, those of its text.

    Args:
        lines: The document's.
        num_sentences: How many to draw.
    """
    content = "\n".join(lines).encode()
    digest = hashlib.blake2b(content, digest_size=8).digest()
    key = np.frombuffer(digest, "<u8")
    bits = random_bits(key.repeat(num_sentences), np.arange(num_sentences))
    return bits.tolist()


class SentenceSample:
    """The sentences of smallest priority, as many as there is room for.

    Args:
        max_sentences: Room for sentences.
        max_characters: Room for characters of these sentences.

    Attributes:
        threshold: Priorities from here on are not wanted any more.
        num_characters: Of the sentences kept.
    """

    def __init__(self, max_sentences: int, max_characters: int) -> None:
        self._max_sentences = max_sentences
        self._max_characters = max_characters
        # The largest priority comes first.
        self._heap: list[tuple[int, str]] = []
        self.threshold = 1 << 64
        self.num_characters = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, priority: int, sentence: str) -> None:
        """Keeps a sentence, for now, if its priority is below the threshold."""
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
        """Yields the sentences by rising priority, and forgets them."""
        self._heap.sort()
        while self._heap:
            yield self._heap.pop()[1]

    def _drop_one(self) -> None:
        negative, sentence = heapq.heappop(self._heap)
        self.threshold = min(self.threshold, -negative)
        self.num_characters -= len(sentence)
