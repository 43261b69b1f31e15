"""The doors: where requests enter the box and answers leave it."""
