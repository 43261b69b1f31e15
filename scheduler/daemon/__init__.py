"""The impure shell around the core: one actor per box owns the clock, the links and the doors."""
