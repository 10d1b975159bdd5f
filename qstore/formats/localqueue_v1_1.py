"""`localqueue.v1.1`: what is due again, so that a receive need not sort all that is due. Frozen.

Fresh messages (`visible_at = enqueued_at`) are due in the order of `idx_messages_fresh`, as far as now. The others are
due in the order of their `enqueued_at`, not of their `visible_at`: `redeliveries` has exactly those of them whose
`visible_at` is at most the mark, and a receive that finds more of them due moves the mark on first. Nothing is written
there while every message is received and acknowledged in time.
"""

from qstore.formats.addition import Addition
from qstore.formats.localqueue_v1 import LOCALQUEUE_V1

__all__ = ["LOCALQUEUE_V1_1"]

_ENTER = """
  INSERT INTO {redeliveries} (id, enqueued_at) SELECT NEW.id, NEW.enqueued_at FROM {redelivery_mark}
    WHERE NEW.visible_at <> NEW.enqueued_at AND NEW.visible_at <= visible_at;"""

LOCALQUEUE_V1_1 = Addition(
    format=LOCALQUEUE_V1,
    revision="localqueue.v1.1",
    dialect="sqlite",
    tables={
        # BLOB: any number is kept as it is, as in `turns`.
        "redeliveries": "CREATE TABLE IF NOT EXISTS {redeliveries} (id INTEGER PRIMARY KEY, enqueued_at BLOB)",
        "redelivery_mark": "CREATE TABLE IF NOT EXISTS {redelivery_mark} (id INTEGER PRIMARY KEY, visible_at BLOB)",
    },
    indexes={
        "idx_messages_fresh": "CREATE INDEX IF NOT EXISTS {idx_messages_fresh} ON {messages} (enqueued_at, id)"
        " WHERE visible_at = enqueued_at",
        "idx_messages_again": "CREATE INDEX IF NOT EXISTS {idx_messages_again} ON {messages} (visible_at, enqueued_at)"
        " WHERE visible_at <> enqueued_at",
        "idx_redeliveries": "CREATE INDEX IF NOT EXISTS {idx_redeliveries} ON {redeliveries} (enqueued_at, id)",
    },
    triggers={
        # By id, so that it does not matter whether a REPLACE fires the triggers of a DELETE.
        "redeliveries_insert": f"""\
CREATE TRIGGER IF NOT EXISTS {{redeliveries_insert}} AFTER INSERT ON {{messages}}
  WHEN NEW.visible_at <> NEW.enqueued_at OR EXISTS (SELECT 1 FROM {{redeliveries}} WHERE id = NEW.id)
BEGIN
  DELETE FROM {{redeliveries}} WHERE id = NEW.id;{_ENTER}
END""",
        "redeliveries_update": f"""\
CREATE TRIGGER IF NOT EXISTS {{redeliveries_update}} AFTER UPDATE ON {{messages}}
  WHEN EXISTS (SELECT 1 FROM {{redeliveries}} WHERE id = OLD.id)
    OR NEW.visible_at <= (SELECT visible_at FROM {{redelivery_mark}}) OR NEW.id <> OLD.id
BEGIN
  DELETE FROM {{redeliveries}} WHERE id = OLD.id;
  DELETE FROM {{redeliveries}} WHERE id = NEW.id;{_ENTER}
END""",
        "redeliveries_delete": """\
CREATE TRIGGER IF NOT EXISTS {redeliveries_delete} AFTER DELETE ON {messages}
  WHEN EXISTS (SELECT 1 FROM {redeliveries} WHERE id = OLD.id)
BEGIN
  DELETE FROM {redeliveries} WHERE id = OLD.id;
END""",
    },
    # The first receive then moves the mark over all that is due.
    fill=(
        "DELETE FROM {redeliveries}",
        "DELETE FROM {redelivery_mark}",
        "INSERT INTO {redelivery_mark} (id, visible_at) VALUES (0, -9e999)",
        """\
INSERT INTO {redeliveries} (id, enqueued_at) SELECT id, enqueued_at FROM {messages}
    WHERE visible_at <> enqueued_at AND visible_at <= -9e999""",
    ),
    faults="""\
SELECT m.id FROM {messages} AS m
      WHERE m.visible_at <> m.enqueued_at AND m.visible_at <= (SELECT visible_at FROM {redelivery_mark})
        AND NOT EXISTS (SELECT 1 FROM {redeliveries} AS r WHERE r.id = m.id)
    UNION ALL
    SELECT r.id FROM {redeliveries} AS r
      WHERE NOT EXISTS (SELECT 1 FROM {messages} AS m WHERE m.id = r.id AND m.enqueued_at IS r.enqueued_at
        AND m.visible_at <> m.enqueued_at AND m.visible_at <= (SELECT visible_at FROM {redelivery_mark}))
    UNION ALL
    SELECT NULL WHERE (SELECT count(visible_at) FROM {redelivery_mark}) <> 1""",
)
