//! Parsing of option values.

/// The one of `all` with that name.
pub fn named<T: Copy>(value: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T, String> {
    let found = all.iter().copied().find(|known| name(*known) == value);
    found.ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|known| name(*known)).collect();
        format!("{value} is none of {}", names.join(", "))
    })
}

/// A number of at least 0.
pub fn number(option: &str, value: &str) -> Result<f64, String> {
    let number = value.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| format!("{option} wants a number, not {value}"))
}

/// A size in bytes from a value in GiB.
pub fn bytes(option: &str, value: &str) -> Result<u64, String> {
    Ok((number(option, value)? * f64::from(1 << 30)) as u64)
}
