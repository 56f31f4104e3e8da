//! `/proc/buddyinfo`.

use super::Unreadable;
use super::text::{lines, number, words};
use crate::model::Reading;

const MIB: u64 = 1 << 20;

/// More than any kernel's `MAX_ORDER`.
const ORDERS_MAX: usize = 32;

/// Free memory in large blocks, over all nodes and zones, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contiguous {
    /// In blocks of at least 2 MiB.
    pub two_mib: Reading<u64>,
    /// In blocks of at least 32 MiB. `Unsupported` where the allocator's largest block is smaller
    /// (4 MiB on x86-64): the file does not show which free blocks are adjacent.
    pub thirty_two_mib: Reading<u64>,
}

impl Contiguous {
    /// Parses the whole file, whose lines read `Node 0, zone   Normal  5  4  …`: free blocks of
    /// 1, 2, 4, … pages.
    pub fn parse(text: &[u8], page_size: u64) -> Result<Self, Unreadable> {
        let mut sums = [Sum::new(2 * MIB), Sum::new(32 * MIB)];
        let mut known = false;
        for line in lines(text) {
            let mut words = words(line.text);
            let (Some(b"Node"), Some(_), Some(b"zone"), Some(_)) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            known = true;
            let mut words = words.peekable();
            let mut order = 0;
            while let Some(word) = words.next() {
                let whole = line.whole || words.peek().is_some();
                let blocks = number(word).filter(|_| whole && order < ORDERS_MAX);
                for sum in &mut sums {
                    sum.add(page_size.checked_shl(order as u32), blocks);
                }
                order += 1;
            }
            if !line.whole {
                sums.iter_mut().for_each(|sum| sum.bytes = None);
            }
        }
        let [two_mib, thirty_two_mib] = sums.map(Sum::reading);
        match (known, text.is_empty()) {
            (true, _) => Ok(Self { two_mib, thirty_two_mib }),
            (false, true) => Err(Unreadable::Empty),
            (false, false) => Err(Unreadable::Unrecognized),
        }
    }
}

struct Sum {
    at_least: u64,
    seen: bool,
    /// `None` once something could not be added.
    bytes: Option<u64>,
}

impl Sum {
    fn new(at_least: u64) -> Self {
        Self { at_least, seen: false, bytes: Some(0) }
    }

    fn add(&mut self, block_size: Option<u64>, blocks: Option<u64>) {
        if block_size.is_some_and(|size| size < self.at_least) {
            return;
        }
        self.seen = true;
        self.bytes = (|| self.bytes?.checked_add(blocks?.checked_mul(block_size?)?))();
    }

    fn reading(self) -> Reading<u64> {
        match (self.bytes, self.seen) {
            (None, _) => Reading::Failed,
            (Some(bytes), true) => Reading::Value(bytes),
            (Some(_), false) => Reading::Unsupported,
        }
    }
}
