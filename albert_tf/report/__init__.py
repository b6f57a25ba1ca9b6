"""Reports on runs: learning curves as a picture, facts as a page."""
