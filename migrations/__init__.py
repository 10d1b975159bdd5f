"""The Alembic environment and revisions, importable as `qstore.migrations` wherever the package is installed."""
