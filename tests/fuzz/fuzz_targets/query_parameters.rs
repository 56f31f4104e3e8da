//! The parameters of queries, one in each line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::samples::{
    CatalogueListing, MAX_STEPS, Parameters, QueryTime, SampleQuery, metadata,
};

fuzz_target!(|text: &str| {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let parameters = Parameters::new(pairs);
    if let Ok(query) = SampleQuery::at_instant(&parameters, 0) {
        assert!(matches!(query.when, QueryTime::At(_)));
    }
    if let Ok(SampleQuery { when: QueryTime::Range { start_ms, end_ms, step_ms }, .. }) =
        SampleQuery::over_range(&parameters)
    {
        assert!(start_ms <= end_ms && step_ms > 0);
        assert!((end_ms - start_ms) / step_ms <= MAX_STEPS);
    }
    for listing in [
        CatalogueListing::Series,
        CatalogueListing::Labels,
        CatalogueListing::Values("pool".to_owned()),
    ] {
        if let Ok(listed) = listing.read(&parameters) {
            let (data, warnings) = listing.of(&Default::default(), &listed);
            assert!(data.as_array().is_some_and(Vec::is_empty) && warnings.is_empty());
        }
    }
    assert!(metadata(&parameters).is_err() || parameters.count("limit").is_ok());
});
