"""Parts of training a SentencePiece vocabulary."""
