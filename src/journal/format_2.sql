-- What people ordered. A silence that was ended has until_ms 0; other orders than silences and
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
  json TEXT NOT NULL
);
CREATE INDEX operator_commands_time ON operator_commands (utc_ms, id);
