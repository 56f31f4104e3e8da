//! Numbers and texts as bytes, and back without trust.

/// The bytes are not what this version writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Malformed(pub(super) &'static str);

/// Appends a number, seven bits a byte, the lowest first.
pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a number that may be negative; small ones are short.
pub(super) fn put_signed(out: &mut Vec<u8>, number: i64) {
    put_number(out, zigzag(number));
}

/// Appends bytes with their length.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// The sign in the lowest bit.
pub(super) fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

/// Back from [`zigzag`].
pub(super) fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

/// Takes bytes apart from the front.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.0.split_first().ok_or(Malformed("the block ends too early"))?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed("a number is longer than 64 bits"))
    }

    pub(super) fn signed(&mut self) -> Result<i64, Malformed> {
        Ok(unzigzag(self.number()?))
    }

    /// A count of at most `most`.
    pub(super) fn count(&mut self, most: usize) -> Result<usize, Malformed> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if count > most { Err(Malformed("a count is out of bounds")) } else { Ok(count) }
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) =
            self.0.split_at_checked(count).ok_or(Malformed("the block ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn array<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], Malformed> {
        let taken = self.take(COUNT)?;
        taken.try_into().map_err(|_| Malformed("the block ends too early"))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        self.take(count)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a text is not UTF-8"))
    }
}
