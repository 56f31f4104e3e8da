//! What a Prometheus answers to an instant query.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct QueryResponse<'t> {
    #[serde(borrow)]
    status: Cow<'t, str>,
    #[serde(borrow, default)]
    error: Option<Cow<'t, str>>,
    #[serde(borrow, default)]
    data: Option<Data<'t>>,
}

#[derive(Debug, Deserialize)]
struct Data<'t> {
    #[serde(borrow, rename = "resultType")]
    kind: Cow<'t, str>,
    #[serde(borrow, default)]
    result: Vec<Element<'t>>,
}

#[derive(Debug, Deserialize)]
struct Element<'t> {
    #[serde(borrow, default)]
    metric: BTreeMap<Cow<'t, str>, Cow<'t, str>>,
    #[serde(borrow)]
    value: (f64, Cow<'t, str>),
}

/// One series of a vector.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorSample<'t> {
    /// Names and values, without the metric's name.
    pub labels: Vec<(Cow<'t, str>, Cow<'t, str>)>,
    /// Value of the sample.
    pub value: f64,
}

/// Reads a vector.
///
/// # Errors
/// It is an error, or no vector.
pub fn vector(text: &[u8]) -> Result<Vec<VectorSample<'_>>, String> {
    let answer: QueryResponse<'_> =
        serde_json::from_slice(text).map_err(|error| format!("it is no answer: {error}"))?;
    if answer.status != "success" {
        let why = answer.error.unwrap_or(Cow::Borrowed("it does not say why"));
        return Err(format!("the server refuses: {why}"));
    }
    let data = answer.data.ok_or("it answers without data")?;
    if data.kind != "vector" {
        return Err(format!("it answers with a {}, and not with a vector", data.kind));
    }
    let mut samples = Vec::with_capacity(data.result.len());
    for element in data.result {
        let (_time, value) = element.value;
        let value = value.parse().map_err(|_| format!("{value:?} is no value"))?;
        let labels = element.metric.into_iter().filter(|(name, _)| name != "__name__");
        samples.push(VectorSample { labels: labels.collect(), value });
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_vector_is_read() {
        let text =
            br#"{"status":"success","warnings":["w"],"data":{"resultType":"vector","result":[
            {"metric":{"__name__":"a","instance":"x\n:1"},"value":[1.5,"2e9"]},
            {"metric":{},"value":[1,"+Inf"]},{"metric":{},"value":[1,"NaN"]}]}}"#;
        let read = vector(text).unwrap();
        assert_eq!(read[0].labels, [("instance".into(), "x\n:1".into())]);
        assert_eq!((read[0].value, read[1].value), (2e9, f64::INFINITY));
        assert!(read[2].value.is_nan());
        let empty = br#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;
        assert!(vector(empty).unwrap().is_empty());
    }

    #[test]
    fn responses_without_a_vector_are_errors() {
        for (text, expected) in [
            ("<html>", "it is no answer"),
            ("{}", "it is no answer"),
            (r#"{"status":"error","errorType":"x","error":"bad"}"#, "the server refuses: bad"),
            (r#"{"status":"success"}"#, "without data"),
            (r#"{"status":"success","data":{"resultType":"scalar","result":[]}}"#, "a scalar"),
            (
                r#"{"status":"success","data":
                    {"resultType":"vector","result":[{"value":[1,"x"]}]}}"#,
                "\"x\" is no value",
            ),
        ] {
            let error = vector(text.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _either = vector(&bytes);
        }
    }
}
