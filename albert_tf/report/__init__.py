"""Learning curves of runs, as a picture or a page."""
