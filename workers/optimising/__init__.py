"""Make faster variants of a model, and measure how much accuracy they lose."""
