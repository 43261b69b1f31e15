"""The other boxes of the site: membership, their reports, and the links to them."""
