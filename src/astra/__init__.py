"""Finds the fastest and the cheapest way to train a large language model."""
