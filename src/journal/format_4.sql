-- In which order decisions, their assessments and what people ordered were stored: neither numbers
-- made of the time nor wall clocks tell. One counter for all three, in meta under 'last_place'.
ALTER TABLE decisions ADD COLUMN place INTEGER NOT NULL DEFAULT 0;
ALTER TABLE assessments ADD COLUMN place INTEGER NOT NULL DEFAULT 0;
-- 0: stored by an older program, and so taken to be older than every decision.
ALTER TABLE operator_commands ADD COLUMN place INTEGER NOT NULL DEFAULT 0;

UPDATE decisions SET place = ranked.place
FROM (SELECT id, row_number() OVER (ORDER BY id) AS place FROM decisions) AS ranked
WHERE ranked.id = decisions.id;
UPDATE assessments SET place = (SELECT count(*) FROM decisions);
INSERT INTO meta (key, value) SELECT 'last_place', count(*) FROM decisions;

-- The place behind which this boot's acts stand.
INSERT INTO meta (key, value)
SELECT 'boot_begins_after', count(d.id) FROM meta m
LEFT JOIN decisions d ON d.id < m.value
WHERE m.key = 'boot_first_decision' GROUP BY m.key;
DELETE FROM meta WHERE key = 'boot_first_decision';

CREATE INDEX decisions_acts ON decisions (place) WHERE verdict = 'act';
