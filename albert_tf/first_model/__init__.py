"""A first model from a folder of text, within a given time."""
