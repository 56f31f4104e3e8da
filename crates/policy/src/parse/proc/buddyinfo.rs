//! `/proc/buddyinfo`.

use super::ProcFileError;
use super::text::{lines, number, words};
use crate::model::Reading;

const MIB: u64 = 1 << 20;

/// More than any kernel's `MAX_ORDER`.
const ORDERS_MAX: usize = 32;

/// The kernel's own limit on arm64 and x86-64.
const NODES_MAX: usize = 1024;

/// Free memory in large blocks, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contiguous {
    /// In blocks of at least 2 MiB.
    pub two_mib: Reading<u64>,
    /// In blocks of at least 32 MiB. `Unsupported` where the allocator's largest block is smaller
    /// (4 MiB on x86-64): the file does not show which free blocks are adjacent.
    pub thirty_two_mib: Reading<u64>,
}

/// Free memory in large blocks, of the machine and of each NUMA node. One value serves for many
/// reads, and keeps its buffer.
#[derive(Debug, Default)]
pub struct Buddyinfo {
    /// Each node with its sums, in the order of the file.
    nodes: Vec<(u32, Sums)>,
}

type Sums = [Sum; 2];

const NO_BLOCKS: Sums = [Sum::new(2 * MIB), Sum::new(32 * MIB)];

impl Contiguous {
    fn of([two_mib, thirty_two_mib]: Sums) -> Self {
        Self { two_mib: two_mib.reading(), thirty_two_mib: thirty_two_mib.reading() }
    }

    /// Parses the whole file, as [`Buddyinfo::parse`] does.
    ///
    /// # Errors
    /// The file is empty, or no line is of its form.
    pub fn parse(text: &[u8], page_size: u64) -> Result<Self, ProcFileError> {
        Buddyinfo::default().parse(text, page_size)
    }
}

impl Buddyinfo {
    /// Parses the whole file, whose lines read `Node 0, zone   Normal  5  4  …`: free blocks of
    /// 1, 2, 4, … pages. Returns the sums over all nodes.
    ///
    /// # Errors
    /// The file is empty, or no line is of its form.
    pub fn parse(&mut self, text: &[u8], page_size: u64) -> Result<Contiguous, ProcFileError> {
        self.nodes.clear();
        let mut all = NO_BLOCKS;
        let mut known = false;
        for line in lines(text) {
            let mut words = words(line.text);
            let (Some(b"Node"), Some(node), Some(b"zone"), Some(_)) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            known = true;
            let mut own = self.sums_of(node);
            let mut words = words.peekable();
            let mut order = 0;
            while let Some(word) = words.next() {
                let whole = line.whole || words.peek().is_some();
                let blocks = number(word).filter(|_| whole && order < ORDERS_MAX);
                for sum in all.iter_mut().chain(own.iter_mut().flat_map(|sums| sums.iter_mut())) {
                    sum.add(page_size.checked_shl(order as u32), blocks);
                }
                order += 1;
            }
            if !line.whole {
                let own = own.into_iter().flatten();
                all.iter_mut().chain(own).for_each(|sum| sum.bytes = None);
            }
        }
        match (known, text.is_empty()) {
            (true, _) => Ok(Contiguous::of(all)),
            (false, true) => Err(ProcFileError::Empty),
            (false, false) => Err(ProcFileError::Unrecognized),
        }
    }

    /// The nodes of the last file, each with its free memory in large blocks.
    pub fn nodes(&self) -> impl Iterator<Item = (u32, Contiguous)> + '_ {
        self.nodes.iter().map(|(node, sums)| (*node, Contiguous::of(*sums)))
    }

    /// The sums of the node in `0,`.
    fn sums_of(&mut self, word: &[u8]) -> Option<&mut Sums> {
        let node = word.strip_suffix(b",").and_then(number)?;
        let node = u32::try_from(node).ok()?;
        let at = match self.nodes.iter().position(|(known, _)| *known == node) {
            Some(at) => at,
            None if self.nodes.len() < NODES_MAX => {
                self.nodes.push((node, NO_BLOCKS));
                self.nodes.len() - 1
            }
            None => return None,
        };
        self.nodes.get_mut(at).map(|(_, sums)| sums)
    }
}

#[derive(Clone, Copy, Debug)]
struct Sum {
    at_least: u64,
    seen: bool,
    /// `None` once something could not be added.
    bytes: Option<u64>,
}

impl Sum {
    const fn new(at_least: u64) -> Self {
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
