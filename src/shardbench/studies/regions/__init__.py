"""Regions: claims over all knobs at once that no source fixes, their response surfaces and pictures."""
