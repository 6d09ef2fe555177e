//! Records that come in thousands, without the cost of a protobuf message each.

use std::time::Duration;

use bytes::Bytes;

use super::{Malformed, TEXT_BYTES_MAX};

/// Writes packed records.
#[derive(Debug, Default)]
pub(super) struct Packer(Vec<u8>);

impl Packer {
    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn f64(&mut self, value: f64) -> &mut Self {
        self.u64(value.to_bits())
    }

    pub(super) fn varint(&mut self, value: impl Into<u64>) -> &mut Self {
        prost::encoding::encode_varint(value.into(), &mut self.0);
        self
    }

    pub(super) fn signed(&mut self, value: i32) -> &mut Self {
        self.varint(((value << 1) ^ (value >> 31)) as u32)
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.varint(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    pub(super) fn duration(&mut self, duration: Duration) -> &mut Self {
        self.varint(nanos(duration))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.0).into()
    }
}

/// A duration in nanoseconds, saturating at 584 years.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads packed records.
#[derive(Debug)]
pub(super) struct Unpacker<'a>(&'a [u8]);

impl<'a> Unpacker<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Unpacker(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn flag(&mut self, what: &'static str) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(Malformed::Value { what, value: value.into() }),
        }
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// A measurement: finite and not negative, or it would poison every decision that it enters.
    pub(super) fn amount(&mut self, what: &'static str) -> Result<f64, Malformed> {
        let value = f64::from_bits(self.u64()?);
        if value.is_finite() && value >= 0.0 { Ok(value) } else { Err(Malformed::Invalid(what)) }
    }

    pub(super) fn varint(&mut self) -> Result<u64, Malformed> {
        prost::encoding::decode_varint(&mut self.0).map_err(|_| Malformed::Truncated)
    }

    pub(super) fn varint_u32(&mut self, what: &'static str) -> Result<u32, Malformed> {
        let value = self.varint()?;
        u32::try_from(value).map_err(|_| Malformed::Value { what, value })
    }

    pub(super) fn signed(&mut self, what: &'static str) -> Result<i32, Malformed> {
        let value = self.varint_u32(what)?;
        Ok((value >> 1) as i32 ^ -((value & 1) as i32))
    }

    pub(super) fn text(&mut self, what: &'static str) -> Result<&'a str, Malformed> {
        let len = self.varint()?;
        let len = usize::try_from(len).map_err(|_| Malformed::Truncated)?;
        if len > TEXT_BYTES_MAX {
            return Err(Malformed::TooMany { what, len, limit: TEXT_BYTES_MAX });
        }
        let (text, rest) = self.0.split_at_checked(len).ok_or(Malformed::Truncated)?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| Malformed::Invalid(what))
    }

    pub(super) fn duration(&mut self) -> Result<Duration, Malformed> {
        self.varint().map(Duration::from_nanos)
    }

    /// Records up to the end, as a list.
    pub(super) fn list<T>(
        mut self,
        mut record: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let mut list = Vec::new();
        while !self.is_empty() {
            list.push(record(&mut self)?);
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_and_texts_survive(a: u8, b: u32, c: u64, d: i32, e: u64, text: String, nanos: u64) {
            let mut packer = Packer::default();
            packer.u8(a).u32(b).u64(c).signed(d).varint(e).text(&text).duration(Duration::from_nanos(nanos));
            let bytes = packer.take();
            let mut unpacker = Unpacker::new(&bytes);
            prop_assert_eq!(unpacker.u8(), Ok(a));
            prop_assert_eq!(unpacker.u32(), Ok(b));
            prop_assert_eq!(unpacker.u64(), Ok(c));
            prop_assert_eq!(unpacker.signed("d"), Ok(d));
            prop_assert_eq!(unpacker.varint(), Ok(e));
            prop_assert_eq!(unpacker.text("text"), Ok(&text[..]));
            prop_assert_eq!(unpacker.duration(), Ok(Duration::from_nanos(nanos)));
            prop_assert!(unpacker.is_empty());
        }
    }

    #[test]
    fn what_is_wrong_is_refused() {
        assert_eq!(Unpacker::new(&[1, 2, 3]).u32(), Err(Malformed::Truncated));
        assert_eq!(Unpacker::new(&[5, b'a']).text("t"), Err(Malformed::Truncated));
        assert_eq!(Unpacker::new(&[1, 0xff]).text("t"), Err(Malformed::Invalid("t")));
        assert_eq!(Unpacker::new(&[0x80; 11]).varint(), Err(Malformed::Truncated));
        assert_eq!(Unpacker::new(&[2]).flag("f"), Err(Malformed::Value { what: "f", value: 2 }));
        let long = u64::MAX;
        let mut packer = Packer::default();
        packer.varint(long);
        assert!(matches!(Unpacker::new(&packer.take()).text("t"), Err(Malformed::TooMany { .. })));
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            let mut packer = Packer::default();
            packer.f64(bad);
            assert_eq!(Unpacker::new(&packer.take()).amount("a"), Err(Malformed::Invalid("a")), "{bad}");
        }
    }
}
