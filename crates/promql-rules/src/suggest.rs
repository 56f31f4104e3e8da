//! Did-you-mean.

/// A hint with the candidate closest to a text, if one is close enough.
pub fn did_you_mean<'c>(
    written: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<String> {
    let length = written.chars().count();
    let most = (length / 3).clamp(1, 4);
    candidates
        .into_iter()
        .filter(|candidate| candidate.chars().count().abs_diff(length) <= most)
        .map(|candidate| (distance(written, candidate), candidate))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, candidate)| format!("did you mean \"{candidate}\"?"))
}

/// The number of characters to insert, remove, replace or swap with a neighbour.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.to_lowercase().chars().take(128).collect();
    let right: Vec<char> = right.to_lowercase().chars().take(128).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for (row, one) in left.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, other) in right.iter().enumerate() {
            let replaced = above[column] + usize::from(one != other);
            let mut least = replaced.min(above[column + 1] + 1).min(current[column] + 1);
            let swapped =
                row > 0 && column > 0 && *one == right[column - 1] && left[row - 1] == *other;
            if swapped {
                least = least.min(before[column - 1] + 1);
            }
            current.push(least);
        }
        before = std::mem::replace(&mut above, current);
    }
    above.last().copied().unwrap_or(0)
}
