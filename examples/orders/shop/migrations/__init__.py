"""The shop's own revisions."""
