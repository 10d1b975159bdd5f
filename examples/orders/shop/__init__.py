"""A shop: an application with tables of its own, whose messages live in its database."""
