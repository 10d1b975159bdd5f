CREATE TABLE redeliveries (id INTEGER PRIMARY KEY, enqueued_at BLOB);

CREATE TABLE redelivery_mark (id INTEGER PRIMARY KEY, visible_at BLOB);

CREATE INDEX idx_messages_fresh ON messages (enqueued_at, id) WHERE visible_at = enqueued_at;

CREATE INDEX idx_messages_again ON messages (visible_at, enqueued_at) WHERE visible_at <> enqueued_at;

CREATE INDEX idx_redeliveries ON redeliveries (enqueued_at, id);

CREATE TRIGGER redeliveries_insert AFTER INSERT ON messages
  WHEN NEW.visible_at <> NEW.enqueued_at OR EXISTS (SELECT 1 FROM redeliveries WHERE id = NEW.id)
BEGIN
  DELETE FROM redeliveries WHERE id = NEW.id;
  INSERT INTO redeliveries (id, enqueued_at) SELECT NEW.id, NEW.enqueued_at FROM redelivery_mark
    WHERE NEW.visible_at <> NEW.enqueued_at AND NEW.visible_at <= visible_at;
END;

CREATE TRIGGER redeliveries_update AFTER UPDATE ON messages
  WHEN EXISTS (SELECT 1 FROM redeliveries WHERE id = OLD.id)
    OR NEW.visible_at <= (SELECT visible_at FROM redelivery_mark) OR NEW.id <> OLD.id
BEGIN
  DELETE FROM redeliveries WHERE id = OLD.id;
  DELETE FROM redeliveries WHERE id = NEW.id;
  INSERT INTO redeliveries (id, enqueued_at) SELECT NEW.id, NEW.enqueued_at FROM redelivery_mark
    WHERE NEW.visible_at <> NEW.enqueued_at AND NEW.visible_at <= visible_at;
END;

CREATE TRIGGER redeliveries_delete AFTER DELETE ON messages
  WHEN EXISTS (SELECT 1 FROM redeliveries WHERE id = OLD.id)
BEGIN
  DELETE FROM redeliveries WHERE id = OLD.id;
END;

INSERT INTO redelivery_mark (id, visible_at) VALUES (0, -9e999);
