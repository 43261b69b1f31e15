"""Makes faster variants of a model, and measures what they lose by it."""
