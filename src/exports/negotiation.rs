//! Negotiates the format of the metrics (RFC 9110 §12.5).

use hyper::HeaderMap;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, HeaderName};

/// A text form of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Format {
    /// Prometheus text 0.0.4, which every client reads.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The exact Content-Type. With a wrong one, Prometheus rejects the scrape.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    fn media_type(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Text => ("text", "plain", "0.0.4"),
            Self::OpenMetrics => ("application", "openmetrics-text", "1.0.0"),
        }
    }
}

/// The format that the client prefers. If it accepts none, it gets text 0.0.4, as from Prometheus'
/// client libraries, and no 406.
pub(super) fn format(headers: &HeaderMap) -> Format {
    let accept = joined(headers, &ACCEPT);
    let text = preference(&accept, Format::Text);
    let open = preference(&accept, Format::OpenMetrics);
    if open > text { Format::OpenMetrics } else { Format::Text }
}

/// The client's preference for a format: the weight of the most specific matching range, and how
/// specific it is.
fn preference(accept: &str, format: Format) -> (u16, u8) {
    let (kind, subtype, version) = format.media_type();
    let mut best: Option<(u8, u16)> = None;
    for range in split_outside_quotes(accept, ',') {
        let mut parameters = split_outside_quotes(range, ';');
        let Some((range_kind, range_subtype)) = parameters.next().and_then(|m| m.split_once('/'))
        else {
            continue;
        };
        let mut specificity = match (range_kind.trim(), range_subtype.trim()) {
            ("*", "*") => 1,
            (k, "*") if k.eq_ignore_ascii_case(kind) => 2,
            (k, s) if k.eq_ignore_ascii_case(kind) && s.eq_ignore_ascii_case(subtype) => 3,
            _ => continue,
        };
        let mut weight = Some(1000);
        let mut same_version = true;
        for (name, value) in parameters.filter_map(parameter) {
            if name.eq_ignore_ascii_case("q") {
                weight = parse_weight(value);
            } else if name.eq_ignore_ascii_case("version") {
                same_version = value == version;
                specificity += 1;
            }
        }
        let Some(weight) = weight.filter(|_| same_version) else { continue };
        if best.is_none_or(|(specific, heavy)| (specificity, weight) > (specific, heavy)) {
            best = Some((specificity, weight));
        }
    }
    match best {
        Some((_, 0)) | None => (0, 0),
        Some((specificity, weight)) => (weight, specificity),
    }
}

/// Whether the client accepts gzip, and prefers it to no coding or is indifferent.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = joined(headers, &ACCEPT_ENCODING);
    let (mut gzip, mut identity, mut any) = (None, None, None);
    for coding in split_outside_quotes(&accepted, ',') {
        let mut parts = split_outside_quotes(coding, ';');
        let name = parts.next().unwrap_or_default().trim().to_ascii_lowercase();
        let weight = parts
            .filter_map(parameter)
            .find(|(name, _)| name.eq_ignore_ascii_case("q"))
            .map_or(Some(1000), |(_, value)| parse_weight(value));
        match name.as_str() {
            "gzip" | "x-gzip" => gzip = gzip.max(weight),
            "identity" => identity = weight,
            "*" => any = weight,
            _ => {}
        }
    }
    let gzip = gzip.or(any).unwrap_or(0);
    gzip > 0 && gzip >= identity.unwrap_or(0)
}

/// All values of a header that may come in several lines, joined.
fn joined(headers: &HeaderMap, name: &HeaderName) -> String {
    let values: Vec<&str> =
        headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    values.join(",")
}

/// Splits at a separator, except within a quoted string.
fn split_outside_quotes(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let mut escaped = false;
    text.split(move |c: char| {
        let literal = escaped;
        escaped = quoted && !literal && c == '\\';
        if c == '"' && !literal {
            quoted = !quoted;
        }
        c == separator && !quoted
    })
}

fn parameter(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    Some((name.trim(), value.trim().trim_matches('"')))
}

/// A weight in thousandths. `None` if it is invalid.
fn parse_weight(text: &str) -> Option<u16> {
    let weight: f32 = text.parse().ok()?;
    if !(0.0..=1.0).contains(&weight) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
    let thousandths = (weight * 1000.0).round() as u16;
    Some(thousandths)
}
