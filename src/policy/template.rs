//! Templates of labels and annotations, as in Prometheus.

use std::sync::Arc;

/// A parsed template.
#[derive(Clone, Debug)]
pub struct Template {}

/// What is wrong with a template, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// Byte range within the template's text.
    pub span: std::ops::Range<usize>,
    /// What is wrong and what to do.
    pub message: String,
}

impl Template {
    /// Parses `{{ $value | humanize1024 }}B free` and the like.
    pub fn parse(_text: &str) -> Result<Self, TemplateError> {
        Ok(Self {})
    }

    /// Renders it for one alert.
    pub fn render(&self, _labels: &[(Arc<str>, Arc<str>)], _value: f64) -> String {
        String::new()
    }
}
