//! `--need auto`: what an engine took before.

use std::ffi::OsString;
use std::path::Path;

use super::read::{StoredLoad, newest};
use crate::cli::history::no_journal;
use crate::cli::storage::may_be_read;
use crate::config::measure::size_bytes;
use crate::engines::without_secrets;
use crate::journal::JournalReader;
use crate::model::{LoadEnd, bytes_text, counted, printable};

/// The newest loads that count.
const COUNTED: usize = 5;

/// A need is a multiple of this: the figures vary by some MiB.
const ROUNDED_TO: u64 = (1 << 30) / 16;

/// Fewer digits are a name, and no fingerprint.
const LEAST_DIGITS: usize = 4;

/// Less is a mistake.
const LEAST_NEED: u64 = 1 << 20;

/// A need for memory, as it is written in a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryNeed {
    /// So many bytes.
    Bytes(u64),
    /// What the engine took before.
    Auto,
}

impl std::str::FromStr for MemoryNeed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => need_bytes(text).map(Self::Bytes),
        }
    }
}

/// Reads a need for memory: 90 is hardly meant to be 90 bytes, and 90B is.
pub(crate) fn need_bytes(text: &str) -> Result<u64, String> {
    let is_bare = text.trim_end().ends_with(|last: char| last.is_ascii_digit());
    let digits = text.strip_suffix('B').map(str::trim_end);
    let is_in_bytes = digits.is_some_and(|digits| digits.parse::<u64>().is_ok());
    match size_bytes(text)? {
        bytes if is_in_bytes && bytes > 0 => Ok(bytes),
        bytes @ 1..LEAST_NEED if is_bare => Err(format!(
            "are {} meant? Write --need {bytes}GiB, or --need {bytes}B if they are",
            counted(bytes, "byte")
        )),
        0 => Err("an engine needs more than nothing".to_owned()),
        bytes if bytes < LEAST_NEED => Err(format!(
            "{} is hardly what an engine needs: write it like 90GiB",
            bytes_text(bytes)
        )),
        bytes => Ok(bytes),
    }
}

/// What an engine is expected to take, by its earlier loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedNeed {
    /// With its growth after it is ready, rounded up.
    pub(crate) need_bytes: u64,
    /// Until it is ready.
    pub(crate) took_bytes: u64,
    /// Growth after it is ready.
    pub(crate) growth_bytes: u64,
    /// Where that is from.
    pub(crate) note: String,
}

/// What the engine of that name, or with that beginning of a fingerprint, took before. With a
/// command only the loads with its arguments count, if there are any.
///
/// # Errors
/// The journal cannot be read, or no load is known in full.
pub(crate) fn expected(
    storage: &Path,
    like: &str,
    command: &[OsString],
) -> anyhow::Result<ExpectedNeed> {
    may_be_read(storage)?;
    let loads = newest(&JournalReader::open(storage).map_err(no_journal)?)?;
    let is_known = |load: &&StoredLoad| {
        load.receipt.end == LoadEnd::Ready && load.receipt.need_bytes().is_some()
    };
    let known: Vec<&StoredLoad> = loads.iter().filter(is_known).collect();
    let mut of_it: Vec<&StoredLoad> =
        known.iter().copied().filter(|load| load.engine == like).collect();
    if of_it.is_empty() && like.len() >= LEAST_DIGITS {
        of_it =
            known.into_iter().filter(|load| load.receipt.fingerprint.starts_with(like)).collect();
    }
    let alike: Vec<&StoredLoad> =
        of_it.iter().copied().filter(|load| has_arguments(load, command)).collect();
    let has_others = !command.is_empty() && alike.is_empty();
    let counted_loads = if alike.is_empty() { of_it } else { alike };
    let newest = counted_loads.iter().take(COUNTED);
    let largest = newest.clone().max_by_key(|load| load.receipt.need_bytes());
    let (Some(largest), count) = (largest, newest.count()) else { return Err(unknown(like)) };
    let receipt = &largest.receipt;
    let (need, growth) = (receipt.need_bytes().unwrap_or(0), receipt.growth_bytes.unwrap_or(0));
    let need_bytes = need.div_ceil(ROUNDED_TO).saturating_mul(ROUNDED_TO);
    let which = if has_others { ", none of them with these arguments" } else { "" };
    let note = format!(
        "{} for {}: the most of {}{which} (number {}: {} when ready, {} of growth after that)",
        bytes_text(need_bytes),
        printable(&largest.engine),
        counted(count as u64, "earlier load"),
        largest.id,
        bytes_text(receipt.ready_bytes.unwrap_or(0)),
        bytes_text(growth),
    );
    let took_bytes = need.saturating_sub(growth);
    Ok(ExpectedNeed { need_bytes, took_bytes, growth_bytes: growth, note })
}

fn unknown(like: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "no earlier load of {} is known in full: give its size (gate and launch: --need 90GiB, \
         fit: --weights 60GiB), or run it once while `umawarden run` watches (`umawarden loads` \
         lists what is known)",
        printable(like)
    )
}

/// Whether a load had the arguments of the command. An interpreter may precede them, and the
/// program may have been found by its name.
fn has_arguments(load: &StoredLoad, command: &[OsString]) -> bool {
    let words: Vec<String> =
        command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let words = without_secrets(&words);
    let Some((_, rest)) = words.split_first() else { return false };
    let arguments = load.receipt.configuration.arguments.as_deref().unwrap_or_default();
    let arguments: Vec<&str> = arguments.lines().collect();
    let before = arguments.len().checked_sub(rest.len()).filter(|before| *before > 0);
    before.is_some_and(|before| arguments.iter().skip(before).eq(rest.iter()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_is_a_size_or_auto() {
        assert_eq!("auto".parse(), Ok(MemoryNeed::Auto));
        assert_eq!("90GiB".parse(), Ok(MemoryNeed::Bytes(90 << 30)));
        for text in ["", "0", "90", "Auto", "auto ", "-1GiB"] {
            let read: Result<MemoryNeed, String> = text.parse();
            assert!(read.is_err(), "{text}: {read:?}");
        }
        assert_eq!("10B".parse(), Ok(MemoryNeed::Bytes(10)));
        assert_eq!("96636764160".parse(), Ok(MemoryNeed::Bytes(90 << 30)));
        let asked = "are 10 bytes meant? Write --need 10GiB, or --need 10B if they are";
        assert_eq!("10".parse::<MemoryNeed>(), Err(asked.to_owned()));
        assert!("0B".parse::<MemoryNeed>().is_err() && "10KiB".parse::<MemoryNeed>().is_err());
    }
}
