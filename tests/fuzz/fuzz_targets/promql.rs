//! An expression: parsed, checked, printed, read again and evaluated over series that look real.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use promql_rules::store::SeriesStore;
use promql_rules::{Effort, EvalTime, Evaluated, Sample, Value};
use umawarden::config::catalogue::Catalogue;
use umawarden::model::{METRICS, MetricKind, Reading, SeriesKey};

const NOW: EvalTime = EvalTime { timeline_ms: 60_000, utc_ms: 1_795_312_800_000 };

static STORE: LazyLock<SeriesStore> = LazyLock::new(|| {
    let mut store = SeriesStore::default();
    for (position, metric) in METRICS.iter().enumerate() {
        store.retain(metric.name, 60_000);
        for variant in ["clean", "dirty", "oom_kill"] {
            let labels: Vec<_> = metric.labels.iter().map(|label| (*label, variant)).collect();
            let id = store.intern(&SeriesKey::new(metric.name, &labels));
            for tick in 0..120_i32 {
                let value = f64::from(tick * position as i32);
                let reading = match (metric.kind, position % 29, tick) {
                    (_, 27, _) => Reading::Unsupported,
                    (_, 28, 119) | (_, _, 60) => Reading::Failed,
                    (MetricKind::Counter | MetricKind::Histogram, ..) => {
                        Reading::Value(value % 500.0)
                    }
                    (MetricKind::Info, ..) => Reading::Value(1.0),
                    (MetricKind::Gauge, 26, _) => Reading::Value(f64::NAN),
                    (MetricKind::Gauge, ..) => Reading::Value(value * 1048576.0 - 1e8),
                };
                store.append(id, i64::from(tick) * 500, reading);
            }
        }
    }
    store
});

fn check_sample(sample: &Sample) {
    assert!(sample.labels.is_sorted(), "{sample:?}");
    assert!(sample.labels.iter().all(|(_, value)| (1..=16_384).contains(&value.len())));
}

fuzz_target!(|text: &str| {
    let expr = match promql_rules::parse(text) {
        Ok(expr) => expr,
        Err(error) => {
            assert!(text.get(error.span.clone()).is_some(), "{error:?}");
            return;
        }
    };
    if let Err(error) = expr.check(&Catalogue) {
        assert!(text.get(error.span.clone()).is_some(), "{error:?}");
    }
    let printed = expr.to_string();
    for never in expr.never(&Catalogue) {
        assert!(text.get(never.why.span.clone()).is_some(), "{never:?}");
    }
    let (facts, mut effort) = (expr.facts(&Catalogue), Effort::default());
    facts.implies(&facts, &mut effort);
    facts.excludes(&facts, &mut effort);
    // Printing may lengthen the expression beyond the limit.
    let again = match promql_rules::parse(&printed) {
        Ok(again) => again,
        Err(error) => {
            assert!(printed.len() > 4096, "{text:?} printed as {printed:?}: {error}");
            return;
        }
    };
    assert_eq!(again.to_string(), printed, "{text:?}");
    let in_lines = promql_rules::parse(&format!("{expr:#}")).map(|again| again.to_string());
    assert_eq!(in_lines.as_ref(), Ok(&printed), "{text:?}");
    assert_eq!(again.reads(), expr.reads(), "{text:?}");
    let value = expr.evaluate(&STORE, NOW);
    assert_eq!(format!("{value:?}"), format!("{:?}", again.evaluate(&STORE, NOW)), "{text:?}");
    if let Ok(Evaluated::Known(Value::Vector(samples))) = value {
        samples.iter().for_each(check_sample);
    }
    expr.selected(&STORE);
});
