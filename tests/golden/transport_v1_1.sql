CREATE TABLE turns (
  id       INTEGER PRIMARY KEY,
  group_id TEXT UNIQUE,
  head     INTEGER,
  slot     INTEGER,
  at       BLOB,
  until    BLOB,
  held     INTEGER,
  lane     INTEGER,
  stamp    BLOB
);

CREATE INDEX idx_turns ON turns (slot, at, head);

CREATE INDEX idx_messages_group ON messages (group_id);

CREATE TRIGGER turns_message_replace BEFORE INSERT ON messages
  WHEN EXISTS (SELECT 1 FROM messages WHERE seq = NEW.seq)
BEGIN
  UPDATE turns SET slot = -1, at = -9e999
    WHERE group_id = (SELECT group_id FROM messages WHERE seq = NEW.seq);
END;

CREATE TRIGGER turns_message_move BEFORE UPDATE OF seq ON messages
  WHEN NEW.seq IS NOT OLD.seq AND EXISTS (SELECT 1 FROM messages WHERE seq = NEW.seq)
BEGIN
  UPDATE turns SET slot = -1, at = -9e999
    WHERE group_id = (SELECT group_id FROM messages WHERE seq = NEW.seq);
END;

CREATE TRIGGER turns_message_insert AFTER INSERT ON messages
  WHEN (NEW.locked_by IS NULL OR NEW.lock_expiry IS NOT NULL) AND (NEW.locked_by IS NOT NULL
    OR NOT EXISTS (SELECT 1 FROM turns WHERE group_id = NEW.group_id AND head < NEW.seq))
BEGIN
  UPDATE turns SET (head, slot, at, until, held) = (
      SELECT head, CASE WHEN head IS NULL OR lane IS NULL THEN NULL WHEN until = -9e999 THEN lane ELSE -1 END, CASE WHEN until = -9e999 THEN stamp ELSE until END, until, held
      FROM (SELECT min(coalesce(turns.head, NEW.seq), NEW.seq) AS head, held, CASE
          WHEN held = 0 THEN -9e999
          WHEN held = (NEW.locked_by IS NOT NULL) THEN NEW.lock_expiry
          WHEN (NEW.locked_by IS NOT NULL) AND NEW.lock_expiry >= turns.until THEN NEW.lock_expiry
          ELSE turns.until END AS until
        FROM (SELECT turns.held + (NEW.locked_by IS NOT NULL) AS held)))
    WHERE group_id = NEW.group_id AND NOT (slot IS -1 AND at IS -9e999);
  INSERT INTO turns (group_id, head, at, until, held)
    SELECT NEW.group_id, NEW.seq, 0.0, CASE WHEN NEW.locked_by IS NULL THEN -9e999 ELSE NEW.lock_expiry END,
           NEW.locked_by IS NOT NULL
    WHERE NOT EXISTS (SELECT 1 FROM turns WHERE group_id = NEW.group_id);
END;

CREATE TRIGGER turns_message_lock AFTER UPDATE ON messages
  WHEN NEW.group_id IS OLD.group_id AND NEW.seq IS OLD.seq AND (NEW.locked_by IS NULL OR NEW.lock_expiry IS NOT NULL) AND (OLD.locked_by IS NULL OR OLD.lock_expiry IS NOT NULL)
BEGIN
  UPDATE turns SET (head, slot, at, until, held) = (
      SELECT head, CASE WHEN head IS NULL OR lane IS NULL THEN NULL WHEN until = -9e999 THEN lane ELSE -1 END, CASE WHEN until = -9e999 THEN stamp ELSE until END, until, held
      FROM (SELECT turns.head AS head, held, CASE
          WHEN held = 0 THEN -9e999
          WHEN held = (NEW.locked_by IS NOT NULL) THEN NEW.lock_expiry
          WHEN (NEW.locked_by IS NOT NULL) AND NEW.lock_expiry >= turns.until THEN NEW.lock_expiry
          WHEN NOT (OLD.locked_by IS NOT NULL) OR OLD.lock_expiry < turns.until THEN turns.until
          ELSE coalesce((SELECT max((SELECT m.lock_expiry FROM messages AS m
          WHERE m.seq = f.seq AND m.locked_by IS NOT NULL)) FROM messages AS f WHERE f.group_id = NEW.group_id), -9e999) END AS until
        FROM (SELECT turns.held - (OLD.locked_by IS NOT NULL) + (NEW.locked_by IS NOT NULL) AS held)))
    WHERE group_id = NEW.group_id AND NOT (slot IS -1 AND at IS -9e999);
END;

CREATE TRIGGER turns_message_leave AFTER UPDATE ON messages
  WHEN (OLD.locked_by IS NULL OR OLD.lock_expiry IS NOT NULL) AND NOT (NEW.group_id IS OLD.group_id AND NEW.seq IS OLD.seq AND (NEW.locked_by IS NULL OR NEW.lock_expiry IS NOT NULL))
BEGIN
  UPDATE turns SET (head, slot, at, until, held) = (
      SELECT head, CASE WHEN head IS NULL OR lane IS NULL THEN NULL WHEN until = -9e999 THEN lane ELSE -1 END, CASE WHEN until = -9e999 THEN stamp ELSE until END, until, held
      FROM (SELECT (SELECT f.seq FROM messages AS f WHERE f.group_id = OLD.group_id
          AND (SELECT m.locked_by IS NULL OR m.lock_expiry IS NOT NULL FROM messages AS m WHERE m.seq = f.seq)
        ORDER BY f.seq LIMIT 1) AS head, held, CASE
          WHEN held = 0 THEN -9e999
          WHEN NOT (OLD.locked_by IS NOT NULL) OR OLD.lock_expiry < turns.until THEN turns.until
          ELSE coalesce((SELECT max((SELECT m.lock_expiry FROM messages AS m
          WHERE m.seq = f.seq AND m.locked_by IS NOT NULL)) FROM messages AS f WHERE f.group_id = OLD.group_id), -9e999) END AS until
        FROM (SELECT turns.held - (OLD.locked_by IS NOT NULL) AS held)))
    WHERE group_id = OLD.group_id AND NOT (slot IS -1 AND at IS -9e999);
  DELETE FROM turns WHERE group_id = OLD.group_id AND head IS NULL AND lane IS NULL AND NOT (slot IS -1 AND at IS -9e999);
END;

CREATE TRIGGER turns_message_join AFTER UPDATE ON messages
  WHEN (NEW.locked_by IS NULL OR NEW.lock_expiry IS NOT NULL) AND NOT (NEW.group_id IS OLD.group_id AND NEW.seq IS OLD.seq AND (OLD.locked_by IS NULL OR OLD.lock_expiry IS NOT NULL))
BEGIN
  UPDATE turns SET (head, slot, at, until, held) = (
      SELECT head, CASE WHEN head IS NULL OR lane IS NULL THEN NULL WHEN until = -9e999 THEN lane ELSE -1 END, CASE WHEN until = -9e999 THEN stamp ELSE until END, until, held
      FROM (SELECT min(coalesce(turns.head, NEW.seq), NEW.seq) AS head, held, CASE
          WHEN held = 0 THEN -9e999
          WHEN held = (NEW.locked_by IS NOT NULL) THEN NEW.lock_expiry
          WHEN (NEW.locked_by IS NOT NULL) AND NEW.lock_expiry >= turns.until THEN NEW.lock_expiry
          ELSE turns.until END AS until
        FROM (SELECT turns.held + (NEW.locked_by IS NOT NULL) AS held)))
    WHERE group_id = NEW.group_id AND NOT (slot IS -1 AND at IS -9e999);
  INSERT INTO turns (group_id, head, at, until, held)
    SELECT NEW.group_id, NEW.seq, 0.0, CASE WHEN NEW.locked_by IS NULL THEN -9e999 ELSE NEW.lock_expiry END,
           NEW.locked_by IS NOT NULL
    WHERE NOT EXISTS (SELECT 1 FROM turns WHERE group_id = NEW.group_id);
END;

CREATE TRIGGER turns_message_delete AFTER DELETE ON messages
  WHEN (OLD.locked_by IS NULL OR OLD.lock_expiry IS NOT NULL) AND (OLD.locked_by IS NOT NULL
    OR EXISTS (SELECT 1 FROM turns WHERE group_id = OLD.group_id AND head >= OLD.seq))
BEGIN
  UPDATE turns SET (head, slot, at, until, held) = (
      SELECT head, CASE WHEN head IS NULL OR lane IS NULL THEN NULL WHEN until = -9e999 THEN lane ELSE -1 END, CASE WHEN until = -9e999 THEN stamp ELSE until END, until, held
      FROM (SELECT (SELECT f.seq FROM messages AS f WHERE f.group_id = OLD.group_id
          AND (SELECT m.locked_by IS NULL OR m.lock_expiry IS NOT NULL FROM messages AS m WHERE m.seq = f.seq)
        ORDER BY f.seq LIMIT 1) AS head, held, CASE
          WHEN held = 0 THEN -9e999
          WHEN NOT (OLD.locked_by IS NOT NULL) OR OLD.lock_expiry < turns.until THEN turns.until
          ELSE coalesce((SELECT max((SELECT m.lock_expiry FROM messages AS m
          WHERE m.seq = f.seq AND m.locked_by IS NOT NULL)) FROM messages AS f WHERE f.group_id = OLD.group_id), -9e999) END AS until
        FROM (SELECT turns.held - (OLD.locked_by IS NOT NULL) AS held)))
    WHERE group_id = OLD.group_id AND NOT (slot IS -1 AND at IS -9e999);
  DELETE FROM turns WHERE group_id = OLD.group_id AND head IS NULL AND lane IS NULL AND NOT (slot IS -1 AND at IS -9e999);
END;

CREATE TRIGGER turns_group_insert AFTER INSERT ON groups
BEGIN
  UPDATE turns SET lane = CASE WHEN NEW.priority >= 4 THEN 4 WHEN NEW.priority >= 0 THEN CAST(NEW.priority AS INTEGER) ELSE -2 END, stamp = NEW.last_claimed_at WHERE group_id = NEW.group_id;
  UPDATE turns SET slot = CASE WHEN head IS NULL OR lane IS NULL THEN NULL WHEN until = -9e999 THEN lane ELSE -1 END, at = CASE WHEN until = -9e999 THEN stamp ELSE until END WHERE group_id = NEW.group_id AND slot IS NOT -1;
  INSERT INTO turns (group_id, at, until, held, lane, stamp)
    SELECT NEW.group_id, 0.0, -9e999, 0, CASE WHEN NEW.priority >= 4 THEN 4 WHEN NEW.priority >= 0 THEN CAST(NEW.priority AS INTEGER) ELSE -2 END, NEW.last_claimed_at
    WHERE NEW.group_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM turns WHERE group_id = NEW.group_id);
  UPDATE turns SET until = NEW.last_claimed_at WHERE id = 0 AND until < NEW.last_claimed_at;
END;

CREATE TRIGGER turns_group_update AFTER UPDATE ON groups
  WHEN NEW.group_id IS OLD.group_id
BEGIN
  UPDATE turns SET lane = CASE WHEN NEW.priority >= 4 THEN 4 WHEN NEW.priority >= 0 THEN CAST(NEW.priority AS INTEGER) ELSE -2 END, stamp = NEW.last_claimed_at WHERE group_id = NEW.group_id;
  UPDATE turns SET slot = CASE WHEN head IS NULL OR lane IS NULL THEN NULL WHEN until = -9e999 THEN lane ELSE -1 END, at = CASE WHEN until = -9e999 THEN stamp ELSE until END WHERE group_id = NEW.group_id AND slot IS NOT -1;
  UPDATE turns SET until = NEW.last_claimed_at WHERE id = 0 AND until < NEW.last_claimed_at;
END;

CREATE TRIGGER turns_group_rename AFTER UPDATE ON groups
  WHEN NEW.group_id IS NOT OLD.group_id
BEGIN
  DELETE FROM turns WHERE group_id = OLD.group_id AND head IS NULL AND NOT (slot IS -1 AND at IS -9e999);
  UPDATE turns SET lane = NULL, stamp = NULL, slot = CASE WHEN (slot IS -1 AND at IS -9e999) THEN slot END
    WHERE group_id = OLD.group_id;
  UPDATE turns SET lane = CASE WHEN NEW.priority >= 4 THEN 4 WHEN NEW.priority >= 0 THEN CAST(NEW.priority AS INTEGER) ELSE -2 END, stamp = NEW.last_claimed_at WHERE group_id = NEW.group_id;
  UPDATE turns SET slot = CASE WHEN head IS NULL OR lane IS NULL THEN NULL WHEN until = -9e999 THEN lane ELSE -1 END, at = CASE WHEN until = -9e999 THEN stamp ELSE until END WHERE group_id = NEW.group_id AND slot IS NOT -1;
  INSERT INTO turns (group_id, at, until, held, lane, stamp)
    SELECT NEW.group_id, 0.0, -9e999, 0, CASE WHEN NEW.priority >= 4 THEN 4 WHEN NEW.priority >= 0 THEN CAST(NEW.priority AS INTEGER) ELSE -2 END, NEW.last_claimed_at
    WHERE NEW.group_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM turns WHERE group_id = NEW.group_id);
  UPDATE turns SET until = NEW.last_claimed_at WHERE id = 0 AND until < NEW.last_claimed_at;
END;

CREATE TRIGGER turns_group_delete AFTER DELETE ON groups
BEGIN
  DELETE FROM turns WHERE group_id = OLD.group_id AND head IS NULL AND NOT (slot IS -1 AND at IS -9e999);
  UPDATE turns SET lane = NULL, stamp = NULL, slot = CASE WHEN (slot IS -1 AND at IS -9e999) THEN slot END
    WHERE group_id = OLD.group_id;
END;

INSERT INTO turns (id, group_id, head, slot, at, until, held) VALUES (0, NULL, 0, -3, 0.0, 0.0, 0);
