"""The doors: where requests come in and answers go out."""
