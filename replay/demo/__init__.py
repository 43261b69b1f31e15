"""`laxity demo`: a box of its own, cameras, figures, and the display."""
