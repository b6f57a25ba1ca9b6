"""Prepare text for pretraining ALBERT."""
