"""What may be wrong around a box, and what would mend it."""
