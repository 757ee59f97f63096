//! Listings: names, with or without attributes, as READDIR and READDIRPLUS answer them.

use zerocopy::IntoBytes;

use crate::abi::{Dirent, EntryOut};

/// Where a listing is put.
pub struct DirBuffer<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl<'a> DirBuffer<'a> {
    /// A listing of as many bytes as `bytes` has.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, len: 0 }
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a name; `dirent.namelen` is filled in. False: there is no room, and the listing stays.
    pub fn add(&mut self, dirent: Dirent, name: &[u8]) -> bool {
        self.put(&[], dirent, name)
    }

    /// Adds a name with the attributes of what it leads to. False: there is no room.
    pub fn add_plus(&mut self, entry: &EntryOut, dirent: Dirent, name: &[u8]) -> bool {
        self.put(entry.as_bytes(), dirent, name)
    }

    fn put(&mut self, entry: &[u8], dirent: Dirent, name: &[u8]) -> bool {
        let Ok(namelen) = u32::try_from(name.len()) else { return false };
        let dirent = Dirent { namelen, ..dirent };
        let plain = entry.len() + size_of::<Dirent>() + name.len();
        let padded = plain.next_multiple_of(8);
        let Some(place) = self.bytes.get_mut(self.len..self.len + padded) else { return false };
        let (head, rest) = place.split_at_mut(entry.len());
        head.copy_from_slice(entry);
        let (head, rest) = rest.split_at_mut(size_of::<Dirent>());
        head.copy_from_slice(dirent.as_bytes());
        let (head, rest) = rest.split_at_mut(name.len());
        head.copy_from_slice(name);
        rest.fill(0);
        self.len += padded;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_padded_and_a_full_buffer_keeps_what_it_has() {
        let mut bytes = [0xff; 70];
        let mut listing = DirBuffer::new(&mut bytes);
        assert!(listing.add(Dirent { ino: 7, off: 1, kind: 8, namelen: 0 }, b"abc"));
        assert_eq!(listing.len(), 32);
        assert!(listing.add(Dirent::default(), b"12345678"));
        assert_eq!(listing.len(), 64);
        assert!(!listing.add(Dirent::default(), b"x"));
        assert_eq!(listing.len(), 64);
        assert_eq!(&bytes[24..32], b"abc\0\0\0\0\0");
        assert_eq!(bytes[16..20], 3u32.to_ne_bytes());
    }
}
