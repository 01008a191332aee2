"""Adapters for other projects, each of which loads them by its own plugin interface."""
