//! The mount table of this process, read.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Where it is.
pub(crate) const FILE: &str = "/proc/self/mountinfo";

/// A path of the table, in which the kernel writes some characters as `\040`.
pub(crate) fn path(field: impl AsRef<[u8]>) -> PathBuf {
    let mut rest = field.as_ref();
    let mut bytes = Vec::with_capacity(rest.len());
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let byte = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match byte.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

/// The directories of the table's mounts, in the order in which they were made. Names are bytes.
pub(crate) fn dirs(table: &[u8]) -> impl Iterator<Item = PathBuf> + '_ {
    let lines = table.split(|byte| *byte == b'\n');
    lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn what_the_kernel_writes_in_octal_is_read() {
        assert_eq!(path(r"/a\040b\011\134\012c"), Path::new("/a b\t\\\nc"));
        assert_eq!(path(r"/a\04"), Path::new(r"/a\04"));
        assert_eq!(path(r"/a\999\"), Path::new(r"/a\999\"));
        let table =
            "36 35 98:0 / /mnt rw - ext4 /dev/a rw\n40 35 0:5 / /m\\040n rw - tmpfs none rw\n";
        let wanted = [Path::new("/mnt"), Path::new("/m n")];
        assert_eq!(dirs(table.as_bytes()).collect::<Vec<_>>(), wanted);
    }
}
