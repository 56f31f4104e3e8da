//! `/proc/PID/pagemap` (Documentation/admin-guide/mm/pagemap.rst): which pages a process has in
//! its page tables.

use std::ops::Range;

/// In memory, and in the page tables.
const PRESENT: u64 = 1 << 63;

/// A page of a file, and not a private copy that the process has written to.
const OF_FILE: u64 = 1 << 61;

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 8;

/// The address ranges of a file's own pages that are present, neighbours joined. `from` is the
/// address that the first entry is about.
pub fn present_of_file(
    entries: &[u8],
    from: u64,
    page_size: u64,
) -> impl Iterator<Item = Range<u64>> {
    let (entries, _cut) = entries.as_chunks::<ENTRY_BYTES>();
    let mut addresses = entries.iter().zip(0_u64..).map(move |(entry, number)| {
        let entry = u64::from_ne_bytes(*entry);
        let is_wanted = entry & (PRESENT | OF_FILE) == PRESENT | OF_FILE;
        let begin = number.checked_mul(page_size).and_then(|at| at.checked_add(from));
        begin.and_then(|begin| Some((begin..begin.checked_add(page_size)?, is_wanted)))
    });
    std::iter::from_fn(move || {
        let mut run: Option<Range<u64>> = None;
        loop {
            match addresses.next().flatten() {
                Some((page, true)) => match &mut run {
                    Some(run) => run.end = page.end,
                    None => run = Some(page),
                },
                Some((_, false)) if run.is_none() => {}
                Some((_, false)) | None => return run,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(entries: &[u64]) -> Vec<u8> {
        entries.iter().flat_map(|entry| entry.to_ne_bytes()).collect()
    }

    #[test]
    fn neighbours_are_joined_and_private_copies_left_out() {
        let file = PRESENT | OF_FILE | 5;
        let text = bytes(&[file, file, 0, PRESENT, file, OF_FILE, file]);
        let found: Vec<Range<u64>> = present_of_file(&text, 0x1000, 0x1000).collect();
        assert_eq!(found, [0x1000..0x3000, 0x5000..0x6000, 0x7000..0x8000]);
    }

    proptest! {
        #[test]
        fn every_wanted_page_is_in_one_range_and_no_other(
            wanted in prop::collection::vec(any::<bool>(), 0..64),
            cut in 0_usize..8,
        ) {
            let entries: Vec<u64> =
                wanted.iter().map(|&is| if is { PRESENT | OF_FILE } else { PRESENT }).collect();
            let mut text = bytes(&entries);
            text.extend(vec![0xff; cut]);
            let found: Vec<Range<u64>> = present_of_file(&text, 0, 1).collect();
            for (page, is) in (0_u64..).zip(&wanted) {
                let holding = found.iter().filter(|range| range.contains(&page)).count();
                prop_assert_eq!(holding, usize::from(*is));
            }
            prop_assert!(found.windows(2).all(|pair| pair[0].end < pair[1].start));
        }

        #[test]
        fn addresses_at_the_end_do_not_overflow(from in any::<u64>(), size in any::<u64>()) {
            let text = bytes(&[PRESENT | OF_FILE; 4]);
            prop_assert!(present_of_file(&text, from, size).all(|run| run.start <= run.end));
        }
    }
}
