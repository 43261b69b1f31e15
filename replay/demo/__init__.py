"""`laxity demo`: a box of its own, its cameras, its figures, and what it shows."""
