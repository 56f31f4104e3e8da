//! `/proc/PID/maps`: which files a process maps, and where.

use std::ops::Range;

use super::text::{lines, words};

/// One mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// First address, and the one after the last.
    pub addresses: Range<u64>,
    /// Where in the file it begins.
    pub offset: u64,
    /// The file's inode number, as the file system counts.
    pub inode: u64,
    /// The file's path as it was opened, with newlines as `\012`.
    pub path: &'a [u8],
    /// The path no longer leads to the file. It may be part of a name as well.
    pub is_deleted: bool,
}

impl Mapping<'_> {
    /// The bytes of the file that are mapped, whether or not the file is that long.
    pub fn bytes(&self) -> Range<u64> {
        self.offset..self.offset + (self.addresses.end - self.addresses.start)
    }
}

/// All mappings of files. Lines that are none, or not what the kernel writes, are passed over; so
/// is a last one that was cut off.
pub fn mappings(text: &[u8]) -> impl Iterator<Item = Mapping<'_>> {
    lines(text).filter(|line| line.whole).filter_map(|line| mapping(line.text))
}

fn mapping(line: &[u8]) -> Option<Mapping<'_>> {
    // The path comes last and may hold anything; all before it is free of slashes.
    let at = line.iter().position(|&byte| byte == b'/')?;
    let (fields, path) = line.split_at_checked(at)?;
    let mut fields = words(fields);
    let (from, to) = pair(fields.next()?, b'-')?;
    let _permissions = fields.next()?;
    let offset = hex(fields.next()?)?;
    let _device = pair(fields.next()?, b':')?;
    let inode = super::text::number(fields.next()?)?;
    if fields.next().is_some() || from >= to {
        return None;
    }
    offset.checked_add(to - from)?;
    let kept = path.strip_suffix(b" (deleted)");
    let is_deleted = kept.is_some();
    Some(Mapping { addresses: from..to, offset, inode, path: kept.unwrap_or(path), is_deleted })
}

fn pair(word: &[u8], between: u8) -> Option<(u64, u64)> {
    let at = word.iter().position(|&byte| byte == between)?;
    Some((hex(&word[..at])?, hex(&word[at + 1..])?))
}

fn hex(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, &digit| {
        let digit = char::from(digit).to_digit(16)?;
        Some(value << 4 | u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
5581d000-5581e000 r-xp 00001000 fe:00 1234                       /usr/bin/vllm
7f188c200000-7f1894200000 r--p 00000000 fe:00 6438934                    /models/a b.safetensors
7f1894200000-7f1894300000 rw-s 10000000 00:2f 7   /models/x (deleted)
7f1894300000-7f1894400000 rw-p 00000000 00:00 0
7ffc0000-7ffc1000 rw-p 00000000 00:00 0                          [stack]
";

    #[test]
    fn mapped_files_are_read_with_their_addresses() {
        let found: Vec<Mapping<'_>> = mappings(TEXT).collect();
        assert_eq!(found.len(), 3);
        assert_eq!(found[1].addresses, 0x7f18_8c20_0000..0x7f18_9420_0000);
        assert_eq!(found[1].path, b"/models/a b.safetensors");
        assert_eq!((found[1].inode, found[1].is_deleted), (6_438_934, false));
        assert_eq!(found[1].bytes(), 0..0x800_0000);
        assert_eq!((found[2].path, found[2].is_deleted), (&b"/models/x"[..], true));
        assert_eq!(found[2].bytes(), 0x1000_0000..0x1010_0000);
    }

    #[test]
    fn lines_that_the_kernel_does_not_write_are_skipped() {
        for line in [
            "2000-1000 r--p 0 fe:00 1 /x",
            "1000-2000 r--p ffffffffffffffff fe:00 1 /x",
            "1000-2000 r--p 0 fe:00 1 more /x",
            "1000-2000 r--p 0 fe:00 -1 /x",
            "1000-2000 r--p 0 fe00 1 /x",
            "1000-11112222333344445 r--p 0 fe:00 1 /x",
            "1000 r--p 0 fe:00 1 /x",
            "/x",
        ] {
            assert_eq!(mappings(format!("{line}\n").as_bytes()).next(), None, "{line}");
        }
        assert_eq!(mappings(b"1000-2000 r--p 0 fe:00 1 /cut").next(), None);
    }
}
