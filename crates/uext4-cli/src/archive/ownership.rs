//! Owners on their way into an image or out of it: names become numbers by the image's own tables
//! of users and groups, and rules of `--map-owner` change numbers.

use std::collections::HashMap;
use std::str::FromStr;

use uext4::Volume;
use uext4_archive::{Acl, AclEntry, AclTag, Qualifier, XATTR_ACCESS, XATTR_DEFAULT};

use crate::failure::Why;
use crate::operands::Try;
use crate::owners::{self, Table};

/// What the help says of `--map-owner`.
pub(crate) const RULE_HELP: &str = "\
Change owners and groups: FROM:TO or FROM:TO:COUNT, numbers; FROM may be '*' for all. u: before it
changes users alone, g: groups alone. The first rule that fits counts";

/// How owners change.
#[derive(Default)]
pub(crate) struct Ownership {
    users: Names,
    groups: Names,
    rules: Vec<OwnerRule>,
}

/// A table of users or groups. The first line of a name or number counts.
#[derive(Default)]
struct Names {
    ids: HashMap<Vec<u8>, u32>,
    names: HashMap<u32, Vec<u8>>,
}

/// Users or groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Users,
    Groups,
}

/// A rule of `--map-owner`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerRule {
    /// Whose numbers; both if there is none.
    of: Option<Of>,
    /// The first number; all if there is none.
    from: Option<u32>,
    to: u32,
    count: u32,
}

impl FromStr for OwnerRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (of, rest) = match text.split_once(':') {
            Some(("u", rest)) => (Some(Of::Users), rest),
            Some(("g", rest)) => (Some(Of::Groups), rest),
            _ => (None, text),
        };
        let fields: Vec<&str> = rest.split(':').collect();
        let (from, to, count) = match fields[..] {
            [from, to] => (from, to, "1"),
            [from, to, count] if from != "*" => (from, to, count),
            _ => return Err("is not FROM:TO or FROM:TO:COUNT".to_owned()),
        };
        let number = |text: &str| {
            let number = text.parse::<u32>().ok().filter(|number| *number != u32::MAX);
            number.ok_or_else(|| format!("'{text}' is no number of a user"))
        };
        let from = if from == "*" { None } else { Some(number(from)?) };
        let (to, count) = (number(to)?, number(count)?);
        let fits = |first: u32| first.checked_add(count).is_some();
        if count == 0 || !fits(to) || !from.is_none_or(fits) {
            return Err("has a range that is empty or exceeds 4294967294".to_owned());
        }
        Ok(Self { of, from, to, count })
    }
}

impl OwnerRule {
    /// The new number, if the rule is for this one.
    fn apply(&self, of: Of, id: u32) -> Option<u32> {
        if self.of.is_some_and(|only| only != of) {
            return None;
        }
        match self.from {
            None => Some(self.to),
            Some(from) => {
                let place = id.checked_sub(from).filter(|place| *place < self.count)?;
                Some(self.to + place)
            }
        }
    }
}

impl Names {
    fn read(volume: &Volume, table: &Table) -> Try<Self> {
        let mut names = Self::default();
        names.add(owners::entries(volume, table)?);
        Ok(names)
    }

    /// Adds what is not known yet.
    fn add(&mut self, entries: Vec<(Vec<u8>, u32)>) {
        for (name, id) in entries {
            self.names.entry(id).or_insert_with(|| name.clone());
            self.ids.entry(name).or_insert(id);
        }
    }
}

impl Ownership {
    /// Reads the tables of the image, unless numbers alone count.
    pub(crate) fn of_image(volume: &Volume, numeric: bool, rules: &[OwnerRule]) -> Try<Self> {
        let mut ownership = Self { rules: rules.to_vec(), ..Self::default() };
        if !numeric {
            ownership.users = Names::read(volume, &owners::USERS)?;
            ownership.groups = Names::read(volume, &owners::GROUPS)?;
        }
        Ok(ownership)
    }

    /// The same for ACLs that name users and groups without a number, as GNU tar writes them: the
    /// names of the image first, then those of the host, which tar would take.
    pub(crate) fn of_names(volume: &Volume, rules: &[OwnerRule]) -> Try<Self> {
        let mut ownership = Self::of_image(volume, false, rules)?;
        ownership.users.add(owners::entries_of_host(&owners::USERS));
        ownership.groups.add(owners::entries_of_host(&owners::GROUPS));
        Ok(ownership)
    }

    /// The rules.
    pub(crate) fn rules(&self) -> &[OwnerRule] {
        &self.rules
    }

    fn map(&self, of: Of, id: u32) -> u32 {
        self.rules.iter().find_map(|rule| rule.apply(of, id)).unwrap_or(id)
    }

    /// The number of a user that an archive has by name and number.
    pub(crate) fn user(&self, name: &[u8], id: u32) -> u32 {
        self.map(Of::Users, self.users.ids.get(name).copied().unwrap_or(id))
    }

    /// The number of a group that an archive has by name and number.
    pub(crate) fn group(&self, name: &[u8], id: u32) -> u32 {
        self.map(Of::Groups, self.groups.ids.get(name).copied().unwrap_or(id))
    }

    /// The number and the name of a user of the image.
    pub(crate) fn user_of_image(&self, id: u32) -> (u32, &[u8]) {
        let id = self.map(Of::Users, id);
        (id, self.users.names.get(&id).map_or(b"", Vec::as_slice))
    }

    /// The number and the name of a group of the image.
    pub(crate) fn group_of_image(&self, id: u32) -> (u32, &[u8]) {
        let id = self.map(Of::Groups, id);
        (id, self.groups.names.get(&id).map_or(b"", Vec::as_slice))
    }

    /// The attribute of an ACL.
    pub(crate) fn acl(&self, acl: &Acl) -> Try<Vec<u8>> {
        let id_of = |is_user: bool, who: &Qualifier| {
            let (of, names) = match is_user {
                true => (Of::Users, &self.users),
                false => (Of::Groups, &self.groups),
            };
            let id = names.ids.get(&who.name).copied().or(who.id)?;
            Some(self.map(of, id))
        };
        acl.to_xattr(id_of).ok_or_else(|| {
            let unknown = |entry: &&AclEntry| match &entry.tag {
                AclTag::User(who) => id_of(true, who).is_none(),
                AclTag::Group(who) => id_of(false, who).is_none(),
                _ => false,
            };
            let name =
                acl.entries().iter().find(unknown).map_or(&b""[..], |entry| match &entry.tag {
                    AclTag::User(who) | AclTag::Group(who) => &who.name,
                    _ => b"",
                });
            let name = crate::spec::show(name);
            let why = "ACL left out: neither the image nor the host knows";
            Why::new(format!("{why} '{name}', which has no number in the archive"))
        })
    }

    /// The value of an attribute, whose owners are changed if it is an ACL.
    pub(crate) fn value(&self, name: &[u8], value: Vec<u8>) -> Vec<u8> {
        if self.rules.is_empty() || name != XATTR_ACCESS && name != XATTR_DEFAULT {
            return value;
        }
        let acl = Acl::from_xattr(&value);
        acl.and_then(|acl| self.acl(&acl).ok()).unwrap_or(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_map_numbers() {
        let rules = ["u:0:5", "1000:0", "100000:0:65536", "g:*:7"].map(|it| it.parse().unwrap());
        let ownership = Ownership { rules: rules.to_vec(), ..Ownership::default() };
        for (id, user, group) in [
            (0, 5, 7),
            (1, 1, 7),
            (1000, 0, 0),
            (100_000, 0, 0),
            (165_535, 65_535, 65_535),
            (165_536, 165_536, 7),
        ] {
            assert_eq!((ownership.user(b"", id), ownership.group(b"", id)), (user, group), "{id}");
        }
        let acl = Acl::parse(b"user::rwx,user:1000:r-x,group::---,group:3:rwx,other::---").unwrap();
        let mapped = Acl::from_xattr(&ownership.acl(&acl).unwrap()).unwrap().to_text();
        assert_eq!(mapped, b"user::rwx,user:0:r-x,group::---,group:7:rwx,other::---");
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for text in [
            "",
            "1",
            "a:b",
            "1:2:0",
            "1:4294967295",
            "1:4294967294:9",
            "*:1:2",
            "x:1:2:3",
            "4294967290:1:9",
            "-1:2",
        ] {
            assert!(text.parse::<OwnerRule>().is_err(), "{text}");
        }
    }
}
