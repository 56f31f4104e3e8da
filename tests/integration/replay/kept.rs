//! The ring and the incidents on disk: bounded, complete, and with losses reported.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{
    AlertState, Moment, Observation, Reading, Readings, Schema, SeriesKey, Source,
};
use umawarden::recording::{
    IncidentLimits, Incidents, RecordedStep, RecordingEntry, RecordingRing, SegmentReader,
    StepResult, segment_files,
};

use super::{Happens, begin, lived, moment};

fn folder_bytes(folder: &Path) -> u64 {
    segment_files(folder).iter().map(|path| fs::metadata(path).unwrap().len()).sum()
}

fn noise(step: u64) -> RecordingEntry {
    let word = |n: u64| step.wrapping_mul(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 12;
    let series = (0..200).map(|n| SeriesKey::new("x", &[("n", &format!("{n}"))])).collect();
    let readings = Readings {
        source: Source::Vmstat,
        schema: Arc::new(Schema { series }),
        values: (0..200).map(|n| Reading::Value(word(n) as f64)).collect(),
        took: Duration::ZERO,
        error: None,
    };
    let seen = vec![Observation::Readings(readings)];
    RecordingEntry::Step(RecordedStep { at: moment(step), seen, said: StepResult::default() })
}

#[test]
fn the_ring_never_exceeds_its_size_and_keeps_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let size = 1 << 20;
    let mut ring = RecordingRing::new(folder.path(), size, begin());
    for step in 0..3000 {
        ring.take(&noise(step)).unwrap();
        let bytes = folder_bytes(folder.path());
        assert!(bytes <= size, "{bytes} after step {step}");
    }
    ring.flush().unwrap();
    let files = segment_files(folder.path());
    assert!(files.len() > 5 && !files[0].ends_with("0000000000.umarec"), "{files:?}");
    assert!(folder_bytes(folder.path()) > size / 2);
    let tally = ring.tally();
    assert!(tally.written_bytes > size, "{tally:?}");
    assert_eq!((tally.lost_steps, tally.write_errors), (0, 0));
    let last = fs::read(files.last().unwrap()).unwrap();
    let mut reader = SegmentReader::open(&*last).unwrap();
    let mut newest = None;
    while let Some(entry) = reader.next_entry().unwrap() {
        newest = entry.at().or(newest);
    }
    assert_eq!(newest, Some(moment(2999)));
}

#[test]
fn an_incident_contains_the_steps_before_and_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let incidents_folder = folder.path().join("incidents");
    let limits = IncidentLimits {
        before: Duration::from_secs(3),
        after: Duration::from_secs(2),
        from_start_bytes: 0,
        files: 2,
        ..IncidentLimits::within(8 << 20)
    };
    let mut ring = RecordingRing::new(&folder.path().join("recording"), 1 << 20, begin());
    let mut incidents = Incidents::new(&incidents_folder, limits);
    let mut happenings = Vec::new();
    for _ in 0..4 {
        happenings.extend(vec![vec![Happens::Free(Reading::Value(99.0))]; 100]);
        happenings.extend(vec![vec![Happens::Free(Reading::Value(10.0))]; 5]);
    }
    let (entries, steps) = lived(happenings);
    let fired: Vec<Moment> = steps
        .iter()
        .flat_map(|step| &step.alerts)
        .filter(|change| change.to == AlertState::Firing)
        .map(|change| change.at)
        .collect();
    assert_eq!(fired.len(), 4);
    let mut begun = Vec::new();
    for entry in &entries {
        ring.take(entry).unwrap();
        begun.extend(incidents.add(entry, &mut ring).unwrap());
    }
    incidents.end().unwrap();
    assert_eq!(begun.len(), 4, "{begun:?}");
    assert_eq!(incidents.begun(), 4);
    assert!(incidents.written_bytes() > folder_bytes(&incidents_folder), "two are deleted");
    assert!(begun[0].ends_with("20261118T110650Z-Low.umarec"), "{begun:?}");
    assert_eq!(segment_files(&incidents_folder), begun[2..], "the oldest are deleted");
    let bytes = fs::read(&begun[2]).unwrap();
    let mut reader = SegmentReader::open(&*bytes).unwrap();
    let mut times = Vec::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        match entry {
            RecordingEntry::Begin(begin) => assert!(!begin.is_start && begin.next_decision.0 > 7),
            entry => times.extend(entry.at()),
        }
    }
    assert_eq!(times.first().map(|at| at.uptime), Some(fired[2].uptime - limits.before));
    assert_eq!(times.last().map(|at| at.uptime), Some(fired[2].uptime + limits.after));
}

#[test]
fn a_failing_disk_loses_steps_and_reports_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    fs::write(&path, "a file where the folder should be").unwrap();
    let mut ring = RecordingRing::new(&path, 1 << 20, begin());
    let error = ring.take(&noise(0)).unwrap_err();
    assert!(error.to_string().contains("cannot begin the recording"), "{error}");
    for step in 1..100 {
        ring.take(&noise(step)).unwrap();
    }
    let tally = ring.tally();
    assert_eq!((tally.lost_steps, tally.write_errors, tally.written_bytes), (100, 1, 0));
    fs::remove_file(&path).unwrap();
    for step in 400..500 {
        ring.take(&noise(step)).unwrap();
    }
    ring.flush().unwrap();
    let tally = ring.tally();
    assert_eq!((tally.lost_steps, tally.written_bytes), (100, folder_bytes(&path)));
    let bytes = fs::read(&segment_files(&path)[0]).unwrap();
    let mut reader = SegmentReader::open(&*bytes).unwrap();
    let first = reader.next_entry().unwrap().unwrap();
    assert!(matches!(first, RecordingEntry::Begin(begin) if !begin.is_start));
    let second = reader.next_entry().unwrap().unwrap();
    assert!(matches!(second, RecordingEntry::Gap { steps: 100 }), "{second:?}");
}

#[test]
fn an_incident_keeps_the_end_of_a_storm_within_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let limits = IncidentLimits { file_bytes: 256 << 10, ..IncidentLimits::within(2 << 20) };
    let mut ring = RecordingRing::new(&folder.path().join("recording"), 1 << 20, begin());
    let mut incidents = Incidents::new(&folder.path().join("incidents"), limits);
    for step in 0..2000 {
        ring.take(&noise(step)).unwrap();
    }
    let (entries, steps) = lived(vec![vec![Happens::Free(Reading::Value(1.0))]; 2010]);
    let mut change = steps.into_iter().flat_map(|step| step.alerts).last().unwrap();
    change.at = moment(2009);
    let Some(RecordingEntry::Step(mut fired)) = entries.into_iter().last() else {
        panic!("no step")
    };
    fired.said.alerts = vec![change];
    let fired = RecordingEntry::Step(fired);
    ring.take(&fired).unwrap();
    let path = incidents.add(&fired, &mut ring).unwrap().unwrap();
    for step in 2010..5000 {
        ring.take(&noise(step)).unwrap();
        incidents.add(&noise(step), &mut ring).unwrap();
    }
    incidents.end().unwrap();
    let bytes = fs::read(&path).unwrap();
    assert!(bytes.len() < 400 << 10, "{}", bytes.len());
    let mut reader = SegmentReader::open(&*bytes).unwrap();
    let mut times = Vec::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        times.extend(entry.at());
    }
    let position = times.iter().position(|at| *at == moment(2009)).unwrap();
    assert!(position > 10 && position + 10 < times.len(), "{position} of {}", times.len());
}

#[test]
fn consecutive_processes_share_the_ring_and_each_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    for process in 0..3 {
        let mut ring = RecordingRing::new(folder.path(), 1 << 20, begin());
        for step in 0..40 {
            ring.take(&noise(step)).unwrap();
        }
        ring.flush().unwrap();
        // kill -9: the last block is torn.
        let files = segment_files(folder.path());
        assert_eq!(files.len(), process + 1);
        let last = files.last().unwrap();
        let bytes = fs::read(last).unwrap();
        fs::write(last, &bytes[..bytes.len() - 3]).unwrap();
        assert_eq!(ring.own_segments().len(), 1);
    }
    for path in segment_files(folder.path()) {
        let bytes = fs::read(path).unwrap();
        let mut reader = SegmentReader::open(&*bytes).unwrap();
        let first = reader.next_entry().unwrap().unwrap();
        assert!(matches!(first, RecordingEntry::Begin(begin) if begin.is_start));
    }
}
