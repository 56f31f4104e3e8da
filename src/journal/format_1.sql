CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value NOT NULL
) WITHOUT ROWID;

-- Kernel events. A record that is read twice is stored once. Numbers are never given again, so that
-- a reader can go on after one, whatever has been deleted.
CREATE TABLE kernel_events (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  boot_id TEXT NOT NULL,
  seq INTEGER,
  utc_ms INTEGER NOT NULL,
  kind TEXT NOT NULL,
  json TEXT NOT NULL,
  UNIQUE (boot_id, seq)
);
CREATE INDEX kernel_events_time ON kernel_events (utc_ms, id);

-- How far the kernel log has been read, for each boot in the order of the boots.
CREATE TABLE kernel_log_cursor (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  boot_id TEXT NOT NULL UNIQUE,
  resume_seq INTEGER NOT NULL
);

CREATE TABLE decisions (
  id INTEGER PRIMARY KEY,
  utc_ms INTEGER NOT NULL,
  rule TEXT NOT NULL,
  alert TEXT NOT NULL,
  verdict TEXT NOT NULL,
  json TEXT NOT NULL
);
CREATE INDEX decisions_time ON decisions (utc_ms, id);

CREATE TABLE outcomes (
  decision INTEGER PRIMARY KEY,
  utc_ms INTEGER NOT NULL,
  json TEXT NOT NULL
);
CREATE INDEX outcomes_time ON outcomes (utc_ms, decision);

CREATE TABLE assessments (
  decision INTEGER PRIMARY KEY,
  utc_ms INTEGER NOT NULL,
  json TEXT NOT NULL
);

CREATE TABLE alerts (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  utc_ms INTEGER NOT NULL,
  rule TEXT NOT NULL,
  alert TEXT NOT NULL,
  json TEXT NOT NULL
);
CREATE INDEX alerts_time ON alerts (utc_ms, id);

CREATE TABLE notes (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  utc_ms INTEGER NOT NULL,
  json TEXT NOT NULL
);
CREATE INDEX notes_time ON notes (utc_ms, id);
