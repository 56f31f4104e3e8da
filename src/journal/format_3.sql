-- When an event of each kind last happened in a boot. Kept apart from the events, which give way to
-- age and size: what holds until a reboot must be known after a restart, however long ago it was.
CREATE TABLE last_kernel_events (
  boot_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  utc_ms INTEGER NOT NULL,
  PRIMARY KEY (boot_id, kind)
) WITHOUT ROWID;

INSERT INTO last_kernel_events (boot_id, kind, utc_ms)
SELECT boot_id, kind, max(utc_ms) FROM kernel_events GROUP BY boot_id, kind;
