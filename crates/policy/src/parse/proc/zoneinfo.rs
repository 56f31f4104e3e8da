//! `/proc/zoneinfo`.

use super::ProcFileError;
use super::text::{lines, number, reading, sum, words};
use crate::model::Reading;

/// Far more than a machine has: nodes times zones.
const ZONES_MAX: usize = 1024;

/// A zone's name, stored without allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ZoneName {
    bytes: [u8; 15],
    length: u8,
}

impl ZoneName {
    fn new(name: &[u8]) -> Option<Self> {
        let mut bytes = [0; 15];
        let plain = name.iter().all(u8::is_ascii_alphanumeric) && !name.is_empty();
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self { bytes, length: u8::try_from(name.len()).ok()? }).filter(|_| plain)
    }

    /// `DMA32`, `Normal`, …
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl std::fmt::Debug for ZoneName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

/// One zone of one node. All values are in pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Zone {
    /// The node's number.
    pub node: u32,
    /// The zone's name.
    pub name: ZoneName,
    /// Free pages, those on the CPUs' own lists left out.
    pub free: Reading<u64>,
    /// How far the watermarks are raised now; they include it.
    pub boost: Reading<u64>,
    /// Below it only privileged allocations succeed.
    pub min: Reading<u64>,
    /// Below it kswapd is woken.
    pub low: Reading<u64>,
    /// Above it kswapd rests.
    pub high: Reading<u64>,
    /// Physical pages.
    pub present: Reading<u64>,
    /// Pages in the allocator's hands.
    pub managed: Reading<u64>,
    /// Free pages set aside for contiguous allocations.
    pub free_cma: Reading<u64>,
    /// Free pages on the CPUs' own lists.
    pub per_cpu: Reading<u64>,
}

impl Zone {
    fn new(node: u32, name: ZoneName) -> Self {
        let absent = Reading::Unsupported;
        Self {
            node,
            name,
            free: absent,
            boost: absent,
            min: absent,
            low: absent,
            high: absent,
            present: absent,
            managed: absent,
            free_cma: absent,
            per_cpu: absent,
        }
    }

    /// Whether there is, or may be, memory in it; the kernel lists empty zones as well.
    pub fn is_populated(&self) -> bool {
        self.managed != Reading::Value(0)
    }
}

/// What `/proc/zoneinfo` said. Kept from run to run, so that parsing allocates nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Zoneinfo {
    zones: Vec<Zone>,
    truncated: bool,
}

impl Zoneinfo {
    /// Parses the whole file and replaces the previous zones. After an error there are none.
    pub fn parse(&mut self, text: &[u8]) -> Result<(), ProcFileError> {
        self.zones.clear();
        self.truncated = false;
        for line in lines(text) {
            self.truncated |= !line.whole;
            let mut words = words(line.text);
            let Some(first) = words.next() else { continue };
            if first == b"Node" {
                let Some(zone) = header(words) else { continue };
                if self.zones.len() == ZONES_MAX {
                    self.zones.clear();
                    return Err(ProcFileError::TooMany);
                }
                self.zones.push(zone);
            } else if let Some(zone) = self.zones.last_mut() {
                fill(zone, first, words.next(), words.next(), line.whole);
            }
        }
        match (self.zones.is_empty(), text.is_empty()) {
            (false, _) => Ok(()),
            (true, true) => Err(ProcFileError::Empty),
            (true, false) => Err(ProcFileError::Unrecognized),
        }
    }

    /// All zones with memory, in the kernel's order.
    pub fn zones(&self) -> impl Iterator<Item = &Zone> {
        self.zones.iter().filter(|zone| zone.is_populated())
    }

    /// A value summed over all zones with memory; `Failed` if some lack it, or some are cut off.
    pub fn sum(&self, value: impl Fn(&Zone) -> Reading<u64>) -> Reading<u64> {
        if self.truncated { Reading::Failed } else { sum(self.zones().map(value)) }
    }
}

/// A zone from what follows `Node`: `0, zone   Normal`.
fn header<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Option<Zone> {
    let node = words.next()?.strip_suffix(b",").and_then(number)?;
    (words.next()? == b"zone").then_some(())?;
    Some(Zone::new(u32::try_from(node).ok()?, ZoneName::new(words.next()?)?))
}

fn fill(zone: &mut Zone, key: &[u8], second: Option<&[u8]>, third: Option<&[u8]>, whole: bool) {
    let (slot, value) = match key {
        b"pages" if second == Some(b"free") => (&mut zone.free, third),
        b"boost" => (&mut zone.boost, second),
        b"min" => (&mut zone.min, second),
        b"low" => (&mut zone.low, second),
        b"high" => (&mut zone.high, second),
        b"present" => (&mut zone.present, second),
        b"managed" => (&mut zone.managed, second),
        b"nr_free_cma" => (&mut zone.free_cma, second),
        b"count:" => {
            let count = reading(second, whole);
            zone.per_cpu = match zone.per_cpu {
                Reading::Unsupported => count,
                lists => sum([lists, count].into_iter()),
            };
            return;
        }
        _ => return,
    };
    if *slot == Reading::Unsupported {
        *slot = reading(value, whole);
    }
}
