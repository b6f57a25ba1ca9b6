"""Files of text to documents of sentences."""
