use super::*;

fn key(number: usize) -> SeriesKey {
    SeriesKey::new("uma_test", &[("number", &number.to_string())])
}

#[test]
fn an_instant_looks_back_less_than_five_minutes() {
    let mut store = SeriesStore::default();
    let id = store.intern(&key(0));
    store.append(id, 1000, Reading::Value(1.0));
    assert_eq!(store.at(id, 999), None);
    assert_eq!(store.at(id, 1000 + LOOKBACK_MS - 1).map(|point| point.value), Some(1.0));
    assert_eq!(store.at(id, 1000 + LOOKBACK_MS), None);
}

#[test]
fn a_missing_reading_ends_the_series() {
    let mut store = SeriesStore::default();
    let id = store.intern(&key(0));
    store.retain("uma_test", 10_000);
    store.append(id, 1000, Reading::Value(1.0));
    store.append(id, 2000, Reading::Failed);
    assert_eq!(store.at(id, 2000), None);
    assert_eq!(store.latest(id), Reading::Failed);
    assert_eq!(store.at(id, 1999).map(|point| point.value), Some(1.0));
    assert_eq!(store.window(id, 0, 3000).points().count(), 1);
}

#[test]
fn only_retained_samples_are_kept() {
    let mut store = SeriesStore::default();
    let [plain, ranged] = [key(0), SeriesKey::new("uma_ranged", &[])].map(|key| store.intern(&key));
    store.retain("uma_ranged", 1000);
    for at_ms in (0..100_000).step_by(100) {
        store.append(plain, at_ms, Reading::Value(1.0));
        store.append(ranged, at_ms, Reading::Value(1.0));
    }
    assert_eq!(store.window(plain, -1, 100_000).points().count(), 1);
    assert_eq!(store.window(ranged, -1, 100_000).points().count(), 10);
}

#[test]
fn the_same_instant_replaces_and_an_earlier_one_is_ignored() {
    let mut store = SeriesStore::default();
    let id = store.intern(&key(0));
    store.append(id, 1000, Reading::Value(1.0));
    store.append(id, 1000, Reading::Value(2.0));
    store.append(id, 900, Reading::Value(3.0));
    assert_eq!(store.latest(id), Reading::Value(2.0));
    assert_eq!(store.at(id, 1000).map(|point| point.value), Some(2.0));
}

#[test]
fn series_beyond_the_bound_are_refused_and_counted() {
    let mut store = SeriesStore::default();
    for number in 0..MAX_SERIES_PER_NAME + 5 {
        let id = store.intern(&key(number));
        assert_eq!(id == SeriesId::REFUSED, number >= MAX_SERIES_PER_NAME);
        store.append(id, 0, Reading::Value(1.0));
    }
    assert_eq!(store.refused(), 5);
    assert_eq!(store.keys().len(), MAX_SERIES_PER_NAME);
    assert!(store.named("uma_test").1);
}

#[test]
fn too_many_samples_cut_the_past_and_say_so() {
    let mut store = SeriesStore::default();
    let id = store.intern(&key(0));
    store.retain("uma_test", i64::MAX);
    for at_ms in 0..=MAX_SAMPLES as i64 {
        store.append(id, at_ms, Reading::Value(1.0));
    }
    assert_eq!(store.window(id, -1, i64::MAX).points().count(), MAX_SAMPLES);
    assert!(store.is_cut(id, -1));
    assert!(!store.is_cut(id, 0));
}

#[test]
fn a_closed_store_holds_declared_series_alone() {
    let mut store = SeriesStore::closed();
    let key = SeriesKey::new("uma_a", &[]);
    let declared = store.declare(&key);
    store.append(declared, 0, Reading::Value(1.0));
    let foreign = store.intern(&key);
    assert_eq!(foreign, SeriesId::REFUSED, "nobody else writes to it");
    store.append(foreign, 0, Reading::Value(2.0));
    assert_eq!(store.latest(declared), Reading::Value(1.0));
    assert_eq!((store.keys().len(), store.refused()), (1, 0));
}

#[test]
fn late_counts_raise_only_the_samples_since_then() {
    let mut store = SeriesStore::default();
    let id = store.intern(&key(0));
    store.retain("uma_test", 10_000);
    for (at_ms, reading) in [
        (1000, Reading::Value(1.0)),
        (2000, Reading::Value(1.0)),
        (3000, Reading::Failed),
        (4000, Reading::Value(2.0)),
    ] {
        store.append(id, at_ms, reading);
    }
    store.raise(id, &[500, 1500, 2000, 3500, 9000]);
    store.raise(SeriesId::REFUSED, &[500]);
    let values: Vec<f64> = store.window(id, 0, 5000).points().map(|point| point.value).collect();
    assert_eq!(values, [2.0, 4.0, 6.0]);
    assert_eq!(store.at(id, 3000), None, "an end stays one");
}
