//! Archives of GNU tar, changed.

use super::entry::{BLOCK, seal};
use crate::structure_damage::Mutator;

/// Bytes of an archive that are looked at for headers: the rest is content.
const DAMAGED_MAX: usize = 1 << 20;

/// Fields that may say anything without the rest of the stream being lost: where, and how long.
const FIELDS: [(usize, usize); 9] = [
    (0, 100),
    (100, 8),
    (108, 8),
    (116, 8),
    (136, 12),
    (157, 100),
    (265, 32),
    (297, 32),
    (329, 16),
];

/// Where the headers are: the archive is sound.
pub(super) fn headers(bytes: &[u8]) -> Vec<usize> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at + BLOCK <= bytes.len().min(DAMAGED_MAX) && bytes[at] != 0 {
        found.push(at);
        let digits: String = bytes[at + 124..at + 135].iter().map(|b| char::from(*b)).collect();
        let len = usize::from_str_radix(digits.trim_matches(['\0', ' ']), 8).unwrap_or(0);
        at += BLOCK + len.next_multiple_of(BLOCK);
    }
    found
}

/// Changes a field of up to three headers to what it may be, and seals them.
pub(super) fn change_fields(bytes: &mut [u8], headers: &[usize], mutator: &mut Mutator) -> String {
    let mut done = Vec::new();
    for _ in 0..=mutator.below(3) {
        let at = *mutator.pick(headers);
        let (field, len) = *mutator.pick(&FIELDS);
        let place = at + field..at + field + len;
        match (field, mutator.below(4)) {
            // One byte of a text, or another header's text.
            (0 | 157 | 265 | 297, 0) => {
                let from = *mutator.pick(headers) + field;
                bytes.copy_within(from..from + len, place.start);
            }
            (0 | 157 | 265 | 297, _) => {
                let byte = place.start + mutator.below(20.min(len));
                bytes[byte] = *mutator.pick(b"aZ/.\n\x1b\xff\x01 *:");
            }
            (_, 0) => bytes[place].fill(0),
            (_, _) => {
                let digit = place.start + mutator.below(len.min(8) - 1);
                bytes[digit] = b'0' + u8::try_from(mutator.below(8)).unwrap_or(0);
            }
        }
        if mutator.below(6) == 0 {
            bytes[at + 156] = *mutator.pick(b"01234567\0");
        }
        seal(&mut bytes[at..at + BLOCK]);
        done.push(format!("field {field} of the header at {at}"));
    }
    done.join("; ")
}

/// Changes an archive in up to three places; tells where.
pub(super) fn damage(bytes: &mut Vec<u8>, mutator: &mut Mutator) -> String {
    let mut done = Vec::new();
    for _ in 0..=mutator.below(3) {
        let blocks = bytes.len().min(DAMAGED_MAX) / BLOCK;
        let block = mutator.below(blocks);
        let (at, other) = (block * BLOCK, mutator.below(blocks) * BLOCK);
        done.push(match mutator.below(6) {
            0 => {
                let len = mutator.below(bytes.len());
                bytes.truncate(len.max(BLOCK));
                format!("cut at {len}")
            }
            1 => {
                bytes.copy_within(other..other + BLOCK, at);
                format!("block at {other} written to {at}")
            }
            2 => {
                // What the rest says is taken for something else: headers are out of step.
                bytes.drain(at..at + BLOCK / 2);
                format!("half a block less at {at}")
            }
            _ => {
                let field = mutator.below(BLOCK);
                for byte in bytes[at + field..].iter_mut().take(1 + mutator.below(12)) {
                    *byte = u8::try_from(mutator.below(256)).unwrap_or(0);
                }
                let is_sealed = mutator.below(4) != 0;
                if is_sealed {
                    seal(&mut bytes[at..at + BLOCK]);
                }
                format!("bytes at {at}+{field}{}", if is_sealed { ", sealed" } else { "" })
            }
        });
        if bytes.len() < 2 * BLOCK {
            break;
        }
    }
    done.join("; ")
}
