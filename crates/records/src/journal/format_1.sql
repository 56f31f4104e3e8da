CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value NOT NULL
) WITHOUT ROWID;

-- Events. A kernel-log record that is read twice is stored once. Numbers are never given again, so
-- that a reader can continue after one, whatever has been deleted.
CREATE TABLE events (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  boot_id TEXT NOT NULL,
  seq INTEGER,
  utc_ms INTEGER NOT NULL,
  kind TEXT NOT NULL,
  json TEXT NOT NULL,
  UNIQUE (boot_id, seq)
);
CREATE INDEX events_time ON events (utc_ms, id);

-- When an event of each kind last happened in a boot. Kept apart from the events, which give way to
-- age and size: what holds until a reboot must be known after a restart, however long ago it was.
CREATE TABLE last_events (
  boot_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  utc_ms INTEGER NOT NULL,
  PRIMARY KEY (boot_id, kind)
) WITHOUT ROWID;

-- How far the kernel log has been read, for each boot in the order of the boots.
CREATE TABLE kernel_log_cursor (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  boot_id TEXT NOT NULL UNIQUE,
  resume_seq INTEGER NOT NULL
);

-- `position` is the order in which decisions, their aim checks and people's orders were stored:
-- neither numbers made of the time nor wall clocks show it. One counter for all three, in meta under
-- 'last_position'.
CREATE TABLE decisions (
  id INTEGER PRIMARY KEY,
  utc_ms INTEGER NOT NULL,
  rule TEXT NOT NULL,
  alert TEXT NOT NULL,
  decision TEXT NOT NULL,
  json TEXT NOT NULL,
  position INTEGER NOT NULL
);
CREATE INDEX decisions_time ON decisions (utc_ms, id);
CREATE INDEX decisions_acts ON decisions (position) WHERE decision = 'act';

CREATE TABLE outcomes (
  decision INTEGER PRIMARY KEY,
  utc_ms INTEGER NOT NULL,
  json TEXT NOT NULL
);
CREATE INDEX outcomes_time ON outcomes (utc_ms, decision);

CREATE TABLE aim_checks (
  decision INTEGER PRIMARY KEY,
  utc_ms INTEGER NOT NULL,
  json TEXT NOT NULL,
  position INTEGER NOT NULL
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

-- Orders of people. A silence that was ended has until_ms 0; other orders than silences and
-- approvals are over when they are given.
CREATE TABLE operator_commands (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  utc_ms INTEGER NOT NULL,
  word TEXT NOT NULL,
  silence INTEGER,
  decision INTEGER,
  rule TEXT,
  alert TEXT,
  until_ms INTEGER NOT NULL,
  json TEXT NOT NULL,
  position INTEGER NOT NULL
);
CREATE INDEX operator_commands_time ON operator_commands (utc_ms, id);

-- What was decided, done, found and ordered about reboots, in this order. Kept apart from all else,
-- which gives way to age and size: a reboot that is forgotten is one more.
CREATE TABLE reboots (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  json TEXT NOT NULL
);

-- How long each boot has lasted at least, in the order of the boots: that much time has certainly
-- passed, whatever wall clocks say.
CREATE TABLE boots (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  boot_id TEXT NOT NULL UNIQUE,
  uptime_ms INTEGER NOT NULL
);
