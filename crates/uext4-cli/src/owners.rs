//! Owners as `chown` takes them: numbers, or names of the image's own `/etc/passwd` and
//! `/etc/group`.

use uext4::{FileKind, Volume};

use crate::failure::Why;
use crate::image_path::{Last, resolve};
use crate::operands::Try;

/// The longest table of users or groups that is read.
const TABLE_BYTES_MAX: u64 = 16 << 20;

/// Owner and group; `None` is any, or as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owners {
    /// User.
    pub(crate) uid: Option<u32>,
    /// Group.
    pub(crate) gid: Option<u32>,
}

/// Reads `USER`, `USER:GROUP`, `:GROUP` or `USER:`, which means the user's own group.
pub(crate) fn parse(volume: &Volume, text: &str) -> Try<Owners> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let uid = if user.is_empty() { None } else { Some(find(volume, &USERS, user)?) };
    let gid = match group {
        None => None,
        Some("") if user.is_empty() => None,
        Some("") => Some(own_group(volume, user)?),
        Some(group) => Some(find(volume, &GROUPS, group)?),
    };
    Ok(Owners { uid, gid })
}

/// Reads a group.
pub(crate) fn parse_group(volume: &Volume, text: &str) -> Try<Owners> {
    let gid = if text.is_empty() { None } else { Some(find(volume, &GROUPS, text)?) };
    Ok(Owners { uid: None, gid })
}

/// A table of the image.
pub(crate) struct Table {
    path: &'static str,
    of: &'static str,
}

/// The users.
pub(crate) const USERS: Table = Table { path: "/etc/passwd", of: "user" };
/// The groups.
pub(crate) const GROUPS: Table = Table { path: "/etc/group", of: "group" };

/// Names and numbers of a table, in its order; none if the image has no such table.
pub(crate) fn entries(volume: &Volume, table: &Table) -> Try<Vec<(Vec<u8>, u32)>> {
    let text = match read(volume, table.path) {
        Ok(text) => text,
        Err(why) if why.is_not_found() => return Ok(Vec::new()),
        Err(why) => return Err(why.of(table.path)),
    };
    Ok(parse_table(&text))
}

/// Names and numbers of the host's own table; none if it cannot be read.
pub(crate) fn entries_of_host(table: &Table) -> Vec<(Vec<u8>, u32)> {
    std::fs::read(table.path)
        .map(|text| parse_table(&String::from_utf8_lossy(&text)))
        .unwrap_or_default()
}

fn parse_table(text: &str) -> Vec<(Vec<u8>, u32)> {
    let entry = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        Some((name.as_bytes().to_vec(), fields.nth(1)?.parse().ok()?))
    };
    text.lines().filter_map(entry).collect()
}

/// A name of a table, or else a number. `+` before a number says that it is no name.
fn find(volume: &Volume, table: &Table, name: &str) -> Try<u32> {
    let digits = name.strip_prefix('+').unwrap_or(name);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let Table { path, of } = table;
    let number = || match digits.parse() {
        // The largest is chown(2)'s word for "leave it".
        Ok(number) if number != u32::MAX => Ok(number),
        _ => Err(Why::new(format!("invalid {of}: '{name}'"))),
    };
    if is_number && name.starts_with('+') {
        return number();
    }
    let text = match read(volume, path) {
        Ok(text) => text,
        Err(why) if why.is_not_found() && is_number => return number(),
        Err(why) if why.is_not_found() => {
            let why = format!("invalid {of}: '{name}': the image has no {path}; give a number");
            return Err(Why::new(why));
        }
        Err(why) => return Err(why.of(path)),
    };
    match field(&text, name, 2) {
        Some(found) => {
            found.parse().map_err(|_| Why::new(format!("a line of {name} is no entry")).of(path))
        }
        None if is_number => number(),
        None => Err(Why::new(format!("invalid {of}: '{name}' is not in {path} of the image"))),
    }
}

/// The group that a user logs in with.
fn own_group(volume: &Volume, user: &str) -> Try<u32> {
    let path = USERS.path;
    let text = read(volume, path).map_err(|why| why.of(path))?;
    let found = field(&text, user, 3).and_then(|gid| gid.parse().ok());
    found.ok_or_else(|| Why::new(format!("invalid user: '{user}' is not in {path} of the image")))
}

/// What the image's own table calls a user, or `UNKNOWN` as stat(1) says.
pub(crate) fn user_name(volume: &Volume, uid: u32) -> String {
    name_of(volume, &USERS, uid)
}

/// The same of a group.
pub(crate) fn group_name(volume: &Volume, gid: u32) -> String {
    name_of(volume, &GROUPS, gid)
}

fn name_of(volume: &Volume, table: &Table, number: u32) -> String {
    let text = read(volume, table.path).unwrap_or_default();
    let number = number.to_string();
    let line = text.lines().find(|line| line.split(':').nth(2) == Some(&number));
    line.and_then(|line| line.split(':').next()).unwrap_or("UNKNOWN").to_owned()
}

/// A field of the line of a name; the first line counts.
fn field<'t>(text: &'t str, name: &str, number: usize) -> Option<&'t str> {
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(number)
}

fn read(volume: &Volume, path: &str) -> Try<String> {
    let found = resolve(volume, path.as_bytes(), Last::Follow)?;
    let inode = found.inode();
    if inode.kind() != FileKind::Regular {
        return Err(Why::new("not a regular file"));
    }
    let size = volume.attr(inode).size;
    if size > TABLE_BYTES_MAX {
        return Err(Why::new("larger than any table of users"));
    }
    let file = volume.open_file(inode)?;
    let mut text = vec![0; usize::try_from(size).unwrap_or(0)];
    let mut len = 0;
    while len < text.len() {
        match file.read_at(len as u64, &mut text[len..])? {
            0 => break,
            got => len += got,
        }
    }
    text.truncate(len);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_tables() {
        let table = "root:x:0:0::/root:/bin/sh\n\nbroken\nuser:x:1000:100::\nuser:x:5:5\n";
        assert_eq!(field(table, "user", 2), Some("1000"));
        assert_eq!(field(table, "root", 3), Some("0"));
        assert_eq!(field(table, "broken", 2), None);
        assert_eq!(field(table, "x", 2), None);
    }
}
