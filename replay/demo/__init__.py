"""`laxity demo`: a box of its own, its load, its figures, and what it shows."""
