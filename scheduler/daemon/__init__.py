"""The impure shell around the core: one actor per box that owns the clock, the links and doors."""
