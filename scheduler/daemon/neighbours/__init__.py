"""The other boxes of the site: who they are, what they say they can do, and the way to them."""
