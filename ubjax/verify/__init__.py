"""Replays golden answers through the library on the present device."""
