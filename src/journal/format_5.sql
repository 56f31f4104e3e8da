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
