"""The formats on disk: made, recognised, adopted, upgraded, and shipped."""

import pytest

pytest.register_assert_rewrite("tests.migration.file_state", "tests.migration.alembic_command")
